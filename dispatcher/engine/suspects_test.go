package engine

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// server is a database whose statements take a time for each row, and may be refused.
type server struct {
	// takes returns how long a statement takes, or why it is refused. topics are those of its rows, which a claim names
	// once each.
	takes func(verb string, topics []string) (time.Duration, error)
	limit time.Duration // of a statement; 0 for none
	code  sqlState      // of its error then
}

// sqlState is an error of PostgreSQL.
type sqlState string

func (s sqlState) Error() string    { return "canceling statement: " + string(s) }
func (s sqlState) SQLState() string { return string(s) }

// with is a store whose rows are in m.
func (s server) with(m *storetest.Memory) dispatcher.Store {
	return &storetest.Hooked{Store: m, Before: func(ctx context.Context, c storetest.Call) error {
		var topics []string
		for _, l := range c.Leases {
			topics = append(topics, m.Event(l.ID).Topic)
		}
		for _, share := range c.Claim.Shares {
			topics = append(topics, slices.Repeat([]string{share.Topic}, min(share.Limit, m.Count(share.Topic, "pending")))...)
		}
		return s.statement(ctx, c.Verb, topics)
	}}
}

// statement lets its time pass.
func (s server) statement(ctx context.Context, verb string, topics []string) error {
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

// confirms is a sink whose results a function returns, and that remembers what it confirmed.
func confirms(batch int, result func(*dispatcher.Event) error) *sinktest.Func {
	respond := func(_ context.Context, e *dispatcher.Event) error { return result(e) }
	return &sinktest.Func{Max: batch, Respond: respond, Confirmed: &sinktest.Recording{}}
}

// again returns how many events of a topic a sink confirmed more than once.
func again(sink *sinktest.Func, topic string) (n int) {
	times := map[uuid.UUID]int{}
	for _, e := range sink.Confirmed.Events() {
		if times[e.ID]++; times[e.ID] == 2 && e.Topic == topic {
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
		virtual(t, name, func(t *testing.T) {
			const events, perRow = 2000, 4 * time.Millisecond
			store, takes := storetest.NewMemory(), func(_ string, topics []string) (time.Duration, error) {
				return time.Duration(len(topics)) * perRow, nil
			}
			store.Add("orders", events)
			sink := confirms(500, succeeds)
			d, stop := begin(t, server{takes, 600 * time.Millisecond, code}.with(store), sink, dispatcher.Config{})
			took := delivered(t, 2*time.Minute, store, "orders", events)
			t.Logf("delivered in %v", took)
			n := again(sink, "orders")
			need.That(t, n <= 0, "%d events were delivered again", n)
			s := d.Snapshot()
			need.That(t, s.Source.OK, "the snapshot says that the database is unreachable: %v", s.Source.Err)
			stop()
		})
	}
}

// Outcomes of a topic whose statements never return stop no other topic, and are left when their leases are over.
// CONTRACT: C-33
func TestOutcomesThatHangHarmTheirTopicAlone(t *testing.T) {
	for verb, result := range map[string]error{
		"ack": nil, "nack": dispatcher.RetryAfter(time.Hour, errContent), "release": dispatcher.DestinationFault(errContent),
	} {
		virtual(t, verb, func(t *testing.T) {
			const rounds, events, lease = 20, 50, 30 * time.Second
			store, takes := storetest.NewMemory(), func(v string, topics []string) (time.Duration, error) {
				if v == verb && slices.Contains(topics, "hangs") {
					return time.Hour, nil
				}
				return time.Millisecond, nil
			}
			sink := confirms(1, func(e *dispatcher.Event) error {
				if e.Topic == "hangs" {
					return result
				}
				return nil
			})
			store.Add("hangs", 3000)
			d, stop := begin(t, server{takes: takes}.with(store), sink, dispatcher.Config{Lease: lease})
			longest := time.Duration(0)
			for i := range rounds {
				store.Add("well", events)
				took := delivered(t, lease+2*storeTimeout, store, "well", events*(i+1))
				longest = max(longest, took)
				<-time.After(5 * time.Second)
			}
			t.Logf("the other topic waited %v at most", longest)
			n := again(sink, "well")
			need.That(t, n <= 0, "%d events of the other topic were delivered again", n)
			s := d.Snapshot()
			need.That(t, s.Source.OK && !s.Outcomes.OK, "the snapshot says %+v of the database, and %+v of outcomes", s.Source, s.Outcomes)
			stop()
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
		virtual(t, name, func(t *testing.T) {
			const rounds, events = 50, 50
			store, takes := storetest.NewMemory(), func(v string, topics []string) (time.Duration, error) {
				if v == "claim" && slices.Contains(topics, "bad") {
					return time.Hour, test.refusal
				}
				return time.Millisecond, nil
			}
			store.Add("bad", 100)
			var log bytes.Buffer
			var all time.Duration
			_, stop := begin(t, server{takes, test.limit, "57014"}.with(store), confirms(1, succeeds), dispatcher.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if name == "hang" {
				<-time.After(time.Second) // the first claim is of the bad topic alone
			}
			for i := range rounds {
				store.Add("well", events)
				all += delivered(t, 3*storeTimeout, store, "well", events*(i+1))
				<-time.After(10 * time.Second)
			}
			t.Logf("the other topic waited %v in all", all)
			need.That(t, all <= rounds*10*time.Second/4, "the other topic waited %v in %d rounds", all, rounds)
			stop()
			need.That(t, name == "hang" || !strings.Contains(log.String(), "the database is unreachable"), "the log says that the database is unreachable: %s", &log)
		})
	}
}

// However many of a topic's first rows the database refuses to lease, others of the topic are delivered when these are tried, at no
// less than seven a second, and other topics are delivered at once. Where it refuses all, the topic is said to be refused, tried as
// often, and delivered as soon as that is over.
// CONTRACT: C-33, C-97
func TestRowsRefusedAtClaimsHarmThemselvesAlone(t *testing.T) {
	const all, events = 1 << 30, 100
	for name, test := range map[string]struct {
		odd   int
		alone bool
	}{"one": {1, false}, "one, alone": {1, true}, "300": {300, false}, "300, alone": {300, true}, "all": {all, false}, "all, alone": {all, true}} {
		virtual(t, name, func(t *testing.T) {
			store, odd, claims := storetest.NewMemory(), atomic.Int64{}, 0
			odd.Store(int64(test.odd))
			hooked := &storetest.Hooked{Store: store, Before: func(_ context.Context, c storetest.Call) error {
				if c.Verb != "claim" || len(c.Claim.Skip) >= int(odd.Load()) || !slices.ContainsFunc(c.Claim.Shares, func(s dispatcher.Share) bool { return s.Topic == "bad" }) {
					return nil
				}
				claims++
				<-time.After(time.Millisecond)
				err := dispatcher.Refused(errContent)
				if c.Rows() > 1 {
					return err
				}
				return &dispatcher.RefusedRow{ID: uuid.New(), Topic: "bad", Err: err}
			}}
			topics := []string{"bad", "well"}
			if test.alone {
				topics = topics[:1]
			}
			var log bytes.Buffer
			store.Add("bad", events)
			d, stop := begin(t, hooked, confirms(1, succeeds), dispatcher.Config{Topics: topics, PollInterval: 20 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			for i := range 30 {
				<-time.After(2 * time.Second)
				if store.Add("well", events); !test.alone {
					took := delivered(t, time.Minute, store, "well", events*(i+1))
					need.That(t, took < 100*time.Millisecond, "the other topic waited %v", took)
				}
				if store.Count("bad", "delivered") == 0 && i == test.odd/14 {
					t.Errorf("nothing of its topic is delivered after %d seconds, behind %d rows that are refused", 2*(i+1), test.odd)
				}
			}
			s := d.Snapshot()
			need.That(t, s.Source.OK && s.Claims.Known && !s.Claims.OK && s.ClaimsStopped == (name == "all, alone"), "the snapshot says %+v of the database, %+v of claims, stopped: %t", s.Source, s.Claims, s.ClaimsStopped)
			database := slices.ContainsFunc(s.TopicLimits, func(l dispatcher.TopicLimit) bool {
				return l.Topic == "bad" && l.LimitedBy == dispatcher.LimitedByDatabase
			})
			need.That(t, database == (test.odd == all), "the topic is limited by the database: %t", database)
			need.That(t, claims <= min(test.odd, 60*8)+40, "%d claims were refused in a minute", claims)
			odd.Store(0)
			delivered(t, time.Second, store, "bad", events)
			need.That(t, !d.Snapshot().ClaimsStopped, "it is still said to refuse all")
			<-time.After(6 * time.Minute)
			need.That(t, d.Snapshot().Claims.OK, "it is still said to refuse some")
			stop()
			lines := strings.Count(log.String(), "level=ERROR")
			need.That(t, lines >= 1 && lines <= 2 && !strings.Contains(log.String(), "unreachable"), "the log says: %s", &log)
		})
	}
}

// A stop says which outcomes it has not written.
func TestStopReportsOutcomesWrittenApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, takes := storetest.NewMemory(), func(v string, _ []string) (time.Duration, error) {
			return map[string]time.Duration{"ack": time.Hour}[v], nil
		}
		store.Add("orders", 3)
		var log bytes.Buffer
		_, stop := begin(t, server{takes: takes}.with(store), confirms(1, succeeds), dispatcher.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		<-time.After(storeTimeout + time.Second)
		stop()
		need.That(t, strings.Contains(log.String(), "3 outcomes are not written back"), "the log says: %s", &log)
	})
}

// An extension that never returns loses the leases of its own topic alone.
// CONTRACT: C-31, C-33
func TestExtensionThatHangsHarmsItsTopicAlone(t *testing.T) {
	for name, refusal := range map[string]error{"hangs": nil, "refused": errContent} {
		virtual(t, name, func(t *testing.T) {
			store, takes := storetest.NewMemory(), func(v string, topics []string) (time.Duration, error) {
				if v == "extend" && slices.Contains(topics, "bad") {
					return time.Hour, refusal
				}
				return time.Millisecond, nil
			}
			store.Add("bad", 5)
			store.Add("well", 5)
			sink := confirms(1, succeeds)
			deliver := sink.Respond
			sink.Respond = func(ctx context.Context, e *dispatcher.Event) error {
				select {
				case <-time.After(4 * time.Minute):
					return deliver(ctx, e)
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			_, stop := begin(t, server{takes: takes}.with(store), sink, dispatcher.Config{Lease: 30 * time.Second})
			delivered(t, 5*time.Minute, store, "well", 5)
			need.Want(t, 5, "its 5 events took %d attempts", store.Attempts("well"))
			stop()
		})
	}
}

// A row that became dead is reported once, as dead, when the response was lost.
// CONTRACT: C-43
func TestDeadRowIsReportedWhenTheResponseWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, lost := storetest.NewMemory(), false
		memory.Add("orders", 3)
		store := &storetest.Hooked{Store: memory, After: func(_ context.Context, c storetest.Call) error {
			if c.Verb == "nack" && !lost {
				lost = true
				return context.DeadlineExceeded
			}
			return nil
		}}
		seen := &reports{}
		sink := confirms(1, func(*dispatcher.Event) error {
			return dispatcher.Permanent(dispatcher.ReasonPermanentFailure, errContent)
		})
		_, stop := begin(t, store, sink, dispatcher.Config{Observer: seen})
		passes(t, time.Minute, "they are dead", func() bool { return memory.Count("orders", "dead") == 3 })
		<-time.After(time.Minute)
		stop()
		need.That(t, seen.dead == 3 && seen.lost == 0, "reported are %d dead rows and %d lost leases, want 3 and 0", seen.dead, seen.lost)
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
		store := storetest.NewMemory()
		store.Add("orders", 1)
		sink := &sinktest.Func{Respond: func(ctx context.Context, _ *dispatcher.Event) error { <-ctx.Done(); return ctx.Err() }}
		d, stop := begin(t, store, sink, dispatcher.Config{DeliveryTimeout: time.Minute})
		passes(t, 2*time.Minute, "the call has failed", func() bool { return d.Snapshot().LastError != "" })
		last := d.Snapshot().LastError
		need.That(t, strings.Contains(last, errOverdue.Error()), "the last error is %q", last)
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
			need.Want(t, step.want, "%s: got %s, want %s", step.do(), step.what)
		}
	})
}

// A gateway that begins to return 503 costs few events, as order per key leaves them, no attempt: too few for a
// breaker to open.
// CONTRACT: C-32
func TestFirstFaultsSpendNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		store.Add("orders", 100)
		var down atomic.Bool
		sink := &sinktest.Func{Respond: func(context.Context, *dispatcher.Event) error {
			<-time.After(time.Millisecond)
			if down.Load() {
				return errFault
			}
			return nil
		}}
		_, stop := begin(t, store, sink, dispatcher.Config{})
		delivered(t, time.Minute, store, "orders", 100)
		down.Store(true)
		store.Add("orders", refusingEvents-1)
		<-time.After(10 * time.Minute)
		stop()
		if n := store.Attempts("orders") - 100; n > 0 {
			t.Errorf("10 minutes of 503 spent %d attempts of %d events", n, refusingEvents-1)
		}
	})
}

