package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// enqueueKeys commits n events of topic orders, in turn of so many keys: "0", "1", and so on.
func (r rig) enqueueKeys(n, keys int) {
	r.Helper()
	pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
		select ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'shop', 'orders', n % $2::integer, '{}'
		from generate_series(0, $1::integer - 1) as n`, n, keys)
}

// queue is a Sink that writes down the order per key. It fails when two events of a key are delivered
// at once, or one for the first time before an earlier one was delivered or became dead.
type queue struct {
	respond func(context.Context, *dispatcher.Event) error // defaults to a success
	batch   int
	ordered bool // it keeps the order of a key in a call
	keys    int  // seqs of a key are so far apart

	mu      sync.Mutex
	running map[string]uuid.UUID
	last    map[string]int64 // the latest seq that was delivered or is dead
	seen    map[string][]int64
	faults  []string
}

func (q *queue) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	if q.ordered {
		return dispatcher.InOrder(batch, func(_ int, e *dispatcher.Event) error {
			q.begin(e)
			err := (&sinktest.Func{Respond: q.respond}).Deliver(ctx, []*dispatcher.Event{e})[0]
			q.end(e, err)
			return err
		})
	}
	for _, e := range batch {
		q.begin(e)
	}
	errs := (&sinktest.Func{Respond: q.respond}).Deliver(ctx, batch)
	for i, e := range batch {
		q.end(e, errs[i])
	}
	return errs
}

func (q *queue) begin(e *dispatcher.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	key := e.AggregateID
	if q.running == nil {
		q.running, q.last, q.seen = map[string]uuid.UUID{}, map[string]int64{}, map[string][]int64{}
	}
	if other, ok := q.running[key]; ok {
		q.faults = append(q.faults, fmt.Sprintf("%s and %s of key %s are delivered at once", other, e.ID, key))
	}
	q.running[key] = e.ID
	if last, ok := q.last[key]; e.Seq > last+int64(q.keys) && (ok || e.Seq > int64(q.keys)) {
		q.faults = append(q.faults, fmt.Sprintf("seq %d of key %s is delivered after %d", e.Seq, key, last))
	}
	q.seen[key] = append(q.seen[key], e.Seq)
}

func (q *queue) end(e *dispatcher.Event, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.running, e.AggregateID)
	if _, dead := dispatcher.PermanentReason(err); err == nil || dead {
		q.last[e.AggregateID] = max(q.last[e.AggregateID], e.Seq)
	}
}

func (*queue) Probe(context.Context) error { return nil }
func (q *queue) BatchSize() int            { return max(q.batch, 1) }
func (q *queue) KeepsOrder() bool          { return q.ordered }
func (*queue) Close(context.Context) error { return nil }

// order is the seqs of a key's deliveries.
func (q *queue) order(key string) []int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.seen[key])
}

func (q *queue) check(t *testing.T) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, fault := range q.faults {
		t.Error(fault)
	}
}

// Three dispatchers deliver keys side by side and each key in order, whatever fails, and are stopped and
// started meanwhile.
// CONTRACT: C-50, C-30
func TestOrderPerKeySurvivesFailuresAndStops(t *testing.T) {
	for batch, ordered := range map[int]bool{1: false, 7: false, 30: true} {
		t.Run(fmt.Sprint("batch ", batch), func(t *testing.T) {
			const events, keys = 900, 13
			r := newRig(t)
			r.enqueueKeys(events, keys)
			sink := &queue{batch: batch, ordered: ordered, keys: keys, respond: func(context.Context, *dispatcher.Event) error {
				switch rand.IntN(25) {
				case 0:
					return errRefused
				case 1:
					return dispatcher.Permanent(dispatcher.ReasonPermanentFailure, errRefused)
				case 2:
					return dispatcher.Unavailable(errRefused)
				}
				return nil
			}}
			cfg := dispatcher.Config{Ordering: dispatcher.OrderingKey, BatchSize: 20, Concurrency: 4, MaxAttempts: 1000}
			r.start(r.store(), sink, cfg)
			r.start(r.store(), sink, cfg)
			for range 3 {
				d := r.start(r.store(), sink, cfg)
				left := r.count("live")
				r.eventually("some are delivered", func() bool { n := r.count("live"); return n == 0 || n < left-50 })
				d.stop()
			}
			r.eventually("all are done", func() bool { return r.count("live") == 0 })
			sink.check(t)
		})
	}
}

// What waits behind a failed event is given back with its attempt and never begun; other keys continue. It
// is delivered behind it, in order. The same applies when the destination was unreachable, and the event waits with its attempt.
// CONTRACT: C-50, C-32
func TestFailureDelaysItsKeyAlone(t *testing.T) {
	for name, test := range map[string]struct {
		result  error
		unspent int // how many wait with their attempt
	}{
		"refused":     {dispatcher.RetryAfter(time.Hour, errRefused), 18},
		"unreachable": {errUnreachable, 19},
	} {
		t.Run(name, func(t *testing.T) { holdsItsKeyAlone(t, test.result, test.unspent) })
	}
}

func holdsItsKeyAlone(t *testing.T, result error, unspent int) {
	const events, keys = 60, 3
	r := newRig(t)
	r.enqueueKeys(events, keys)
	pgtest.Exec(r, `update outbox.outbox_events set created_at = now() - interval '1 hour'`)
	refuse := make(chan struct{})
	sink := &queue{keys: keys, respond: func(_ context.Context, e *dispatcher.Event) error {
		select {
		case <-refuse:
			return nil
		default:
		}
		if e.Seq == 4 { // the second of key 0
			return result
		}
		return nil
	}}
	r.start(r.store(), sink, dispatcher.Config{Ordering: dispatcher.OrderingKey, BatchSize: 30, Concurrency: 4})
	r.eventually("all that can be is delivered", func() bool { return r.count("status = 'delivered'") == 41 })
	r.eventually("the rest is given back", func() bool { return r.count("status = 'pending'") == 19 })
	need.Want(t, unspent, "%d events have their attempts, want %d", r.count("status = 'pending' and attempts = 0"))
	need.Want(t, 1, "the failed event does not wait", r.count("seq = 4 and next_attempt_at > now() + interval '5 seconds'"))
	need.WantAll(t, []int64{1, 4}, "of the key %v were begun, want the first two", sink.order("0"))
	close(refuse)
	pgtest.Exec(r, `update outbox.outbox_events set next_attempt_at = now() where seq = 4`)
	r.eventually("the key continues", func() bool { return r.count("status = 'delivered'") == events })
	got := sink.order("0")
	need.That(t, len(got) == 21 && slices.IsSorted(got), "the key was delivered as %v, want each once, in order, and the failed one twice", got)
	sink.check(t)
}

// When the lease of a key's first event is lost, those behind it are not delivered by this worker.
// CONTRACT: C-50, C-23
func TestLostLeaseDelaysItsKey(t *testing.T) {
	r := newRig(t)
	r.enqueueKeys(6, 1)
	begun, cut := make(chan struct{}, 6), make(chan struct{}, 6)
	sink := &queue{keys: 1, respond: func(ctx context.Context, _ *dispatcher.Event) error {
		begun <- struct{}{}
		<-ctx.Done()
		cut <- struct{}{}
		return ctx.Err()
	}}
	d := r.start(r.store(), sink, dispatcher.Config{Ordering: dispatcher.OrderingKey, Lease: 30 * time.Second})
	receive(t, "the first delivery begins", begun)
	pgtest.Exec(r, `update outbox.outbox_events set locked_by = gen_random_uuid(), attempts = attempts + 1,
		locked_until = now() + interval '1 hour' where seq = 1`)
	receive(t, "the delivery is cut", cut)
	r.eventually("the others are given back", func() bool {
		return r.count("status = 'pending' and attempts = 0") == 5 && d.Snapshot().InFlightRows == 0
	})
	d.stop()
	need.WantAll(t, []int64{1}, "%v were begun, want only the first", sink.order("0"))
}

// A dead event ends the wait of its key with Continue. With Block the key waits until a person has
// handled it, and the depth names it.
// CONTRACT: C-50
func TestOnDeadContinuesOrBlocksItsKey(t *testing.T) {
	for _, onDead := range []dispatcher.OnDead{dispatcher.OnDeadContinue, dispatcher.OnDeadBlock} {
		t.Run(string(onDead), func(t *testing.T) {
			r := newRig(t)
			r.enqueueKeys(20, 2)
			sink := &queue{keys: 2, respond: func(_ context.Context, e *dispatcher.Event) error {
				if e.Seq == 3 { // the second of key 0
					return dispatcher.Permanent(dispatcher.ReasonPermanentFailure, errRefused)
				}
				return nil
			}}
			store := r.store()
			r.start(store, sink, dispatcher.Config{Ordering: dispatcher.OrderingKey, OnDead: onDead})
			if onDead == dispatcher.OnDeadBlock {
				r.eventually("the other key is delivered", func() bool { return r.count("status = 'delivered'") == 11 })
				r.eventually("the event is dead", func() bool { return r.count("status = 'dead'") == 1 })
				r.eventually("the key waits", func() bool { return r.count("status = 'pending' and attempts = 0") == 8 })
				pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
					values (gen_random_uuid(), 'shop', 'orders', '1', '{}')`)
				r.eventually("a later event is delivered", func() bool { return r.count("status = 'delivered'") == 12 })
				need.Want(t, 8, "%d events of the key wait after another claim, want 8", r.count("status = 'pending' and attempts = 0"))
				depth, err := store.Depth(t.Context(), nil)
				need.That(t, err == nil && depth.BlockedKeys.N == 1 && depth.Blocked[0].Key == "0", "depth is %+v, %v, want key 0 blocked", depth, err)
				need.WantAll(t, []int64{1, 3}, "of the key %v were begun, want the first two", sink.order("0"))
				pgtest.Exec(r, `update outbox.outbox_dead_letters set resolution = 'discarded', resolved_at = now(), resolved_by = 'test'`)
			}
			r.eventually("the key continues", func() bool { return r.count("live") == 0 })
			need.Want(t, 1, "%d events are dead, want 1", r.count("status = 'dead'"))
			sink.check(t)
		})
	}
}

