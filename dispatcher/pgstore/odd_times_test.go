package pgstore_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Rows with times that an adoption may bring harm themselves alone: those that are due are claimed, in whatever way
// claims begin, the backlog is counted, and each is named.
// CONTRACT: C-33, C-95, C-96
func TestOddTimes(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.stores = pgtest.Pool(t, o.Config().ConnString()+"&timezone=Europe/Berlin") // its offset had seconds in the year 1
	add := func(seq int, due, created string) {
		pgtest.Exec(o, fmt.Sprintf(`insert into outbox.outbox_events (id, namespace, topic, payload, next_attempt_at, created_at)
			values ('01900000-0000-7000-8000-%012d', 'shop', 'orders', '{}', %s, %s)`, seq, due, created))
	}
	add(1, "'-infinity'", "now()")
	add(2, "'4713-01-01 BC'", "now()")
	add(3, "now()", "'-infinity'")
	add(4, "now()", "'infinity'")
	add(5, "now()", "'294276-01-01'")
	add(6, "now()", "now()")
	add(7, "'infinity'", "now()")
	add(8, "'294276-01-01'", "now()")
	add(9, "now() + interval '1 hour'", "now() + interval '1 hour'")
	add(10, "now() + interval '1 hour'", "now()") // delayed by its producer
	add(11, "'0001-01-01 00:00:00Z'", "now()")    // Go's zero time
	store := o.Store("shop", uuid.New()).(*pgstore.Store)

	odd, n, err := store.OddTimes(t.Context(), nil)
	if err != nil || n != 9 || len(odd) != 5 {
		t.Errorf("%d odd times, %v, %v; want 9, and 5 of them named", n, odd, err)
	}
	for i, want := range []string{"due since before 1970", "due since before 1970", "created before 1970", "created in the future", "created in the future"} {
		if len(odd) > i && (odd[i].ID[15] != byte(i+1) || !strings.Contains(odd[i].What, want)) {
			t.Errorf("row %d is %+v, want %q", i+1, odd[i], want)
		}
	}
	if _, n, err := store.OddTimes(t.Context(), []string{"others"}); n != 0 || err != nil {
		t.Errorf("%d odd times of another topic, %v", n, err)
	}
	depth, err := store.Depth(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := depth.Topics[0]; d.Pending.N != 7 || d.Scheduled.N != 4 || !d.DueSince.Equal(time.Unix(0, 0)) {
		t.Errorf("depth is %+v, want 7 due, since 1970 at most, and 4 later", d)
	}
	for _, keys := range []*dispatcher.KeyOrder{nil, {PerKey: 1}} {
		var seqs []int
		for range 9 {
			req := share("orders", 1) // a floor at each row
			req.Keys = keys
			claimed, err := store.Claim(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range claimed.Events {
				seqs = append(seqs, int(e.ID[15]))
				if y := e.CreatedAt.UTC().Year(); y < 1970 || y > 9999 {
					t.Errorf("row %d was created in %d", e.ID[15], y)
				}
			}
		}
		if slices.Sort(seqs); !slices.Equal(seqs, []int{1, 2, 3, 4, 5, 6, 0x11}) {
			t.Errorf("with order %+v: claimed %v, want all seven that are due", keys, seqs)
		}
		pgtest.Exec(o, `update outbox.outbox_events set locked_until = '-infinity' where status = 'processing'`)
	}
	if _, err := store.Depth(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// A lease that was given by a clock which was an hour ahead is over, and named until then. One of a worker with a longer
// lease than this one's is not, nor one that was given by hand for ever, which is named.
// CONTRACT: C-3, C-20
func TestLeaseOfAClockAhead(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload) select gen_random_uuid(), 'shop', 'orders', '{}' from generate_series(1, 4)`)
	other := o.Store("shop", uuid.New())
	long := share("orders", 4)
	long.Lease = 10 * time.Hour
	if c, err := other.Claim(t.Context(), long); err != nil || len(c.Events) != 4 {
		t.Fatalf("claimed %+v, %v", c, err)
	}
	pgtest.Exec(o, `update outbox.outbox_events set updated_at = now() + interval '1 hour', locked_until = now() + interval '61 minutes' where seq = 2`)
	pgtest.Exec(o, `update outbox.outbox_events set locked_until = 'infinity' where seq = 3`)
	pgtest.Exec(o, `update outbox.outbox_events set updated_at = 'infinity' where seq = 4`)
	store := o.Store("shop", uuid.New()).(*pgstore.Store)
	if odd, n, err := store.OddTimes(t.Context(), nil); err != nil || n != 3 || !strings.Contains(odd[0].What, "leased in the future") {
		t.Errorf("odd times are %v, %d, %v; want rows 2 to 4", odd, n, err)
	}
	for _, keys := range []*dispatcher.KeyOrder{nil, {PerKey: 3}} {
		req := share("orders", 4)
		req.Keys = keys
		c, err := store.Claim(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		var seqs []int64
		for _, e := range c.Events {
			seqs = append(seqs, e.Seq)
		}
		if slices.Sort(seqs); !slices.Equal(seqs, []int64{2, 4}) {
			t.Errorf("claimed %v, want rows 2 and 4", seqs)
		}
		pgtest.Exec(o, `update outbox.outbox_events set updated_at = now() + interval '1 hour', locked_until = now() + interval '61 minutes' where seq in (2, 4)`)
	}
}

// A topic that is gone leaves nothing behind in the store.
func TestTopicsThatAreGoneAreForgotten(t *testing.T) {
	t.Parallel()
	o := newTenants(t)
	store := o.Store("shop", uuid.New())
	for i := range 60 {
		topic := fmt.Sprint("day-", i)
		req := share(topic, 1)
		if req.Fair = i%3 == 1; i%3 == 2 {
			req.Keys = &dispatcher.KeyOrder{PerKey: 1}
		}
		pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload) values (gen_random_uuid(), 'shop', $1, '{}')`, topic)
		if c, err := store.Claim(t.Context(), req); err != nil || len(c.Events) != 1 {
			t.Fatalf("claimed %+v, %v", c, err)
		} else if _, err := store.Ack(t.Context(), leasesOf(c.Events)); err != nil {
			t.Fatal(err)
		}
	}
	if n := pgstore.Remembered(store); n != 60 {
		t.Errorf("%d topics are remembered, want 60", n)
	}
	if _, err := store.Topics(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := pgstore.Remembered(store); n != 0 {
		t.Errorf("%d topics are remembered that have no rows", n)
	}
}
