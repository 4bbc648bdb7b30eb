package pgstore

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/google/uuid"
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
func (t *turns) move(topics []string, last map[int]uuid.UUID, began []pgtype.UUID) (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, topic := range topics {
		end, ok := last[i+1]
		if !ok {
			continue
		}
		start, from := uuid.UUID(began[i].Bytes), t.after[topic]
		t.after[topic] = end
		more = more || !passesBy(from, start, end)
	}
	return more
}

// served is the last tenant of each topic that has a leased row, on the way around from where the claim began.
func served(rows []row, starts []pgtype.UUID) map[int]uuid.UUID {
	last := map[int]uuid.UUID{}
	for _, r := range rows {
		if r.dead != "" {
			continue
		}
		tenant, start := r.event.TenantID.UUID, uuid.UUID(starts[r.share].Bytes)
		if end, ok := last[r.share+1]; !ok || passesBy(start, end, tenant) {
			last[r.share+1] = tenant
		}
	}
	return last
}

// passesBy reports whether start is among the tenants after from, up to end, in the order of their ids and around: from itself
// is the last of a whole round.
func passesBy(from, start, end uuid.UUID) bool {
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
func (s *Store) claimFair(ctx context.Context, c claiming) (out dispatcher.Claimed, err error) {
	var exceptTopics []int32
	var except []pgtype.UUID
	for i, share := range c.Shares {
		for _, tenant := range share.Except {
			exceptTopics, except = append(exceptTopics, int32(i+1)), append(except, pgUUID(tenant))
		}
	}
	each, burst := tenantRate(c.ClaimRequest)
	began := s.turns.of(c.topics)
	for {
		starts := s.turns.of(c.topics)
		claim := s.statement("claim_fair", c, make([]time.Time, len(c.topics)), starts, exceptTopics, except, s.dispatcher, each, burst)
		var said report
		found, err := s.fetch(ctx, c, newDecoder(s.namespace, c), []statement{claim}, nil, func(text []byte) error {
			said = report{}
			return json.Unmarshal(text, &said)
		})
		if err != nil {
			return out, err
		}
		if found.cut { // bytes have no room for all of the walk: those that it did not get to are the next claim's first
			said.Ends = served(found.rows, starts)
		}
		more := s.turns.move(c.topics, said.Ends, began)
		out.OverRate = said.OverRate
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
	return &d, int32(max(1, tenantGrant/d))
}

// report is what claim_fair.sql says in addition to its rows.
type report struct {
	Ends     map[int]uuid.UUID // the last tenant of each topic whose walk ended before it came around, by the topic's number
	OverRate []string
}
