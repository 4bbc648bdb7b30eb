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

// of returns where a claim of the topics begins: of each the id of a tenant.
func (t *turns) of(topics []string) []position {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]position, len(topics))
	for i, topic := range topics {
		all[i].id = t.after[topic]
	}
	return all
}

// move records where the next claim of each topic begins: after the last tenant that this claim visited, where it did not
// visit all. last is by the topic's number in the claim. It reports whether a topic has tenants that no claim since began
// has visited.
func (t *turns) move(topics []string, last map[int]uuid.UUID, began []position) (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, topic := range topics {
		end, ok := last[i+1]
		if !ok {
			continue
		}
		start, from := began[i].id, t.after[topic]
		t.after[topic] = end
		more = more || !passesBy(from, start, end)
	}
	return more
}

// served returns by topic the last tenant with a leased row, in the order in which the claim visited them.
func served(rows []row, starts []position) map[int]uuid.UUID {
	last := map[int]uuid.UUID{}
	for _, r := range rows {
		if r.ended != "" {
			continue
		}
		tenant, start := r.event.TenantID.UUID, starts[r.share].id
		if end, ok := last[r.share+1]; !ok || passesBy(start, end, tenant) {
			last[r.share+1] = tenant
		}
	}
	return last
}

// passesBy reports whether start is among the tenants after from, up to end, in the order of their ids and around: from itself
// is the last of a whole round.
func passesBy(from, start, end uuid.UUID) bool {
	wraps, before := bytes.Compare(from[:], end[:]) >= 0, bytes.Compare(start[:], end[:]) <= 0
	if bytes.Compare(from[:], start[:]) < 0 {
		return wraps || before
	}
	return wraps && before
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
	perEvent, burst := tenantRate(c.ClaimRequest)
	began := s.turns.of(c.topics)
	for {
		starts := s.turns.of(c.topics)
		found, err := s.fetch(ctx, c, func(*pgx.Batch) {}, s.statement("claim_fair", c, starts, exceptTopics, except, s.opts.Dispatcher, perEvent, burst))
		if err != nil {
			return out, err
		}
		var got report
		if err := json.Unmarshal(found.reports[0], &got); err != nil {
			return out, err
		}
		if found.cut { // the bytes ended the claim early: the next one begins with the tenants that it did not reach
			got.Ends = served(found.rows, starts)
		}
		more := s.turns.move(c.topics, got.Ends, began)
		out.OverRate = got.OverRate
		found.sort()
		found.split(&out)
		if out.Leased()+len(out.Expired) > 0 || len(found.rows) == 0 && !more {
			return out, nil
		}
	}
}

// tenantGrant is the least time whose events a tenant may have in one claim: claims come no more often than every 50 ms.
const tenantGrant = 250 * time.Millisecond

// tenantRate returns the time that a tenant's rate has for an event, nil without a rate, and how many events a tenant may
// have in one claim.
func tenantRate(req dispatcher.ClaimRequest) (perEvent *time.Duration, burst int32) {
	if req.TenantRate.Events == 0 {
		return nil, 1
	}
	d := req.TenantRate.Period / time.Duration(req.TenantRate.Events)
	return &d, int32(max(1, tenantGrant/d))
}

// report is what claim_fair.sql says in addition to its rows.
type report struct {
	Ends     map[int]uuid.UUID // the last tenant visited of each topic of which not all were visited, by the topic's number
	OverRate []string
}
