package engine

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// seenTypes are the event types that were claimed, each with the day of the last event. A day is all that is kept, so
// that the report of them changes once a day. Its zero value is ready.
type seenTypes struct {
	mu   sync.Mutex
	days map[string]time.Time
}

// note notes the types of a claim's events. When there are EventTypesListed of them, further ones are not kept.
func (s *seenTypes) note(events []*dispatcher.Event, now time.Time) {
	day := now.UTC().Truncate(24 * time.Hour)
	last := ""
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		if e.EventType == last || e.EventType == "" { // most come in runs
			continue
		}
		last = e.EventType
		noted, known := s.days[e.EventType]
		switch {
		case known && noted.Equal(day):
		case known:
			s.days[e.EventType] = day
		case len(s.days) < dispatcher.EventTypesListed:
			if s.days == nil {
				s.days = map[string]time.Time{}
			}
			s.days[strings.Clone(e.EventType)] = day // or its memory would keep the batch
		}
	}
}

// list is what was noted, by type.
func (s *seenTypes) list() (all []dispatcher.SeenEventType) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, eventType := range slices.Sorted(maps.Keys(s.days)) {
		all = append(all, dispatcher.SeenEventType{Type: eventType, LastSeen: s.days[eventType]})
	}
	return all
}
