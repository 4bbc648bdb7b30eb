package consumertest_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher/consumer"
	"github.com/outbox-operator/outbox-operator/dispatcher/consumer/consumertest"
)

// allChecks is how many checks there are.
const allChecks = 19

// each runs a test for each consumer, several at once: they mostly wait.
func each[T any](t *testing.T, consumers map[string]T, test func(*testing.T, T)) {
	var all sync.WaitGroup
	few := make(chan struct{}, 10)
	for name, one := range consumers {
		all.Go(func() {
			few <- struct{}{}
			t.Run(name, func(t *testing.T) { test(t, one) })
			<-few
		})
	}
	all.Wait()
}

// Each wrong consumer is found by the one check that names its flaw, with evidence and a remedy, and no other check calls it broken.
//
// CONTRACT: C-81
// REQUIREMENT: RULE-010-001, RULE-010-002, RULE-010-003, RULE-010-012, RULE-010-020, RULE-010-021, RULE-010-031, RULE-010-032
func TestWrongConsumersAreNamedByTheirCause(t *testing.T) {
	each(t, wrongOnes, func(t *testing.T, wrong wrongOne) {
		c := newService(t).subject(wrong.deliver)
		if wrong.set != nil {
			wrong.set(&c)
		}
		c.EvidenceFile = filepath.Join(t.TempDir(), "evidence.json")
		report, err := consumertest.Check(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if len(report.Broken) != 1 || report.Broken[0].Check != wrong.check || !strings.Contains(report.Broken[0].Evidence, wrong.says) {
			t.Fatalf("it breaks %v, want %q, which says %q", report.Broken, wrong.check, wrong.says)
		}
		if rules := readEvidence(t, c.EvidenceFile).BrokenRules; len(rules) != 1 || rules[0] != wrong.rule {
			t.Errorf("it breaks %q, want %s", rules, wrong.rule)
		}
		for check, cause := range report.Follow {
			if cause != wrong.check {
				t.Errorf("%s follows from %s, want %s", check, cause, wrong.check)
			}
		}
	})
}

// Each right consumer passes all checks but those that it declares to be without meaning.
//
// CONTRACT: C-81
func TestRightConsumersPass(t *testing.T) {
	each(t, rightOnes, func(t *testing.T, one rightOne) {
		c := newService(t).subject(one.deliver)
		if one.set != nil {
			one.set(&c)
		}
		c.EvidenceFile = filepath.Join(t.TempDir(), "evidence.json")
		report, err := consumertest.Check(t.Context(), c)
		if err != nil || len(report.Broken) != 0 || len(report.Skipped) != 0 || len(report.Passed) != allChecks-one.leftOut {
			t.Errorf("%+v, %v", report, err)
		}
		if r := readEvidence(t, c.EvidenceFile); len(r.NotTried) != 0 {
			t.Errorf("not tried: %v", r.NotTried)
		}
	})
}

// A check whose hook is missing is reported as not made, and a hook that fails as that.
//
// CONTRACT: C-81
func TestMissingHookIsReportedAsNotChecked(t *testing.T) {
	if _, err := consumertest.Check(t.Context(), consumertest.Consumer{}); err == nil {
		t.Error("a consumer without hooks was checked")
	}
	s := map[uuid.UUID]int{}
	var mu sync.Mutex
	c := consumertest.Consumer{
		AnyType: true,
		Event:   func() *consumer.Event { return &consumer.Event{Payload: []byte("{}")} },
		Deliver: func(_ context.Context, e *consumer.Event) error {
			mu.Lock()
			defer mu.Unlock()
			s[e.ID] = 1
			return nil
		},
		Effects: func(_ context.Context, id uuid.UUID) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return s[id], nil
		},
	}
	report, err := consumertest.Check(t.Context(), c)
	if err != nil || len(report.Broken) != 0 || len(report.Passed) != 11 || report.Skipped["crash between effect and record"] != "Crash" || len(report.Skipped) != 7 {
		t.Errorf("%+v, %v", report, err)
	}
	consumertest.Verify(t, c)
	idle := c
	idle.Deliver = func(context.Context, *consumer.Event) error { return nil }
	if report, err := consumertest.Check(t.Context(), idle); err != nil || len(report.Broken) != 1 || report.Broken[0].Check != "handles an event" {
		t.Errorf("a consumer that does nothing: %+v, %v", report, err)
	}
	c.Restart = func(context.Context) error { return errCrash }
	if _, err := consumertest.Check(t.Context(), c); !errors.Is(err, errCrash) || !strings.Contains(err.Error(), "Restart") {
		t.Errorf("%v", err)
	}
}

// A consumer that responds in time and needs more of it than a check has is not called broken: the check ends, with a remedy.
//
// CONTRACT: C-81
func TestCheckThatIsCutOffIsNotBroken(t *testing.T) {
	c := consumertest.Consumer{
		Event: func() *consumer.Event { return &consumer.Event{Payload: []byte("{}")} },
		Deliver: func(ctx context.Context, _ *consumer.Event) error { // four take longer than a check may
			select {
			case <-time.After(400 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		Effects:      func(context.Context, uuid.UUID) (int, error) { return 1, nil },
		CheckTimeout: 1500 * time.Millisecond,
	}
	report, err := consumertest.Check(t.Context(), c)
	if err == nil || len(report.Broken) != 0 || !slices.Equal(report.Passed, []string{"responds in time"}) || !strings.Contains(err.Error(), "handles an event: the check was not done within 1.5s") {
		t.Errorf("%+v, %v", report, err)
	}
}