// breathless is a Store that gives up each other search for due rows.
type breathless struct {
	dispatcher.Store
	gaveUp bool
}

func (b *breathless) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	if b.gaveUp = !b.gaveUp; b.gaveUp {
		return dispatcher.Claimed{Unfinished: true}, nil
	}
	return b.Store.Claim(ctx, req)
}

// RunOnce does not end before a search for due rows has ended.
// CONTRACT: C-50
func TestRunOnceContinuesASearch(t *testing.T) {
	r := newRig(t)
	r.enqueueKeys(20, 1)
	got, err := r.onceOn(&breathless{Store: r.store()}, &queue{keys: 1}, dispatcher.Config{Ordering: dispatcher.OrderingKey}, 100)
	need.That(t, err == nil && got == (engine.Outcome{Delivered: 20}), "it did %+v, %v, want 20 delivered", got, err)
}

// RunOnce delivers the rows of a key one after the other, as many as requested.
// CONTRACT: C-50
func TestRunOnceKeepsTheOrderOfAKey(t *testing.T) {
	r := newRig(t)
	r.enqueueKeys(150, 1)
	sink := &queue{keys: 1}
	cfg := dispatcher.Config{Ordering: dispatcher.OrderingKey, BatchSize: 10, Concurrency: 8}
	for _, test := range []struct{ n, want int }{{100, 100}, {100, 50}} {
		got, err := r.once(sink, cfg, test.n)
		want := (engine.Outcome{Delivered: test.want})
		need.That(t, err == nil && got == want, "RunOnce(%d) did %+v, %v, want %+v", test.n, got, err, want)
	}
	sink.check(t)
}

