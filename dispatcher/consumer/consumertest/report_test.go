package consumertest_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/consumer"
	"github.com/outbox-operator/outbox-operator/dispatcher/consumer/consumertest"
)

// The report file says what the checks found, also when they could not be finished.
//
// CONTRACT: C-81, C-82
func TestReportFile(t *testing.T) {
	effects := map[uuid.UUID]int{}
	c := consumertest.Consumer{
		AnyType: true,
		Event:   func() *consumer.Event { return &consumer.Event{EventType: "OrderPlaced", Payload: []byte("{}")} },
		// It handles everything, and again.
		Deliver:    func(_ context.Context, e *consumer.Event) error { effects[e.ID]++; return nil },
		Effects:    func(_ context.Context, id uuid.UUID) (int, error) { return effects[id], nil },
		ReportFile: filepath.Join(t.TempDir(), "report.json"),
	}
	deliver, count := c.Deliver, c.Effects
	turn := make(chan struct{}, 1)
	c.Deliver = func(ctx context.Context, e *consumer.Event) error {
		turn <- struct{}{}
		defer func() { <-turn }()
		return deliver(ctx, e)
	}
	c.Effects = func(ctx context.Context, id uuid.UUID) (int, error) {
		turn <- struct{}{}
		defer func() { <-turn }()
		return count(ctx, id)
	}
	read := func() status.Consumer { return readReport(t, c.ReportFile) }
	found, err := consumertest.Check(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	r := read()
	if !r.Finished || r.Type != "OrderPlaced" || r.At.IsZero() || len(r.BrokenRules) == 0 || len(r.Checks) != allChecks ||
		r.Count(status.ConsumerBroken) != len(found.Broken) || r.Count(status.ConsumerPassed) != len(found.Passed) || r.Count(status.ConsumerNotRun) != len(found.Skipped)+len(found.Follow)+1 {
		t.Errorf("it says %+v, want %+v", r, found)
	}
	c.Effects = func(context.Context, uuid.UUID) (int, error) { return 0, errCrash }
	if _, err := consumertest.Check(t.Context(), c); err == nil || read().Finished {
		t.Errorf("checks that were not finished: %v, %+v", err, read())
	}
	c.ReportFile = t.TempDir()
	if _, err := consumertest.Check(t.Context(), c); err == nil {
		t.Error("got no error for a report that cannot be written")
	}
}

func readReport(t *testing.T, path string) (r status.Consumer) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}
