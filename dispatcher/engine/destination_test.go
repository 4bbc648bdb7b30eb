package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A destination that cannot be reached costs no attempt, neither at the start nor in the middle,
// and delivery continues by itself when it has recovered.
//
// CONTRACT: C-32
func TestUnreachableDestinationSpendsNoAttempt(t *testing.T) {
	const events, concurrency = 400, 4
	r := newRig(t)
	r.enqueue("orders", events)
	sink := &book{}
	gate := &sinktest.Switch{Sink: sink}
	sink.respond = func(context.Context, *dispatcher.Event) error {
		if n, _ := sink.delivered(); n == events/4 {
			gate.Down.Store(true)
		}
		return nil
	}
	gate.Down.Store(true)
	log := &logBook{}
	d := r.start(r.store(), gate, dispatcher.Config{BatchSize: 50, Concurrency: concurrency, Logger: log.logger()})
	unreachable := func() bool { return d.Snapshot().Breaker == dispatcher.BreakerUnreachable }
	r.eventually("the breaker notices at the start", unreachable)
	need.Want(t, events, "%d of %d rows were left alone", r.count("status = 'pending' and attempts = 0"))
	if s := d.Snapshot().Sink; s.OK || !s.Known || !dispatcher.IsUnavailable(s.Err) {
		t.Errorf("the snapshot says of the sink %+v", s)
	}
	gate.Down.Store(false)
	r.eventually("the destination becomes unreachable in the middle", gate.Down.Load)
	r.eventually("the breaker notices", unreachable)
	r.eventually("everything that is not delivered waits with its attempt", func() bool {
		return r.count("status = 'pending' and attempts = 0 or status = 'delivered' and attempts = 1") == events
	})
	if n := r.count("status = 'pending'"); n == 0 || n == events {
		t.Fatalf("%d rows wait; the destination did not become unreachable in the middle", n)
	}
	gate.Down.Store(false)
	r.eventually("every row is delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == events })
	sink.wantOnce(t, events)
	r.eventually("the snapshot says that all is well", func() bool {
		s := d.Snapshot()
		return s.Sink.OK && s.Breaker == dispatcher.BreakerClosed && s.InFlightRows == 0
	})
	if n := len(log.lines("the destination cannot be reached")); n != 1 && n != 2 { // the second time, it may be back at the first probe
		t.Errorf("the log says %d times that the destination is unreachable, want 1 or 2", n)
	}
	// A delivery that got through before the destination became unreachable may end after the breaker has
	// opened, and close it for a moment: as often as there are deliveries at once, and no more.
	if n := len(log.lines("its destination cannot be reached")); n < 1 || n > 1+concurrency {
		t.Errorf("the log says %d times that the topic is paused, want 1, or a few more for late successes", n)
	}
}

// A trigger that refuses every outcome of a topic harms no others in the same flush: they are written, once each, and the
// log stays short.
// CONTRACT: C-33
func TestManyRefusedOutcomesHarmNoOther(t *testing.T) {
	const events, lease = 1000, 2 * time.Minute
	r := newRig(t)
	pgtest.Exec(r, `create function outbox.refuse() returns trigger language plpgsql as $$ begin raise exception 'not in this table'; end $$;
		create trigger refuse before update on outbox.outbox_events for each row
		when (new.topic = 'bad' and new.status = 'delivered') execute function outbox.refuse()`)
	pgtest.Exec(r, fmt.Sprintf(`insert into outbox.outbox_events (id, namespace, topic, payload)
		select gen_random_uuid(), 'shop', case n %% 2 when 0 then 'bad' else 'good' end, '{}' from generate_series(1, 2 * %d) as n`, events))
	log, seen, sink := &logBook{}, &watcher{}, &book{batch: 50}
	d := r.start(r.store(), sink, dispatcher.Config{Lease: lease, Logger: log.logger(), Observer: seen})
	began := time.Now()
	r.eventually("the others are delivered", func() bool { return r.count("topic = 'good' and status = 'delivered'") == events })
	r.eventually("the refused ones are left", func() bool {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		return seen.refused >= events
	})
	d.stop()
	need.Want(t, events, "the %d others were confirmed %d times", sink.topic("good"), events)
	if lines := log.lines("refuses an outcome"); len(lines) == 0 || len(lines) > 1+int(time.Since(began)/time.Minute) {
		t.Errorf("the log has %d lines of refused outcomes after %v, want one a minute", len(lines), time.Since(began))
	}
}

// Several dispatchers drain an outbox behind a PgBouncer in transaction mode that is restarted half-way,
// and so is the server behind it. Each event is delivered once.
func TestRestartsBehindPgBouncerDeliverNothingTwice(t *testing.T) {
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
	need.OK(t, bouncer.Restart(t.Context()))
	r.eventually("it notices that PgBouncer has recovered", func() bool { return running[0].Snapshot().Source.OK })

	need.OK(t, srv.Shutdown(t.Context()))
	r.awaitUnreachable(running[0], "; check the connection pooler, its limits, and that the server behind it runs")
	need.OK(t, srv.Restart(t.Context()))
	close(sink.open)
	r.eventually("every row is delivered", func() bool { return r.delivered() == events })
	sink.wantOnce(t, events)
}

// An idle dispatcher runs one query in each poll interval: it claims, or, when it has to
// find its topics and there are none, it lists them. In addition it compares the schema twice a minute.
func TestIdleDispatcherRunsOneQueryAPoll(t *testing.T) {
	const polls, interval = 40, 20 * time.Millisecond
	for name, test := range map[string]struct {
		topics       []string
		polls, never string
	}{
		"its topics": {[]string{"orders", "payments"}, "claim", "topics"},
		"all topics": {nil, "topics", "claim"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			store, began := newCounting(r.store()), time.Now()
			r.start(store, &book{}, dispatcher.Config{Topics: test.topics, PollInterval: interval})
			r.eventually("it polls", func() bool { return store.n(test.polls) >= polls })
			n, others, took := store.n(test.polls), store.n(test.never), time.Since(began)
			if most := int64(took/interval) + 1; n > most || others != 0 || store.n("extend") != 0 {
				t.Errorf("in %v it polled %d times, want at most %d; and ran %d other queries and wrote %d times, want none",
					took, n, most, others, store.n("extend"))
			}
			if c, most := store.n("schema"), int64(took/(30*time.Second))+1; c > most {
				t.Errorf("in %v it compared the schema %d times, want at most %d", took, c, most)
			}
		})
	}
}
