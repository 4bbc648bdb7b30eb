package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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

// What limits a dispatcher and its topics is named in each situation, within ten seconds.
//
// CONTRACT: C-97
func TestLimitIsNamedInEachSituation(t *testing.T) {
	takes := func(d time.Duration) *sinktest.Func {
		return &sinktest.Func{Respond: func(context.Context, *dispatcher.Event) error { <-time.After(d); return nil }}
	}
	fails := func(err error) *sinktest.Func {
		return &sinktest.Func{Respond: func(context.Context, *dispatcher.Event) error { return err }}
	}
	orders := []string{"orders"}
	for name, test := range map[string]struct {
		store  func(*storetest.Memory) dispatcher.Store
		sink   *sinktest.Func
		cfg    dispatcher.Config
		admits func(string) bool
		key    string        // of all events
		every  time.Duration // between two events; 0 for a backlog
		want   dispatcher.LimitedBy
		calls  int // of the topic, when it is listed
	}{
		"no events":                       {sink: takes(0), cfg: dispatcher.Config{Topics: orders}, every: time.Hour, want: dispatcher.LimitedByIdle},
		"no events, topics are not named": {sink: takes(0), every: time.Hour, want: dispatcher.LimitedByIdle},
		"a stream that is kept up with":   {sink: takes(5 * time.Millisecond), every: 5 * time.Millisecond, cfg: dispatcher.Config{Topics: orders}, want: dispatcher.LimitedByIdle},
		"slow calls":                      {sink: takes(100 * time.Millisecond), cfg: dispatcher.Config{Concurrency: 4}, want: dispatcher.LimitedByConcurrency, calls: 4},
		"slow claims":                     {sink: takes(time.Millisecond), store: func(m *storetest.Memory) dispatcher.Store { return onClaim(m, slowly(500*time.Millisecond)) }, cfg: dispatcher.Config{Topics: orders, BatchSize: 50}, want: dispatcher.LimitedByDatabase, calls: 16},
		"claims fail": {sink: takes(0), store: func(m *storetest.Memory) dispatcher.Store {
			return &storetest.Hooked{Store: m, Before: func(_ context.Context, c storetest.Call) error {
				return map[string]error{"claim": errors.New("connection refused")}[c.Verb]
			}}
		}, want: dispatcher.LimitedByDatabase},
		"unreachable":          {sink: &sinktest.Func{Check: func(context.Context) error { return errors.New("no route to host") }}, want: dispatcher.LimitedByDestination},
		"refusing":             {sink: fails(errFault), want: dispatcher.LimitedByDestination, calls: 16},
		"no verified consumer": {sink: takes(0), admits: types("paid"), want: dispatcher.LimitedByConsumer, calls: 16},
		"a rate":               {sink: takes(0), cfg: dispatcher.Config{Topics: orders, RateLimit: dispatcher.Rate{Events: 10, Period: time.Second}}, want: dispatcher.LimitedByRate, calls: 16},
		"rates of tenants":     {sink: takes(0), store: func(m *storetest.Memory) dispatcher.Store { m.OverRate = orders; return m }, cfg: dispatcher.Config{Topics: orders, Fairness: dispatcher.FairnessTenant}, want: dispatcher.LimitedByRate, calls: 16},
		"one key":              {sink: takes(100 * time.Millisecond), key: "17", cfg: dispatcher.Config{Topics: orders, Ordering: dispatcher.OrderingKey}, want: dispatcher.LimitedByOrder, calls: 16},
		"a requested pause":    {sink: fails(dispatcher.DestinationFault(dispatcher.RetryAfter(time.Hour, errFault))), cfg: dispatcher.Config{Topics: orders}, want: dispatcher.LimitedByDestination, calls: 16},
		"paused":               {sink: takes(0), cfg: dispatcher.Config{Paused: true}, want: ""},
	} {
		virtual(t, name, func(t *testing.T) {
			rows := storetest.NewMemory()
			if test.every == 0 {
				rows.AddLike(dispatcher.Event{Topic: "orders", PartitionKey: test.key}, 2000)
			}
			var store dispatcher.Store = rows
			if test.store != nil {
				store = test.store(rows)
			}
			d := newDispatcher(t, store, test.sink, test.cfg)
			if test.admits != nil {
				d.Admit(test.admits)
			}
			stop := running(t, d)
			for began := time.Now(); time.Since(began) < 10*time.Second; {
				<-time.After(max(test.every, time.Millisecond))
				if test.every > 0 {
					rows.Add("orders", 1)
				}
			}
			s := d.Snapshot()
			stop()
			var topics []dispatcher.TopicLimit
			if test.calls > 0 {
				topics = []dispatcher.TopicLimit{{Topic: "orders", LimitedBy: test.want, Concurrency: test.calls}}
			}
			need.That(t, s.LimitedBy == test.want && slices.Equal(s.TopicLimits, topics),
				"it is limited by %q, its topics by %v; want %q and %v", s.LimitedBy, s.TopicLimits, test.want, topics)
		})
	}
}

