package pgstore

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// turns remembers the tenant after which the next claim of each topic begins (CONTRACT C-37).
type turns struct {
	mu    sync.Mutex
	after map[string]uuid.UUID // by topic
}

func (t *turns) of(topics []string) []pgtype.UUID {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]pgtype.UUID, len(topics))
	for i, topic := range topics {
		all[i] = pgUUID(t.after[topic])
	}
	return all
}

// move notes the last tenant of each topic whose walk ended before it came around, by its number in the claim. It reports
// whether some topic has tenants that no claim since began has visited.
func (t *turns) move(topics []string, ends map[int]uuid.UUID, began []pgtype.UUID) (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.after == nil {
		t.after = map[string]uuid.UUID{}
	}
	for i, topic := range topics {
		end, ok := ends[i+1]
		if !ok {
			continue
		}
		start, from := uuid.UUID(began[i].Bytes), t.after[topic]
		t.after[topic] = end
		more = more || !passed(from, start, end)
	}
	return more
}

// passed reports whether the way around from a tenant to another one, its end, comes by start. It may begin there.
func passed(from, start, end uuid.UUID) bool {
	toStart, toEnd := bytes.Compare(from[:], start[:]), bytes.Compare(from[:], end[:])
	switch wraps := toEnd >= 0; {
	case toStart == 0:
		return wraps && bytes.Compare(end[:], start[:]) >= 0
	case toStart < 0:
		return wraps || bytes.Compare(start[:], end[:]) <= 0
	default:
		return wraps && bytes.Compare(start[:], end[:]) <= 0
	}
}

// claimFair is a claim in which each tenant of a topic has its turn.
func (s *Store) claimFair(ctx context.Context, req dispatcher.ClaimRequest, markDead bool) (out dispatcher.Claimed, err error) {
	topics, limits, maxBytes := claimArgs(req)
	var exceptTopics []int32
	var except []pgtype.UUID
	for i, share := range req.Shares {
		for _, tenant := range share.Except {
			exceptTopics, except = append(exceptTopics, int32(i+1)), append(except, pgUUID(tenant))
		}
	}
	each, burst := tenantRate(req)
	began := s.turns.of(topics)
	for {
		args := []any{s.namespace, topics, limits, pgTimes(make([]time.Time, len(topics))), s.turns.of(topics), int32(req.MaxAttempts), maxBytes,
			pgUUID(s.worker), req.Lease, markDead, byteLimit(req.MaxRowBytes), exceptTopics, except,
			s.dispatcher, each, burst}
		found, ends, err := s.fetchFair(ctx, req.Lease, args, topics, limits)
		if err != nil {
			return out, s.wrap("claim", err)
		}
		more := s.turns.move(topics, ends, began)
		found.sort()
		found.split(&out)
		if out.Leased() > 0 || len(found.rows) == 0 && !more {
			return out, nil
		}
	}
}

// tenantGrant is the least time whose events a tenant may have in one claim: claims come no more often than every 50 ms.
const tenantGrant = 250 * time.Millisecond

// tenantRate is the time for each event of a tenant, nil for no limit, and how many it may have at once.
func tenantRate(req dispatcher.ClaimRequest) (each *time.Duration, burst int32) {
	if req.TenantRate.Events == 0 {
		return nil, 1
	}
	d := req.TenantRate.Period / time.Duration(req.TenantRate.Events)
	return &d, int32(max(1, req.TenantBurst, int(tenantGrant/d)))
}

// fetchFair runs the statement, and reads its rows and its report.
func (s *Store) fetchFair(ctx context.Context, lease time.Duration, args []any, topics []string, limits []int32) (f found, ends map[int]uuid.UUID, err error) {
	d := newDecoder(s.namespace, topics)
	for _, limit := range limits {
		d.limit += int(limit)
	}
	err = s.send(ctx, func(batch *pgx.Batch) {
		f, ends = found{}, nil
		batch.Queue(s.claims, frozenAfter(lease))
		batch.Queue(s.sql.claimFair, args...).Query(func(rows pgx.Rows) (err error) {
			f.rows, f.cut, err = d.decode(rows)
			return err
		})
		batch.Queue(`select now(), current_setting('outbox.report')`).QueryRow(func(row pgx.Row) error {
			var text []byte
			if err := row.Scan(&f.at, &text); err != nil {
				return err
			}
			return json.Unmarshal(text, &ends)
		})
	})
	return f, ends, err
}
