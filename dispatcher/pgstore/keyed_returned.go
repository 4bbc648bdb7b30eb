package pgstore

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// A pass over many rows takes long, and what came back below the floor must not wait for it: rows whose worker was
// killed, or gave them back. So while passes take several steps, claims also look back: at the rows at both ends of
// what lies below the floor, for keys whose first row was claimed before and is free. For a row that takes a small part
// of what it takes in a step, since it does not read rows that were never claimed. The keys that it finds are
// read before those that are remembered. What lies between the ends, and rows without a key, are left to passes.
const (
	// returnedEvery is the least pause between two looks back. They get half of the time that passes may cost.
	returnedEvery = fullPass
	// returnedRows is how many rows one looks at from each end.
	returnedRows = 5000
)

// lookBack looks for keys of the topics whose rows came back, where it is time for that.
func (s *Store) lookBack(ctx context.Context, req dispatcher.ClaimRequest) error {
	began := time.Now()
	topics, floors := s.keyed.toLookBack(req.Shares, began)
	if len(topics) == 0 {
		return nil
	}
	times, ids := make([]time.Time, len(topics)), make([]pgtype.UUID, len(topics))
	for i, floor := range floors {
		times[i], ids[i] = floor.at, pgUUID(floor.id)
	}
	var found [][]int64
	args := []any{s.namespace, topics, times, ids, int32(returnedRows), req.Keys.BlockOnDead, int32(recallKeys)}
	err := s.run(ctx, relaxed, s.sql.returned, args, func(rows pgx.Rows) error {
		found = make([][]int64, len(topics))
		var n, hash int64
		_, err := pgx.ForEachRow(rows, []any{&n, &hash}, func() error {
			found[n-1] = append(found[n-1], hash)
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}
	s.keyed.lookedBack(topics, found, began, time.Now())
	return nil
}

// toLookBack returns the topics that it is time to look back in, and their floors.
func (k *keyed) toLookBack(shares []dispatcher.Share, now time.Time) (topics []string, floors []position) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, share := range shares {
		if p, ok := k.byTopic[share.Topic]; ok && share.Limit > 0 && p.long && !now.Before(p.nextBack) {
			topics, floors = append(topics, share.Topic), append(floors, p.floor)
		}
	}
	return topics, floors
}

// lookedBack records the keys that a look back found in each of the topics, and its cost, which puts off the next look
// back and the next step: both together get one part in passShare of the time. As with steps, the cost is the shorter
// duration of the last two.
func (k *keyed) lookedBack(topics []string, found [][]int64, began, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	took := now.Sub(began)
	for i, topic := range topics {
		p := k.byTopic[topic]
		cost := passShare * min(took, p.lastBack, passDebt)
		p.nextBack = now.Add(max(returnedEvery-now.Sub(began), 2*cost))
		p.lastBack = took
		p.nextStep = latest(p.nextStep, now).Add(cost)
		p.returned = found[i]
	}
}

// takeReturned takes up to so many of the keys that the last look back found.
func (p *passage) takeReturned(most int) []int64 {
	n := min(most, len(p.returned))
	taken := p.returned[:n]
	p.returned = slices.Clip(p.returned[n:])
	return taken
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