// One topic that more calls would help limits the dispatcher, whatever limits the others. Topics are listed in the order
// of their reasons.
//
// CONTRACT: C-97
func TestTopicThatCallsHelpNamesTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		for _, topic := range []string{"a", "b", "c"} {
			store.Add(topic, 2000)
		}
		sink := &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
			if e.Topic == "a" {
				return errFault
			}
			<-time.After(100 * time.Millisecond)
			return nil
		}}
		d, stop := begin(t, store, sink, dispatcher.Config{Concurrency: 2})
		<-time.After(20 * time.Second)
		s := d.Snapshot()
		stop()
		want := []dispatcher.TopicLimit{{Topic: "b", LimitedBy: dispatcher.LimitedByConcurrency, Concurrency: 2}, {Topic: "c", LimitedBy: dispatcher.LimitedByConcurrency, Concurrency: 2}, {Topic: "a", LimitedBy: dispatcher.LimitedByDestination, Concurrency: 2}}
		need.That(t, s.LimitedBy == dispatcher.LimitedByConcurrency && slices.Equal(s.TopicLimits, want),
			"it is limited by %q, its topics by %v, want %v", s.LimitedBy, s.TopicLimits, want)
	})
}

// What held for most of the last seconds is the reason: one observation of another changes nothing.
//
// CONTRACT: C-97
func TestHeldIsWhatLimitedLongest(t *testing.T) {
	var h held
	now := time.Now()
	need.Want(t, "", "before an observation it is %q", h.longest())
	for range 100 {
		now = now.Add(100 * time.Millisecond)
		h.note(dispatcher.LimitedByConcurrency, now)
	}
	h.note(dispatcher.LimitedByIdle, now.Add(time.Hour))
	need.Want(t, dispatcher.LimitedByConcurrency, "after one other observation it is %q", h.longest())
	for n := 1; ; n++ {
		now = now.Add(100 * time.Millisecond)
		h.note(dispatcher.LimitedByDatabase, now)
		if h.longest() == dispatcher.LimitedByDatabase {
			need.That(t, n >= 10 && n <= 60, "it changed after %d observations of a tenth of a second", n)
			return
		}
	}
}

// A snapshot has the part of the rate limits that the process may use, and none once its time is over: then the database
// is what keeps it from delivering.
//
// CONTRACT: C-36, C-97
func TestRatePartIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := begin(t, &endless{}, &sinktest.Func{}, dispatcher.Config{Topics: []string{"orders"}, RateLimit: dispatcher.Rate{Events: 10, Period: time.Second}})
		d.SetRateShare(0.25, time.Now().Add(3*time.Second))
		if part := d.Snapshot().RatePart; part == nil || *part != 0.25 {
			t.Errorf("the part is %v, want 0.25", part)
		}
		<-time.After(3 * time.Second)
		if part := d.Snapshot().RatePart; part == nil || *part != 0 {
			t.Errorf("when its time is over the part is %v, want 0", part)
		}
		need.Want(t, dispatcher.LimitedByDatabase, "without a part it is limited by %q", d.Snapshot().LimitedBy)
		stop()
	})
}

