package pgstore_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// fillKeys commits n due events of a topic, in turn of so many keys, in one statement.
func (o outbox) fillKeys(n, keys int, topic string) {
	o.Helper()
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
		select ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'shop', $1, 'key ' || n % $3::integer, '{}'
		from generate_series(1, $2::integer) as n`, topic, n, keys)
}

// A row that another session is about to change ends its key, and is not waited for.
// CONTRACT: C-50
func TestKeysEndAtLocks(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fillKeys(8, 2, "orders") // "key 1" has the rows 1, 3, 5, 7
	for name, test := range map[string]struct{ lock, want []int }{
		"no lock":    {nil, []int{1, 2, 3, 4, 5, 6, 7, 8}},
		"the first":  {[]int{1}, []int{2, 4, 6, 8}},
		"the second": {[]int{3}, []int{1, 2, 4, 6, 8}},
		"the last":   {[]int{7, 8}, []int{1, 2, 3, 4, 5, 6}},
	} {
		tx, err := o.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `select from outbox.outbox_events where seq = any ($1) for update`, test.lock); err != nil {
			t.Fatal(err)
		}
		store := o.Store("shop", uuid.New())
		claimed, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: "orders", Limit: 8}}, Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 8},
		})
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, e := range claimed.Events {
			got = append(got, int(e.Seq))
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s is locked: claimed %v, want %v", name, got, test.want)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Release(t.Context(), returnsOf(claimed.Events)); err != nil {
			t.Fatal(err)
		}
	}
}

// A step of a pass leaves out no row for other workers, who claim elsewhere in the topic.
// CONTRACT: C-50
func TestStepsLeaveOutNothing(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fillKeys(300, 300, "orders")
	tx, err := o.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `select pg_advisory_xact_lock(hashtextextended('orders', hashtextextended('shop', 1)))`); err != nil {
		t.Fatal(err)
	}
	claimed, err := o.Store("shop", uuid.New()).Claim(t.Context(), dispatcher.ClaimRequest{ // the first of a store is a step
		Shares: []dispatcher.Share{{Topic: "orders", Limit: 10}}, Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 1},
	})
	if err != nil || len(claimed.Events) != 10 || claimed.Events[0].Seq != 1 {
		t.Fatalf("the first place is taken: claimed %+v, %v, want the first ten rows", claimed.Events, err)
	}
}

// When a row was tried twice, those behind it are not claimed with it: each failure would release them.
// CONTRACT: C-50
func TestRetriesComeAlone(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fillKeys(5, 1, "orders")
	store := o.Store("shop", uuid.New())
	for try, want := range []int{5, 5, 1, 1} {
		claimed, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: "orders", Limit: 10}}, Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 10},
		})
		if err != nil || len(claimed.Events) != want || claimed.Events[0].Seq != 1 {
			t.Fatalf("try %d: claimed %d rows, %v, want %d", try, len(claimed.Events), err, want)
		}
		if _, err := store.Release(t.Context(), returnsOf(claimed.Events[1:])); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Nack(t.Context(), []dispatcher.Failure{{Lease: claimed.Events[0].Lease()}}); err != nil {
			t.Fatal(err)
		}
	}
}

// A dead letter blocks the later rows of its key until it is resolved, in each way in which a claim reads
// keys. What one claim leaves out another may find, so each statement runs by itself.
// CONTRACT: C-50
func TestDeadLettersBlockInEachRead(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	for how, read := range map[string]keyedRead{
		"far": {limit: 10}, "dense": {limit: 10, dense: true}, "again": {},
	} {
		for _, test := range []struct {
			what        string
			dead        int64
			resolution  any
			want, dense []int64 // dense takes the first of each key alone
		}{
			{"the first", 1, nil, []int64{2, 4, 6}, []int64{2}},
			{"the first, discarded", 1, "discarded", []int64{2, 3, 4, 5, 6}, []int64{2, 3}},
			{"the second", 3, nil, []int64{1, 2, 4, 6}, []int64{1, 2}},
			{"the second, discarded", 3, "discarded", []int64{1, 2, 4, 5, 6}, []int64{1, 2}},
		} {
			t.Run(how+"/"+test.what, func(t *testing.T) {
				o := outbox{T: t, Pool: pool, stores: pool}
				pgtest.Exec(o, `truncate outbox.outbox_events, outbox.outbox_dead_letters restart identity`)
				o.fillKeys(6, 2, "orders") // "key 1" has the rows 1, 3, 5
				pgtest.Exec(o, `update outbox.outbox_events set status = 'dead', dead_reason = 'poison_message' where seq = $1`, test.dead)
				pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, reason, attempts, resolution, resolved_at, resolved_by)
					select id, namespace, topic, seq, key_hash, dead_reason, 1, $2::text, case when $2 is not null then now() end, case when $2 is not null then 'alice' end
					from outbox.outbox_events where seq = $1`, test.dead, test.resolution)
				want := test.want
				if read.dense {
					want = test.dense
				}
				if got, err := o.claimGated(read); err != nil || !slices.Equal(got, want) {
					t.Errorf("the claim returned the rows %v, %v, want %v", got, err, want)
				}
			})
		}
	}
}
