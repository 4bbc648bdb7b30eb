package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// storeTimeout bounds a call of the store: a database that does not answer is away.
	storeTimeout = 10 * time.Second
	// abandonAfter is how long a stop waits for deliveries to return once they are cancelled.
	abandonAfter = 2 * time.Second
	// writeFor is how long a stop tries to write the last outcomes back.
	writeFor = 5 * time.Second
)

var (
	errGraceOver = errors.New("the dispatcher stopped, and the delivery did not end within its grace period")
	errNoReturn  = errors.New("the sink did not return")
)

// run is one Run or RunOnce from begin to end: what its goroutines share.
//
//	claimLoop ──▶ flight ──▶ deliverLoop (Concurrency of them) ──▶ completer
//	                 ▲
//	             keepLeases
type run struct {
	*Dispatcher
	log       *slog.Logger
	sinkBatch int
	pace      pace
	topics    topics
	flight    *flight
	completer *completer
	draining  atomic.Bool

	calls, writes           context.Context // of store calls: claims and extensions, and write-backs
	cancelCalls, stopWrites context.CancelFunc

	workers            sync.WaitGroup // the claim loop and the deliveries
	keeping, writing   sync.WaitGroup
	stopKeep, stopping chan struct{}
}

func newRun(base context.Context, d *Dispatcher) *run {
	r := &run{
		Dispatcher: d,
		log:        d.cfg.Logger,
		sinkBatch:  d.sink.BatchSize(),
		pace:       newPace(),
		topics:     newTopics(d.cfg.Topics),
		stopKeep:   make(chan struct{}),
		stopping:   make(chan struct{}),
	}
	r.calls, r.cancelCalls = context.WithCancel(base)
	r.writes, r.stopWrites = context.WithCancel(base)
	r.flight = newFlight(base, d.cfg, r.sinkBatch, d.changed)
	r.completer = newCompleter(d, r.flight.written)
	return r
}

// start sets everything going but the claims.
func (r *run) start() {
	r.writing.Go(func() { r.completer.loop(r.writes, r.stopping) })
	r.keeping.Go(func() { r.keepLeases(r.stopKeep) })
	for range r.cfg.Concurrency {
		r.workers.Go(r.deliverLoop)
	}
}

// drain stops everything in order (CONTRACT C-30). The claim loop ends by itself with Run's context.
func (r *run) drain() {
	r.draining.Store(true)
	r.completer.release(r.flight.close())

	ended := make(chan struct{})
	go func() { r.workers.Wait(); close(ended) }()
	if !within(r.cfg.GracePeriod, ended) {
		r.flight.cutAll(errGraceOver)
		r.cancelCalls()
		if !within(abandonAfter, ended) {
			r.abandon()
		}
	}
	close(r.stopKeep)
	r.cancelCalls()
	r.keeping.Wait()

	last := time.AfterFunc(writeFor, r.stopWrites)
	close(r.stopping)
	r.writing.Wait()
	last.Stop()
	r.stopWrites()
}

// abandon leaves deliveries behind that do not return. Whether they succeed is not known, so their
// attempt is spent: a fencing token is never published twice (CONTRACT C-27).
func (r *run) abandon() {
	rows := r.flight.abandon()
	results := make([]result, len(rows))
	for i, row := range rows {
		results[i] = result{row, r.judge(row, errNoReturn, errGraceOver, time.Time{}, r.cfg.GracePeriod+abandonAfter)}
	}
	r.log.Error("deliveries did not return after they were cancelled; leaving them behind", "rows", len(rows))
	r.completer.add(results)
}

// releaseQueue gives back the rows whose delivery has not begun.
func (r *run) releaseQueue() { r.completer.release(r.flight.unqueue()) }

// releaseTopic gives back those of one topic.
func (r *run) releaseTopic(topic string) { r.completer.release(r.flight.unqueueTopic(topic)) }

// storeCall gives a call of the store its time limit.
func storeCall(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return do(ctx)
}

// within waits for done, and reports whether it came within d.
func within(d time.Duration, done <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// pause waits for d, or until one of the channels says something, and reports whether one did.
func pause(d time.Duration, wake, stop <-chan struct{}) (told bool) {
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

// signal leaves a word in a channel of one place, unless there is one already.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
