package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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

// pace says how many events are produced, and for how long they are counted.
type pace struct {
	rate float64 // events per second
	time time.Duration
}

func (p pace) events() int { return int(p.rate * (p.time + warmUp).Seconds()) }

func (p pace) uncounted() int64 { return int64(p.rate * warmUp.Seconds()) }

// latency produces events at a steady rate, each in a transaction of its own, whether or not the
// earlier ones have arrived, and measures the time from the commit's return to the handler.
func (b *bench) latency(ctx context.Context, s system, p pace) (measure, error) {
	waits, m, err := b.waits(ctx, s, p)
	if err != nil {
		return nil, err
	}
	m.percentiles(slices.Sorted(maps.Values(waits)))
	return m, nil
}

func (m measure) percentiles(sorted []float64) {
	m[p50], m[p95], m[p99], m[pMax] = percentile(sorted, 0.50), percentile(sorted, 0.95), percentile(sorted, 0.99), sorted[len(sorted)-1]
}

// waits returns each counted event's wait in milliseconds, by its number.
func (b *bench) waits(ctx context.Context, s system, p pace) (map[int64]float64, measure, error) {
	db, err := b.srv.database(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer db.drop()
	if err := s.setup(ctx, db.dsn()); err != nil {
		return nil, nil, fmt.Errorf("set up: %w", err)
	}
	return b.waitsIn(ctx, db, s, p)
}

// waitsIn is waits in a database with the system's schema.
func (b *bench) waitsIn(ctx context.Context, db *database, s system, p pace) (map[int64]float64, measure, error) {
	g, err := b.startGroup(ctx, s, db.dsn(), 1, true)
	if err != nil {
		return nil, nil, err
	}
	if err := g.begin(); err != nil {
		return nil, nil, err
	}
	time.Sleep(500 * time.Millisecond) // it settles: electing leaders, listening
	m := measure{}
	committed, err := b.produceAt(ctx, db, s, g, p, m)
	if err == nil {
		_, err = g.await(ctx, int64(p.events()), p.time+30*time.Second)
	}
	sum, stopErr := g.stop()
	if err := errors.Join(err, stopErr); err != nil {
		return nil, nil, err
	}
	waits, err := match(committed, sum.Stamps, p)
	return waits, m, err
}

// produceAt produces and measures what that costs the server and the workers.
func (b *bench) produceAt(ctx context.Context, db *database, s system, g group, p pace, m measure) ([]stamp, error) {
	if err := db.resetStatements(ctx); err != nil {
		return nil, err
	}
	clientBefore, err := g.cpu()
	if err != nil {
		return nil, err
	}
	before, err := db.usage(ctx)
	if err != nil {
		return nil, err
	}
	var committed []stamp
	if s.produce == nil {
		committed, err = b.produceByScript(ctx, s, db.dsn(), p)
	} else {
		committed, err = produceByPool(ctx, s, db.dsn(), p)
	}
	if err != nil {
		return nil, err
	}
	after, err := db.usage(ctx)
	if err != nil {
		return nil, err
	}
	clientAfter, err := g.cpu()
	if err != nil {
		return nil, err
	}
	elapsed := float64(after.at-before.at) / 1e9
	m[dbLoad] = 100 * (after.cpu - before.cpu).Seconds() / elapsed
	m[clientLoad] = 100 * (clientAfter - clientBefore).Seconds() / elapsed
	m[perSecond] = float64(len(committed)) / elapsed
	return committed, nil
}

// produceByPool produces over some connections. A producer that is late does not skip: it catches up.
func produceByPool(ctx context.Context, s system, dsn string, p pace) ([]stamp, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.MinConns, config.MaxConns = producers, producers+1 // one for wake-ups
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	one, err := s.produce(pool)
	if err != nil {
		return nil, err
	}
	stamps := make([]stamp, p.events())
	errs := make([]error, producers)
	var next atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for i := range producers {
		group.Go(func() {
			for errs[i] == nil {
				n := next.Add(1) - 1
				if n >= int64(len(stamps)) {
					return
				}
				time.Sleep(time.Until(began.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))))
				errs[i] = one(ctx, int(n))
				stamps[n] = stamp{n, now()}
			}
		})
	}
	group.Wait()
	time.Sleep(20 * time.Millisecond) // the last wake-up is on its way
	return stamps, errors.Join(errs...)
}

// produceByScript has the peer's script produce, in a process of its own.
func (b *bench) produceByScript(ctx context.Context, s system, dsn string, p pace) ([]stamp, error) {
	j := s.job
	j.DSN, j.Role, j.Rate, j.Seconds = dsn, "produce", p.rate, (p.time + warmUp).Seconds()
	w, err := startWorker(ctx, []string{b.node, "peers/" + s.script}, j)
	if err != nil {
		return nil, err
	}
	g := group{w}
	if err := g.begin(); err != nil {
		return nil, err
	}
	_, err = g.await(ctx, int64(p.events()), p.time+time.Minute)
	sum, stopErr := g.stop()
	return sum.Stamps, errors.Join(err, stopErr)
}

// match subtracts. An event that reached the handler before its commit had returned waited 0.
func match(committed, handled []stamp, p pace) (map[int64]float64, error) {
	arrived := make(map[int64]int64, len(handled))
	for _, h := range handled {
		if _, again := arrived[h[0]]; !again {
			arrived[h[0]] = h[1]
		}
	}
	waits := make(map[int64]float64, len(committed))
	for _, c := range committed {
		at, ok := arrived[c[0]]
		if !ok {
			return nil, fmt.Errorf("event %d was committed and never reached the handler", c[0])
		}
		if c[0] >= p.uncounted() {
			waits[c[0]] = float64(max(0, at-c[1])) / 1e6
		}
	}
	if len(committed) != p.events() || len(handled) != len(committed) {
		return nil, fmt.Errorf("%d events were meant, %d committed, %d handled", p.events(), len(committed), len(handled))
	}
	return waits, nil
}

const manyTopics = 100

// topicOf spreads events unevenly: the first topic gets about twenty times what the last one gets. The
// first events are one of each, so that all topics are known when the counting begins.
func topicOf(n int) string {
	i := n
	if n >= manyTopics {
		x := float64(uint32(n)*2654435761%100_000) / 100_000 // even, and the same each time
		i = int(x * x * manyTopics)
	}
	return fmt.Sprintf("topic-%02d", i)
}

// topics is latency with many topics, and compares their waits.
func (b *bench) topics(ctx context.Context, s system, p pace) (measure, error) {
	s.produce = func(pool *pgxpool.Pool) (produce, error) { return outboxProduce(pool, topicOf, false), nil }
	waits, m, err := b.waits(ctx, s, p)
	if err != nil {
		return nil, err
	}
	m.percentiles(slices.Sorted(maps.Values(waits)))
	byTopic := map[string][]float64{}
	for n, wait := range waits {
		t := topicOf(int(n))
		byTopic[t] = append(byTopic[t], wait)
	}
	var each []float64
	for _, w := range byTopic {
		slices.Sort(w)
		each = append(each, percentile(w, 0.99))
	}
	slices.Sort(each)
	m[medianTopic], m[worstTopic] = percentile(each, 0.5), each[len(each)-1]
	return m, nil
}