// What the oldest due row of a topic waits for names its limit: a call while it is queued, else what the last claim said of the
// rows that it left.
//
// CONTRACT: C-97
func TestOldestDueRowNamesTheLimit(t *testing.T) {
	now := time.Now()
	later := now.Add(time.Minute)
	queues := func(topic *topic) {
		topic.rows.all = 1
		topic.queue.insert(&row{event: &dispatcher.Event{}, safeUntil: later})
	}
	runs := func(topic *topic) { topic.calls.running, topic.calls.began = 1, now }
	claims := func(rows int, keysWait, overRate bool) func(*topic) {
		return func(topic *topic) { topic.found(dispatcher.Share{Limit: 10}, rows, keysWait, overRate, now) }
	}
	cut := func(by limit) func(*topic) { return func(topic *topic) { topic.limits.cutBy = by } }
	used := []*bucket{{}}
	for name, test := range map[string]struct {
		is   []func(*topic)
		rest func(*load, *callLoad) // what all topics share
		want dispatcher.LimitedBy
	}{
		"not claimed yet":                        {want: ""},
		"nothing is due":                         {is: []func(*topic){claims(0, false, false)}, want: dispatcher.LimitedByIdle},
		"less than a share that a rate cut":      {is: []func(*topic){cut(byRate), claims(9, false, false)}, want: dispatcher.LimitedByIdle},
		"all of one that a rate cut":             {is: []func(*topic){cut(byRate), claims(10, false, false)}, want: dispatcher.LimitedByRate},
		"all of one that outcomes cut":           {is: []func(*topic){cut(byOutcomes), claims(10, false, false)}, want: dispatcher.LimitedByDatabase},
		"a full claim, and nothing is left here": {is: []func(*topic){claims(10, false, false)}, want: dispatcher.LimitedByDatabase},
		"tenants over their rates":               {is: []func(*topic){claims(3, false, true)}, want: dispatcher.LimitedByRate},
		"keys that wait for rows elsewhere":      {is: []func(*topic){claims(3, true, false)}, want: dispatcher.LimitedByOrder},
		"such keys, between full claims":         {is: []func(*topic){claims(10, true, false)}, want: dispatcher.LimitedByDatabase},
		"more rows behind others than delivered": {is: []func(*topic){claims(3, false, false), func(topic *topic) { topic.rows = topicRows{all: 4, inDelivery: 1} }}, want: dispatcher.LimitedByOrder},
		"as many":                                {is: []func(*topic){claims(3, false, false), func(topic *topic) { topic.rows = topicRows{all: 4, inDelivery: 2} }}, want: dispatcher.LimitedByIdle},
		"queued, all calls run":                  {is: []func(*topic){claims(0, false, true), queues}, rest: func(_ *load, c *callLoad) { c.free, c.places = 0, 0 }, want: dispatcher.LimitedByConcurrency},
		"queued, the last call is for others": {is: []func(*topic){queues, runs}, rest: func(l *load, c *callLoad) {
			l.alone, c.alone, c.free, c.places = false, false, 1, 1
		}, want: dispatcher.LimitedByConcurrency},
		"queued, and a call may begin":    {is: []func(*topic){claims(10, false, false), queues}, want: dispatcher.LimitedByDatabase},
		"it gathers behind a call":        {is: []func(*topic){claims(1, false, false), queues, runs}, rest: func(_ *load, c *callLoad) { c.batch = 10 }, want: dispatcher.LimitedByIdle},
		"queued, a pause was requested":   {is: []func(*topic){queues, func(topic *topic) { topic.calls.pausedUntil = later }}, want: dispatcher.LimitedByDestination},
		"nothing queued, a pause was":     {is: []func(*topic){claims(1, false, false), func(topic *topic) { topic.calls.pausedUntil = later }}, want: dispatcher.LimitedByDestination},
		"queued, its rate is used":        {is: []func(*topic){queues, func(topic *topic) { topic.rates = used }}, want: dispatcher.LimitedByRate},
		"others have used the rate":       {is: []func(*topic){claims(1, false, false)}, rest: func(l *load, _ *callLoad) { l.rate.by = byRate }, want: dispatcher.LimitedByIdle},
		"in flight, and the rate is used": {is: []func(*topic){claims(1, false, false), runs, func(topic *topic) { topic.rows.all = 1 }}, rest: func(l *load, _ *callLoad) { l.rate.by = byRate }, want: dispatcher.LimitedByRate},
		"its share is in flight":          {is: []func(*topic){claims(1, false, false), func(topic *topic) { topic.rows.all = 9 }}, rest: func(l *load, _ *callLoad) { l.alone, l.rows = false, 8 }, want: dispatcher.LimitedByConcurrency},
		"its outcomes are refused":        {is: []func(*topic){claims(1, false, false)}, rest: func(l *load, _ *callLoad) { l.unwritten = map[string]bool{"orders": true} }, want: dispatcher.LimitedByDatabase},
		"its claims are refused":          {is: []func(*topic){claims(1, false, false), func(topic *topic) { topic.doubt = &doubt{next: later} }}, want: dispatcher.LimitedByDatabase},
	} {
		topic := newTopic("orders", false)
		l, c := load{now: now, alone: true, rows: 100, bytes: 100}, callLoad{calls: &calls{bound: 4, batch: 1}, now: now, alone: true, free: 4, places: 4}
		for _, is := range test.is {
			is(topic)
		}
		if test.rest != nil {
			test.rest(&l, &c)
		}
		need.Want(t, test.want, "%s: limited by %q, want %q", topic.waitsFor(l, c), name)
	}
}

