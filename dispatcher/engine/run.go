package engine

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// stuckAfter is how long after its time limit a call of the sink may take to return before it is stuck.
	stuckAfter = 5 * time.Second
	// storeTimeout bounds a call of the store: a database that does not respond is unreachable.
	storeTimeout = 10 * time.Second
	// abandonAfter is how long a stop waits for deliveries to return once they are cancelled.
	abandonAfter = 2 * time.Second
	// writeFor is how long a stop tries to write the last outcomes back.
	writeFor = 5 * time.Second
)

var (
	errGraceOver = errors.New("the dispatcher stopped, and the delivery did not end within its grace period")
	errNoReturn  = errors.New("the sink did not return")
	errGoexit    = errors.New("the sink ended the goroutine that called it, with runtime.Goexit; it must return instead")
)

// run is one Run or RunOnce from begin to end: what its goroutines share.
//
//	claimLoop ──▶ flight ──▶ deliverLoop (Concurrency of them) ──▶ completer
//	                 ▲
//	             keepLeases
type run struct {
	d         *Dispatcher
	log       *slog.Logger
	sinkBatch int
	pace      pace
	flight    *flight
	completer *completer
	draining  atomic.Bool
	searching bool // the last claim found nothing, and had not searched everywhere: of the goroutine that claims
	life      life
}

// life is the goroutines of a run, and what ends them.
type life struct {
	calls, writes           context.Context // of store calls: claims and extensions, and write-backs
	cancelCalls, stopWrites context.CancelFunc

	workers            sync.WaitGroup // the claim loop and the deliveries
	keeping, writing   sync.WaitGroup
	probing            sync.WaitGroup
	stopKeep, stopping chan struct{}
}

func newRun(base context.Context, d *Dispatcher) *run {
	r := &run{
		d:         d,
		log:       d.cfg.Logger,
		sinkBatch: d.sink.BatchSize(),
		life:      life{stopKeep: make(chan struct{}), stopping: make(chan struct{})},
	}
	r.pace = newPace(r.sinkBatch)
	if d.cfg.TenantRateLimit.Events > 0 {
		r.pace.least = minIdleRates
	}
	r.life.calls, r.life.cancelCalls = context.WithCancel(base)
	r.life.writes, r.life.stopWrites = context.WithCancel(base)
	r.flight = newFlight(base, d.cfg, r.sinkBatch, dispatcher.KeepsOrder(d.sink), d.changed)
	r.completer = newCompleter(d, r.flight.written)
	return r
}

// start sets everything going but the claims.
func (r *run) start() {
	r.life.writing.Go(func() { r.completer.loop(r.life.writes, r.life.stopping) })
	r.life.keeping.Go(func() { r.keepLeases(r.life.stopKeep) })
	for range deliverLoops(r.d.cfg) {
		r.life.workers.Go(r.deliverLoop)
	}
}

// drain stops everything in order (CONTRACT C-30). The claim loop ends by itself with Run's context.
func (r *run) drain() {
	r.draining.Store(true)
	r.completer.release(r.flight.close())

	if !within(r.d.cfg.GracePeriod, &r.life.workers) {
		r.flight.leases().cutAll(errGraceOver)
		r.life.cancelCalls()
		if !within(abandonAfter, &r.life.workers) {
			r.abandon()
		}
	}
	close(r.life.stopKeep)
	r.life.cancelCalls()
	r.life.keeping.Wait()
	within(abandonAfter, &r.life.probing)

	last := time.AfterFunc(writeFor, r.life.stopWrites)
	close(r.life.stopping)
	r.completer.retry()
	r.life.writing.Wait()
	last.Stop()
	r.life.stopWrites()
}

// abandon leaves deliveries behind that do not return. Whether they succeed is not known, so their
// attempt is spent.
func (r *run) abandon() {
	n := 0
	for _, d := range r.flight.leases().abandonAll() {
		r.leave(d)
		n += len(d.rows)
	}
	r.log.Error("deliveries did not return after they were cancelled; leaving them behind", "rows", n)
}

// leave writes the rows of an abandoned delivery back as failed.
func (r *run) leave(d abandoned) {
	writable, errs := slices.Repeat([]bool{true}, len(d.rows)), slices.Repeat([]error{errNoReturn}, len(d.rows))
	r.completer.add(r.judge(d.call, d.rows, writable, errs, nil))
}

// probe probes the destination in the background: topics that are delivered are claimed meanwhile.
func (r *run) probe() {
	r.life.probing.Go(func() {
		ctx, cancel := context.WithTimeout(r.life.calls, probeTimeout)
		defer cancel()
		err := errGoexit
		defer func() {
			if v := recover(); v != nil {
				err = newPanicError(v)
				r.log.Debug("the sink panicked in a probe", "error", err, "stack", string(debug.Stack()))
			}
			if r.life.calls.Err() == nil {
				r.completer.release(r.flight.probed(err))
			}
			r.d.changed()
		}()
		err = r.d.sink.Probe(ctx)
	})
}

// storeCall gives a call of the store its time limit.
func storeCall[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return do(ctx)
}

// within waits for all of a group, and reports whether they ended within d.
func within(d time.Duration, all *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	return pause(d, nil, done)
}

// pause waits for d, or until one of the channels says something, and reports whether one did.
func pause(d time.Duration, wake, stop <-chan struct{}) (woken bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false
	case <-wake:
	case <-stop:
	}
	return true
}

// each is what of says of each element.
func each[E, T any](all []E, of func(E) T) []T {
	out := make([]T, len(all))
	for i, e := range all {
		out[i] = of(e)
	}
	return out
}

// notify leaves a word in a channel of one place, unless there is one already.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
