package main

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Rows that an adoption moves and gives back are not differences between the journal and the rows; the same by hand are.
func TestVerifyKnowsAnAdoption(t *testing.T) {
	t.Parallel()
	a := newAdopter(t)
	file := a.file(t, a.owner, "journal: {mode: Enabled}\n")
	run(t, "", "migrate", "up", "-f", file).ok(t)
	illegal := func(when string, want int) {
		t.Helper()
		result := run(t, "", "verify", "-f", file, "-o", "json")
		if want == 0 {
			result.ok(t)
		} else {
			result.ended(t, 3)
		}
		var report struct {
			Found       int
			Differences []struct{ Kind string }
		}
		check(t, json.Unmarshal([]byte(result.out), &report))
		if report.Found != want {
			t.Errorf("%s: %d differences, want %d:\n%s", when, report.Found, want, result.out)
		}
		for _, d := range report.Differences {
			if d.Kind != "Illegal" {
				t.Errorf("%s: a difference is %s, want Illegal", when, d.Kind)
			}
		}
	}
	adopted := func(steps ...string) {
		t.Helper()
		for _, step := range steps {
			args := []string{"adopt", step, "-f", file, "--name", "overview"}
			if step == "shadow" {
				args = append(args, "--layout", "overview", "--table", "public.events", "--namespace", "shop")
			}
			run(t, "", args...).ok(t)
		}
	}
	produce := func(n int) {
		a.exec(t, fmt.Sprintf(`insert into public.events (topic, payload) values ('orders', '{"n": %d}')`, n))
	}
	adopted("shadow")
	for n := range 3 {
		produce(n)
	}
	a.exec(t, `update public.events set attempt_count = 2 where payload ->> 'n' <> '0'`)
	adopted("cutover")
	produce(3)
	illegal("after the cut-over", 0)
	marks := pgtest.Value[int](a.admin, `select count(*) from outbox.outbox_journal where operation = 'adopt'`)
	if marks != 2 {
		t.Errorf("%d events are marked as moved, want those 2 with attempts", marks)
	}

	a.exec(t, `delete from outbox.outbox_events where payload ->> 'n' = '1'`) // one that the adoption marked, by hand
	illegal("after a deletion by hand", 1)
	// A dispatcher was killed with this one, and none runs.
	a.exec(t, `update outbox.outbox_events set status = 'processing', attempts = attempts + 1, lease = 1, locked_by = id, locked_until = now() - interval '1 second' where payload ->> 'n' = '3'`)
	run(t, "", "adopt", "back", "-f", file).ok(t, "; 3 events returned")
	illegal("after the way back", 1)
	a.exec(t, `insert into outbox.outbox_events (id, namespace, topic, payload, attempts) values (gen_random_uuid(), 'shop', 'orders', '{}', 3)`)
	illegal("after an insert by hand", 2)

	adopted("shadow", "cutover", "back")
	illegal("after it all again", 2)
}
