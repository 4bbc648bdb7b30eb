package pgstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Claim implements [dispatcher.Store]. When it fails after rows have died, Claimed.Dead tells of
// them beside the error.
func (s *Store) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	var out dispatcher.Claimed
	for {
		found, err := s.claim(ctx, req)
		if err != nil {
			return out, s.wrap("claim", err)
		}
		out.Dead = append(out.Dead, found.deaths...)
		// Nothing found must mean that nothing is due: neither rows without an attempt nor a floor
		// may hide others.
		if len(found.rows) > 0 || len(found.deaths) == 0 && !found.floored {
			out.Events, out.At = found.events(), found.at
			return out, nil
		}
	}
}

// found is what one claim statement returned.
type found struct {
	rows    []row
	deaths  []dispatcher.Death
	floored bool      // some topic's range was not read from its front
	at      time.Time // the database's time; zero when nothing was found
	cut     bool      // rows were found that MaxBytes had no room for
}

// row is a claimed row and where it stands in its topic's range.
type row struct {
	share int // index of the topic in the request
	position
	event *dispatcher.Event
}

func (f found) events() []*dispatcher.Event {
	events := make([]*dispatcher.Event, len(f.rows))
	for i, r := range f.rows {
		events[i] = r.event
	}
	return events
}

// claim runs the statement once. Rows come in order: topic by topic as asked for, each by position.
func (s *Store) claim(ctx context.Context, req dispatcher.ClaimRequest) (found, error) {
	n := len(req.Shares)
	topics, limits := make([]string, n), make([]int32, n)
	shareOf := make(map[string]int, n)
	for i, share := range req.Shares {
		topics[i], limits[i] = share.Topic, int32(share.Limit)
		shareOf[share.Topic] = i
	}
	maxBytes := req.MaxBytes
	if maxBytes == 0 {
		maxBytes = math.MaxInt64
	}
	times, ids, floored := s.floors.next(topics)
	args := []any{s.namespace, topics, limits, times, ids, int32(req.MaxAttempts), maxBytes, pgUUID(s.worker), req.Lease}

	var f found
	err := s.run(ctx, relaxed, s.sql.claim, args, func(rows pgx.Rows) (err error) {
		f, err = s.scan(rows, shareOf)
		return err
	})
	if err != nil {
		return found{}, err
	}
	slices.SortFunc(f.rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.share, b.share), a.compare(b.position))
	})
	s.floors.update(req.Shares, f)
	f.floored = floored
	return f, nil
}

// scan reads the rows of claim.sql.
func (s *Store) scan(rows pgx.Rows, shareOf map[string]int) (f found, err error) {
	var (
		reason  pgtype.Text
		tenant  pgtype.UUID
		headers []byte
		pos     position
		cut     bool
		e       dispatcher.Event
	)
	targets := []any{&reason, (*[16]byte)(&e.ID), &e.Topic, &e.Attempt, &pos.at, &e.Seq, &tenant, &e.DedupeKey,
		&e.PartitionKey, &e.EventType, &e.AggregateType, &e.AggregateID, &headers, (*[]byte)(&e.Payload), &e.CreatedAt, &f.at, &cut}
	_, err = pgx.ForEachRow(rows, targets, func() error {
		if reason.Valid {
			f.deaths = append(f.deaths, dispatcher.Death{
				ID: e.ID, Topic: e.Topic, Attempts: e.Attempt, Reason: dispatcher.DeadReason(reason.String),
			})
			return nil
		}
		f.cut = cut
		event := e
		event.Namespace = s.namespace
		event.TenantID = uuid.NullUUID{UUID: tenant.Bytes, Valid: tenant.Valid}
		event.Headers, err = decodeHeaders(headers)
		if err != nil {
			return fmt.Errorf("headers of event %s: %w", e.ID, err)
		}
		f.rows = append(f.rows, row{shareOf[e.Topic], position{pos.at, e.ID}, &event})
		return nil
	})
	return f, err
}

// decodeHeaders reads a JSON object. A value that is not a string is kept as its JSON text.
func decodeHeaders(data []byte) (map[string]string, error) {
	if string(data) == "{}" {
		return map[string]string{}, nil
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, err
	}
	headers := make(map[string]string, len(raw))
	for name, value := range raw {
		text := string(value)
		if value[0] == '"' {
			if err := json.Unmarshal(value, &text); err != nil {
				return nil, err
			}
		}
		headers[name] = text
	}
	return headers, nil
}

// position is where a row stands in its topic's range of the live index.
type position struct {
	at time.Time // next_attempt_at
	id uuid.UUID
}

func (p position) compare(q position) int {
	return cmp.Or(p.at.Compare(q.at), bytes.Compare(p.id[:], q.id[:]))
}
