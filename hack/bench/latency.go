package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	producers = 16
	// Events of the first seconds are not counted: a dispatcher of all topics lists them each second.
	warmUp = 2 * time.Second
)

// latency produces events at a steady rate, each in a transaction of its own, whether or not the earlier ones have
// arrived, and measures the time from the commit's return to the handler.
func (b *bench) latency(ctx context.Context, s system, rate float64) (measure, error) {
	ctx, cancel := context.WithTimeout(ctx, b.pace+time.Minute)
	defer cancel()
	db, err := b.srv.database(ctx, s.setup)
	if err != nil {
		return nil, err
	}
	defer db.drop()
	s.job.DSN, s.job.Stamp, s.job.Events = db.dsn(), true, int(rate*(b.pace+warmUp).Seconds())
	w, err := startWorker(ctx, s.job)
	if err == nil {
		err = w.begin()
	}
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, 500*time.Millisecond); err != nil { // it settles: electing leaders, listening
		return nil, err
	}
	pool, err := producing(ctx, db.dsn())
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	one, err := s.produce(pool)
	if err != nil {
		return nil, err
	}
	var committed []time.Time
	db.clientPID = w.cmd.Process.Pid
	m, err := db.costing(ctx, s.job.Events, func(measure) (err error) {
		_, committed, err = produceAt(ctx, rate, s.job.Events, one)
		return err
	})
	if err != nil {
		return nil, err
	}
	_, err = w.next() // all are handled
	last, stopErr := w.stop()
	if err := errors.Join(err, stopErr); err != nil {
		return nil, err
	}
	waits, err := match(committed, last, int(rate*warmUp.Seconds()))
	if err != nil {
		return nil, err
	}
	m.waits(waits)
	return m, nil
}

// producing is a pool for producers and for one that sends wake-ups.
func producing(ctx context.Context, dsn string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.MinConns, config.MaxConns = producers, producers+1
	return pgxpool.NewWithConfig(ctx, config)
}

// produceAt produces n events at a rate, and returns when each was begun and committed. A producer that is late does not
// skip: it catches up.
func produceAt(ctx context.Context, rate float64, n int, one produce) (begun, committed []time.Time, err error) {
	begun, committed = make([]time.Time, n), make([]time.Time, n)
	errs := make([]error, producers)
	var next atomic.Int64
	var group sync.WaitGroup
	start := time.Now()
	for i := range producers {
		group.Go(func() {
			for errs[i] == nil {
				n := int(next.Add(1)) - 1
				if n >= len(begun) {
					return
				}
				time.Sleep(time.Until(start.Add(time.Duration(float64(n) / rate * float64(time.Second)))))
				begun[n] = time.Now()
				errs[i] = one(ctx, n)
				committed[n] = time.Now()
			}
		})
	}
	group.Wait()
	return begun, committed, errors.Join(errs...)
}

// match returns the waits in milliseconds, without those of the first events. An event that reached the handler before its
// commit had returned waited 0.
func match(committed []time.Time, r report, uncounted int) (waits []float64, err error) {
	if r.Handled != len(committed) {
		return nil, fmt.Errorf("%d events were committed, and %d handled", len(committed), r.Handled)
	}
	for n, at := range committed {
		if r.Stamps[n] == 0 {
			return nil, fmt.Errorf("event %d was committed and did not reach the handler", n)
		}
		if n >= uncounted {
			waits = append(waits, max(0, float64(r.Stamps[n]-at.UnixNano())/1e6))
		}
	}
	return waits, nil
}

// drain inserts events, and then measures how a worker process works them off.
func (b *bench) drain(ctx context.Context, s system, l load) (m measure, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	db, err := b.srv.database(ctx, s.setup)
	if err != nil {
		return nil, err
	}
	defer db.drop()
	inserts, err := db.costing(ctx, l.events, func(measure) error { return s.insert(ctx, db.dsn(), l) })
	if err != nil {
		return nil, fmt.Errorf("insert: %w", err)
	}
	if err := db.exec(ctx, `analyze`); err != nil {
		return nil, err
	}
	s.job.DSN, s.job.Events = db.dsn(), l.events
	w, err := startWorker(ctx, s.job)
	if err != nil {
		return nil, err
	}
	db.clientPID = w.cmd.Process.Pid
	m, err = db.costing(ctx, l.events, func(m measure) error { return db.watch(ctx, s, w, m) })
	last, stopErr := w.stop()
	if err := errors.Join(err, stopErr); err != nil {
		return nil, err
	}
	if last.Handled != l.events {
		return nil, fmt.Errorf("%d events were inserted, and %d handled", l.events, last.Handled)
	}
	if s.kept != "" {
		if n, err := queryOne[int](ctx, db.conn, s.kept); err != nil || n != l.events {
			return nil, errors.Join(err, fmt.Errorf("%d events were inserted, and %d rows are kept as delivered", l.events, n))
		}
	}
	m[walInsert] = inserts[walWork]
	if s.job.Key {
		m[inversions] = float64(last.Inversions)
	}
	return m, nil
}

// watch has the worker begin, and measures until all is handled and the outcomes are written.
func (db *database) watch(ctx context.Context, s system, w *worker, m measure) error {
	began := time.Now()
	if err := w.begin(); err != nil {
		return err
	}
	done, err := w.next()
	if err != nil {
		return err
	}
	ended, atOnce, err := db.until(ctx, `select not (`+s.left+`)`)
	if atOnce {
		ended = time.Unix(0, done.At)
	}
	m[perSecond] = float64(done.Handled) / ended.Sub(began).Seconds()
	if s.job.Key {
		m[othersRate] = float64(done.Others) / time.Unix(0, done.OthersAt).Sub(began).Seconds()
	}
	return err
}