// Of the topics that wait for calls, the one is listed first that has had none for longest.
//
// CONTRACT: C-97
func TestTopicThatStarvesIsListedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, storetest.NewMemory(), &sinktest.Func{}, dispatcher.Config{})
		began := time.Now()
		<-time.After(time.Minute)
		for name, is := range map[string]struct {
			ago     time.Duration // since it was claimed
			last    time.Duration // since its last call began
			running int
		}{"busy": {50 * time.Second, time.Second / 2, 1}, "served": {50 * time.Second, time.Second / 4, 0}, "waits": {5 * time.Second, time.Minute, 0}, "starves": {20 * time.Second, time.Minute, 0}} {
			topic := d.flight.topics.get(name)
			topic.queue.insert(&row{event: &dispatcher.Event{}, claimedAt: time.Now().Add(-is.ago)})
			topic.calls.began, topic.calls.running = time.Now().Add(-is.last), is.running
			topic.limits.held.note(dispatcher.LimitedByConcurrency, began)
		}
		d.flight.topics.get("other").limits.held.note(dispatcher.LimitedByDatabase, began)
		got := each(d.Snapshot().TopicLimits, func(l dispatcher.TopicLimit) string { return l.Topic })
		need.WantAll(t, []string{"starves", "waits", "busy", "served", "other"}, "the topics are listed as %v, want %v", got)
	})
}

