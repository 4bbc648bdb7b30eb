package storetest

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Claim leases rows that are due. It never fails.
func (m *Memory) Claim(_ context.Context, req dispatcher.ClaimRequest) (out dispatcher.Claimed, err error) {
	if m.OverRate != nil {
		return dispatcher.Claimed{OverRate: m.OverRate}, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lease++
	out.At = time.Now()
	var size int64
	for _, share := range req.Shares {
		n, expired := 0, 0
		for _, r := range m.candidates(&out, req, share) {
			if r.late(out.At) {
				if expired++; expired > share.Limit {
					break // the next claim continues
				}
				r.status, r.holder, r.locked = "expired", uuid.Nil, time.Time{}
				e := r.event
				out.Expired = append(out.Expired, &e)
				continue
			}
			if reason := r.spent(req); reason != "" {
				out.Dead = append(out.Dead, r.exhausted(out.At, reason, req.MaxRowBytes))
				continue
			}
			if n == share.Limit || size < 0 {
				continue // rows behind it may be dead
			}
			if size += r.size + int64(m.PayloadBytes); (out.Leased() > 0 || req.Fit) && req.MaxBytes > 0 && size > req.MaxBytes {
				size = -1 // the claim is full
				continue
			}
			n++
			e := m.take(r, out.At, req.Lease)
			if r.unreadable != nil {
				out.Unreadable = append(out.Unreadable, dispatcher.Unreadable{Event: e, Err: r.unreadable})
			} else {
				out.Events = append(out.Events, e)
			}
		}
	}
	return out, nil
}

// take leases a row.
func (m *Memory) take(r *memoryRow, now time.Time, lease time.Duration) *dispatcher.Event {
	if r.status == "processing" {
		r.event.Suspicion = max(r.event.Suspicion, 1)
	} else {
		r.event.Attempt++
	}
	r.status, r.holder, r.locked, r.updated, r.event.LeaseNumber = "processing", m.worker, now.Add(lease), now, m.lease
	e := r.event
	if m.PayloadBytes > 0 {
		e.Payload = make([]byte, m.PayloadBytes)
	}
	return &e
}

// late says that the time of a row is over.
func (r *memoryRow) late(now time.Time) bool {
	return !r.event.Expires.IsZero() && !r.event.Expires.After(now)
}

// spent is why a row that is due has no attempt left, empty when it has one.
func (r *memoryRow) spent(req dispatcher.ClaimRequest) dispatcher.DeadReason {
	switch {
	case r.status == "processing" && r.event.Suspicion >= suspect:
		return dispatcher.ReasonProcessingTimeout
	case r.status == "pending" && r.event.Attempt >= cmp.Or(r.event.MaxAttempts, req.MaxAttempts):
		return dispatcher.ReasonMaxRetriesExceeded
	case req.MaxRowBytes > 0 && r.size > req.MaxRowBytes:
		return dispatcher.ReasonPoisonMessage
	default:
		return ""
	}
}

func (r *memoryRow) exhausted(now time.Time, reason dispatcher.DeadReason, maxBytes int64) dispatcher.DeadEvent {
	switch reason {
	case dispatcher.ReasonProcessingTimeout:
		return r.dead(now, reason, dispatcher.Cause{Class: dispatcher.ClassLease}, DeadLetter{Worker: r.holder, Error: r.failed})
	case dispatcher.ReasonPoisonMessage:
		return r.dead(now, reason, dispatcher.Cause{Class: dispatcher.ClassDecode, Code: "size"}, DeadLetter{Error: tooLarge(r.size, maxBytes)})
	default:
		var cause dispatcher.Cause
		if n := len(r.failures); n > 0 {
			cause = r.failures[n-1].Cause
		}
		return r.dead(now, reason, cause, DeadLetter{Error: r.failed})
	}
}

// key is what rows are in order by, empty for none.
func (r *memoryRow) key() string { return cmp.Or(r.event.PartitionKey, r.event.AggregateID) }

// candidates are the rows of a topic that may be claimed now, in the order in which they are. With order per key a row
// comes no earlier than those before it.
func (m *Memory) candidates(out *dispatcher.Claimed, req dispatcher.ClaimRequest, share dispatcher.Share) []*memoryRow {
	if share.Limit == 0 {
		return nil
	}
	type keyState struct {
		last  *memoryRow
		n     int
		ended bool
	}
	unfinished := m.unfinished(share.Topic)
	all := make([]*memoryRow, 0, len(unfinished))
	keys := map[string]*keyState{}
	var blocked map[string]*memoryRow
	if req.Keys != nil && req.Keys.BlockOnDead {
		blocked = m.blocked(share.Topic)
	}
	for _, r := range unfinished {
		due := (r.status == "pending" || r.locked.Before(out.At)) && !r.due.After(out.At) && !slices.Contains(req.Skip, r.event.ID)
		r.asDue, r.asID = r.due, r.event.ID
		if req.Keys != nil && r.key() != "" {
			key := r.key()
			k := keys[key]
			if k == nil {
				k = &keyState{}
				keys[key] = k
			}
			if before := blocked[key]; before != nil && before.event.Seq < r.event.Seq {
				continue
			}
			dead := due && (r.late(out.At) || r.spent(req) != "")
			if k.ended || !due || k.n == req.Keys.PerKey || dead && k.n > 0 {
				if due && !slices.Contains(out.KeysWaiting, share.Topic) {
					out.KeysWaiting = append(out.KeysWaiting, share.Topic)
				}
				k.ended = true
				continue
			}
			if dead {
				k.ended = req.Keys.BlockOnDead && !r.late(out.At)
			} else {
				if k.n++; k.n > 1 && inOrder(k.last, r) > 0 {
					r.asDue, r.asID = k.last.asDue, k.last.asID
				}
				k.last = r
			}
		}
		if due && !slices.Contains(share.Except, r.event.TenantID.UUID) {
			all = append(all, r)
		}
	}
	if !slices.IsSortedFunc(all, inOrder) { // it is in most claims, of many rows
		slices.SortStableFunc(all, inOrder)
	}
	if req.Fair {
		turns, n := map[uuid.UUID]int{}, map[uuid.UUID]int{}
		for _, r := range all {
			n[r.event.TenantID.UUID]++
			turns[r.event.ID] = n[r.event.TenantID.UUID]
		}
		slices.SortStableFunc(all, func(a, b *memoryRow) int { return turns[a.event.ID] - turns[b.event.ID] })
	}
	return all
}

func inOrder(a, b *memoryRow) int {
	if d := a.asDue.Compare(b.asDue); d != 0 {
		return d
	}
	return bytes.Compare(a.asID[:], b.asID[:])
}

// open is the newest dead letter of a row, when it is not resolved.
func (r *memoryRow) open() *DeadLetter {
	if n := len(r.deadLetters); n > 0 && !r.deadLetters[n-1].Resolved {
		return &r.deadLetters[n-1]
	}
	return nil
}

// blocked is the first dead row of each key with an open dead letter.
func (m *Memory) blocked(topic string) map[string]*memoryRow {
	first := map[string]*memoryRow{}
	for _, r := range m.order {
		if r.status == "dead" && r.event.Namespace == m.namespace && r.event.Topic == topic && r.open() != nil && first[r.key()] == nil {
			first[r.key()] = r
		}
	}
	return first
}

// Topics lists the topics with rows that are neither delivered nor dead. It never fails.
func (m *Memory) Topics(context.Context) (topics []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, at := range m.names {
		if at.namespace == m.namespace && len(m.unfinished(at.topic)) > 0 {
			topics = append(topics, at.topic)
		}
	}
	return topics, nil
}

// Depth counts the backlog. It never fails.
func (m *Memory) Depth(_ context.Context, topics []string) (dispatcher.Depth, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	depth := dispatcher.Depth{ObservedAt: time.Now()}
	groups := map[string]*dispatcher.DeadGroup{}
	for _, at := range m.names {
		if at.namespace != m.namespace || len(topics) > 0 && !slices.Contains(topics, at.topic) {
			continue
		}
		if d := m.depthOf(at.topic, depth.ObservedAt, groups); d != (dispatcher.TopicDepth{Topic: at.topic}) {
			depth.Topics = append(depth.Topics, d)
		}
		blocked := m.blocked(at.topic)
		for _, r := range m.unfinished(at.topic) {
			if before := blocked[r.key()]; r.key() != "" && before != nil && before.event.Seq < r.event.Seq {
				delete(blocked, r.key())
				depth.Blocked = append(depth.Blocked, dispatcher.BlockedKey{Topic: at.topic, Key: r.key(), EventID: before.event.ID, DeadAt: before.open().DeadAt})
			}
		}
	}
	for _, topic := range topics {
		if !slices.ContainsFunc(depth.Topics, func(d dispatcher.TopicDepth) bool { return d.Topic == topic }) {
			depth.Topics = append(depth.Topics, dispatcher.TopicDepth{Topic: topic})
		}
	}
	slices.SortFunc(depth.Blocked, func(a, b dispatcher.BlockedKey) int { return a.DeadAt.Compare(b.DeadAt) })
	depth.BlockedKeys.N = int64(len(depth.Blocked))
	depth.Blocked = depth.Blocked[:min(len(depth.Blocked), dispatcher.BlockedListed)]
	for _, g := range groups {
		depth.Groups = append(depth.Groups, *g)
	}
	slices.SortFunc(depth.Groups, func(a, b dispatcher.DeadGroup) int {
		return cmp.Or(cmp.Compare(b.Count.N, a.Count.N), strings.Compare(a.Fingerprint, b.Fingerprint))
	})
	depth.Groups = depth.Groups[:min(len(depth.Groups), dispatcher.GroupsListed)]
	return depth, nil
}

// depthOf counts a topic, and its open dead letters by their groups.
func (m *Memory) depthOf(topic string, now time.Time, groups map[string]*dispatcher.DeadGroup) dispatcher.TopicDepth {
	d := dispatcher.TopicDepth{Topic: topic}
	for _, r := range m.order {
		if r.event.Topic != topic || r.event.Namespace != m.namespace {
			continue
		}
		waits := r.status == "processing" || r.status == "pending" && !r.firstDue.After(now)
		if waits && (d.OldestPending.IsZero() || r.firstDue.Before(d.OldestPending)) {
			d.OldestPending = r.firstDue
		}
		switch record := r.open(); {
		case r.status == "processing":
			d.Processing.N++
		case waits:
			if d.Pending.N++; r.due.After(now) {
				d.Retrying.N++
			}
		case r.status == "pending":
			d.Scheduled.N++
		case r.status == "dead" && record != nil:
			d.Dead.N++
			g := groups[record.Fingerprint]
			if g == nil {
				g = &dispatcher.DeadGroup{Fingerprint: record.Fingerprint, Topic: topic, Reason: dispatcher.DeadReason(record.Reason), Cause: record.Cause(), Since: record.DeadAt}
				groups[record.Fingerprint] = g
			}
			if g.Count.N++; record.DeadAt.Before(g.Since) {
				g.Since = record.DeadAt
			}
			if !record.DeadAt.Before(g.Last) {
				g.Last, g.Sample, g.Error = record.DeadAt, r.event.ID, storable(record.Error, 200)
			}
		}
	}
	return d
}
