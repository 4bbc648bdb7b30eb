package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// system is something that a user could pick, in one mode.
type system struct {
	name     string
	settings string // what was chosen, for the tables
	slow     bool   // by its design: it drains fewer events

	job job // what its worker process does
	// setup makes the schema, insert adds events through the public bulk call.
	setup  func(ctx context.Context, dsn string) error
	insert func(ctx context.Context, dsn string, l load) error
	// produce returns a function that adds one event in a transaction of its own.
	produce func(pool *pgxpool.Pool) (produce, error)
	// left is SQL for whether events wait or are in work. kept counts the rows that are kept of delivered events, and is
	// empty when none are.
	left, kept string
}

// produce adds event n and returns after the commit.
type produce func(ctx context.Context, n int) error

// row is one of the tables' for the system.
func (s system) row(cell, which string) row {
	return row{cell: cell, system: s.name, settings: s.settings, which: which}
}

// load is what is inserted before a drain.
type load struct {
	events int
	// keys is the number of keys; 0 gives no event a key. With hot, every second event is of one more.
	keys int
	hot  bool
}

func (l load) key(n int) string {
	switch {
	case l.keys == 0:
		return ""
	case l.hot && n%2 == 0:
		return hotKey
	case l.hot:
		n /= 2 // the others are of all the keys, too
	}
	return fmt.Sprint("key-", n*7919%l.keys)
}

const hotKey = "hot"

// inParts calls add with the parts of n events, size at a time, from two goroutines.
func inParts(ctx context.Context, n, size int, add func(ctx context.Context, from, to int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for from := 0; from < n && ctx.Err() == nil; from += size {
		group.Go(func() error { return add(ctx, from, min(from+size, n)) })
	}
	return group.Wait()
}
