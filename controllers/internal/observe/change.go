package observe

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// OldTransaction is the age from which a transaction that holds vacuum back is reported.
const OldTransaction = 15 * time.Minute

// essence is what triggers a pass at once when it changes: all of a status but numbers, times and the names of the
// process. Of a count, and of a run of retention, it is whether there is one.
func essence(s status.Status) string {
	s.InFlight, s.StartedAt, s.Worker = status.InFlight{}, time.Time{}, ""
	s.DeliveredPerSecond, s.LimitedBy, s.TopicLimits = 0, "", nil
	if s.Backlog != nil {
		s.Backlog = &status.Backlog{}
	}
	if r := s.Retention; r != nil {
		s.Retention = &status.Retention{RetentionTotals: status.RetentionTotals{LastRun: min(r.LastRun, 1)}}
	}
	if d := s.Data; d != nil {
		s.Data = &status.Data{Unserved: min(d.Unserved, 1), Abandoned: min(d.Abandoned, 1), OrphanTopics: orphanTopics(d)}
		for _, a := range d.Adoptions {
			a.Rows = min(a.Rows, 1)
			s.Data.Adoptions = append(s.Data.Adoptions, a)
		}
	}
	if j := s.Journal; j != nil {
		s.Journal = &status.Journal{Differences: min(j.Differences, 1)}
	}
	s.Source.Since, s.Sink.Since = time.Time{}, time.Time{}
	paused := make([]status.PausedTopic, len(s.PausedTopics))
	for i, h := range s.PausedTopics {
		h.Since = time.Time{}
		paused[i] = h
	}
	s.PausedTopics = paused
	gated := make([]status.GatedTopic, len(s.Gated))
	for i, g := range s.Gated {
		gated[i] = status.GatedTopic{Topic: g.Topic, EventType: g.EventType}
	}
	s.Gated = gated
	if t := s.OldestTransaction; t != nil {
		s.OldestTransaction = &status.OldestTransaction{}
		if t.Seconds > OldTransaction.Seconds() {
			s.OldestTransaction = &status.OldestTransaction{Kind: t.Kind, Name: t.Name}
		}
	}
	return desired.Hash(json.RawMessage(encode(s)))
}

func encode(s status.Status) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("encode a status: %v", err)) // plain data only
	}
	return b
}

// least is what is kept of a status for which there is no room: states, reasons and counts, without sentences and lists.
func least(s status.Status) status.Status {
	link := func(l status.Link) status.Link {
		return status.Link{State: l.State, Reason: l.Reason, Stopped: l.Stopped}
	}
	slim := status.Status{Name: s.Name, Namespace: s.Namespace, Version: s.Version, State: s.State, LimitedBy: s.LimitedBy, Source: link(s.Source), Sink: link(s.Sink),
		Schema: status.Schema{State: s.Schema.State, Version: s.Schema.Version}, AllTopicsPaused: s.AllTopicsPaused}
	if b := s.Backlog; b != nil {
		slim.Backlog = &status.Backlog{Counts: b.Counts, BlockedKeys: b.BlockedKeys, ObservedAt: b.ObservedAt}
	}
	return slim.Brief()
}

// orphanTopics are the topics with orphaned rows, without their numbers.
func orphanTopics(d *status.Data) (names []status.OrphanTopic) {
	for _, t := range d.OrphanTopics {
		names = append(names, status.OrphanTopic{Namespace: t.Namespace, Topic: t.Topic, Unserved: min(t.Unserved, 1), Abandoned: min(t.Abandoned, 1)})
	}
	return names
}

// NewestData is the data section with the latest time of the database, nil for none.
func NewestData(statuses []status.Status) *status.Data {
	var newest *status.Data
	for i := range statuses {
		if d := statuses[i].Data; d != nil && (newest == nil || d.ObservedAt.After(newest.ObservedAt)) {
			newest = d
		}
	}
	return newest
}

// NewestBacklog is the count with the latest time of the database, nil for none.
func NewestBacklog(statuses []status.Status) *status.Backlog {
	var newest *status.Backlog
	for i := range statuses {
		if b := statuses[i].Backlog; b != nil && (newest == nil || b.ObservedAt.After(newest.ObservedAt)) {
			newest = b
		}
	}
	return newest
}

// moved reports whether a count triggers a pass at once: it differs by more than 1 %, or it came to 0 or left it.
func moved(last, now *status.Backlog) bool {
	if last == nil || now == nil {
		return now != nil // the last count stays
	}
	before, after := counts(last), counts(now)
	for i := range before {
		if max(before[i]-after[i], after[i]-before[i])*100 > before[i] {
			return true
		}
	}
	return false
}

// differs reports whether any number of a count differs.
func differs(last, now *status.Backlog) bool {
	if last == nil || now == nil {
		return now != nil
	}
	return counts(last) != counts(now) || last.Estimated != now.Estimated || last.OldestPending != now.OldestPending
}

func counts(b *status.Backlog) [6]int64 {
	return [6]int64{b.Pending, b.Scheduled, b.Retrying, b.Processing, b.Dead, b.BlockedKeys}
}
