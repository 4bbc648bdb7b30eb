package pgstore_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// What the page says to run on a dead event does what it says: the replayed one is
// delivered again, and the discarded one stays dead and is not counted.
// CONTRACT: C-41, C-42
func TestReadmeOnDeadEvents(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var statements []string
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for _, statement := range strings.Split(block[1], ";\n") {
			if strings.Contains(statement, "'ID'") {
				statements = append(statements, statement)
			}
		}
	}
	if len(statements) != 2 {
		t.Fatalf("the page has %d statements for an event, want one to replay and one to discard", len(statements))
	}
	p := newOutbox(t, pgtest.Migrated(t))
	store := p.Store("shop", uuid.New())
	request := dispatcher.ClaimRequest{Shares: []dispatcher.Share{{Topic: "orders", Limit: 10}}, Lease: time.Minute, MaxAttempts: 1}
	pgtest.Exec(p, `insert into outbox.outbox_events (id, namespace, topic, payload)
		select gen_random_uuid(), 'shop', 'orders', '{}' from generate_series(1, 3)`)
	claimed, err := store.Claim(t.Context(), request)
	if err != nil || len(claimed.Events) != 3 {
		t.Fatalf("claimed %d, %v", len(claimed.Events), err)
	}
	var failures []dispatcher.Failure
	for _, e := range claimed.Events {
		failures = append(failures, dispatcher.Failure{Lease: e.Lease(), Error: "refused", Reason: dispatcher.ReasonMaxRetriesExceeded})
	}
	if lost, err := store.Nack(t.Context(), failures); err != nil || len(lost) > 0 {
		t.Fatal(lost, err)
	}
	for i, statement := range statements {
		pgtest.Exec(p, strings.ReplaceAll(statement, "'ID'", "'"+failures[i].Lease.ID.String()+"'"))
	}
	again, err := store.Claim(t.Context(), request)
	if err != nil || len(again.Events) != 1 || again.Events[0].ID != failures[0].Lease.ID || again.Events[0].Attempt != 1 {
		t.Errorf("after the replay %+v were claimed, %v", again.Events, err)
	}
	if n := pgtest.Value[int](p, `select count(*) from outbox.outbox_dead_letters where resolution is null`); n != 1 {
		t.Errorf("%d dead letters are open, want the one that is open", n)
	}
	if n := pgtest.Value[int](p, `select count(*) from outbox.outbox_events where status = 'dead'`); n != 2 {
		t.Errorf("%d events are dead, want the discarded one and the one that is open", n)
	}
}