// A delivery that takes several leases keeps its row from a second worker that looks all the time.
//
// CONTRACT: C-31
func TestSlowDeliveryKeepsItsLease(t *testing.T) {
	r := newRig(t)
	const lease = 6 * time.Second
	begun, end := make(chan struct{}, 10), make(chan struct{})
	slow := func(context.Context, *dispatcher.Event) error { begun <- struct{}{}; <-end; return nil }
	cfg := dispatcher.Config{Lease: lease}
	sinks := [2]*book{{respond: slow}, {respond: slow}}
	for _, sink := range sinks {
		r.start(r.store(), sink, cfg)
	}
	r.enqueue("orders", 1)
	receive(t, "the delivery begins", begun)
	r.eventually("the lease has been extended", func() bool {
		return r.count(`status = 'processing' and locked_until > created_at + interval '15 seconds'`) == 1
	})
	close(end)
	r.eventually("the row is delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == 1 })
	need.Want(t, 1, "the event was delivered by %d workers, want 1", len(sinks[0].begun())+len(sinks[1].begun()))
}

// steal lets another worker take over every leased row, as after an expired lease.
const steal = `update outbox.outbox_events set locked_by = gen_random_uuid(), attempts = attempts + 1,
	locked_until = now() + interval '1 hour' where status = 'processing'`

// untouched is true of a stolen row that no other process has changed since.
const untouched = `status = 'processing' and attempts = 2 and last_error is null
	and locked_until > now() + interval '59 minutes'`

// A worker that lost its lease while the delivery ran cuts the delivery, and changes nothing.
//
// CONTRACT: C-23 C-31
func TestLostLeaseCutsTheDelivery(t *testing.T) {
	r := newRig(t)
	r.enqueue("orders", 5)
	begun, cut := make(chan struct{}, 5), make(chan error, 5)
	sink := &book{respond: func(ctx context.Context, _ *dispatcher.Event) error {
		begun <- struct{}{}
		<-ctx.Done()
		cut <- context.Cause(ctx)
		return ctx.Err()
	}}
	seen, log := &watcher{}, &logBook{}
	// Two are in delivery, three are queued.
	d := r.start(r.store(), sink, dispatcher.Config{Lease: 6 * time.Second, Concurrency: 2, Observer: seen, Logger: log.logger()})
	receive(t, "the first delivery begins", begun)
	receive(t, "the second delivery begins", begun)
	pgtest.Exec(r, steal)
	for range 2 {
		cause := receive(t, "the delivery is cut", cut)
		need.That(t, cause != nil && !errors.Is(cause, context.Canceled), "the delivery was cut for %v, want a reason", cause)
	}
	r.eventually("all five are lost", func() bool { return seen.losses() == 5 })
	r.eventually("nothing is in flight", func() bool { return d.Snapshot().InFlightRows == 0 })
	d.stop()
	need.Want(t, 5, "%d of 5 stolen rows are as the thief left them", r.count(untouched))
	need.Want(t, 2, "%d events were begun, want the 2 of before the theft", len(sink.begun()))
	need.That(t, seen.failed == 0 && seen.acked == 0, "lost leases count as %d failures and %d acks", seen.failed, seen.acked)
	n := len(log.lines("leases were lost"))
	need.That(t, n != 0 && n <= 2, "the log has %d lines for 5 lost leases; want few for many", n)
}

// The guard of the write-back decides, when the loss was not noticed before: neither a success nor
// a failure of the old attempt changes the row.
//
// CONTRACT: C-23
// REQUIREMENT: cpt-cf-mini-chat-flow-usage-outbox-dispatch
func TestLostLeaseIsNotWrittenBack(t *testing.T) {
	for name, outcome := range map[string]error{
		"ack": nil, "nack": errRefused, "release": dispatcher.Unavailable(errRefused),
		"dead": dispatcher.Permanent(dispatcher.ReasonPermanentFailure, errRefused),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.enqueue("orders", 1)
			sink := &book{respond: func(context.Context, *dispatcher.Event) error { pgtest.Exec(r, steal); return outcome }}
			seen, log := &watcher{}, &logBook{}
			got, err := r.once(sink, dispatcher.Config{Observer: seen, Logger: log.logger()}, 1)
			want := (engine.Outcome{Lost: 1})
			need.That(t, got == want && err == nil, "RunOnce returned %+v, %v; want %+v", got, err, want)
			need.Want(t, 1, "the stolen row is not as the thief left it", r.count(untouched))
			if seen.lost != 1 || len(seen.deadEvents) != 0 || len(log.lines("leases were lost")) != 1 {
				t.Errorf("lost %d, deadEvents %v, log %v; want one loss, reported once", seen.lost, seen.deadEvents, log.lines("lost"))
			}
		})
	}
}

