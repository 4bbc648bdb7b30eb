package pgstore

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Claim implements [dispatcher.Store]. When it fails after rows have died, Claimed.Dead tells of
// them beside the error.
func (s *Store) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	if req.Keys != nil {
		return s.claimKeyed(ctx, req)
	}
	if req.Few {
		if out, ok, err := s.claimFew(ctx, req); err != nil {
			return out, s.wrap("claim", err)
		} else if ok {
			return out, nil
		}
	}
	var out dispatcher.Claimed
	for {
		found, err := s.claim(ctx, req)
		if err != nil {
			return out, s.wrap("claim", err)
		}
		events, deaths := found.split()
		out.Dead = append(out.Dead, deaths...)
		// Nothing found must mean that nothing is due: neither rows without an attempt nor a floor
		// may hide others.
		if len(events) > 0 || len(deaths) == 0 && (!found.floored || !s.floors.lift(req.Shares)) {
			out.Events, out.At = events, found.at
			return out, nil
		}
	}
}

// claimFew is Claim for what has just come. It begins where the last claims ended, and leaves no trace in the
// floors, for it does not tell what it has passed by. It is for topics that have floors: not ok otherwise.
func (s *Store) claimFew(ctx context.Context, req dispatcher.ClaimRequest) (out dispatcher.Claimed, ok bool, err error) {
	topics, limits, maxBytes := asked(req)
	floor, ok := s.floors.first(topics)
	if !ok {
		return out, false, nil
	}
	total := int64(0)
	for _, limit := range limits {
		total += int64(limit)
	}
	args := []any{s.namespace, topics, floor, total, int32(req.MaxAttempts), maxBytes / max(1, total), pgUUID(s.worker), req.Lease}
	f, err := s.fetch(ctx, s.sql.claimFew, args, topics, limits)
	if err != nil {
		return out, false, err
	}
	f.sort()
	out.Events, _ = f.split()
	out.At = f.at
	return out, true, nil
}

// asked are the arguments of a claim that its request gives.
func asked(req dispatcher.ClaimRequest) (topics []string, limits []int32, maxBytes int64) {
	topics, limits = make([]string, len(req.Shares)), make([]int32, len(req.Shares))
	for i, share := range req.Shares {
		topics[i], limits[i] = share.Topic, int32(share.Limit)
	}
	return topics, limits, byteLimit(req)
}

func byteLimit(req dispatcher.ClaimRequest) int64 {
	if req.MaxBytes == 0 {
		return math.MaxInt64
	}
	return req.MaxBytes
}

// found is what one claim statement returned.
type found struct {
	rows    []row     // in order: topic by topic as asked for, each by position
	floored bool      // some topic's range was not read from its front
	at      time.Time // the database's time
	cut     bool      // rows were found that MaxBytes had no room for
}

// row is a claimed row and where it stands in its topic's range: many are sorted, so it is small.
type row struct {
	event *dispatcher.Event
	share int                   // index of the topic in the request
	due   int64                 // next_attempt_at, as timeOf takes it
	dead  dispatcher.DeadReason // set when it had no attempt left, and died
}

func (r row) position() position { return position{timeOf(r.due), r.event.ID} }

// split tells the claimed rows from those that died.
func (f found) split() (events []*dispatcher.Event, deaths []dispatcher.Death) {
	events = make([]*dispatcher.Event, 0, len(f.rows))
	for _, r := range f.rows {
		if e := r.event; r.dead == "" {
			events = append(events, e)
		} else {
			deaths = append(deaths, dispatcher.Death{ID: e.ID, Topic: e.Topic, Attempts: e.Attempt, Reason: r.dead})
		}
	}
	return events, deaths
}

// sort puts the rows in order.
func (f found) sort() {
	inOrder := func(a, b row) int {
		if a.share != b.share {
			return cmp.Compare(a.share, b.share)
		}
		if a.due != b.due {
			return cmp.Compare(a.due, b.due)
		}
		return bytes.Compare(a.event.ID[:], b.event.ID[:])
	}
	if !slices.IsSortedFunc(f.rows, inOrder) {
		slices.SortStableFunc(f.rows, inOrder) // they come in runs, and it makes half the work of these
	}
}

// claim runs the statement once.
func (s *Store) claim(ctx context.Context, req dispatcher.ClaimRequest) (f found, err error) {
	topics, limits, maxBytes := asked(req)
	start := s.floors.next(topics)
	args := []any{s.namespace, topics, limits, start.times, start.ids, int32(req.MaxAttempts), maxBytes, pgUUID(s.worker), req.Lease}
	f, err = s.fetch(ctx, s.sql.claim, args, topics, limits)
	if err != nil {
		return found{}, err
	}
	f.floored = start.floored
	f.sort()
	s.floors.update(start, req.Shares, f)
	return f, nil
}

// fetch runs a statement and reads what it returns.
func (s *Store) fetch(ctx context.Context, sql string, args []any, topics []string, limits []int32) (f found, err error) {
	var batch pgx.Batch
	batch.Queue(relaxed).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			values, err := rows.Values()
			if err != nil {
				return err
			}
			f.at = values[0].(time.Time)
		}
		return rows.Err()
	})
	d := newDecoder(s.namespace, topics)
	for _, limit := range limits {
		d.limit += int(limit)
	}
	batch.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		f.rows, f.cut, err = d.decode(rows)
		return err
	})
	return f, s.pool.SendBatch(ctx, &batch).Close()
}

// position is where a row stands in its topic's range of the live index.
type position struct {
	at time.Time // next_attempt_at
	id uuid.UUID
}

func (p position) compare(q position) int {
	if c := p.at.Compare(q.at); c != 0 {
		return c
	}
	return bytes.Compare(p.id[:], q.id[:])
}
