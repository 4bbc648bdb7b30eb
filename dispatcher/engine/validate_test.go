package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// CONTRACT: C-28
func TestPollIntervalAgainstLease(t *testing.T) {
	for _, test := range []struct {
		poll, lease time.Duration
		refused     bool
	}{
		{0, 0, false}, // the defaults
		{10 * time.Second, 30 * time.Second, false},
		{10*time.Second + 1, 30 * time.Second, true},
		{0, 2 * time.Second, true}, // the default poll interval is too long for this lease
		{15 * time.Second, 0, true},
	} {
		_, err := New(struct{ dispatcher.Store }{}, dispatcher.Handlers{}, dispatcher.Config{Lease: test.lease, PollInterval: test.poll})
		if refused := err != nil; refused != test.refused {
			t.Errorf("pollInterval %v, lease %v: error %v, want refused %v", test.poll, test.lease, err, test.refused)
		}
		if err == nil {
			continue
		}
		for _, word := range []string{"pollInterval (", "lease (", "a third", "lower", "raise"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("the error does not say %q: %v", word, err)
			}
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for want, cfg := range map[string]dispatcher.Config{
		"batchSize is -1":            {BatchSize: -1},
		"batchSize is 10001":         {BatchSize: 10_001},
		"concurrency is 1001":        {Concurrency: 1001},
		"maxAttempts is -3":          {MaxAttempts: -3},
		"gracePeriod is -1s":         {GracePeriod: -time.Second},
		"maxBytes is -1":             {MaxBytes: -1},
		"lease is 99ms":              {Lease: 99 * time.Millisecond, PollInterval: time.Millisecond},
		"pollInterval is 1µs":        {PollInterval: time.Microsecond},
		`ordering is "key"`:          {Ordering: "key"},
		`onDead is "Stop"`:           {OnDead: "Stop"},
		`topics[1] is empty`:         {Topics: []string{"a", ""}},
		`topics lists "a" twice`:     {Topics: []string{"a", "b", "a"}},
		"batchSize is -1; set it to": {BatchSize: -1, Concurrency: -2},
		"maxConcurrency is 1001":     {MaxConcurrency: 1001},
		"concurrency is -2; set it":  {BatchSize: -1, Concurrency: -2}, // all mistakes are reported at once
	} {
		_, err := New(struct{ dispatcher.Store }{}, dispatcher.Handlers{}, cfg)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got: %v", want, err)
		}
	}
	if _, err := New(nil, dispatcher.Handlers{}, dispatcher.Config{}); err == nil {
		t.Error("New took no store")
	}
	if _, err := New(struct{ dispatcher.Store }{}, sinkOfNone{}, dispatcher.Config{}); err == nil {
		t.Error("New took a sink with BatchSize 0")
	}
}

type sinkOfNone struct{ dispatcher.Handlers }

func (sinkOfNone) BatchSize() int { return 0 }
