package engine

import (
	"context"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// A statement that fails for its rows is halved. A full one doubles the next if it took less than a quarter of what was too
// long last.
// CONTRACT: C-35
func TestSizeLearns(t *testing.T) {
	s := size{chunkRows, storeTimeout}
	for i, step := range []struct {
		rows int
		took time.Duration
		err  error
		want int
	}{
		{2000, 600 * time.Millisecond, sqlState("57014"), 1000},
		{1000, 140 * time.Millisecond, nil, 2000},
		{2000, 10 * time.Second, context.DeadlineExceeded, 1000},
		{1000, 3 * time.Second, nil, 1000},
		{1000, 2 * time.Second, nil, 2000},
		{2000, time.Millisecond, nil, 2000},
		{100, time.Millisecond, dispatcher.Refused(errContent), 50},
		{10, time.Millisecond, nil, 50},
		{50, time.Millisecond, nil, 100},
		{1, time.Second, dispatcher.Refused(errContent), 1},
		{1, 2 * time.Second, nil, 2},
		{2, time.Second, errContent, 2},
	} {
		if s.learn(step.rows, step.took, step.err); s.rows != step.want {
			t.Fatalf("step %d: the next statement has %d rows, want %d", i, s.rows, step.want)
		}
	}
}