// crashed is a store whose process is gone once gone is true: from then on, nothing reaches the database.
func crashed(store dispatcher.Store, gone *atomic.Bool) dispatcher.Store {
	return before(store, func(storetest.Call) error {
		if gone.Load() {
			return errors.New("the process is gone")
		}
		return nil
	})
}

// The rows of a worker that crashes are claimed again once their leases expire, under a higher token.
//
// CONTRACT: C-20 C-27
// REQUIREMENT: STORAGE-31, cpt-cf-mini-chat-actor-usage-outbox-dispatcher, cpt-cf-mini-chat-dod-usage-outbox-dispatcher
func TestCrashedWorkersRowsAreDelivered(t *testing.T) {
	const events = 300
	r := newRig(t)
	r.enqueue("orders", events)
	var confirmed atomic.Int32
	var gone atomic.Bool
	halfway := make(chan struct{})
	first := &book{respond: func(context.Context, *dispatcher.Event) error {
		if confirmed.Add(1) == events/3 {
			gone.Store(true) // delivered, and never written back
			close(halfway)
		}
		return nil
	}}
	cfg := dispatcher.Config{Lease: 3 * time.Second, BatchSize: events}
	r.start(crashed(r.store(), &gone), first, cfg)
	receive(t, "the first worker crashes", halfway)
	second := &book{}
	r.start(r.store(), second, cfg)
	r.eventually("every row is delivered", func() bool { return r.count("status = 'delivered'") == events })
	again, token := 0, map[uuid.UUID]int64{}
	for _, e := range slices.Concat(first.began.Events(), second.began.Events()) {
		if last := token[e.ID]; e.LeaseNumber <= last {
			t.Errorf("event %s was begun under %d and then %d; a token only rises", e.ID, last, e.LeaseNumber)
		} else if last > 0 {
			again++
		}
		token[e.ID] = e.LeaseNumber
	}
	need.That(t, again != 0, "no event was delivered twice; the crash lost no write-back, and the test shows nothing")
	need.Want(t, events, "%d of %d events were delivered", len(token))
}
