package main

import (
	"context"
	"maps"
	"slices"
)

// The cases of the cell about retention.
const (
	caseStay    = "delivered rows stay"
	caseRemoved = "delivered rows are removed"
)

// runRetention measures the waits of a stream in turns. A sweep removes what is older than a second; the rows that are
// written meanwhile lie in later pages.
func runRetention(ctx context.Context, b *bench) {
	s, rows := oursPolling(), thousands(int64(b.size.backlog))+" "
	p := pace{slices.Max(b.size.rates), 5 * b.size.pace}
	db, err := b.nextToSetup(ctx, backlogs[1])
	if db != nil {
		defer db.drop()
	}
	latency := func() (measure, error) {
		if err != nil {
			return nil, err
		}
		waits, m, err := b.waitsIn(ctx, db, s, p)
		if err == nil {
			m.percentiles(slices.Sorted(maps.Values(waits)))
		}
		return m, err
	}
	for range b.runs {
		b.measure(ctx, "retention", s, rows+caseStay, latency)
		b.measure(ctx, "retention", s, rows+caseRemoved, func() (measure, error) {
			if err != nil {
				return nil, err
			}
			return removing(ctx, db, latency)
		})
	}
}

// removing measures while a dispatcher that delivers nothing removes delivered rows. It continues where the one before
// it stopped.
func removing(ctx context.Context, db *database, latency func() (measure, error)) (m measure, err error) {
	removed := func() (n int64, err error) {
		return queryOne[int64](ctx, db.conn, `select coalesce(sum(delivered), 0) from outbox.outbox_sweeps`)
	}
	before, err := removed()
	if err != nil {
		return nil, err
	}
	var began int64
	config := map[string]any{"state": "Paused", "retention": map[string]any{"delivered": "1s"}}
	if m, err = dispatchIn(ctx, db, config, func(int) (measure, error) {
		began = now()
		return latency()
	}); err != nil {
		return nil, err
	}
	seconds := float64(now()-began) / 1e9
	after, err := removed() // written at the end
	m[removedRate] = float64(after-before) / seconds
	return m, err
}
