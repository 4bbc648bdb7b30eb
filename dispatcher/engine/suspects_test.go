package engine

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// slow is a store whose statements take a time for each row, and may be refused.
type slow struct {
	*memory
	// takes, when set, returns how long a statement takes, or why it is refused. topics are those of its rows, which a
	// claim names once each.
	takes func(verb string, topics []string) (time.Duration, error)
	limit time.Duration // of the server; 0 for none
	code  sqlState      // of the server's error then

	mu    sync.Mutex
	lost  map[verb]int // responses to lose, of statements that are done
	calls map[string]int
}

// sqlState is an error of PostgreSQL.
type sqlState string

func (s sqlState) Error() string    { return "canceling statement: " + string(s) }
func (s sqlState) SQLState() string { return string(s) }

// statement lets its time pass.
func (s *slow) statement(ctx context.Context, verb string, topics []string) error {
	s.mu.Lock()
	if s.calls == nil {
		s.calls = map[string]int{}
	}
	s.calls[verb]++
	s.mu.Unlock()
	if s.takes == nil {
		return nil
	}
	took, err := s.takes(verb, topics)
	if err != nil {
		return dispatcher.Refused(err)
	}
	var cut <-chan time.Time
	if s.limit > 0 {
		cut = time.After(s.limit)
	}
	select {
	case <-time.After(took):
		return nil
	case <-cut:
		return fmt.Errorf("%s: %w", verb, s.code)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", verb, ctx.Err())
	}
}

// loses reports whether the response of a statement that is done is lost.
func (s *slow) loses(v verb) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost[v] == 0 {
		return false
	}
	s.lost[v]--
	return true
}

func (s *slow) topics(leases []dispatcher.Lease) (topics []string) {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	for _, l := range leases {
		topics = append(topics, s.rows[l.ID].event.Topic)
	}
	return topics
}

func (s *slow) Ack(ctx context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	if err := s.statement(ctx, "ack", s.topics(leases)); err != nil {
		return nil, err
	}
	return s.memory.Ack(ctx, leases)
}

func (s *slow) Nack(ctx context.Context, failures []dispatcher.Failure) ([]dispatcher.Lease, error) {
	leases := make([]dispatcher.Lease, len(failures))
	for i, f := range failures {
		leases[i] = f.Lease
	}
	if err := s.statement(ctx, "nack", s.topics(leases)); err != nil {
		return nil, err
	}
	lost, err := s.memory.Nack(ctx, failures)
	if s.loses(nack) {
		return nil, context.DeadlineExceeded
	}
	return lost, err
}

func (s *slow) Release(ctx context.Context, returns []dispatcher.Return) ([]dispatcher.Lease, error) {
	leases := make([]dispatcher.Lease, len(returns))
	for i, r := range returns {
		leases[i] = r.Lease
	}
	if err := s.statement(ctx, "release", s.topics(leases)); err != nil {
		return nil, err
	}
	return s.memory.Release(ctx, returns)
}

func (s *slow) Extend(ctx context.Context, leases []dispatcher.Lease, lease time.Duration) ([]dispatcher.Lease, error) {
	if err := s.statement(ctx, "extend", s.topics(leases)); err != nil {
		return nil, err
	}
	return s.memory.Extend(ctx, leases, lease)
}

func (s *slow) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	var topics []string
	for _, share := range req.Shares {
		n := min(share.Limit, s.count(share.Topic, "pending"))
		topics = append(topics, slices.Repeat([]string{share.Topic}, n)...)
	}
	if err := s.statement(ctx, "claim", topics); err != nil {
		return dispatcher.Claimed{}, err
	}
	return s.memory.Claim(ctx, req)
}

// confirmed is a sink that counts how often it confirmed each event.
type confirmed struct {
	stubSink
	mu    sync.Mutex
	times map[uuid.UUID]int
}

// newConfirmed returns one whose results a function returns.
func newConfirmed(batch int, result func(*dispatcher.Event) error) *confirmed {
	c := &confirmed{times: map[uuid.UUID]int{}}
	c.stubSink = stubSink{batch: batch, deliver: func(_ context.Context, e *dispatcher.Event) error {
		err := result(e)
		if err == nil {
			c.mu.Lock()
			c.times[e.ID]++
			c.mu.Unlock()
		}
		return err
	}}
	return c
}

// again returns how many events of a topic were confirmed more than once.
func (c *confirmed) again(m *memory, topic string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, times := range c.times {
		if times > 1 && m.rows[id].event.Topic == topic {
			n++
		}
	}
	return n
}

func succeeds(*dispatcher.Event) error { return nil }

