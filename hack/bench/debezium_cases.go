package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// The cases of the cell debezium, next to the stream.
const (
	caseWarmDrain = "drain, warm"
	caseColdDrain = "drain, cold"
	caseTooLarge  = "an event of 1 MiB"
)

// compare measures one relay in all cases but the broker's outage.
func (k *kafkaCell) compare(ctx context.Context, which relay) {
	add := func(c string, run func() (measure, error)) { k.bench.measure(ctx, k.cell, which.system(), c, run) }
	err := k.with(ctx, which, func(r *kafkaRun) error {
		half := k.size.drain / 2
		if err := r.fill(ctx, half); err != nil { // Java compiles its code
			return err
		}
		if err := r.await(ctx, int64(half)); err != nil {
			return err
		}
		for _, c := range []struct {
			name string
			look lookAt
		}{
			{rateName(500), func(ctx context.Context, r *kafkaRun) (measure, error) { return r.steady(ctx, pace{500, k.size.kafka}) }},
			{caseWarmDrain, warmDrain}, {caseColdDrain, coldDrain}, {caseTooLarge, tooLarge},
		} {
			end, err := r.end(ctx)
			if err != nil {
				return err
			}
			r.from += end
			add(c.name, func() (measure, error) {
				m, err := c.look(ctx, r)
				if err != nil {
					err = fmt.Errorf("%w; the relay's log: %s", err, r.stderr)
				}
				return m, err
			})
		}
		return nil
	})
	if err != nil {
		add("start", func() (measure, error) { return nil, err })
	}
}

// fill adds events 0 to n, 500 in a transaction, over two connections.
func (r *kafkaRun) fill(ctx context.Context, n int) error {
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range 2 {
		group.Go(func() error {
			for {
				from := int(next.Add(500)) - 500
				if from >= n {
					return nil
				}
				var payloads [][]byte
				for i := from; i < min(from+500, n); i++ {
					payloads = append(payloads, payload(i, 200))
				}
				if err := r.add(ctx, payloads...); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// warmDrain has a backlog that is committed while the relay stands still.
func warmDrain(ctx context.Context, r *kafkaRun) (measure, error) {
	daemon.Pause(r.cmd.Process.Pid)
	resume := func() error { return r.cmd.Process.Signal(syscall.SIGCONT) }
	m, err := r.drainBacklog(ctx, resume)
	if err != nil {
		_ = resume() // else it would not end
	}
	return m, err
}

// coldDrain has a backlog that is committed while no relay runs, and its start counts.
func coldDrain(ctx context.Context, r *kafkaRun) (measure, error) {
	if err := r.stop(ctx); err != nil {
		return nil, err
	}
	return r.drainBacklog(ctx, func() error { return r.start(ctx) })
}

// drainBacklog commits a backlog, and measures from when the relay begins to the last record.
func (r *kafkaRun) drainBacklog(ctx context.Context, begin func() error) (measure, error) {
	n := r.size.drain
	empty, err := r.costs(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.fill(ctx, n); err != nil {
		return nil, err
	}
	before, err := r.costs(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := begin(); err != nil {
		return nil, err
	}
	if err := r.await(ctx, int64(n)); err != nil {
		return nil, err
	}
	if err := r.until(ctx, r.relay.settled); err != nil {
		return nil, err
	}
	after, err := r.costs(ctx)
	if err != nil {
		return nil, err
	}
	used, err := memoryOf(r.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	records, lost, err := r.arrivals(ctx, 0, n)
	if err != nil {
		return nil, err
	}
	m := r.spent(before, after, n)
	m[perSecond] = float64(n) / records[len(records)-1].Timestamp.Sub(began).Seconds()
	m[walInsert] = float64(before.wal-empty.wal) / float64(n)
	m[peakMemMiB] = mib(used.peak)
	m[lostEvents], m[doubledEvents] = float64(lost), float64(len(records)-(n-lost))
	return m, nil
}

// tooLarge adds an event that is larger than the broker takes, and looks at those after it.
func tooLarge(ctx context.Context, r *kafkaRun) (measure, error) {
	const before, later = 20, 100
	for n := range before + 1 + later {
		size := 200
		if n == before {
			size = 1 << 20
		}
		if err := r.add(ctx, payload(n, size)); err != nil {
			return nil, err
		}
		if n == before-1 {
			if err := r.await(ctx, before); err != nil {
				return nil, err
			}
		}
	}
	records, lost, err := r.arrivals(ctx, 0, before+1+later)
	if err != nil {
		return nil, err
	}
	m := measure{laterShare: 0, lostEvents: float64(lost), deadEvents: 0}
	for _, record := range records {
		if n, err := number(record.Value); err == nil && n > before {
			m[laterShare] += 100.0 / later
		}
	}
	if r.relay.dead != "" {
		dead, err := queryOne[int](ctx, r.conn, r.relay.dead)
		if err != nil {
			return nil, err
		}
		m[deadEvents], m[lostEvents] = float64(dead), float64(lost-dead)
	}
	return m, nil
}
