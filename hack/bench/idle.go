package main

import (
	"context"
	"time"
)

// idle runs the dispatcher on an empty outbox, with default settings.
func (b *bench) idle(ctx context.Context, d time.Duration) (measure, error) {
	return b.dispatch(ctx, nil, nil, func(db *database, pid int) (measure, error) { return db.watchIdle(ctx, pid, d) })
}

// watchIdle measures a process that has nothing to do, after it has settled.
func (db *database) watchIdle(ctx context.Context, pid int, d time.Duration) (measure, error) {
	if err := sleep(ctx, min(d, 5*time.Second)); err != nil {
		return nil, err
	}
	if err := db.resetStatements(ctx); err != nil {
		return nil, err
	}
	client, _, _, err := procStat(pid)
	if err != nil {
		return nil, err
	}
	before, err := db.usage(ctx)
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, d); err != nil {
		return nil, err
	}
	after, err := db.usage(ctx)
	if err != nil {
		return nil, err
	}
	clientAfter, _, _, err := procStat(pid)
	if err != nil {
		return nil, err
	}
	stats, err := db.statements(ctx)
	if err != nil {
		return nil, err
	}
	memory, err := memoryOf(pid)
	if err != nil {
		return nil, err
	}
	seconds := float64(after.at-before.at) / 1e9
	return measure{
		dbLoad:     100 * (after.cpu - before.cpu).Seconds() / seconds,
		clientLoad: 100 * (clientAfter - client).Seconds() / seconds,
		callRate:   float64(stats.calls) / seconds,
		peakMemMiB: mib(memory.peak),
		fileMemMiB: mib(memory.file),
	}, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
