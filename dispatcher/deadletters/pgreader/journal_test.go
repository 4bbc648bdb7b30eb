package pgreader

import (
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// An event's history has its records of the journal: the oldest first, a bounded number, also when its row is gone, and
// only those of the reader's namespace and topics.
//
// CONTRACT: C-61
func TestHistoryHasTheJournal(t *testing.T) {
	t.Parallel()
	pool, r := outbox(t, "orders")
	pgtest.Exec(pool, `select outbox.outbox_journal_set(true)`)
	story(t, pool)
	operations := func(id string) (all []string) {
		t.Helper()
		history, err := r.Event(t.Context(), id, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, record := range history.Journal {
			all = append(all, record.Operation)
			if record.LSN == "" || record.Transaction == "" || record.Login == "" || record.At.IsZero() || record.Topic != "orders" {
				t.Errorf("a record is %+v", record)
			}
		}
		return all
	}
	pgtest.Exec(pool, `update outbox.outbox_events set status = 'processing', lease = 8, locked_by = id, locked_until = now() where id = $1`, eventID(6))
	if got := operations("key-6"); len(got) != 2 || got[0] != "insert" || got[1] != "claim" {
		t.Errorf("the records are %v", got)
	}
	pgtest.Exec(pool, `delete from outbox.outbox_events where id = $1`, eventID(6))
	if got := operations(eventID(6)); len(got) != 3 || got[2] != "change" {
		t.Errorf("of a row that is gone the records are %v", got)
	}
	for _, n := range []int{3, 5} { // of another topic, and of another namespace
		if history, err := r.Event(t.Context(), eventID(n), false); err == nil {
			t.Errorf("event %d: %+v", n, history)
		}
	}
	for range deadletters.MaxRecords {
		pgtest.Exec(pool, `update outbox.outbox_events set attempts = attempts + 1 where id = $1`, eventID(1))
	}
	if got := operations(eventID(1)); len(got) != deadletters.MaxRecords || got[0] != "change" {
		t.Errorf("%d records, the first is %s", len(got), got[0])
	}
}
