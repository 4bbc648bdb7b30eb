package engine

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// quietStore has no rows, and reports each claim.
type quietStore struct {
	dispatcher.Store
	claims chan struct{}
}

func (quietStore) Schema(context.Context) (dispatcher.Schema, error) {
	return dispatcher.Schema{State: dispatcher.SchemaReady}, nil
}

func (s quietStore) Claim(context.Context, dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	s.claims <- struct{}{}
	return dispatcher.Claimed{}, nil
}

// Wake ends the wait for the next poll, however long that is.
func TestWakeEndsThePollWait(t *testing.T) {
	store := quietStore{claims: make(chan struct{})}
	d, err := New(store, dispatcher.Handlers{}, dispatcher.Config{Logger: slog.New(slog.DiscardHandler), Topics: []string{"a"}, Lease: time.Hour, PollInterval: 20 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	r := newRun(t.Context(), d)
	ctx, cancel := context.WithCancel(t.Context())
	r.workers.Go(func() { r.claimLoop(ctx) })
	claimed := func(what string) {
		t.Helper()
		select {
		case <-store.claims:
		case <-time.After(time.Minute):
			t.Fatalf("no claim was made %s", what)
		}
	}
	claimed("at the start")
	for range 3 {
		d.Wake()
		claimed("after Wake")
	}
	cancel()
	r.workers.Wait()
}

// While events flow the waits are short; after that each is as long as the quiet before it, up to the
// poll interval. A dispatcher that has found nothing yet is idle.
// REQUIREMENT: STORAGE-47
func TestIdleWaits(t *testing.T) {
	const ms = time.Millisecond
	for batch, want := range map[int][]time.Duration{
		1:   {2 * ms, 2 * ms, 2 * ms, 2 * ms, 8 * ms, 16 * ms, 32 * ms, 64 * ms, 128 * ms, 256 * ms, 300 * ms, 300 * ms},
		500: {8 * ms, 8 * ms, 8 * ms, 8 * ms, 32 * ms, 64 * ms, 128 * ms, 256 * ms, 300 * ms, 300 * ms},
	} {
		p := newPace(batch)
		var waits []time.Duration
		for quiet := time.Duration(0); quiet < time.Second; {
			wait := p.idle(quiet, 300*ms)
			waits = append(waits, wait)
			quiet += wait
		}
		if !slices.Equal(waits, want) {
			t.Errorf("before a sink of %d the waits are %v, want %v", batch, waits, want)
		}
		if got := p.idle(0, ms); got != ms {
			t.Errorf("the wait is %v, longer than the poll interval", got)
		}
	}
	store := quietStore{claims: make(chan struct{}, 100)}
	d, err := New(store, dispatcher.Handlers{}, dispatcher.Config{Logger: slog.New(slog.DiscardHandler), Topics: []string{"a"}, Lease: time.Minute, PollInterval: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r := newRun(t.Context(), d)
	r.tryClaim(t.Context())
	r.probing.Wait() // the first claim probes the destination
	if got := r.tryClaim(t.Context()); got != 10*time.Second {
		t.Errorf("the first wait of an idle dispatcher is %v, want the poll interval", got)
	}
}

// forgetfulStore has one row, and does not take its ack the first few times.
type forgetfulStore struct {
	dispatcher.Store
	mu    sync.Mutex
	calls []string
	done  chan struct{}
}

func (s *forgetfulStore) note(call string) (before int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if c == call {
			before++
		}
	}
	s.calls = append(s.calls, call)
	return before
}

func (s *forgetfulStore) Schema(context.Context) (dispatcher.Schema, error) {
	return dispatcher.Schema{State: dispatcher.SchemaReady}, nil
}

func (s *forgetfulStore) Claim(context.Context, dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	switch s.note("claim") {
	case 0:
		return claimOf("a", 1, 1), nil
	default:
		return dispatcher.Claimed{}, nil
	}
}

func (s *forgetfulStore) Ack(context.Context, []dispatcher.Lease) ([]dispatcher.Lease, error) {
	switch s.note("ack") {
	case 0, 1, 2:
		return nil, errors.New("the database is unreachable")
	default:
		close(s.done)
		return nil, nil
	}
}

// While outcomes wait for the database nothing is claimed: it could be the very rows that were
// delivered, once their leases have expired.
//
// CONTRACT: C-23
func TestOutcomesAreWrittenBeforeTheNextClaim(t *testing.T) {
	store := &forgetfulStore{done: make(chan struct{})}
	deliver := make(chan struct{})
	d, err := New(store, dispatcher.Handlers{"a": func(context.Context, *dispatcher.Event) error { <-deliver; return nil }},
		dispatcher.Config{Logger: slog.New(slog.DiscardHandler), Topics: []string{"a"}, PollInterval: 2 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	close(deliver)
	select {
	case <-store.done:
	case <-time.After(time.Minute):
		t.Fatal("the ack was not tried again")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	claims, acks := 0, 0
	for _, call := range store.calls {
		switch {
		case call == "ack":
			acks++
		case acks == 2 || acks == 3: // the loop knows by now
			claims++
		}
	}
	if claims > 1 { // one may have been under way
		t.Errorf("%d claims were made before the outcome was written: %v", claims, store.calls)
	}
}