// What the server cuts off is tried again smaller, whichever of its limits cut it: everything is delivered, once.
// CONTRACT: C-35
func TestStatementsThatTheServerCutsOffShrink(t *testing.T) {
	for name, code := range map[string]sqlState{"statement_timeout": "57014", "transaction_timeout": "25P04", "lock_timeout": "55P03"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const events, perRow = 2000, 4 * time.Millisecond
				store := &slow{memory: newMemory(), limit: 600 * time.Millisecond, code: code,
					takes: func(_ string, topics []string) (time.Duration, error) {
						return time.Duration(len(topics)) * perRow, nil
					}}
				store.enqueue("orders", events)
				sink := newConfirmed(500, succeeds)
				d, stop := begin(t, store, sink, dispatcher.Config{})
				took := passes(t, 2*time.Minute, "all are delivered", func() bool { return store.count("orders", "delivered") == events })
				t.Logf("delivered in %v", took)
				if n := sink.again(store.memory, "orders"); n > 0 {
					t.Errorf("%d events were delivered again", n)
				}
				if s := d.Snapshot(); !s.Source.OK {
					t.Errorf("the snapshot says that the database is unreachable: %v", s.Source.Err)
				}
				stop()
			})
		})
	}
}

// Outcomes of a topic whose statements never return stop no other topic, and are left when their leases are over.
// CONTRACT: C-33
func TestOutcomesThatHangHarmTheirTopicAlone(t *testing.T) {
	for verb, result := range map[string]error{
		"ack": nil, "nack": dispatcher.RetryAfter(time.Hour, errContent), "release": dispatcher.DestinationFault(errContent),
	} {
		t.Run(verb, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const rounds, events, lease = 20, 50, 30 * time.Second
				store := &slow{memory: newMemory(), takes: func(v string, topics []string) (time.Duration, error) {
					if v == verb && slices.Contains(topics, "hangs") {
						return time.Hour, nil
					}
					return time.Millisecond, nil
				}}
				sink := newConfirmed(1, func(e *dispatcher.Event) error {
					if e.Topic == "hangs" {
						return result
					}
					return nil
				})
				store.enqueue("hangs", 3000)
				d, stop := begin(t, store, sink, dispatcher.Config{Lease: lease})
				longest := time.Duration(0)
				for i := range rounds {
					store.enqueue("well", events)
					took := passes(t, lease+2*storeTimeout, "the other topic is delivered", func() bool {
						return store.count("well", "delivered") == events*(i+1)
					})
					longest = max(longest, took)
					<-time.After(5 * time.Second)
				}
				t.Logf("the other topic waited %v at most", longest)
				if n := sink.again(store.memory, "well"); n > 0 {
					t.Errorf("%d events of the other topic were delivered again", n)
				}
				if s := d.Snapshot(); !s.Source.OK || s.Outcomes.OK {
					t.Errorf("the snapshot says %+v of the database, and %+v of outcomes", s.Source, s.Outcomes)
				}
				stop()
			})
		})
	}
}

// A topic whose claims never return, or are refused, delays the others for one statement in a minute at most.
// CONTRACT: C-33
func TestClaimsThatFailHarmTheirTopicAlone(t *testing.T) {
	for name, test := range map[string]struct {
		refusal error
		limit   time.Duration
	}{"hang": {}, "are cut off": {limit: 600 * time.Millisecond}, "are refused": {refusal: errContent}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const rounds, events = 50, 50
				store := &slow{memory: newMemory(), limit: test.limit, code: "57014", takes: func(v string, topics []string) (time.Duration, error) {
					if v == "claim" && slices.Contains(topics, "bad") {
						return time.Hour, test.refusal
					}
					return time.Millisecond, nil
				}}
				store.enqueue("bad", 100)
				var log bytes.Buffer
				var all time.Duration
				_, stop := begin(t, store, newConfirmed(1, succeeds), dispatcher.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				if name == "hang" {
					<-time.After(time.Second) // the first claim is of the bad topic alone
				}
				for i := range rounds {
					store.enqueue("well", events)
					all += passes(t, 3*storeTimeout, "the other topic is delivered", func() bool { return store.count("well", "delivered") == events*(i+1) })
					<-time.After(10 * time.Second)
				}
				t.Logf("the other topic waited %v in all", all)
				if all > rounds*10*time.Second/4 {
					t.Errorf("the other topic waited %v in %d rounds", all, rounds)
				}
				stop()
				if name != "hang" && strings.Contains(log.String(), "the database is unreachable") {
					t.Errorf("the log says that the database is unreachable: %s", &log)
				}
			})
		})
	}
}

