package producer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/producer"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Without options a payload may have 1 MiB, and a batch 32 MiB. What is more is refused before anything is
// sent. CONTRACT: C-13
func TestDefaultLimits(t *testing.T) {
	const limit = 1 << 20
	pool := pgtest.Open(t, pgtest.Migrated(t))
	outbox := producer.New(producer.Options{})
	sized := func(bytes int) producer.Event { // the payload's two quotes count
		return event(func(e *producer.Event) { e.Payload = strings.Repeat("x", bytes-2) })
	}
	tx := begin(t, pool)
	if _, err := outbox.Enqueue(t.Context(), tx, sized(limit+1)); !errors.Is(err, producer.ErrInvalid) || !strings.Contains(err.Error(), "more than the limit of 1048576") {
		t.Errorf("1 MiB and a byte: %v, want ErrInvalid with the limit", err)
	}
	if _, err := outbox.Enqueue(t.Context(), tx, sized(limit)); err != nil {
		t.Errorf("1 MiB: %v", err)
	}
	if _, err := outbox.EnqueueBatch(t.Context(), tx, slices.Repeat([]producer.Event{sized(limit)}, 32)); !errors.Is(err, producer.ErrInvalid) || !strings.Contains(err.Error(), "enqueue it in parts") {
		t.Errorf("32 payloads of 1 MiB, and what is around them: %v, want ErrInvalid with the remedy", err)
	}
	check(t, tx.Commit(t.Context()))
	if n := pgtest.Value[int](pool, "select count(*) from outbox.outbox_events"); n != 1 {
		t.Errorf("%d rows, want the one within the limit", n)
	}

	ended, end := context.WithCancel(t.Context()) // the batch is good, and writing it would take long
	end()
	if _, err := outbox.EnqueueBatch(ended, pool, slices.Repeat([]producer.Event{sized(limit)}, 31)); !errors.Is(err, context.Canceled) {
		t.Errorf("31 payloads of 1 MiB: %v, want that they were on their way", err)
	}
}