// An event that makes the destination fail does spend its attempts, also where others of its topic are few.
// CONTRACT: C-32
func TestFaultAmongFewOthersBecomesDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		store.Add("orders", 1)
		poison := store.IDs()[0]
		sink := &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
			<-time.After(time.Millisecond)
			if e.ID == poison {
				return errFault
			}
			return nil
		}}
		_, stop := begin(t, store, sink, dispatcher.Config{})
		began := time.Now()
		for store.Count("orders", "dead") == 0 && time.Since(began) < 9*time.Hour {
			store.Add("orders", 1)
			<-time.After(time.Minute)
		}
		stop()
		need.Want(t, 1, "the event is not dead after 9 hours, with others that are delivered once a minute", store.Count("orders", "dead"))
	})
}

// Where the destination gives one result for a batch, an event that makes it fail costs itself alone: its
// neighbours come again in smaller batches, and spend no attempt. An outage spends none either.
// CONTRACT: C-32, C-33
func TestFaultOfABatchCostsItsEventAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 1000
		store := storetest.NewMemory()
		store.Add("orders", events)
		poison := store.IDs()[42]
		var calls atomic.Int64
		sink := &sinktest.Func{Max: 100, RespondAll: func(_ context.Context, batch []*dispatcher.Event) []error {
			calls.Add(1)
			<-time.After(time.Millisecond)
			if slices.ContainsFunc(batch, func(e *dispatcher.Event) bool { return e.ID == poison }) {
				return slices.Repeat([]error{errFault}, len(batch))
			}
			return make([]error, len(batch))
		}}
		_, stop := begin(t, store, sink, dispatcher.Config{Concurrency: 1})
		took := delivered(t, time.Minute, store, "orders", events-1)
		t.Logf("delivered in %v and %d calls", took, calls.Load())
		for _, id := range store.IDs() {
			n := store.Row(id).Attempts
			need.That(t, id == poison || n == 1, "event %s spent %d attempts", id, n)
		}
		if n := calls.Load(); n > events/100+20+50 {
			t.Errorf("%d calls were made for %d events", n, events)
		}
		began := time.Now()
		for store.Count("orders", "dead") == 0 && time.Since(began) < 9*time.Hour {
			store.Add("orders", 10)
			<-time.After(time.Minute)
		}
		stop()
		dead := store.Count("orders", "dead")
		need.That(t, dead == 1 && store.Row(poison).Status == "dead", "%d events are dead, want the one that makes the destination fail", dead)
	})
}