// A stop says which outcomes it has not written.
func TestStopReportsOutcomesWrittenApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slow{memory: newMemory(), takes: func(v string, _ []string) (time.Duration, error) {
			return map[string]time.Duration{"ack": time.Hour}[v], nil
		}}
		store.enqueue("orders", 3)
		var log bytes.Buffer
		_, stop := begin(t, store, newConfirmed(1, succeeds), dispatcher.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		<-time.After(storeTimeout + time.Second)
		stop()
		if !strings.Contains(log.String(), "3 outcomes are not written back") {
			t.Errorf("the log says: %s", &log)
		}
	})
}

// An extension that never returns loses the leases of its own topic alone.
// CONTRACT: C-31, C-33
func TestExtensionThatHangsHarmsItsTopicAlone(t *testing.T) {
	for name, refusal := range map[string]error{"hangs": nil, "refused": errContent} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &slow{memory: newMemory(), takes: func(v string, topics []string) (time.Duration, error) {
					if v == "extend" && slices.Contains(topics, "bad") {
						return time.Hour, refusal
					}
					return time.Millisecond, nil
				}}
				store.enqueue("bad", 5)
				store.enqueue("well", 5)
				sink := newConfirmed(1, succeeds)
				deliver := sink.deliver
				sink.deliver = func(ctx context.Context, e *dispatcher.Event) error {
					select {
					case <-time.After(4 * time.Minute):
						return deliver(ctx, e)
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				_, stop := begin(t, store, sink, dispatcher.Config{Lease: 30 * time.Second})
				passes(t, 5*time.Minute, "the other topic is delivered", func() bool { return store.count("well", "delivered") == 5 })
				if n := store.attempts("well"); n != 5 {
					t.Errorf("its 5 events took %d attempts", n)
				}
				stop()
			})
		})
	}
}

// A row that became dead is reported once, as dead, when the response was lost.
// CONTRACT: C-43
func TestDeadRowIsReportedWhenTheResponseWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slow{memory: newMemory(), lost: map[verb]int{nack: 1}}
		store.enqueue("orders", 3)
		seen := &reports{}
		sink := newConfirmed(1, func(*dispatcher.Event) error {
			return dispatcher.Permanent(dispatcher.ReasonPermanentFailure, errContent)
		})
		_, stop := begin(t, store, sink, dispatcher.Config{Observer: seen})
		passes(t, time.Minute, "they are dead", func() bool { return store.count("orders", "dead") == 3 })
		<-time.After(time.Minute)
		stop()
		if seen.dead != 3 || seen.lost != 0 {
			t.Errorf("reported are %d dead rows and %d lost leases, want 3 and 0", seen.dead, seen.lost)
		}
	})
}

// reports counts what is reported of dead rows and lost leases.
type reports struct {
	noObserver
	dead, lost int
}

func (r *reports) DeadLettered(dispatcher.DeadEvent) { r.dead++ }
func (r *reports) LeaseLost(n int)                   { r.lost += n }

// The last error of a call that ran into delivery.timeout says so.
func TestLastErrorNamesTheDeliveryTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		store.enqueue("orders", 1)
		sink := &stubSink{deliver: func(ctx context.Context, _ *dispatcher.Event) error { <-ctx.Done(); return ctx.Err() }}
		d, stop := begin(t, store, sink, dispatcher.Config{DeliveryTimeout: time.Minute})
		passes(t, 2*time.Minute, "the call has failed", func() bool { return d.Snapshot().LastError != "" })
		if last := d.Snapshot().LastError; !strings.Contains(last, errOverdue.Error()) {
			t.Errorf("the last error is %q", last)
		}
		stop()
	})
}

// A destination's fault is the event's own doing when others of its topic were delivered since it was claimed,
// or since it failed before that.
// CONTRACT: C-32
func TestFaultIsTheEventsOwnWhenOthersAreDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t)
		claim := func() *row {
			return &row{event: &dispatcher.Event{ID: uuid.New(), Topic: "orders", Attempt: 1}, claimedAt: time.Now()}
		}
		deliver := func(err error, rows ...*row) verb {
			<-time.After(time.Millisecond)
			ours, errs := slices.Repeat([]bool{true}, len(rows)), slices.Repeat([]error{err}, len(rows))
			return w.judge(call{w.topic("orders"), time.Now(), 0, nil}, rows, ours, errs, nil)[0].verb
		}
		suspect := claim()
		again := func() *row { return &row{event: suspect.event, claimedAt: time.Now()} }
		for _, step := range []struct {
			what string
			do   func() verb
			want verb
		}{
			{"others are delivered", func() verb { return deliver(nil, claim()) }, ack},
			{"a fault, and nothing was delivered since its claim", func() verb { suspect = again(); return deliver(errFault, suspect) }, release},
			{"again", func() verb { return deliver(errFault, again()) }, release},
			{"others are delivered", func() verb { return deliver(nil, claim()) }, ack},
			{"a fault, and others were delivered since the last one", func() verb { return deliver(errFault, again()) }, nack},
			{"again", func() verb { return deliver(errFault, again()) }, release},
			{"claimed before others are delivered", func() verb { suspect = again(); return deliver(nil, claim()) }, ack},
			{"a fault, and others were delivered since its claim", func() verb { return deliver(errFault, suspect) }, nack},
			{"others are delivered", func() verb { return deliver(nil, claim()) }, ack},
			{"a fault that another event of the call may have met", func() verb { return deliver(errFault, again(), claim()) }, release},
		} {
			if got := step.do(); got != step.want {
				t.Errorf("%s: got %s, want %s", step.what, got, step.want)
			}
		}
	})
}

