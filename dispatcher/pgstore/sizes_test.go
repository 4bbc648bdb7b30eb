package pgstore_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A dispatcher's rights are enough, and the size grows with the table. CONTRACT: C-95
func TestSizes(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	sizes := func() map[string]int64 {
		found, err := o.Store("shop", uuid.New()).(*pgstore.Store).Sizes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	empty := sizes()
	o.fill(1000, "orders")
	filled := sizes()
	if len(empty) != 2 || empty["outbox_dead_letters"] == 0 || filled["outbox_dead_letters"] != empty["outbox_dead_letters"] {
		t.Errorf("empty: %v, filled: %v", empty, filled)
	}
	if filled["outbox_events"] < empty["outbox_events"]+1000*100 {
		t.Errorf("1000 rows took the table from %d to %d bytes", empty["outbox_events"], filled["outbox_events"])
	}
}
