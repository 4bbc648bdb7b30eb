package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// drainOf says what is drained.
type drainOf struct {
	load
	processes int
	// held keeps a snapshot open from before the insert to the end.
	held bool
	// broker returns the CPU time of what the workers deliver to. nil: to nothing outside.
	broker func() (time.Duration, error)
	// limit is how long the drain may take. Defaults to 4 minutes.
	limit time.Duration
}

func (o drainOf) brokerCPU() (time.Duration, error) {
	if o.broker == nil {
		return 0, nil
	}
	return o.broker()
}

// drain inserts events, and then measures how a system works them off.
func (b *bench) drain(ctx context.Context, s system, o drainOf) (measure, error) {
	db, err := b.srv.database(ctx)
	if err != nil {
		return nil, err
	}
	defer db.drop()
	if err := s.setup(ctx, db.dsn()); err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	return b.drainIn(ctx, db, s, o)
}

// drainIn does it in a database with the schema.
func (b *bench) drainIn(ctx context.Context, db *database, s system, o drainOf) (measure, error) {
	if o.held {
		release, err := hold(ctx, db)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	kept := int64(0)
	if s.delivered != "" {
		var err error
		if kept, err = queryOne[int64](ctx, db.conn, s.delivered); err != nil {
			return nil, err
		}
	}
	before, err := db.usage(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.insert(ctx, db.dsn(), o.load); err != nil {
		return nil, fmt.Errorf("insert: %w", err)
	}
	after, err := db.usage(ctx)
	if err != nil {
		return nil, err
	}
	if err := db.exec(ctx, `analyze`); err != nil {
		return nil, err
	}
	m := measure{}
	perEvent := func(v float64) float64 { return v / float64(o.events) }
	m[walInsert] = perEvent(float64(after.wal - before.wal))
	m[insertCPU] = perEvent(float64((after.cpu - before.cpu).Microseconds()))

	g, err := b.startGroup(ctx, s, db.dsn(), max(1, o.processes), false)
	if err != nil {
		return nil, err
	}
	err = b.watch(ctx, db, s, o, g, m)
	sum, stopErr := g.stop()
	if err := errors.Join(err, stopErr); err != nil {
		return m, err
	}
	if sum.Handled != int64(o.events) {
		return nil, fmt.Errorf("%d events were inserted, and %d handled", o.events, sum.Handled)
	}
	if s.job.Key {
		m[inversions] = float64(sum.Inversions)
	}
	if s.delivered != "" {
		if n, err := queryOne[int64](ctx, db.conn, s.delivered); err != nil || n-kept != int64(o.events) {
			return nil, errors.Join(err, fmt.Errorf("%d events were inserted, and %d rows are kept as delivered", o.events, n-kept))
		}
	}
	if share, err := db.hotShare(ctx); err != nil {
		return nil, err
	} else if share >= 0 {
		m[hotShare] = 100 * share
	}
	return m, nil
}

// watch runs the workers until all is done, and measures them.
func (b *bench) watch(ctx context.Context, db *database, s system, o drainOf, g group, m measure) error {
	if o.limit == 0 {
		o.limit = 4 * time.Minute
	}
	if err := db.resetStatements(ctx); err != nil {
		return err
	}
	clientBefore, err := g.cpu()
	if err != nil {
		return err
	}
	brokerBefore, err := o.brokerCPU()
	if err != nil {
		return err
	}
	before, err := db.usage(ctx)
	if err != nil {
		return err
	}
	if err := g.begin(); err != nil {
		return err
	}
	sum, slow := g.await(ctx, int64(o.events), o.limit)
	if slow != nil && !errors.Is(slow, errSlow) {
		return slow
	}
	ended := sum.At
	if slow == nil {
		if ended, err = untilNothingLeft(ctx, db.conn, s.left, ended); err != nil {
			return err
		}
	}
	after, err := db.usage(ctx)
	if err != nil {
		return err
	}
	clientAfter, err := g.cpu()
	if err != nil {
		return err
	}
	brokerAfter, err := o.brokerCPU()
	if err != nil {
		return err
	}
	peak, err := g.peakMemory()
	if err != nil {
		return err
	}
	stats, err := db.statements(ctx)
	if err != nil {
		return err
	}
	handled := float64(max(1, sum.Handled))
	m[perSecond] = handled / (float64(ended-before.at) / 1e9)
	m[dbCPU] = float64((after.cpu - before.cpu).Microseconds()) / handled
	m[clientCPU] = float64((clientAfter - clientBefore).Microseconds()) / handled
	if o.broker != nil {
		m[brokerCPU] = float64((brokerAfter - brokerBefore).Microseconds()) / handled
	}
	m[walWork] = float64(after.wal-before.wal) / handled
	m[peakMemMiB] = mib(peak)
	m[calls] = float64(stats.calls) / handled * 1000
	m[claimBuffers] = float64(stats.claimBuffers) / handled
	m[claimMillis] = stats.claimMillis / handled * 500
	if sum.Marked > 0 {
		m[othersRate] = float64(sum.Marked) / (float64(sum.MarkedAt-before.at) / 1e9)
	}
	return slow
}

// untilNothingLeft returns when the outcomes are written: handled at the earliest.
func untilNothingLeft(ctx context.Context, conn *pgx.Conn, left string, handled int64) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for first := true; ; first = false {
		at := now()
		more, err := queryOne[bool](ctx, conn, left)
		switch {
		case err != nil:
			return 0, fmt.Errorf("wait for the outcomes to be written: %w", err)
		case !more && first:
			return handled, nil
		case !more:
			return at, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// hold opens a transaction with a snapshot, as a long report does. No dead row can be removed while
// it lasts.
func hold(ctx context.Context, db *database) (release func(), err error) {
	conn, err := pgx.Connect(ctx, db.dsn())
	if err != nil {
		return nil, err
	}
	for _, sql := range []string{`begin isolation level repeatable read`, `select count(*) from pg_class`} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return nil, errors.Join(err, conn.Close(ctx))
		}
	}
	return func() { _ = conn.Close(context.WithoutCancel(ctx)) }, nil
}
