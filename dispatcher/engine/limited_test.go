package engine

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// What limits a dispatcher and its topics is named in each situation, within ten seconds.
//
// CONTRACT: C-97
func TestLimitedBy(t *testing.T) {
	takes := func(d time.Duration) *stubSink {
		return &stubSink{deliver: func(context.Context, *dispatcher.Event) error { <-time.After(d); return nil }}
	}
	fails := func(err error) *stubSink {
		return &stubSink{deliver: func(context.Context, *dispatcher.Event) error { return err }}
	}
	orders := []string{"orders"}
	for name, test := range map[string]struct {
		store  func(*memory)
		sink   *stubSink
		cfg    dispatcher.Config
		admits func(string) bool
		every  time.Duration // between two events; 0 for a backlog
		want   dispatcher.LimitedBy
		topics []dispatcher.TopicLimit
	}{
		"no events":                       {sink: takes(0), cfg: dispatcher.Config{Topics: orders}, every: time.Hour, want: dispatcher.LimitedByIdle},
		"no events, topics are not named": {sink: takes(0), every: time.Hour, want: dispatcher.LimitedByIdle},
		"a stream that is kept up with":   {sink: takes(5 * time.Millisecond), every: 5 * time.Millisecond, cfg: dispatcher.Config{Topics: orders}, want: dispatcher.LimitedByIdle},
		"slow calls": {sink: takes(100 * time.Millisecond), cfg: dispatcher.Config{Concurrency: 4}, want: dispatcher.LimitedByConcurrency,
			topics: []dispatcher.TopicLimit{{Topic: "orders", LimitedBy: dispatcher.LimitedByConcurrency, Concurrency: 4}}},
		"slow claims": {sink: takes(time.Millisecond), store: func(m *memory) { m.claim = slowly(500 * time.Millisecond) }, cfg: dispatcher.Config{Topics: orders, BatchSize: 50}, want: dispatcher.LimitedByDatabase,
			topics: []dispatcher.TopicLimit{{Topic: "orders", LimitedBy: dispatcher.LimitedByDatabase, Concurrency: 16}}},
		"claims fail": {sink: takes(0), store: func(m *memory) {
			m.claim = func(context.Context, int) error { return errors.New("connection refused") }
		}, want: dispatcher.LimitedByDatabase},
		"unreachable": {sink: &stubSink{probe: func(context.Context) error { return errors.New("no route to host") }}, want: dispatcher.LimitedByDestination},
		"refusing": {sink: fails(errFault), want: dispatcher.LimitedByDestination,
			topics: []dispatcher.TopicLimit{{Topic: "orders", LimitedBy: dispatcher.LimitedByDestination, Concurrency: 16}}},
		"no verified consumer": {sink: takes(0), admits: types("paid"), want: dispatcher.LimitedByConsumer,
			topics: []dispatcher.TopicLimit{{Topic: "orders", LimitedBy: dispatcher.LimitedByConsumer, Concurrency: 16}}},
		"a rate": {sink: takes(0), cfg: dispatcher.Config{Topics: orders, RateLimit: dispatcher.Rate{Events: 10, Period: time.Second}}, want: dispatcher.LimitedByRate,
			topics: []dispatcher.TopicLimit{{Topic: "orders", LimitedBy: dispatcher.LimitedByRate, Concurrency: 16}}},
		"rates of tenants": {sink: takes(0), store: func(m *memory) { m.overRate = orders }, cfg: dispatcher.Config{Topics: orders, Fairness: dispatcher.FairnessTenant}, want: dispatcher.LimitedByRate,
			topics: []dispatcher.TopicLimit{{Topic: "orders", LimitedBy: dispatcher.LimitedByRate, Concurrency: 16}}},
		"one key": {sink: takes(100 * time.Millisecond), store: oneKey, cfg: dispatcher.Config{Topics: orders, Ordering: dispatcher.OrderingKey}, want: dispatcher.LimitedByOrder,
			topics: []dispatcher.TopicLimit{{Topic: "orders", LimitedBy: dispatcher.LimitedByOrder, Concurrency: 16}}},
		"a requested pause": {sink: fails(dispatcher.DestinationFault(dispatcher.RetryAfter(time.Hour, errFault))), cfg: dispatcher.Config{Topics: orders}, want: dispatcher.LimitedByDestination,
			topics: []dispatcher.TopicLimit{{Topic: "orders", LimitedBy: dispatcher.LimitedByDestination, Concurrency: 16}}},
		"paused": {sink: takes(0), cfg: dispatcher.Config{Paused: true}, want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemory()
				if test.every == 0 {
					store.enqueue("orders", 2000)
				}
				if test.store != nil {
					test.store(store)
				}
				test.cfg.Logger = slog.New(slog.DiscardHandler)
				d, err := New(store, test.sink, test.cfg)
				if err != nil {
					t.Fatal(err)
				}
				if test.admits != nil {
					d.Admit(test.admits)
				}
				stop := running(t, d)
				for began := time.Now(); time.Since(began) < 10*time.Second; {
					<-time.After(max(test.every, time.Millisecond))
					if test.every > 0 {
						store.enqueue("orders", 1)
					}
				}
				s := d.Snapshot()
				stop()
				if s.LimitedBy != test.want || !slices.Equal(s.TopicLimits, test.topics) {
					t.Errorf("it is limited by %q, its topics by %v; want %q and %v", s.LimitedBy, s.TopicLimits, test.want, test.topics)
				}
			})
		})
	}
}

