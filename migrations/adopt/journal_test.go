package adopt_test

import (
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/journal"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

// What an adoption moves and gives back is no difference between the journal and the rows; the same by hand is.
func TestTheJournalKnowsAnAdoption(t *testing.T) {
	r := newRig(t, m10Service())
	r.exec(`select outbox.outbox_journal_set(true)`)
	illegal := func(when string, want int64) {
		t.Helper()
		report, err := journal.Check(t.Context(), r.pool, journal.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if report.Found != want {
			t.Errorf("%s: %d differences, want %d: %+v", when, report.Found, want, report.Differences)
		}
		for _, d := range report.Differences {
			if d.Kind != journal.Illegal {
				t.Errorf("%s: %+v", when, d)
			}
		}
	}
	r.step(adopt.ToShadow, adopt.Shadow, true)
	for n := range 3 {
		r.produce(t.Context(), n)
	}
	r.exec(`update m10_recovery.outbox set retry_count = 2 where payload ->> 'n' <> '0'`)
	r.step(adopt.Cutover, adopt.Live, true)
	r.produce(t.Context(), 3)
	illegal("after the cut-over", 0)
	if marks := scalar[int](r, `select count(*) from outbox.outbox_journal where operation = 'adopt'`); marks != 2 {
		t.Errorf("%d events are marked as moved, want those 2 with attempts", marks)
	}

	r.exec(`delete from outbox.outbox_events where payload ->> 'n' = '1'`) // one that the adoption marked, by hand
	illegal("after a deletion by hand", 1)
	if back := r.step(adopt.Back, adopt.None, true); back.Returned != 3 {
		t.Errorf("%d events returned", back.Returned)
	}
	illegal("after the way back", 1)
	r.exec(`insert into outbox.outbox_events (id, namespace, topic, payload, attempts) values (gen_random_uuid(), 'shop', 'm10', '{}', 3)`)
	illegal("after an insert by hand", 2)

	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	r.step(adopt.Back, adopt.None, true)
	illegal("after it all again", 2)
}
