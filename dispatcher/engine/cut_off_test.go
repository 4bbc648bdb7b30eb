package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A login whose statement_timeout is shorter than what a trigger makes of a full statement delivers everything, once.
// CONTRACT: C-35
func TestStatementTimeoutOfTheLogin(t *testing.T) {
	const events = 1000
	r := newRig(t)
	pgtest.Exec(r, `create function outbox.take_time() returns trigger language plpgsql as $$ begin perform pg_sleep(0.004); return new; end $$;
		create trigger take_time before update on outbox.outbox_events for each row execute function outbox.take_time()`)
	r.enqueue("orders", events)
	own := rig{t, dispatcherPool(t, r.Pool.Config().ConnString()+"&statement_timeout=600")}
	sink := &book{batch: 500}
	own.start(own.store(), sink, dispatcher.Config{Lease: 2 * time.Minute})
	r.eventually("every row is delivered", func() bool { return r.delivered() == events })
	if n, times := sink.delivered(); n != events || times != events {
		t.Errorf("%d events were confirmed %d times, want %d once each", n, times, events)
	}
}

// A trigger that refuses every outcome of a topic harms no others in the same flush: they are written, once each, and the
// log stays short.
// CONTRACT: C-33
func TestManyRefusedOutcomes(t *testing.T) {
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
	if n := sink.topic("good"); n != events {
		t.Errorf("the %d others were confirmed %d times", events, n)
	}
	if lines := log.lines("refuses an outcome"); len(lines) == 0 || len(lines) > 1+int(time.Since(began)/time.Minute) {
		t.Errorf("the log has %d lines of refused outcomes after %v, want one a minute", len(lines), time.Since(began))
	}
}
