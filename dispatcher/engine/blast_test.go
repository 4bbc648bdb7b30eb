package engine_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// orderings are the configurations without and with order per key.
var orderings = []dispatcher.Ordering{dispatcher.OrderingNone, dispatcher.OrderingKey}

// A row that cannot be decoded is dead as a poison message. The rows that are claimed with it are delivered,
// each at its first attempt.
// CONTRACT: C-33, C-40
func TestUndecodableRow(t *testing.T) {
	for _, ordering := range orderings {
		t.Run(string(ordering), func(t *testing.T) {
			r := newRig(t)
			pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload, headers)
				select gen_random_uuid(), 'shop', 'orders', (n / 5)::text, '{}',
					case n when 251 then ('{"deep": ' || repeat('[', 10001) || repeat(']', 10001) || '}')::jsonb else '{}' end
				from generate_series(0, 499) as n`)
			log := &logBook{}
			sink := &book{}
			r.start(r.store(), sink, dispatcher.Config{Ordering: ordering, Logger: log.logger()})
			r.eventually("all others are delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == 499 })
			r.eventually("the row is dead", func() bool {
				return r.count("status = 'dead' and dead_reason = 'poison_message' and attempts = 1") == 1
			})
			if n, times := sink.delivered(); n != 499 || times != 499 {
				t.Errorf("%d events were delivered %d times, want 499 once each", n, times)
			}
			if n := pgtest.Value[int](r, `select count(*) from outbox.outbox_dead_letters where reason = 'poison_message' and error like '%headers%'`); n != 1 {
				t.Errorf("%d dead letters say that the headers cannot be read, want 1", n)
			}
			if lines := log.lines("the database is unreachable"); len(lines) > 0 {
				t.Errorf("the log says that the database is unreachable: %v", lines)
			}
		})
	}
}

// One outcome that the database refuses is found, named and left to its lease's end. All others are written,
// and the database is not reported as unreachable.
// CONTRACT: C-33
func TestRefusedOutcome(t *testing.T) {
	for _, ordering := range orderings {
		t.Run(string(ordering), func(t *testing.T) {
			r := newRig(t)
			refused := uuid.New()
			pgtest.Exec(r, fmt.Sprintf(`create function outbox.refuse() returns trigger language plpgsql as $$ begin
					raise exception 'not in this table'; end $$;
				create trigger refuse before insert on outbox.outbox_dead_letters for each row
				when (new.event_id = '%s') execute function outbox.refuse()`, refused))
			pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload) values ($1, 'shop', 'bad', 'k', '{}')`, refused)
			r.enqueue("bad", 50)
			r.enqueue("good", 100)
			log, seen := &logBook{}, &watcher{}
			sink := &book{respond: func(_ context.Context, e *dispatcher.Event) error {
				if e.Topic == "bad" {
					return dispatcher.Permanent(dispatcher.ReasonPermanentFailure, errRefused)
				}
				return nil
			}}
			d := r.start(r.store(), sink, dispatcher.Config{Ordering: ordering, Logger: log.logger(), Observer: seen, Lease: time.Minute})
			r.eventually("the other topic is delivered", func() bool { return r.count("topic = 'good' and status = 'delivered'") == 100 })
			r.eventually("the others of its topic are dead", func() bool { return r.count("topic = 'bad' and status = 'dead'") == 50 })
			r.eventually("the snapshot has it", func() bool {
				s := d.Snapshot()
				return s.Outcomes.Known && !s.Outcomes.OK && s.Source.OK && strings.Contains(s.Outcomes.Err.Error(), "not in this table")
			})
			r.enqueue("good", 100)
			r.eventually("the other topic continues", func() bool { return r.count("topic = 'good' and status = 'delivered'") == 200 })
			if n := r.count("status = 'processing'"); n != 1 {
				t.Errorf("%d rows are left to their leases, want the refused one", n)
			}
			if lines := log.lines("refuses an outcome"); len(lines) != 1 || !strings.Contains(lines[0], refused.String()) {
				t.Errorf("the log names the refused outcome %d times, want once with its event: %v", len(lines), lines)
			}
			if lines := log.lines("the database is unreachable"); len(lines) > 0 {
				t.Errorf("the log says that the database is unreachable: %v", lines)
			}
			if seen.refused != 1 {
				t.Errorf("%d refused outcomes were counted, want 1", seen.refused)
			}
		})
	}
}

