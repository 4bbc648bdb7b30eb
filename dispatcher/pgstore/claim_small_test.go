package pgstore_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A claim of a few rows takes what is due as an ordinary one does, but for rows that need more: those are left as
// they are, and the next ordinary claim takes them or marks them dead.
// CONTRACT: C-20 to C-22
func TestSmallClaim(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	store := o.Store("shop", uuid.New())
	request := dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: "orders", Limit: 3}, {Topic: "others", Limit: 1}},
		Lease:  time.Minute, MaxAttempts: 3, MaxBytes: 120, Small: true,
	}
	claim := func(few bool) (seqs []int64, dead int) {
		request.Small = few
		claimed, err := store.Claim(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		if age := time.Since(claimed.At); len(claimed.Events) > 0 && (age < -time.Hour || age > time.Hour) {
			t.Errorf("the claim was at %v", claimed.At)
		}
		for _, e := range claimed.Events {
			seqs = append(seqs, e.Seq)
		}
		if n := pgtest.Value[int](o, `select count(*) from outbox.outbox_events where seq = any ($1) and locked_until > now() + interval '30 seconds'`, seqs); n != len(seqs) {
			t.Errorf("%d of the rows %v are leased for a minute", n, seqs)
		}
		if lost, err := store.Extend(t.Context(), leasesOf(claimed.Events), time.Minute); err != nil || len(lost) > 0 {
			t.Errorf("lost %v, %v", lost, err)
		}
		return seqs, len(claimed.Dead)
	}
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload) values (gen_random_uuid(), 'shop', 'orders', '{}')`)
	if got, _ := claim(true); !slices.Equal(got, []int64{1}) {
		t.Errorf("the first claim of the topics returned %v", got) // it is an ordinary one
	}
	claim(false)

	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload)
		select ('01900000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 'shop', case when n > 10 then 'others' else 'orders' end, '{}'
		from generate_series(2, 12) as n`)
	for _, change := range []string{
		`attempts = 3 where seq = 2`,
		`payload = to_jsonb(repeat('x', 29)) where seq = 3`, // 31 bytes
		`payload = to_jsonb(repeat('x', 28)) where seq = 4`, // 30, a quarter of MaxBytes
		`status = 'processing', locked_by = id, attempts = 2, locked_until = now() - interval '1 second' where seq = 5`,
		`status = 'processing', locked_by = id, attempts = 2, locked_until = now() + interval '1 hour' where seq = 6`,
		`next_attempt_at = now() + interval '1 hour' where seq = 7`,
		`status = 'delivered' where seq = 8`,
		`namespace = 'store' where seq = 9`,
		`headers = '{"a": "b"}', attempts = 2 where seq = 10`,
	} {
		pgtest.Exec(o, `update outbox.outbox_events set `+change)
	}
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload) values (gen_random_uuid(), 'shop', 'orders', '{}')`)
	locked, err := o.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locked.Rollback(t.Context()) }()
	if _, err := locked.Exec(t.Context(), `select from outbox.outbox_events where seq = 13 for update`); err != nil {
		t.Fatal(err)
	}
	if got, dead := claim(true); !slices.Equal(got, []int64{4, 5, 10, 11}) || dead > 0 {
		t.Errorf("the claim of a few returned %v, and %d became dead", got, dead)
	}
	if got, _ := claim(true); !slices.Equal(got, []int64{12}) {
		t.Errorf("the second returned %v", got)
	}
	if got, _ := claim(true); len(got) > 0 {
		t.Errorf("the third returned %v", got)
	}
	if attempts := pgtest.Value[string](o, `select string_agg(attempts::text, ' ' order by seq) from outbox.outbox_events where seq > 1`); attempts != "3 0 1 3 2 0 0 0 3 1 1 0" {
		t.Errorf("attempts are %s", attempts)
	}
	if err := locked.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, _ := claim(true); !slices.Equal(got, []int64{13}) {
		t.Errorf("the row that was locked came as %v", got)
	}
	request.Shares[1].Limit = 9
	if got, dead := claim(false); !slices.Equal(got, []int64{3}) || dead != 1 {
		t.Errorf("the ordinary claim returned %v, and %d became dead, want row 3, and row 2 dead", got, dead)
	}
}

// It reads the index of live rows from where the last claims ended, whatever the planner knows.
// CONTRACT: C-2
func TestSmallClaimPlan(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	p := newPlanned(t, pgtest.Migrated(t))
	p.fill(20_000, "orders", "others")
	pgtest.Exec(p, `update outbox.outbox_events set status = 'delivered'`)
	pgtest.Exec(p, `vacuum analyze outbox.outbox_events`) // of no live rows
	pgtest.Exec(p, `prepare few as `+pgstore.ClaimSmallSQL())
	p.fill(2000, "orders", "others")
	few := func(from string) plan {
		return p.explain(fmt.Sprintf(`execute few ('shop', '{orders,others}', %s, 20, 10, 1000, '%s', '1 minute')`, from, worker))
	}
	for from, rows := range map[string]int{"- interval '5 years'": 20, "- interval '1 hour'": 20, "": 0} {
		plan := few("'" + pgtest.Value[string](p.outbox, `select (now() `+from+`)::text`) + "'::timestamptz")
		if !plan.indexes()["outbox_events_live"] || plan.has("Seq Scan") || plan.has("Sort") {
			t.Errorf("the plan uses %v", plan.indexes())
		}
		if n := plan.buffers(); plan.Rows != rows || n > 300 {
			t.Errorf("%d rows cost %d buffers", plan.Rows, n)
		}
	}
}
