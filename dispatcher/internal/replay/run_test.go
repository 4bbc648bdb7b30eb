package replay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Stopped half-way, what waits is skipped, and its dead letters stay open. What was put back keeps its outcome.
func TestStopSkipsWaitingItems(t *testing.T) {
	r := newRig(t)
	r.dead(30, 0)
	o := request()
	r.begin(o)
	r.step(o, 10, 10)
	need.Fails(t, "reason: it has more than 1024 bytes, or is not text; shorten it", "a long reason: %v", need.Err(r.replays.Stop(t.Context(), o.ID, strings.Repeat("x", 1025))))
	p, err := r.replays.Stop(t.Context(), o.ID, "alice deleted it")
	need.OK(t, err)
	r.checkProgress(p, "stopped: 10 of 30 put back, 0 delivered, 10 not delivered yet, 20 skipped: stopped; alice deleted it")
	r.step(o, 10, 0)
	pgtest.Want(r, 20, "%d open dead letters, want 20", `select count(*) from outbox.outbox_dead_letters where resolution is null`)
	r.deliver("true")
	if p := r.observe(o); p.Delivered != 10 || p.FinishedAt.IsZero() {
		t.Errorf("at the end %+v", p)
	}
	p, err = r.replays.Stop(t.Context(), o.ID, "bob too")
	need.That(t, err == nil && p.Stopped == "alice deleted it", "stopped again: %+v, %v", p, err)
	for _, err := range []error{
		second(r.replays.Stop(t.Context(), uuid.New(), "")), second(r.replays.Observe(t.Context(), uuid.New())), second(r.replays.Progress(t.Context(), uuid.New())),
	} {
		need.That(t, errors.Is(err, replay.ErrNotFound), "of a replay that is not there: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// A transaction that loses to another one is tried three times, and does its work once.
func TestLostTransactionIsTriedThreeTimes(t *testing.T) {
	r := newRig(t)
	r.dead(2, 0)
	o := request()
	r.begin(o)
	pgtest.Exec(r, `create sequence public.fires;
		create function public.lose() returns trigger language plpgsql security definer as $$ begin
			if nextval('public.fires') <> 3 then raise exception 'lost to another transaction' using errcode = '40P01'; end if;
			return new;
		end $$;
		create trigger lose before update on outbox.outbox_events for each row execute function public.lose()`)
	r.step(o, 1, 1)
	done, err := r.replays.Step(t.Context(), o.ID, 1)
	need.Fails(t, "lost to another transaction", "a step that loses three times did %d, %v", err, done)
	pgtest.Want(r, 6, "two steps were tried %d times, want 6", `select last_value from public.fires`)
	times, rows := r.requeued()
	need.That(t, times == 1 && rows == 1, "%d rows were put back %d times, want 1 once", rows, times)
}

// Run keeps the rate, continues after a process that was killed, and with Wait waits for outcomes.
func TestRunKeepsRateAndContinues(t *testing.T) {
	r := newRig(t)
	r.dead(100, 0)
	o := request()
	o.Rate = 40
	r.begin(o)
	killed := errors.New("killed")
	var waited time.Duration
	pauses := 0
	p, err := r.replays.Run(t.Context(), o.ID, replay.RunOptions{}.WithPause(func(_ context.Context, wait time.Duration) error {
		waited += wait
		if pauses++; pauses == 4 {
			return killed
		}
		return nil
	}))
	need.That(t, errors.Is(err, killed) && waited == time.Second, "4 steps at 40 a second: %v, paused for %v, %v", p, waited, err)
	times, rows := r.requeued()
	need.That(t, times == 40 && rows == 40, "%d rows went back %d times, want 40", rows, times)
	quick := replay.RunOptions{}.WithPause(func(context.Context, time.Duration) error { return nil })
	p, err = r.replays.Run(t.Context(), o.ID, quick)
	need.That(t, err == nil && p.Waiting == 0 && p.Pending == 100, "the second run: %v, %v", p, err)
	times, rows = r.requeued()
	need.That(t, times == 100 && rows == 100, "%d rows went back %d times, want 100", rows, times)

	// With Wait it ends when the last outcome is known.
	var seen atomic.Int64
	ended := make(chan error, 1)
	go func() {
		last, err := r.replays.Run(t.Context(), o.ID, replay.RunOptions{Wait: true, Poll: 20 * time.Millisecond, Report: func(p status.Replay) { seen.Store(p.Delivered) }})
		if err == nil && (last.Delivered != 100 || last.FinishedAt.IsZero()) {
			err = errors.New("it ended with " + last.String())
		}
		ended <- err
	}()
	r.deliver("seq <= 50")
	eventually(t, "it reports the outcomes", func() bool { return seen.Load() == 50 })
	select {
	case err := <-ended:
		t.Fatalf("it ended before all was delivered: %v", err)
	default:
	}
	r.deliver("true")
	select {
	case err := <-ended:
		need.Want(t, nil, "%v", err)
	case <-time.After(waitTimeout):
		t.Fatal("Run did not end after the last outcome")
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.replays.Run(ctx, o.ID, replay.RunOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of ctx: %v", err)
	}
}

// fenced is a Sink to a consumer that fences on the token: it refuses one that is not higher than the last of the
// event. It writes down what it delivers of each key.
type fenced struct {
	refuse func(*dispatcher.Event) bool // for good

	mu        sync.Mutex
	tokens    map[uuid.UUID]int64
	running   map[string]bool
	delivered map[string][]int64 // seqs by key
	faults    []string
}

func (f *fenced) sink() dispatcher.Sink { return &sinktest.Func{Respond: f.deliver} }

func (f *fenced) deliver(_ context.Context, e *dispatcher.Event) error {
	f.mu.Lock()
	if f.tokens == nil {
		f.tokens, f.running, f.delivered = map[uuid.UUID]int64{}, map[string]bool{}, map[string][]int64{}
	}
	if f.running[e.AggregateID] {
		f.faults = append(f.faults, fmt.Sprintf("seq %d of key %s is delivered during another", e.Seq, e.AggregateID))
	}
	if e.LeaseNumber <= f.tokens[e.ID] {
		f.faults = append(f.faults, fmt.Sprintf("seq %d has the token %d after %d", e.Seq, e.LeaseNumber, f.tokens[e.ID]))
	}
	f.running[e.AggregateID], f.tokens[e.ID] = true, e.LeaseNumber
	refused := f.refuse(e)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.running, e.AggregateID)
		if !refused {
			f.delivered[e.AggregateID] = append(f.delivered[e.AggregateID], e.Seq)
		}
	}()
	if refused {
		return dispatcher.Permanent(dispatcher.ReasonPermanentFailure, errors.New("422"))
	}
	return nil
}

// engine runs a dispatcher with order per key until the test ends.
func (r rig) engine(sink dispatcher.Sink, onDead dispatcher.OnDead) {
	r.Helper()
	d, err := engine.New(pgstore.New(r.Pool, pgstore.Options{Namespace: "shop"}), sink, dispatcher.Config{
		Ordering: dispatcher.OrderingKey, OnDead: onDead, BatchSize: 20, Concurrency: 4, Lease: 30 * time.Second,
		PollInterval: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	need.OK(r, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	r.Cleanup(func() {
		cancel()
		need.Want(r, nil, "Run returned %v", <-ended)
	})
}

// Two dispatchers deliver new events while the dead ones are replayed, and a consumer that fences on the token accepts
// all. Of each key the replayed events arrive in order. With onDead Block a key's later events arrive after them, so the
// order of the key is complete, and none of a key arrives when one is dead again.
// CONTRACT: C-27, C-42, C-50
func TestReplayWithConcurrentDispatchers(t *testing.T) {
	for _, onDead := range []dispatcher.OnDead{dispatcher.OnDeadContinue, dispatcher.OnDeadBlock} {
		t.Run(string(onDead), func(t *testing.T) {
			r := newRig(t)
			const keys, events = 5, 60
			enqueue := func() {
				pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
					select gen_random_uuid(), 'shop', 'orders', n % $1::integer, '{}' from generate_series(1, $2::integer) as n`, keys, events)
			}
			broken, again := true, int64(3) // an event of key 3 is dead again
			sink := &fenced{}
			sink.refuse = func(e *dispatcher.Event) bool { return broken && e.Seq <= events/2 || e.Seq == again }
			enqueue()
			r.engine(sink.sink(), onDead)
			r.engine(sink.sink(), onDead)
			dead := keys // of each the first one, which blocks it
			if onDead == dispatcher.OnDeadContinue {
				dead = events / 2
			}
			eventually(t, "they are dead", func() bool {
				return pgtest.Value[int](r, `select count(*) from outbox.outbox_events where status = 'dead'`) == dead &&
					(onDead == dispatcher.OnDeadBlock || pgtest.Value[int](r, `select count(*) from outbox.outbox_events where live`) == 0)
			})
			sink.mu.Lock()
			broken = false
			sink.delivered = map[string][]int64{}
			sink.mu.Unlock()

			o := request()
			r.begin(o)
			enqueue()
			p, err := r.replays.Run(t.Context(), o.ID, replay.RunOptions{Wait: true, Poll: 50 * time.Millisecond})
			need.OK(t, err)
			need.That(t, p.Delivered == int64(dead)-1 && p.DeadAgain == 1 && p.Matched == int64(dead), "it ended with %v; want all but one delivered", p)
			blocked := 0
			if onDead == dispatcher.OnDeadBlock {
				blocked = 2*events/keys - 1
			}
			eventually(t, "the others are delivered", func() bool {
				return pgtest.Value[int](r, `select count(*) from outbox.outbox_events where live`) == blocked
			})
			r.checkOrder(sink, onDead, events/2)
		})
	}
}

// checkOrder checks what was delivered since the replay began; the first so many events were dead.
func (r rig) checkOrder(sink *fenced, onDead dispatcher.OnDead, dead int64) {
	r.Helper()
	sink.mu.Lock()
	defer sink.mu.Unlock()
	for _, fault := range sink.faults {
		r.Error(fault)
	}
	for key, seqs := range sink.delivered {
		var last int64
		for _, seq := range seqs {
			if onDead == dispatcher.OnDeadContinue && seq > dead {
				continue // those that were not blocked, and new ones
			}
			need.That(r, seq > last, "of key %s seq %d is delivered after %d", key, seq, last)
			last = seq
		}
		need.That(r, key != "3" || last == 0 || onDead != dispatcher.OnDeadBlock, "seq %d of key 3 is delivered after an event that is dead again, want none", last)
	}
}

// worker says that a dispatcher in order per key runs which serves topics, and why it has paused some, as JSON.
func (r rig) worker(topics string, blocks, paused bool, pausedTopics string) {
	r.Helper()
	pgtest.Exec(r, `insert into outbox.outbox_workers (worker, dispatcher, namespace, topics, ordered, blocks, paused, paused_topics)
		values (gen_random_uuid(), 'd', 'shop', $1::text[], true, $2, $3, $4::jsonb)`, topics, blocks, paused, pausedTopics)
}

// A replay reports what it waits for, when no outcome is new: no dispatcher serves the topic, or it is paused, or has paused
// the topic; an event is under way, or behind another one of its key. Run ends at its timeout, and leaves the replay as it is.
// CONTRACT: C-42
func TestProgressReportsCausesOfWaiting(t *testing.T) {
	serves := func(r rig) { r.worker("{orders}", false, false, "{}") }
	for _, test := range []struct {
		what    string
		workers func(rig)
		after   string // what is done when they are put back
		want    string // reason, count, seq of the event, detail
	}{
		{"no dispatcher serves the topic", func(r rig) { r.worker("{bills}", false, false, "{}") }, "", "no_dispatcher 5 2"},
		{"dispatchers that are gone do not serve", func(r rig) {
			serves(r)
			pgtest.Exec(r, `update outbox.outbox_workers set seen_at = now() - interval '2 minutes'`)
		}, "", "no_dispatcher 5 2"},
		{"the dispatcher is paused", func(r rig) { r.worker("{}", false, true, "{}") }, "", "paused 5 2"},
		{"one of two is paused", func(r rig) { r.worker("{}", false, true, "{}"); serves(r) }, "", ""},
		{"the topic is paused", func(r rig) { r.worker("{}", false, false, `{"orders": "503", "bills": "404"}`) }, "", "topic_paused 5 2 503"},
		{"all topics are paused", func(r rig) { r.worker("{}", false, false, `{"": "503"}`) }, "", "topic_paused 5 2 503"},
		{"another topic is paused", func(r rig) { r.worker("{}", false, false, `{"bills": "404"}`) }, "", ""},
		{"what is served is only slow", serves, "", ""},
		{"some are under way", serves, `update outbox.outbox_events set status = 'processing', locked_by = gen_random_uuid(), locked_until = now() where seq < 4 and status = 'pending'`, "delivering 2 2"},
		{"a dead event outside the set blocks the key", func(r rig) { r.worker("{}", true, false, "{}") }, "", "earlier_dead 2 1"},
		{"a live event outside the set goes first", serves, `update outbox.outbox_events set status = 'pending', dead_reason = null where seq = 1`, "earlier_live 2 1"},
		{"without order nothing waits for it", serves, `update outbox.outbox_events set status = 'pending', dead_reason = null where seq = 1;
			update outbox.outbox_workers set ordered = false`, ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			r := newRig(t)
			r.dead(6, 2)
			test.workers(r)
			o := request()
			o.Filter.IDs = []string{"2", "3", "4", "5", "6"}
			r.begin(o)
			r.step(o, 10, 5)
			if test.after != "" {
				pgtest.Exec(r, test.after)
			}
			p := r.observe(o)
			var got string
			for _, wait := range p.WaitingFor {
				got += strings.TrimSpace(pgtest.Value[string](r, `select concat_ws(' ', $1::text, $2::bigint, seq, $4::text) from outbox.outbox_events where id = $3`, wait.Reason, wait.Count, wait.Event, wait.Detail))
			}
			need.Want(t, test.want, "it waits for %q, want %q", got)
			if again, err := r.replays.Progress(t.Context(), o.ID); err != nil || len(again.WaitingFor) != len(p.WaitingFor) {
				t.Errorf("the progress is %+v, %v", again, err)
			}
			known := !p.EndsAt.IsZero()
			need.That(t, known == (test.want == "" || strings.HasPrefix(test.want, "delivering")), "its end is known: %v", p.EndsAt)

			left, err := r.replays.Run(t.Context(), o.ID, replay.RunOptions{Wait: true, Timeout: time.Nanosecond, Poll: time.Millisecond})
			need.That(t, errors.Is(err, replay.ErrTimeout) && (len(p.WaitingFor) == 0 || strings.Contains(err.Error(), p.WaitingFor[0].String())), "it ended with %v", err)
			need.That(t, left.FinishedAt.IsZero() && left.Stopped == "" && left.Pending == 5, "the wait has changed the replay: %v", left)
		})
	}
}

// A replay is of a namespace: by its id, others neither see nor move it, nor begin one of the same id.
// CONTRACT: C-42
func TestReplayOfAnotherNamespace(t *testing.T) {
	r := newRig(t)
	r.dead(3, 0)
	o := request()
	r.begin(o)
	bills := replay.New(r.Pool, replay.Options{Namespace: "bills"})
	taken := request()
	taken.ID, taken.Namespace = o.ID, "bills"
	for what, err := range map[string]error{
		"progress": second(bills.Progress(t.Context(), o.ID)),
		"observe":  second(bills.Observe(t.Context(), o.ID)),
		"step":     second(bills.Step(t.Context(), o.ID, 1)),
		"run":      second(bills.Run(t.Context(), o.ID, replay.RunOptions{})),
		"stop":     second(bills.Stop(t.Context(), o.ID, "enough")),
		"begin":    second(r.replays.Begin(t.Context(), taken)),
	} {
		need.That(t, errors.Is(err, replay.ErrNamespace) && strings.Contains(err.Error(), `of "shop", and not of "bills"; name the file of a dispatcher of "shop"`),
			"%s: %v", what, err)
	}
	shop := replay.New(r.Pool, replay.Options{Namespace: "shop"})
	p, err := shop.Progress(t.Context(), o.ID)
	need.OK(t, err)
	r.checkProgress(p, "0 of 3 put back, 0 delivered")
	if _, err := bills.Progress(t.Context(), uuid.New()); !errors.Is(err, replay.ErrNotFound) {
		t.Errorf("of a replay that is not there: %v", err)
	}
}

// A canary is replayed alone until its outcomes are known. The replay stops when too many are dead again, then or later.
func TestCanaryStopsReplay(t *testing.T) {
	for _, test := range []struct {
		what                  string
		canary, abortAt, fail int // of the first 5
		want                  string
	}{
		{"half are dead again", 5, 0, 3, "stopped: 5 of 40 put back, 2 delivered, 3 dead again, 35 skipped: stopped; 3 of the newest 5 outcomes are failures, which is 50 % or more"},
		{"fewer are dead again", 5, 0, 2, "5 of 40 put back, 3 delivered, 2 dead again"},
		{"one is too many", 5, 1, 1, "stopped: 5 of 40 put back, 4 delivered, 1 dead again, 35 skipped: stopped; 1 of the newest 5 outcomes are failures, which is 1 % or more"},
		{"no canary, too few known", 0, 10, 5, "5 of 40 put back, 0 delivered, 5 dead again"},
	} {
		t.Run(test.what, func(t *testing.T) {
			r := newRig(t)
			r.dead(40, 0)
			o := request()
			o.Canary, o.AbortAt = test.canary, test.abortAt
			r.begin(o)
			if test.canary == 0 {
				r.step(o, 5, 5)
			} else {
				r.step(o, 3, 3)
				r.step(o, 100, 2)
				r.step(o, 100, 0)
			}
			// Not all outcomes are known: nothing happens yet.
			pgtest.Exec(r, `create view firsts as select id, row_number() over (order by seq) as n from outbox.outbox_events`)
			r.makeDead(`id in (select id from firsts where n = 1)`)
			if p := r.observe(o); p.Stopped != "" {
				t.Errorf("it stopped after one outcome: %v", p)
			}
			if test.canary > 0 {
				r.step(o, 100, 0)
			}
			for n := 2; n <= test.fail; n++ {
				r.makeDead(`id in (select id from firsts where n = ` + string(rune('0'+n)) + `)`)
			}
			r.deliver("true")
			p := r.observe(o)
			r.checkProgress(p, test.want)
			if p.Stopped != "" {
				r.step(o, 100, 0)
				return
			}
			// Later: 15 more, which all are dead again.
			r.step(o, 15, 15)
			r.makeDead("true")
			later := r.observe(o)
			need.That(t, later.Stopped != "", "after 15 more are dead again: %v", later)
		})
	}
}

// fail makes pending rows fail an attempt, of twenty, as an engine would: with an attempt spent, or with a fault of the
// destination none.
func (r rig) fail(where string, attempts int) {
	r.Helper()
	pgtest.Exec(r, `update outbox.outbox_events set attempts = $1, last_error = '422 no such customer', next_attempt_at = now() + interval '1 hour',
		fault_since = case when $1 = 0 then now() end where status = 'pending' and `+where, attempts)
}

// An event of the canary whose first attempt failed is a failure of the canary, though nineteen attempts are left.
// CONTRACT: C-42
func TestFirstFailedAttemptsStopTheCanary(t *testing.T) {
	for what, attempts := range map[string]int{"an attempt is spent": 1, "a fault spends none": 0} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			r.dead(100, 0)
			o := request()
			o.Canary = 10
			r.begin(o)
			r.step(o, 100, 10)
			r.fail("seq <= 4", attempts)
			r.deliver("seq in (5, 6)")
			r.checkProgress(r.observe(o), "10 of 100 put back, 2 delivered, 4 failing, 4 not delivered yet")
			r.step(o, 100, 0)
			r.deliver("seq in (4, 7, 8, 9)") // 4 at its second attempt
			p := r.observe(o)
			r.checkProgress(p, "10 of 100 put back, 6 delivered, 3 failing, 1 not delivered yet")
			r.fail("seq = 10", attempts)
			p = r.observe(o)
			r.checkProgress(p, "stopped: 10 of 100 put back, 6 delivered, 4 failing, 90 skipped: stopped; 5 of the newest 10 outcomes are failures, which is 50 % or more")
			why := p.Why()
			need.That(t, len(why) == 1 && why[0] == "the newest failure: 422 no such customer", "it says why: %q", why)
			// Who waits has the result now, and who lingers waits for the four: with pauses that end it.
			waits := errors.New("it waits")
			options := replay.RunOptions{Wait: true}.WithPause(func(context.Context, time.Duration) error { return waits })
			last, err := r.replays.Run(t.Context(), o.ID, options)
			need.That(t, err == nil && last.Stopped != "" && last.EndsAt.IsZero(), "to wait for one that has stopped ended with %v, %+v", err, last)
			options.Linger = true
			need.That(t, errors.Is(second(r.replays.Run(t.Context(), o.ID, options)), waits), "to linger ended before all was known")
			// What fails is tried again, and its outcome is counted.
			r.deliver("seq = 10")
			r.makeDead("true")
			p = r.observe(o)
			r.checkProgress(p, "stopped: 10 of 100 put back, 7 delivered, 3 dead again, 90 skipped: stopped; 5 of the newest 10 outcomes are failures, which is 50 % or more")
			need.That(t, !p.FinishedAt.IsZero() && p.LastError == "again", "at the end %+v", p)
		})
	}
}

// The newest hundred outcomes decide, and not all since the beginning: a destination that turns bad stops the replay. Until
// then at most five seconds of the rate are without an outcome.
// CONTRACT: C-42
func TestReplayStopsWhenTheDestinationTurnsBad(t *testing.T) {
	r := newRig(t)
	r.dead(6000, 0)
	o := request()
	o.Canary, o.Rate = 10, 60
	r.begin(o)
	r.step(o, 500, 10)
	r.worker("{}", false, false, "{}")
	need.That(t, r.observe(o).EndsAt.IsZero(), "it has an end by the canary alone")
	pgtest.Exec(r, `update outbox.outbox_replays set began_at = now() - interval '1 hour' where id = $1`, o.ID) // the canary took so long
	r.deliver("true")
	r.observe(o)
	for n := range 9 {
		r.step(o, 100, 100) // the canary alone holds up the others
		if ends := time.Until(r.observe(o).EndsAt.Time()); n == 0 && (ends < time.Minute || ends > 10*time.Minute) {
			t.Errorf("after the canary 5990 at 60 a second end in %s", ends)
		}
		r.step(o, 500, 200)
		r.step(o, 500, 0)
		r.deliver("true")
		r.observe(o)
	}
	r.step(o, 500, 300)
	r.fail("true", 1)
	p := r.observe(o)
	r.checkProgress(p, "stopped: 3010 of 6000 put back, 2710 delivered, 300 failing, 2990 skipped: stopped; 100 of the newest 100 outcomes are failures, which is 50 % or more")
	r.step(o, 500, 0)

	// Nothing comes: no more goes, and no share is known.
	silent := request()
	silent.Rate = 1
	r.dead(20, 0)
	silent.Filter.Topic = "orders"
	r.begin(silent)
	r.step(silent, 500, 5)
	r.step(silent, 500, 0)
	if p := r.observe(silent); p.Stopped != "" || p.Pending != 5 {
		t.Errorf("without outcomes: %v", p)
	}
	// Events that fail have an outcome: they do not hold up the others, below the share.
	r.fail("seq = (select min(seq) from outbox.outbox_events where live and attempts = 0)", 1)
	r.observe(silent)
	r.step(silent, 500, 1)
}