// oneKey gives all events the same key.
func oneKey(m *memory) {
	for _, r := range m.order {
		r.event.PartitionKey = "17"
	}
}

// One topic that more calls would help limits the dispatcher, whatever limits the others. Topics are listed in the order
// of their reasons.
//
// CONTRACT: C-97
func TestLimitedByOfSeveralTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		for _, topic := range []string{"a", "b", "c"} {
			store.enqueue(topic, 2000)
		}
		sink := &stubSink{deliver: func(_ context.Context, e *dispatcher.Event) error {
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
		if s.LimitedBy != dispatcher.LimitedByConcurrency || !slices.Equal(s.TopicLimits, want) {
			t.Errorf("it is limited by %q, its topics by %v, want %v", s.LimitedBy, s.TopicLimits, want)
		}
	})
}

// What held for most of the last seconds is the reason: one observation of another changes nothing.
//
// CONTRACT: C-97
func TestHeld(t *testing.T) {
	var h held
	now := time.Now()
	if by := h.most(); by != "" {
		t.Errorf("before an observation it is %q", by)
	}
	for range 100 {
		now = now.Add(100 * time.Millisecond)
		h.note(dispatcher.LimitedByConcurrency, now)
	}
	h.note(dispatcher.LimitedByIdle, now.Add(time.Hour))
	if by := h.most(); by != dispatcher.LimitedByConcurrency {
		t.Errorf("after one other observation it is %q", by)
	}
	for n := 1; ; n++ {
		now = now.Add(100 * time.Millisecond)
		h.note(dispatcher.LimitedByDatabase, now)
		if h.most() == dispatcher.LimitedByDatabase {
			if n < 10 || n > 60 {
				t.Errorf("it changed after %d observations of a tenth of a second", n)
			}
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
		d, stop := begin(t, &endless{}, &stubSink{}, dispatcher.Config{Topics: []string{"orders"}, RateLimit: dispatcher.Rate{Events: 10, Period: time.Second}})
		d.SetRateShare(0.25, time.Now().Add(3*time.Second))
		if part := d.Snapshot().RatePart; part == nil || *part != 0.25 {
			t.Errorf("the part is %v, want 0.25", part)
		}
		<-time.After(3 * time.Second)
		if part := d.Snapshot().RatePart; part == nil || *part != 0 {
			t.Errorf("when its time is over the part is %v, want 0", part)
		}
		if by := d.Snapshot().LimitedBy; by != dispatcher.LimitedByDatabase {
			t.Errorf("without a part it is limited by %q", by)
		}
		stop()
	})
}

// What a claim found names the limit of its topic.
//
// CONTRACT: C-97
func TestFound(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		topic          topic
		rows           int
		over, keysWait bool
		want           dispatcher.LimitedBy
	}{
		"nothing":                                 {want: dispatcher.LimitedByIdle},
		"all of a share that a rate made small":   {topic: topic{cutBy: byRate}, rows: 10, want: dispatcher.LimitedByRate},
		"all of one that outcomes made small":     {topic: topic{cutBy: byOutcomes}, rows: 10, want: dispatcher.LimitedByDatabase},
		"less than that share":                    {topic: topic{cutBy: byRate}, rows: 9, want: dispatcher.LimitedByIdle},
		"tenants over their rates":                {over: true, want: dispatcher.LimitedByRate},
		"tenants over their rates, others queued": {topic: topic{fed: true}, over: true, want: dispatcher.LimitedByConcurrency},
		"more rows behind others than delivered":  {topic: topic{count: 4, begun: 1}, want: dispatcher.LimitedByOrder},
		"as many":                                 {topic: topic{count: 4, begun: 2}, want: dispatcher.LimitedByIdle},
		"more were due before":                    {topic: topic{filled: true}, want: dispatcher.LimitedByDatabase},
		"keys that wait for rows in here":         {topic: topic{count: 2, begun: 2}, keysWait: true, want: dispatcher.LimitedByOrder},
	} {
		test.topic.found(dispatcher.Share{Limit: 10}, test.rows, test.keysWait, test.over, dispatcher.LimitedByConcurrency, now)
		if by := test.topic.held.most(); by != test.want {
			t.Errorf("%s: limited by %s, want %s", name, by, test.want)
		}
	}
}