// A pause gives back what has not begun, lets deliveries in flight end, and claims nothing for as long as it
// lasts. Probes and the comparison of the schema continue. When it ends, the next claim comes at once.
//
// CONTRACT: C-105
func TestPauseGivesBackWhatHasNotBegun(t *testing.T) {
	const events, calls = 60, 4
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		var claims atomic.Int64
		counted := onClaim(store, func() { claims.Add(1) })
		store.Add("orders", events)
		end := make(chan struct{})
		var begun atomic.Int64
		sink := &sinktest.Func{Respond: func(context.Context, *dispatcher.Event) error { begun.Add(1); <-end; return nil }}
		d, stop := begin(t, counted, sink, dispatcher.Config{Concurrency: calls, BatchSize: events, Lease: 30 * time.Minute, PollInterval: time.Second})
		synctest.Wait()
		if n := begun.Load(); n != calls || store.Count("orders", "processing") <= calls {
			t.Fatalf("%d deliveries began, and %d rows are claimed", n, store.Count("orders", "processing"))
		}
		need.That(t, !d.Snapshot().Paused, "the snapshot says paused, before it is")

		d.Pause()
		d.Pause() // as often as one likes
		passes(t, time.Second, "what has not begun is given back", func() bool { return store.Count("orders", "pending") == events-calls })
		need.Want(t, calls, "%d attempts are spent, want those of the %d in flight", store.Attempts("orders"))
		close(end)
		delivered(t, time.Second, store, "orders", calls)
		before := claims.Load()
		store.Add("refunds", 1)
		d.Wake()
		<-time.After(10 * time.Minute)
		if n := claims.Load() - before; n != 0 || begun.Load() != calls {
			t.Errorf("%d claims and %d deliveries while paused, want none", n, begun.Load()-calls)
		}
		s := d.Snapshot()
		need.That(t, s.Paused && s.Source.OK && time.Since(s.LookedAt) <= checkEvery, "while paused: %+v", s)

		d.Resume()
		synctest.Wait()
		need.That(t, claims.Load() != before, "it did not claim at once after the pause")
		delivered(t, time.Minute, store, "orders", events)
		need.That(t, !d.Snapshot().Paused, "the snapshot says paused after Resume")
		need.Want(t, events, "%d attempts for %d events", store.Attempts("orders"))
		d.Pause()
		stop() // also while it is paused
		need.Want(t, 0, "%d rows are left with a lease", store.Count("orders", "processing")+store.Count("refunds", "processing"))
	})
}

// Rows of a claim that was under way when the pause began are given back before a delivery begins.
//
// CONTRACT: C-105
func TestPauseDuringAClaimGivesItsRowsBack(t *testing.T) {
	for _, ordering := range []dispatcher.Ordering{dispatcher.OrderingNone, dispatcher.OrderingKey} {
		synctest.Test(t, func(t *testing.T) {
			store := storetest.NewMemory()
			claiming, proceed := make(chan struct{}, 1), make(chan struct{})
			waits := onClaim(store, func() { notify(claiming); <-proceed })
			store.Add("orders", 10)
			var begun atomic.Int64
			sink := &sinktest.Func{Respond: func(context.Context, *dispatcher.Event) error { begun.Add(1); return nil }}
			d, _ := begin(t, waits, sink, dispatcher.Config{Ordering: ordering})
			<-claiming
			d.Pause()
			close(proceed)
			<-time.After(time.Minute)
			if n := store.Count("orders", "pending"); n != 10 || begun.Load() != 0 || store.Attempts("orders") != 0 {
				t.Errorf("%s: %d of 10 rows wait, %d deliveries began, %d attempts are spent", ordering, n, begun.Load(), store.Attempts("orders"))
			}
			d.Resume()
			delivered(t, time.Minute, store, "orders", 10)
		})
	}
}

// A dispatcher may be paused before it runs, and while RunOnce runs.
func TestPauseEndsRunOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		store.Add("orders", 10)
		var d *Dispatcher
		sink := &sinktest.Func{Respond: func(context.Context, *dispatcher.Event) error { d.Pause(); return nil }}
		d = newDispatcher(t, store, sink, dispatcher.Config{Concurrency: 1, BatchSize: 1})
		d.Pause()
		if got, err := d.RunOnce(t.Context(), 10); err == nil || got != (Outcome{}) {
			t.Errorf("paused before: %+v, %v; want an error", got, err)
		}
		d.Resume()
		got, err := d.RunOnce(t.Context(), 10)
		need.That(t, err != nil && got.Delivered == 1, "paused by the first delivery: %+v, %v; want one delivered, and an error", got, err)
		if n := store.Count("orders", "pending"); n != 9 || store.Attempts("orders") != 1 {
			t.Errorf("%d rows wait, %d attempts are spent", n, store.Attempts("orders"))
		}
	})
}

