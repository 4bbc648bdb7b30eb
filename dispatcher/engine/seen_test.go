package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// CONTRACT: C-82
func TestSeenTypes(t *testing.T) {
	var s seenTypes
	if got := s.list(); got != nil {
		t.Errorf("before the first event: %v", got)
	}
	typed := func(types ...string) (events []*dispatcher.Event) {
		for _, name := range types {
			events = append(events, &dispatcher.Event{EventType: name})
		}
		return events
	}
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	day := noon.Add(-12 * time.Hour)
	s.note(typed("order.placed", "order.placed", "", "order.paid", "order.placed"), noon)
	s.note(typed("order.paid"), noon.Add(25*time.Hour))
	want := []dispatcher.SeenEventType{{Type: "order.paid", LastSeen: day.Add(24 * time.Hour)}, {Type: "order.placed", LastSeen: day}}
	if got := s.list(); !slices.Equal(got, want) {
		t.Errorf("seen %v, want %v", got, want)
	}
	for i := range 2 * dispatcher.EventTypesListed {
		s.note(typed(fmt.Sprintf("type.%03d", i)), noon)
	}
	s.note(typed("order.placed"), noon.Add(48*time.Hour))
	got := s.list()
	if len(got) != dispatcher.EventTypesListed || !slices.Contains(got, dispatcher.SeenEventType{Type: "order.placed", LastSeen: day.Add(48 * time.Hour)}) {
		t.Errorf("%d types are kept: %v, want %d with those from before", len(got), got, dispatcher.EventTypesListed)
	}
}
