package engine

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

func rowOf(topic, aggregate, partition string) *row {
	return &row{event: &dispatcher.Event{ID: uuid.New(), Topic: topic, AggregateID: aggregate, PartitionKey: partition}}
}

// CONTRACT: C-50
func TestKeysLetOneRowOfAKeyGo(t *testing.T) {
	k := newKeys(dispatcher.OrderingKey)
	a1, a2, a3 := rowOf("t", "a", ""), rowOf("t", "x", "a"), rowOf("t", "a", "")
	for _, test := range []struct {
		row  *row
		want bool
	}{
		{a1, true}, {a2, false}, {a3, false},
		{rowOf("t", "b", ""), true}, {rowOf("u", "a", ""), true}, {rowOf("t", "a", "b2"), true},
		{rowOf("t", "", ""), true}, {rowOf("t", "", ""), true},
	} {
		if got := k.join(test.row); got != test.want {
			t.Errorf("%+v may be delivered: %v, want %v", test.row.event, got, test.want)
		}
	}
	if got := k.next(a1); got != a2 {
		t.Errorf("after the first comes %v, want the second", got)
	}
	if k.next(a3) != nil || k.next(a1) != nil {
		t.Error("a row that is not the first let another one go")
	}
	if got := k.next(a2); got != a3 {
		t.Errorf("after the second comes %v, want the third", got)
	}
	if got := k.next(a3); got != nil || k.join(rowOf("t", "a", "")) != true {
		t.Error("a key whose rows are delivered holds back another row")
	}
	none := newKeys(dispatcher.OrderingNone)
	if !none.join(a1) || !none.join(a2) {
		t.Error("rows wait without an order")
	}
}

// A row that does not succeed takes those behind it with it, and those before it stay.
// CONTRACT: C-50
func TestKeysStop(t *testing.T) {
	k := newKeys(dispatcher.OrderingKey)
	rows := make([]*row, 5)
	for i := range rows {
		rows[i] = rowOf("t", "a", "")
		k.join(rows[i])
	}
	if got := k.leave(rows[3]); !slices.Equal(got, rows[4:]) {
		t.Errorf("behind the fourth were %d rows, want the fifth", len(got))
	}
	if got := k.leave(rows[4]); got != nil {
		t.Errorf("a row that had left was followed by %d", len(got))
	}
	if got := k.stop(rows[0]); !slices.Equal(got, rows[1:3]) {
		t.Errorf("behind the first were %d rows, want the two that are left", len(got))
	}
	if again := rowOf("t", "a", ""); k.join(again) || k.next(rows[0]) != again {
		t.Error("a new row did not wait for the one that is in delivery")
	}
}

func TestKeysDisband(t *testing.T) {
	k := newKeys(dispatcher.OrderingKey)
	running, waiting := rowOf("t", "a", ""), rowOf("t", "a", "")
	queued, behind, other := rowOf("t", "b", ""), rowOf("t", "b", ""), rowOf("u", "b", "")
	running.delivery = &delivery{}
	for _, r := range []*row{running, waiting, queued, behind, other, rowOf("u", "b", "")} {
		k.join(r)
	}
	got := k.disband("t")
	if len(got) != 2 || !slices.Contains(got, waiting) || !slices.Contains(got, behind) {
		t.Errorf("%d rows had waited, want 2", len(got))
	}
	if k.next(running) != nil || len(k) != 1 || len(k.disband("")) != 1 || len(k) != 0 {
		t.Errorf("lines are left: %v", k)
	}
}
