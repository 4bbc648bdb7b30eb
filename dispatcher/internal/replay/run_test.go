package replay_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Stopped half-way, what waits is skipped, and its dead letters stay open. What was put back keeps its outcome.
func TestStopSkipsWaitingItems(t *testing.T) {
	r := newRig(t)
	r.dead(30, 0)
	o := request()
	r.begin(o)
	r.step(o, 10, 10)
	if _, err := r.replays.Stop(t.Context(), o.ID, strings.Repeat("x", 1025)); err == nil || !strings.Contains(err.Error(), "reason: it has more than 1024 bytes, or is not text; shorten it") {
		t.Errorf("a long reason: %v", err)
	}
	p, err := r.replays.Stop(t.Context(), o.ID, "alice deleted it")
	if err != nil {
		t.Fatal(err)
	}
	r.checkProgress(p, "30 of 30 done, 10 not delivered yet, 20 skipped: stopped; stopped: alice deleted it")
	r.step(o, 10, 0)
	if n := pgtest.Value[int](r, `select count(*) from outbox.outbox_dead_letters where resolution is null`); n != 20 {
		t.Errorf("%d open dead letters, want 20", n)
	}
	r.deliver("true")
	if p := r.observe(o); p.Delivered != 10 || p.FinishedAt.IsZero() {
		t.Errorf("at the end %+v", p)
	}
	if p, err = r.replays.Stop(t.Context(), o.ID, "bob too"); err != nil || p.Stopped != "alice deleted it" {
		t.Errorf("stopped again: %+v, %v", p, err)
	}
	for _, err := range []error{
		second(r.replays.Stop(t.Context(), uuid.New(), "")), second(r.replays.Observe(t.Context(), uuid.New())), second(r.replays.Progress(t.Context(), uuid.New())),
	} {
		if !errors.Is(err, replay.ErrNotFound) {
			t.Errorf("of a replay that is not there: %v", err)
		}
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
	if done, err := r.replays.Step(t.Context(), o.ID, 1); err == nil || !strings.Contains(err.Error(), "lost to another transaction") {
		t.Errorf("a step that loses three times did %d, %v", done, err)
	}
	if n := pgtest.Value[int](r, `select last_value from public.fires`); n != 6 {
		t.Errorf("two steps were tried %d times, want 6", n)
	}
	if times, rows := r.requeued(); times != 1 || rows != 1 {
		t.Errorf("%d rows were put back %d times, want 1 once", rows, times)
	}
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
	if !errors.Is(err, killed) || waited != time.Second {
		t.Errorf("4 steps at 40 a second: %v, paused for %v, %v", p, waited, err)
	}
	if times, rows := r.requeued(); times != 40 || rows != 40 {
		t.Errorf("%d rows went back %d times, want 40", rows, times)
	}
	quick := replay.RunOptions{}.WithPause(func(context.Context, time.Duration) error { return nil })
	if p, err = r.replays.Run(t.Context(), o.ID, quick); err != nil || p.Waiting != 0 || p.Pending != 100 {
		t.Errorf("the second run: %v, %v", p, err)
	}
	if times, rows := r.requeued(); times != 100 || rows != 100 {
		t.Errorf("%d rows went back %d times, want 100", rows, times)
	}

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
		if err != nil {
			t.Error(err)
		}
	case <-time.After(waitTimeout):
		t.Fatal("Run did not end after the last outcome")
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.replays.Run(ctx, o.ID, replay.RunOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of ctx: %v", err)
	}
}
