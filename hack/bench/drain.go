package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

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
