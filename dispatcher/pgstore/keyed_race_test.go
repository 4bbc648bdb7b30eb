package pgstore_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/pgtest"
)

// gatedClaim is the claim in order per key, made to wait for the advisory lock 1 when it has its snapshot
// and has not locked a row yet: whatever reads rows gets its topics or keys from behind the gate.
func gatedClaim(t *testing.T) string {
	t.Helper()
	sql := pgstore.ClaimKeyedSQL()
	for _, part := range []struct{ from, to string }{
		{"with turn as materialized (", "with gate as materialized (select pg_advisory_xact_lock(1)),\nturn as materialized ("},
		{"unnest($2::text[],", "unnest((select $2::text[] from gate),"},
		{"unnest($13::bigint[],", "unnest((select $13::bigint[] from gate),"},
	} {
		if !strings.Contains(sql, part.from) {
			t.Fatalf("claim_keyed.sql has no %q any more: find another place for the gate", part.from)
		}
		sql = strings.ReplaceAll(sql, part.from, part.to)
	}
	return sql
}

// keyedRead is how a claim finds the first rows of keys.
type keyedRead struct {
	limit       int32 // 0 when the keys are read directly
	near, dense bool
}

// claimGated runs the gated claim with PerKey 10, and returns the seq of the rows that it returned, in order.
func (o outbox) claimGated(sql string, read keyedRead) (seqs []int64, err error) {
	var ranges, keys []int64
	var rows []int32
	if read.limit == 0 {
		hashes := `select array_agg(distinct key_hash) from outbox.outbox_events`
		if err := o.QueryRow(o.Context(), hashes).Scan(&keys); err != nil {
			return nil, err
		}
		ranges, rows = slices.Repeat([]int64{1}, len(keys)), slices.Repeat([]int32{10}, len(keys))
	}
	err = pgx.BeginFunc(o.Context(), o.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(o.Context(), pgstore.Settings); err != nil {
			return err
		}
		claimed, err := tx.Query(o.Context(), sql, "shop", []string{"orders"}, []int32{read.limit}, []time.Time{{}},
			[]pgtype.UUID{{Valid: true}}, []int32{50}, 10, 1<<20, uuid.NewString(), time.Minute, 10, true,
			ranges, keys, rows, []bool{false}, read.near, read.dense)
		if err != nil {
			return err
		}
		events, err := pgx.CollectRows(claimed, pgx.RowToMap)
		for _, e := range events {
			seqs = append(seqs, e["seq"].(int64))
		}
		slices.Sort(seqs)
		return err
	})
	return seqs, err
}

// claimAround runs the gated claim, and does something while it waits with its snapshot.
func (o outbox) claimAround(sql string, read keyedRead, meanwhile func()) (seqs []int64, err error) {
	o.Helper()
	gate, err := o.Begin(o.Context())
	if err != nil {
		return nil, err
	}
	defer func() { _ = gate.Rollback(o.Context()) }()
	if _, err := gate.Exec(o.Context(), `select pg_advisory_xact_lock(1)`); err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		var err error
		seqs, err = o.claimGated(sql, read)
		done <- err
	}()
	for !scalar[bool](o, `select exists (select from pg_locks where locktype = 'advisory' and not granted
			and database = (select oid from pg_database where datname = current_database()))`) {
		if len(done) > 0 {
			o.Fatalf("the claim did not wait: %v", <-done)
		}
	}
	meanwhile()
	err = gate.Rollback(o.Context())
	err = errors.Join(err, <-done)
	return seqs, err
}

// Between a claim's snapshot and its locks, another worker may take the first row of a key, and give it
// back or not. The claim takes nothing of that key then, however it reads: the snapshot's version of the
// first row is not to be had, and those behind it do not go without it.
//
// PostgreSQL looks at the ctid of a changed row again only from 15.15, 16.11 and 17.7 on. Before, a row that
// is far or read again comes back as the other worker left it, and is dropped by "row = locked" alone.
// CONTRACT: C-50, C-20
func TestKeysWhoseFirstRowChanged(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	sql := gatedClaim(t)
	changes := map[string]func(dispatcher.Store, dispatcher.Lease) (lost []dispatcher.Lease, err error){
		"unchanged": nil,
		"released": func(s dispatcher.Store, lease dispatcher.Lease) ([]dispatcher.Lease, error) {
			return s.Release(t.Context(), []dispatcher.Lease{lease})
		},
		"failed": func(s dispatcher.Store, lease dispatcher.Lease) ([]dispatcher.Lease, error) {
			return s.Nack(t.Context(), []dispatcher.Failure{{Lease: lease}})
		},
		"expired": func(s dispatcher.Store, lease dispatcher.Lease) ([]dispatcher.Lease, error) {
			return s.Extend(t.Context(), []dispatcher.Lease{lease}, -time.Hour)
		},
		"leased": func(dispatcher.Store, dispatcher.Lease) ([]dispatcher.Lease, error) { return nil, nil },
		"delivered": func(s dispatcher.Store, lease dispatcher.Lease) ([]dispatcher.Lease, error) {
			return s.Ack(t.Context(), []dispatcher.Lease{lease})
		},
	}
	for how, read := range map[string]keyedRead{
		"far": {limit: 10}, "near": {limit: 10, near: true}, "dense": {limit: 10, near: true, dense: true}, "again": {},
	} {
		for what, change := range changes {
			t.Run(how+"/"+what, func(t *testing.T) {
				o := outbox{T: t, Pool: pool, stores: pool}
				o.exec(`truncate outbox.outbox_events restart identity`)
				o.fillKeys(6, 2, "orders") // "key 1" has the rows 1, 3, 5
				want := []int64{1, 2, 3, 4, 5, 6}
				got, err := o.claimAround(sql, read, func() {
					if change == nil {
						return
					}
					want = []int64{2, 4, 6}
					store := o.Store("shop", uuid.New())
					other, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
						Shares: []dispatcher.Share{{Topic: "orders", Limit: 1}}, Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 1},
					})
					if err != nil || len(other.Events) != 1 || other.Events[0].Seq != 1 {
						t.Fatalf("the other worker claimed %+v, %v, want row 1", other.Events, err)
					}
					if lost, err := change(store, other.Events[0].Lease()); err != nil || len(lost) > 0 {
						t.Fatalf("lost %v, %v", lost, err)
					}
				})
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("the claim returned the rows %v, %v, want %v", got, err, want)
				}
			})
		}
	}
}
