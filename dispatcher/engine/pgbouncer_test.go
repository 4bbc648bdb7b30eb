package engine_test

import (
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Several dispatchers drain an outbox behind a PgBouncer in transaction mode that is restarted half-way,
// and so is the server behind it. Each event is delivered once.
func TestPgBouncer(t *testing.T) {
	const events = 2000
	r, srv := ownServer(t)
	bouncer := pgtest.Bouncer(t, srv)
	r.enqueue("orders", events)
	sink, log := newGate(events/2), &logBook{}
	var running []*running
	for range 3 {
		through := rig{t, dispatcherPool(t, bouncer.DSN("postgres"))}
		running = append(running, through.start(through.store(), sink, dispatcher.Config{BatchSize: 50, Lease: 10 * time.Second, Concurrency: 4, GracePeriod: time.Second, Logger: log.logger()}))
	}
	receive(t, "a half is delivered", sink.reached)
	if down := log.lines("the database is unreachable"); len(down) > 0 {
		t.Errorf("a statement failed before anything was restarted: %s", down[0])
	}

	bouncer.Kill()
	running[0].Wake()
	r.eventually("a dispatcher notices", func() bool { return !running[0].Snapshot().Source.OK })
	if err := bouncer.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.eventually("it notices that PgBouncer has recovered", func() bool { return running[0].Snapshot().Source.OK })

	if err := srv.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.awaitUnreachable(running[0], "; check the connection pooler, its limits, and that the server behind it runs")
	if err := srv.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(sink.open)
	r.eventually("every row is delivered", func() bool { return r.delivered() == events })
	if n, times := sink.delivered(); n != events || times != events {
		t.Errorf("%d events were delivered %d times, want %d once each", n, times, events)
	}
}
