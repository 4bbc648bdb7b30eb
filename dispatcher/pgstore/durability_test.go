package pgstore_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A crash of the database does not undo a dead letter that was reported done. An ack it may undo: the event is
// delivered again. The server is made to put off the writing that no transaction waits
// for, so that a crash does undo it.
// CONTRACT: C-22, C-41
func TestDeadLetterSurvivesCrash(t *testing.T) {
	t.Parallel()
	p, srv := newServer(t)
	pgtest.Exec(p, `alter system set wal_writer_delay = '10s'`)
	pgtest.Exec(p, `alter system set wal_writer_flush_after = '1GB'`)
	pgtest.Exec(p, `select pg_reload_conf()`)
	crash := crash{p, srv, p.Store("shop", uuid.New())}

	undone := false
	for range 5 { // the put-off writing may just be due
		id, held := crash.hold()
		lost, err := crash.store.Ack(t.Context(), held)
		undone = undone || crash.after(lost, err, id).Status == "processing"
	}
	if !undone {
		t.Error("no crash undid an ack: this test proves nothing")
	}

	id, held := crash.hold()
	lost, err := crash.store.Nack(t.Context(), []dispatcher.Failure{{Lease: held[0], Reason: dispatcher.ReasonPoisonMessage}})
	if row := crash.after(lost, err, id); row.Status != "dead" || len(p.DeadLetters(id)) != 1 {
		t.Errorf("after a dead letter and a crash the row is %+v with %d dead letters, want it dead", row, len(p.DeadLetters(id)))
	}

	id, _ = crash.hold()
	pgtest.Exec(p, `update outbox.outbox_events set locked_until = now() - interval '1 second', suspicion = 5 where id = $1`, id)
	claimed, err := crash.store.Claim(t.Context(), dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: "orders", Limit: 1}}, Lease: time.Hour, MaxAttempts: 1,
	})
	if len(claimed.Dead) != 1 {
		t.Errorf("dead are %v, want one", claimed.Dead)
	}
	if row := crash.after(nil, err, id); row.Status != "dead" || len(p.DeadLetters(id)) != 1 {
		t.Errorf("after a dead letter at a claim and a crash the row is %+v with %d dead letters, want it dead", row, len(p.DeadLetters(id)))
	}
}

type crash struct {
	planned
	srv   *postgres.Server
	store dispatcher.Store
}

// hold makes an outbox of one row that is leased, and this durable.
func (c crash) hold() (uuid.UUID, []dispatcher.Lease) {
	c.Helper()
	pgtest.Exec(c, `delete from outbox.outbox_events`)
	c.fill(1, "orders")
	claimed, err := c.store.Claim(c.Context(), share("orders", 1))
	if err != nil || len(claimed.Events) != 1 {
		c.Fatalf("claimed %v, %v", claimed, err)
	}
	pgtest.Exec(c, `comment on table outbox.outbox_events is 'a commit that waits for the disk, and all before it'`)
	return claimed.Events[0].ID, leasesOf(claimed.Events)
}

// after crashes the server and reads the row again.
func (c crash) after(lost []dispatcher.Lease, err error, id uuid.UUID) storetest.Row {
	c.Helper()
	c.srv.Kill()
	if err != nil || len(lost) > 0 {
		c.Fatalf("lost %v, %v", lost, err)
	}
	if err := c.srv.Restart(c.Context()); err != nil {
		c.Fatal(err)
	}
	c.Reset()
	return c.Row(id)
}
