package pgstore_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// An event that is delivered slowly keeps its own megabyte in memory, and not those of the events that were
// claimed with it. (Not parallel: it measures the heap.)
// CONTRACT: C-35
func TestSlowEventKeepsItsOwnMemory(t *testing.T) {
	o := newOutbox(t, pgtest.Migrated(t))
	const events, size = 60, 1 << 20
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload, headers)
		select gen_random_uuid(), 'shop', 'orders', to_jsonb(repeat('x', $2::integer)), jsonb_build_object('h', repeat('y', 60000))
		from generate_series(1, $1::integer)`, events, size)
	before := heap()
	claimed, err := o.Store("shop", uuid.New()).Claim(t.Context(), share("orders", events))
	if err != nil || len(claimed.Events) != events {
		t.Fatalf("claimed %d events, %v", len(claimed.Events), err)
	}
	slow := claimed.Events[events/2]
	all := heap() - before
	runtime.KeepAlive(claimed)
	claimed = dispatcher.Claimed{}
	one := heap() - before
	t.Logf("%d events keep %d KiB, one of them keeps %d KiB", events, all>>10, one>>10)
	if all < events*size || one > 4*size {
		t.Errorf("%d events keep %d bytes, and one of them %d, want at most 4 MiB", events, all, one)
	}
	runtime.KeepAlive(slow)
}

// heap is how many bytes are reachable.
func heap() int64 {
	var m runtime.MemStats
	for range 2 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The bytes of a claim are those of payloads and headers, whether the server has compressed these or not.
// CONTRACT: C-35
func TestClaimCountsHeaders(t *testing.T) {
	t.Parallel()
	const events, size = 20, 50_000
	for name, value := range map[string]string{
		"compressed":   `repeat('x', $2)`,
		"uncompressed": `left((select string_agg(md5(random()::text || i || n), '') from generate_series(1, 2000) as i), $2)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, pgtest.Migrated(t))
			pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload, headers)
				select gen_random_uuid(), 'shop', 'orders', n::text, '{}', jsonb_build_object('h', `+value+`)
				from generate_series(1, $1::integer) as n`, events, size)
			store := o.Store("shop", uuid.New())
			claim := func(keys *dispatcher.KeyOrder) int {
				t.Helper()
				claimed, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
					Shares: []dispatcher.Share{{Topic: "orders", Limit: events}}, Lease: time.Minute, MaxAttempts: 10,
					MaxBytes: 5*size + 5000, Keys: keys,
				})
				if err != nil {
					t.Fatal(err)
				}
				if lost, err := store.Release(t.Context(), returnsOf(claimed.Events)); err != nil || len(lost) > 0 {
					t.Errorf("lost %v, %v", lost, err)
				}
				return len(claimed.Events)
			}
			if n := claim(nil); n != 5 {
				t.Errorf("a claim had room for %d rows of %d bytes of headers in %d bytes, want 5", n, size, 5*size+5000)
			}
			for range 3 { // dense is what a claim is when the one before it was full
				if n := claim(&dispatcher.KeyOrder{PerKey: 3}); n != 5 {
					t.Errorf("a claim in order had room for %d rows, want 5", n)
				}
			}
		})
	}
}
