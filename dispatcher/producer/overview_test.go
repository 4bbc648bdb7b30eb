package producer_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/producer"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A producer with a namespace of its own enqueues a topic and a payload, and the caller's event stays as it is.
// REQUIREMENT: OVERVIEW-17
func TestDefaultNamespace(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.Migrated(t))
	outbox := producer.New(producer.Options{Namespace: "shop"})
	events := []producer.Event{{Topic: "orders", Payload: 1}, {Namespace: "other", Topic: "orders", Payload: 2}}
	tx := begin(t, pool)
	if _, err := outbox.EnqueueBatch(t.Context(), tx, events); err != nil {
		t.Fatal(err)
	}
	if _, err := outbox.Enqueue(t.Context(), tx, events[0]); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := tx.QueryRow(t.Context(), `select string_agg(namespace, ',' order by seq) from outbox.outbox_events`).Scan(&got); err != nil || got != "shop,other,shop" {
		t.Errorf("namespaces %q, %v, want shop,other,shop", got, err)
	}
	if events[0].Namespace != "" {
		t.Errorf("the caller's event has the namespace %q now", events[0].Namespace)
	}
}

// With ObjectsOnly a payload is a mapping, and what is not one is refused before anything is sent.
// CONTRACT: C-13
// REQUIREMENT: OVERVIEW-14
func TestObjectsOnly(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.Migrated(t))
	outbox, tx := producer.New(producer.Options{Namespace: "shop", ObjectsOnly: true}), begin(t, pool)
	for _, payload := range []any{json.RawMessage(" \n\t\r{}"), map[string]int{"a": 1}, struct{ A []int }{}} {
		if _, err := outbox.Enqueue(t.Context(), tx, producer.Event{Topic: "orders", Payload: payload}); err != nil {
			t.Errorf("%v: %v", payload, err)
		}
	}
	for _, payload := range []any{[]int{1, 2}, "text", 42, json.RawMessage(" null"), map[string]int(nil)} {
		_, err := outbox.Enqueue(t.Context(), tx, producer.Event{Topic: "orders", Payload: payload})
		if !errors.Is(err, producer.ErrInvalid) || !strings.Contains(err.Error(), "Payload is not a JSON object") {
			t.Errorf("%v: %v, want ErrInvalid", payload, err)
		}
		_, err = outbox.EnqueueBatch(t.Context(), tx, []producer.Event{{Topic: "orders", Payload: payload}})
		if !errors.Is(err, producer.ErrInvalid) {
			t.Errorf("%v in a batch: %v, want ErrInvalid", payload, err)
		}
	}
}