// A row with no attempt left which the database refuses to mark dead stops no claim.
// CONTRACT: C-22, C-33
func TestClaimContinuesWhenMarkingDeadIsRefused(t *testing.T) {
	for _, ordering := range orderings {
		t.Run(string(ordering), func(t *testing.T) {
			r := newRig(t)
			pgtest.Exec(r, `create function outbox.refuse() returns trigger language plpgsql as $$ begin
					raise exception 'not in this table'; end $$;
				create trigger refuse before insert on outbox.outbox_dead_letters for each row execute function outbox.refuse()`)
			pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload, status, attempts, suspicion, locked_by, locked_until)
				values (gen_random_uuid(), 'shop', 'good', 'k', '{}', 'processing', 20, 5, gen_random_uuid(), now() - interval '1 s')`)
			r.enqueue("good", 100)
			d := r.start(r.store(), &book{}, dispatcher.Config{Ordering: ordering})
			r.eventually("the others are delivered", func() bool { return r.count("status = 'delivered'") == 100 })
			if s := d.Snapshot(); !s.Outcomes.Known || s.Outcomes.OK || !s.Source.OK {
				t.Errorf("the snapshot says %+v of outcomes, and %+v of the database", s.Outcomes, s.Source)
			}
			pgtest.Exec(r, `drop trigger refuse on outbox.outbox_dead_letters`)
			if n := r.count("status = 'processing'"); n != 1 {
				t.Errorf("%d rows are left as they were, want 1", n)
			}
		})
	}
}

// What a dispatcher holds in memory is what MaxBytes says, whatever payloads, headers and slow calls do.
// CONTRACT: C-35
func TestMemoryIsBounded(t *testing.T) {
	const maxBytes, hanging, slack = 32 << 20, 13, 40 << 20 // one call more is the topic's: two of 16 are left to others
	r := rig{t, pgtest.Pool(t, pgtest.Migrated(t))}         // without other tests: the heap is that of the process
	// 100 payloads of 1 MB and 200 events with headers of 60 KB.
	pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, payload)
		select gen_random_uuid(), 'shop', 'large', to_jsonb(repeat('x', 1000000)) from generate_series(1, 100)`)
	pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, payload, headers)
		select gen_random_uuid(), 'shop', 'headers', '{}', jsonb_build_object('h', repeat('y', 60000)) from generate_series(1, 200)`)
	var mu sync.Mutex
	held, most := 0, uint64(0)
	release := make(chan struct{})
	sink := &book{respond: func(_ context.Context, e *dispatcher.Event) error {
		mu.Lock()
		hangs := e.Topic == "large" && held < hanging
		if hangs {
			held++
		}
		mu.Unlock()
		if hangs {
			<-release
		}
		return nil
	}}
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	d := r.start(r.store(), sink, dispatcher.Config{MaxBytes: maxBytes, Concurrency: 16})
	for r.count("status = 'delivered'") < 300-hanging {
		var now runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&now)
		most = max(most, now.HeapAlloc-min(now.HeapAlloc, before.HeapAlloc))
		if s := d.Snapshot(); s.InFlightBytes > maxBytes+2_000_000 {
			t.Fatalf("%d bytes are in flight, want at most %d and one event", s.InFlightBytes, maxBytes)
		}
	}
	t.Logf("live heap at most %d MiB", most>>20)
	if most > maxBytes+slack {
		t.Errorf("the live heap grew by %d MiB, want at most %d", most>>20, (maxBytes+slack)>>20)
	}
	close(release)
	r.eventually("all are delivered", func() bool { return r.count("status = 'delivered'") == 300 })
}
