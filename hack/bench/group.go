package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// group is the worker processes of one system in one run.
type group []*worker

// startGroup starts n workers on a database.
func (b *bench) startGroup(ctx context.Context, s system, dsn string, n int, stamp bool) (group, error) {
	argv, err := b.argv(s)
	if err != nil {
		return nil, err
	}
	j := s.job
	j.DSN, j.Role, j.Stamp = dsn, "work", stamp
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var g group
	for range n {
		w, err := startWorker(ctx, argv, j)
		if err != nil {
			_, stopErr := g.stop()
			return nil, errors.Join(err, stopErr)
		}
		g = append(g, w)
	}
	return g, nil
}

func (g group) begin() error {
	for _, w := range g {
		if err := w.begin(); err != nil {
			return w.failure("did not take the command to begin")
		}
	}
	return nil
}

// read adds up what the workers said last.
func (g group) read() (sum report, err error) {
	for _, w := range g {
		r, err := w.read()
		if err != nil {
			return sum, w.failure("ended early")
		}
		sum.add(r)
	}
	return sum, nil
}

func (r *report) add(o report) {
	r.Handled += o.Handled
	r.Marked += o.Marked
	r.Inversions += o.Inversions
	r.At, r.MarkedAt = max(r.At, o.At), max(r.MarkedAt, o.MarkedAt)
	r.Stamps = append(r.Stamps, o.Stamps...)
}

// await waits until the workers have handled n events. It gives up when the time is over, or when
// nothing happens for half a minute.
func (g group) await(ctx context.Context, n int64, limit time.Duration) (report, error) {
	began, moved, last := time.Now(), time.Now(), int64(-1)
	for {
		sum, err := g.read()
		switch {
		case err != nil || sum.Handled >= n:
			return sum, err
		case ctx.Err() != nil:
			return sum, context.Cause(ctx)
		case sum.Handled > last:
			last, moved = sum.Handled, time.Now()
		case time.Since(moved) > 30*time.Second:
			return sum, fmt.Errorf("%w: it stood still at %d of %d events for 30s", errSlow, sum.Handled, n)
		}
		if time.Since(began) > limit {
			return sum, fmt.Errorf("%w: %d of %d events in %s", errSlow, sum.Handled, n, limit)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// errSlow marks a system that did not get done in the time it was given.
var errSlow = errors.New("not done in time")

func (g group) cpu() (total time.Duration, err error) {
	for _, w := range g {
		own, _, _, err := procStat(w.cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		total += own
	}
	return total, nil
}

// peakMemory is that of the process that had the most.
func (g group) peakMemory() (peak int64, err error) {
	for _, w := range g {
		m, err := memoryOf(w.cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		peak = max(peak, m.peak)
	}
	return peak, nil
}

// stop ends the workers, and adds up their last reports.
func (g group) stop() (sum report, err error) {
	for _, w := range g {
		r, stopErr := w.stop()
		sum.add(r)
		err = errors.Join(err, stopErr)
	}
	return sum, err
}
