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
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// gated is a claim in order per key, made to wait for the advisory lock 1 when it has its snapshot and has
// not locked a row yet: whatever reads rows gets its topics or keys from behind the gate.
func gated(t *testing.T, sql string, lists ...string) string {
	t.Helper()
	for _, list := range lists {
		if from := "unnest(" + list + ","; !strings.Contains(sql, from) {
			t.Fatalf("the claim has no %q any more: find another place for the gate", from)
		}
		sql = strings.ReplaceAll(sql, "unnest("+list+",", "unnest((select "+list+" from gate),")
	}
	at := strings.Index(sql, "\nwith ") + len("\nwith ")
	return sql[:at] + "gate as materialized (select pg_advisory_xact_lock(1)),\n" + sql[at:]
}

// keyedRead is how a claim finds the first rows of keys.
type keyedRead struct {
	limit int32 // 0 when the keys are read directly
	dense bool
}

// sql is the gated statement, and args are what it is called with, for PerKey 10.
func (r keyedRead) sql(o outbox) (sql string, args []any, err error) {
	args = []any{
		"shop", []string{"orders"}, []int32{r.limit}, []time.Time{{}}, []pgtype.UUID{{Valid: true}}, 10, 1 << 20, uuid.NewString(), time.Minute, true, 1 << 20,
		true, []int64{}, []int64{}, "",
	}
	if r.dense {
		return gated(o.T, pgstore.ClaimDenseSQL(), "$2::text[]"), args, nil
	}
	var ranges, keys []int64
	var rows []int32
	if r.limit == 0 {
		hashes := `select array_agg(distinct key_hash) from outbox.outbox_events where key_hash is not null`
		if err := o.QueryRow(o.Context(), hashes).Scan(&keys); err != nil {
			return "", nil, err
		}
		ranges, rows = slices.Repeat([]int64{1}, len(keys)), slices.Repeat([]int32{10}, len(keys))
	}
	args = append(args, []int32{50}, 10, ranges, keys, rows, []bool{false})
	return gated(o.T, pgstore.ClaimKeyedSQL(), "$2::text[]", "$18::bigint[]"), args, nil
}

// claimGated runs the gated claim, and returns the seq of the rows that it returned, in order.
func (o outbox) claimGated(read keyedRead) (seqs []int64, err error) {
	sql, args, err := read.sql(o)
	if err != nil {
		return nil, err
	}
	err = pgx.BeginFunc(o.Context(), o.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(o.Context(), pgstore.Settings); err != nil {
			return err
		}
		claimed, err := tx.Query(o.Context(), sql, args...)
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
func (o outbox) claimAround(read keyedRead, meanwhile func()) (seqs []int64, err error) {
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
		seqs, err = o.claimGated(read)
		done <- err
	}()
	for !pgtest.Value[bool](o, `select exists (select from pg_locks where locktype = 'advisory' and not granted
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
// PostgreSQL looks at the ctid of a changed row again only from 14.20, 15.15, 16.11 and 17.7 on. Before, a row that
// is far or read again is as the other worker left it, and is dropped by "row = locked" alone.
// CONTRACT: C-50, C-20
func TestKeysWhoseFirstRowChanged(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	changes := map[string]func(dispatcher.Store, dispatcher.Lease) (lost []dispatcher.Lease, err error){
		"unchanged": nil,
		"released": func(s dispatcher.Store, lease dispatcher.Lease) ([]dispatcher.Lease, error) {
			return s.Release(t.Context(), []dispatcher.Return{{Lease: lease}})
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
		"far": {limit: 10}, "dense": {limit: 10, dense: true}, "again": {},
	} {
		for what, change := range changes {
			t.Run(how+"/"+what, func(t *testing.T) {
				o := outbox{T: t, Pool: pool, stores: pool}
				pgtest.Exec(o, `truncate outbox.outbox_events restart identity`)
				o.fillKeys(6, 2, "orders") // "key 1" has the rows 1, 3, 5
				want, changed := []int64{1, 2, 3, 4, 5, 6}, []int64{2, 4, 6}
				if read.dense { // the first of each key
					want, changed = []int64{1, 2}, []int64{2}
				}
				got, err := o.claimAround(read, func() {
					if change == nil {
						return
					}
					want = changed
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