// What is queued is delivered as soon as the pause is over, also when nothing else happens.
//
// CONTRACT: C-39
func TestDeliveryContinuesWhenARequestedPauseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refusedAt, next time.Time
		var refused, soon int
		var mu sync.Mutex
		sink := &sinktest.Func{Respond: func(context.Context, *dispatcher.Event) error {
			defer func() { <-time.After(100 * time.Millisecond) }()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case refused < 2: // one says nothing of the topic
				refused++
				refusedAt = time.Now().Add(100 * time.Millisecond)
				return dispatcher.DestinationFault(dispatcher.RetryAfter(30*time.Second, errFault))
			case next.IsZero() && time.Since(refusedAt) > time.Second: // one may begin between the two
				next = time.Now()
			}
			if !next.IsZero() && time.Since(next) < 50*time.Millisecond {
				soon++
			}
			return nil
		}}
		_, stop := begin(t, &endless{}, sink, dispatcher.Config{Topics: []string{"orders"}, Concurrency: 2})
		<-time.After(time.Minute)
		stop()
		wait := next.Sub(refusedAt)
		need.That(t, wait >= 30*time.Second && wait <= 30*time.Second+10*time.Millisecond, "the next call began %v after a pause of 30 s was requested", wait)
		need.Want(t, 2, "%d of 2 calls begin at the end of the pause", soon)
	})
}

// When the destination requests a pause, and nothing else of the topic is delivered, no call of the topic begins before.
// Other topics flow.
//
// CONTRACT: C-39
func TestRequestedPauseDelaysItsTopicAlone(t *testing.T) {
	for name, test := range map[string]struct {
		pause, least time.Duration
		concurrency  int
	}{
		"fixed":          {pause: 30 * time.Second, least: 30 * time.Second},
		"auto":           {pause: 30 * time.Second, least: 30 * time.Second, concurrency: dispatcher.Auto},
		"a minute, most": {pause: time.Hour, least: mostRequestedWait},
	} {
		virtual(t, name, func(t *testing.T) {
			var mu sync.Mutex
			var last time.Time
			others, pauses := 0, 0
			sink := &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
				if e.Topic == "others" {
					<-time.After(100 * time.Millisecond)
					mu.Lock()
					defer mu.Unlock()
					others++
					return nil
				}
				<-time.After(10 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				now := time.Now()
				if since := now.Sub(last); !last.IsZero() && since > time.Second {
					pauses++
					need.That(t, since >= test.least, "a call began %v after the destination requested a pause of %v", since, test.pause)
				}
				last = now
				return dispatcher.DestinationFault(dispatcher.RetryAfter(test.pause, errFault))
			}}
			d, stop := begin(t, &endless{}, sink, dispatcher.Config{Topics: []string{"orders", "others"}, Concurrency: test.concurrency, MaxConcurrency: 4})
			<-time.After(10 * time.Second)
			s := d.Snapshot()
			mu.Lock()
			need.That(t, others >= 200, "%d events of the other topic in 10 s", others)
			mu.Unlock()
			at := s.TopicLimits
			need.That(t, len(at) != 0 && at[len(at)-1].Topic == "orders" && at[len(at)-1].LimitedBy == dispatcher.LimitedByDestination, "limited are %v", at)
			<-time.After(2 * time.Minute)
			stop()
			need.That(t, pauses != 0, "no call began after the pause")
		})
	}
}