// A gateway that begins to return 503 costs few events, as order per key leaves them, no attempt: too few for a
// breaker to open.
// CONTRACT: C-32
func TestFirstFaultsSpendNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		store.enqueue("orders", 100)
		var down atomic.Bool
		sink := &stubSink{deliver: func(context.Context, *dispatcher.Event) error {
			<-time.After(time.Millisecond)
			if down.Load() {
				return errFault
			}
			return nil
		}}
		_, stop := begin(t, store, sink, dispatcher.Config{})
		passes(t, time.Minute, "the first are delivered", func() bool { return store.count("orders", "delivered") == 100 })
		down.Store(true)
		store.enqueue("orders", refusingEvents-1)
		<-time.After(10 * time.Minute)
		stop()
		if n := store.attempts("orders") - 100; n > 0 {
			t.Errorf("10 minutes of 503 spent %d attempts of %d events", n, refusingEvents-1)
		}
	})
}

// An event that makes the destination fail does spend its attempts, also where others of its topic are few.
// CONTRACT: C-32
func TestFaultAmongFewOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		store.enqueue("orders", 1)
		poison := store.order[0].event.ID
		sink := &stubSink{deliver: func(_ context.Context, e *dispatcher.Event) error {
			<-time.After(time.Millisecond)
			if e.ID == poison {
				return errFault
			}
			return nil
		}}
		_, stop := begin(t, store, sink, dispatcher.Config{})
		began := time.Now()
		for store.count("orders", "dead") == 0 && time.Since(began) < 9*time.Hour {
			store.enqueue("orders", 1)
			<-time.After(time.Minute)
		}
		stop()
		if store.count("orders", "dead") != 1 {
			t.Error("the event is not dead after 9 hours, with others that are delivered once a minute")
		}
	})
}

// Where the destination gives one result for a batch, an event that makes it fail costs itself alone: its
// neighbours come again in smaller batches, and spend no attempt. An outage spends none either.
// CONTRACT: C-32, C-33
func TestFaultOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 1000
		store := newMemory()
		store.enqueue("orders", events)
		poison := store.order[42].event.ID
		sink := &together{batch: 100, deliver: func(batch []*dispatcher.Event) error {
			<-time.After(time.Millisecond)
			if slices.ContainsFunc(batch, func(e *dispatcher.Event) bool { return e.ID == poison }) {
				return errFault
			}
			return nil
		}}
		_, stop := begin(t, store, sink, dispatcher.Config{Concurrency: 1})
		took := passes(t, time.Minute, "all others are delivered", func() bool { return store.count("orders", "delivered") == events-1 })
		t.Logf("delivered in %v and %d calls", took, sink.calls.Load())
		for _, r := range store.order {
			if r.event.ID != poison && r.event.Attempt != 1 {
				t.Errorf("event %d spent %d attempts", r.event.Seq, r.event.Attempt)
			}
		}
		if n := sink.calls.Load(); n > events/100+20+50 {
			t.Errorf("%d calls were made for %d events", n, events)
		}
		began := time.Now()
		for store.count("orders", "dead") == 0 && time.Since(began) < 9*time.Hour {
			store.enqueue("orders", 10)
			<-time.After(time.Minute)
		}
		stop()
		if dead := store.count("orders", "dead"); dead != 1 || store.rows[poison].status != "dead" {
			t.Errorf("%d events are dead, want the one that makes the destination fail", dead)
		}
	})
}

// together is a Sink with one result for all events of a call.
type together struct {
	stubSink
	batch   int
	deliver func([]*dispatcher.Event) error
	calls   atomic.Int64
}

func (s *together) Deliver(_ context.Context, batch []*dispatcher.Event) []error {
	s.calls.Add(1)
	return slices.Repeat([]error{s.deliver(batch)}, len(batch))
}

func (s *together) BatchSize() int { return s.batch }
