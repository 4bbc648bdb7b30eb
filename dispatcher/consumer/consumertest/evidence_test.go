package consumertest_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/consumer"
	"github.com/outbox-operator/outbox-operator/dispatcher/consumer/consumertest"
)

// The evidence says what the checks found. There is none of checks that could not be finished.
//
// CONTRACT: C-81, C-82
func TestEvidenceFile(t *testing.T) {
	var mu sync.Mutex
	effects := map[uuid.UUID]int{}
	count := func(_ context.Context, id uuid.UUID) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return effects[id], nil
	}
	c := consumertest.Consumer{
		AnyType: true,
		Event:   func() *consumer.Event { return &consumer.Event{EventType: "OrderPlaced", Payload: []byte("{}")} },
		// It handles everything, and again.
		Deliver: func(_ context.Context, e *consumer.Event) error {
			mu.Lock()
			defer mu.Unlock()
			effects[e.ID]++
			return nil
		},
		Effects:      count,
		EvidenceFile: filepath.Join(t.TempDir(), "evidence.json"),
	}
	found, err := consumertest.Check(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	e := readEvidence(t, c.EvidenceFile)
	if e.EventType != "OrderPlaced" || e.VerifiedAt.IsZero() || len(e.BrokenRules) == 0 || e.Checks != allChecks || e.Passed != len(found.Passed) || len(e.LeftOut) == 0 {
		t.Errorf("it says %+v, want %+v", e, found)
	}
	c.Effects = func(context.Context, uuid.UUID) (int, error) { return 0, errCrash }
	c.EvidenceFile = filepath.Join(t.TempDir(), "evidence.json")
	if _, err := consumertest.Check(t.Context(), c); err == nil {
		t.Error("the checks were finished, although effects cannot be counted")
	}
	if _, err := os.Stat(c.EvidenceFile); !os.IsNotExist(err) {
		t.Errorf("checks that were not finished wrote evidence: %v", err)
	}
	c.Effects, c.EvidenceFile = count, t.TempDir()
	if _, err := consumertest.Check(t.Context(), c); err == nil {
		t.Error("got no error for evidence that cannot be written")
	}
}

func readEvidence(t *testing.T, path string) status.ConsumerEvidence {
	t.Helper()
	var patch struct {
		Spec struct {
			Evidence status.ConsumerEvidence `json:"evidence"`
		} `json:"spec"`
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &patch)
	}
	if err != nil {
		t.Fatal(err)
	}
	return patch.Spec.Evidence
}