// While others of the topic are delivered, those that are refused with a pause wait alone, also two in a row.
//
// CONTRACT: C-39
func TestRequestedPauseOfOneEventDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n, delivered atomic.Int64
		sink := &sinktest.Func{Respond: func(context.Context, *dispatcher.Event) error {
			<-time.After(100 * time.Millisecond)
			if n.Add(1)%10 < 2 {
				return dispatcher.DestinationFault(dispatcher.RetryAfter(30*time.Second, errFault))
			}
			delivered.Add(1)
			return nil
		}}
		_, stop := begin(t, &endless{}, sink, dispatcher.Config{Topics: []string{"orders"}})
		<-time.After(10 * time.Second)
		stop()
		if n := delivered.Load(); n < 1200 {
			t.Errorf("%d events were delivered in 10 s, want all but a fifth of 1,600", n)
		}
	})
}

// A pause that is requested for a tenant's event is the tenant's: others are delivered at once, its queued events are not sent, and
// keep their attempt.
//
// CONTRACT: C-39
func TestRequestedPauseOfATenantDelaysNoOther(t *testing.T) {
	for name, cfg := range map[string]dispatcher.Config{
		"as they come":      {},
		"order per key":     {Ordering: dispatcher.OrderingKey},
		"fairness":          {Fairness: dispatcher.FairnessTenant},
		"one call":          {Concurrency: 1},
		"found by itself":   {Concurrency: dispatcher.Auto},
		"several of a call": {BatchSize: 10},
	} {
		virtual(t, name, func(t *testing.T) {
			store, over := storetest.NewMemory(), uuid.NullUUID{UUID: uuid.UUID{1}, Valid: true}
			store.AddLike(dispatcher.Event{Topic: "orders", TenantID: over, AggregateID: "a"}, 300)
			var mu sync.Mutex
			calls := 0
			sink := &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
				<-time.After(5 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				if e.TenantID == over {
					calls++
					return dispatcher.DestinationFault(dispatcher.RetryAfter(time.Minute, errFault))
				}
				return nil
			}}
			cfg.Topics, cfg.PollInterval = []string{"orders"}, 100*time.Millisecond
			_, stop := begin(t, store, sink, cfg)
			for i := range 25 {
				store.AddLike(dispatcher.Event{Topic: "orders", TenantID: uuid.NullUUID{UUID: uuid.UUID{2}, Valid: true}, AggregateID: "b"}, 1)
				if took := delivered(t, 10*time.Second, store, "orders", i+1); took > 2*time.Second {
					t.Errorf("an event of another tenant took %v", took)
				}
				<-time.After(2 * time.Second)
			}
			stop()
			need.That(t, calls <= 32 && store.Attempts("orders") <= calls+25, "%d calls of the tenant in %d attempts, want one for each call that ran", calls, store.Attempts("orders"))
		})
	}
}

// CONTRACT: C-82
func TestSeenTypesAreBounded(t *testing.T) {
	var s seenTypes
	if got := s.list(); got != nil {
		t.Errorf("before the first event: %v", got)
	}
	typed := func(types ...string) (events []*dispatcher.Event) {
		for _, name := range types {
			events = append(events, &dispatcher.Event{EventType: name})
		}
		return events
	}
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	day := noon.Add(-12 * time.Hour)
	s.note(typed("order.placed", "order.placed", "", "order.paid", "order.placed"), noon)
	s.note(typed("order.paid"), noon.Add(25*time.Hour))
	want := []dispatcher.SeenEventType{{Type: "order.paid", LastSeen: day.Add(24 * time.Hour)}, {Type: "order.placed", LastSeen: day}}
	need.WantAll(t, want, "seen %v, want %v", s.list())
	for i := range 2 * dispatcher.EventTypesListed {
		s.note(typed(fmt.Sprintf("type.%03d", i)), noon)
	}
	s.note(typed("order.placed"), noon.Add(48*time.Hour))
	got := s.list()
	need.That(t, len(got) == dispatcher.EventTypesListed && slices.Contains(got, dispatcher.SeenEventType{Type: "order.placed", LastSeen: day.Add(48 * time.Hour)}),
		"%d types are kept: %v, want %d with those from before", len(got), got, dispatcher.EventTypesListed)
}
