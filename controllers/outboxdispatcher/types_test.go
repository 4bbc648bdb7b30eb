package outboxdispatcher

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// Types are added to those that are known, once a day each, and go when no event has come for 30 days.
// CONTRACT: C-82
func TestSeenTypes(t *testing.T) {
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	at := func(days int) time.Time { return noon.Add(time.Duration(days) * 24 * time.Hour) }
	reported := func(eventType string, day int) status.Status {
		return status.Status{EventTypes: []status.EventType{{Type: eventType, LastSeen: at(day)}}}
	}
	text := func(all []api.SeenEventType) (lines []string) {
		for _, seen := range all {
			lines = append(lines, seen.Type+" "+seen.LastSeen.UTC().Format("01-02 15:04"))
		}
		return lines
	}
	seen := seenTypes(nil, []status.Status{reported("b", 0), reported("a", -1), reported("b", -1), reported("", 0), {}}, noon)
	if want := []string{"a 11-19 00:00", "b 11-20 00:00"}; !slices.Equal(text(seen), want) {
		t.Errorf("seen %v, want %v", text(seen), want)
	}
	if again := seenTypes(seen, nil, at(2)); !slices.Equal(text(again), text(seen)) {
		t.Errorf("without a status %v, want what was: %v", text(again), text(seen))
	}
	if later := seenTypes(seen, []status.Status{reported("b", 1)}, at(30)); !slices.Equal(text(later), []string{"b 11-21 00:00"}) {
		t.Errorf("a month later %v, want b alone", text(later))
	}
	for i := range 2 * api.SeenEventTypes {
		seen = seenTypes(seen, []status.Status{reported(fmt.Sprintf("%03d", i), 0)}, noon)
	}
	if kept := text(seen); len(kept) != api.SeenEventTypes || !slices.Contains(kept, "a 11-19 00:00") {
		t.Errorf("%d are kept: %v, want %d with those that were known", len(kept), kept, api.SeenEventTypes)
	}
}

// What pods report reaches the status, and the condition in the same pass.
// CONTRACT: C-82
func TestTypesReachTheStatus(t *testing.T) {
	o := well()
	o.now = time.Now()
	o.statuses[0].EventTypes = []status.EventType{{Type: "order.placed", LastSeen: o.now}}
	o.consumers = []*api.OutboxConsumer{{ObjectMeta: metav1.ObjectMeta{Name: "audit"}, Spec: api.OutboxConsumerSpec{EventTypes: []string{"payment.*"}}}}
	var s api.OutboxDispatcherStatus
	setStatus(&s, o)
	if len(s.EventTypes) != 1 || s.EventTypes[0].Type != "order.placed" {
		t.Errorf("event types %v", s.EventTypes)
	}
	for _, c := range s.Conditions {
		if c.Type == api.TypesUnregisteredCondition && c.Reason != api.ReasonTypesUnregistered {
			t.Errorf("%+v", c)
		}
	}
}
