package pgstore

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// An older schema differs from none. There is no older one yet to make in a database.
func TestCompareSchemaTooOld(t *testing.T) {
	t.Parallel()
	got := compareSchema("outbox", 3, 1, 4)
	if got.State != dispatcher.SchemaTooOld || got.Version != 3 || got.Required != 4 || !strings.Contains(got.Message, "dispatcher migrate up") {
		t.Errorf("got %+v", got)
	}
}

// Every statement names the tables of its schema alone.
func TestStatementsNameTheSchemaAlone(t *testing.T) {
	t.Parallel()
	for name, sql := range load("mine") {
		switch name {
		case "claim_parts", "oldest_transaction": // no statement; of no table
			continue
		}
		if strings.Contains(sql, "outbox.outbox_") || !strings.Contains(sql, `"mine".outbox_`) {
			t.Errorf("%s is not of schema mine: %s", name, sql)
		}
	}
}

// The front of a range is before all rows. A row may be due at the same time, of a zone: then its position is not the front.
func TestFrontOfARangeIsNotARow(t *testing.T) {
	t.Parallel()
	got := pgTimes([]time.Time{{}, timeOf(microsOf(time.Time{})), timeOf(math.MinInt64)})
	if finite := pgtype.Finite; got[0].InfinityModifier != pgtype.NegativeInfinity || got[1].InfinityModifier != finite || got[2].InfinityModifier != pgtype.NegativeInfinity {
		t.Errorf("got %+v, want -infinity for the front and for the earliest time alone", got)
	}
}

// Payloads share memory, but none can be seen or overwritten through another, and large ones have
// theirs to themselves: a slow event keeps little alive.
func TestPayloadSlabs(t *testing.T) {
	t.Parallel()
	d := newDecoder("shop", claiming{})
	var want, got [][]byte
	for i := range 1000 {
		raw := bytes.Repeat([]byte{byte(i)}, i%300)
		want, got = append(want, bytes.Clone(raw)), append(got, d.copy(raw))
		clear(raw) // as the connection does when it reads on
	}
	for i := range got {
		if !bytes.Equal(got[i], want[i]) || cap(got[i]) != len(got[i]) {
			t.Fatalf("payload %d has %d bytes %v, and room for %d", i, len(got[i]), got[i], cap(got[i]))
		}
	}
	before := unsafe.SliceData(d.bytes)
	if large := d.copy(make([]byte, slabBytes)); len(large) != slabBytes || unsafe.SliceData(d.bytes) != before {
		t.Errorf("a large payload was cut from a slab")
	}
}

// Topics that are forgotten while their claim is under way begin again.
func TestTopicsForgottenDuringAClaim(t *testing.T) {
	t.Parallel()
	now := time.Now()
	k := keyed{byTopic: map[string]*passage{}}
	l := k.next([]dispatcher.Share{{Topic: "day-1", Limit: 1}}, 1, search{began: now}, now)
	l.keyRanges, l.keys, l.each = []int64{1}, []int64{6}, []int{1}
	forget(&k.mu, k.byTopic, nil)
	var report scanReport
	if err := json.Unmarshal([]byte(`{"reached": [{"range": 1}], "passed": [{"range": 1, "key_hash": 7}], "recalled": [{"range": 1, "key_hash": 8}]}`), &report); err != nil {
		t.Fatal(err)
	}
	k.update(l, report, found{at: now}, now)
	if !k.keysWaiting([]dispatcher.Share{{Topic: "day-1"}}) {
		t.Error("the key that waits is not remembered")
	}
}

// Topics with live rows are not forgotten, in whatever order the database has them: this one is that of en_US.UTF-8.
// CONTRACT: C-37, C-50
func TestLiveTopicsAreNotForgotten(t *testing.T) {
	t.Parallel()
	var f floors
	f.byTopic = map[string]floor{"audit": {}, "Payments": {}, "gone": {}}
	forget(&f.mu, f.byTopic, []string{"audit", "orders", "Payments"})
	if _, gone := f.byTopic["gone"]; gone || len(f.byTopic) != 2 {
		t.Errorf("%v is remembered, want audit and Payments", f.byTopic)
	}
}
