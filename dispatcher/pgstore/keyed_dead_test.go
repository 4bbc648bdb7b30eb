package pgstore_test

import (
	"slices"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A dead letter blocks the later rows of its key until it is resolved, in each way in which a claim reads
// keys. What one claim leaves out another may find, so each statement runs by itself.
// CONTRACT: C-50
func TestDeadLettersBlockInEachRead(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	for how, read := range map[string]keyedRead{
		"far": {limit: 10}, "near": {limit: 10, near: true}, "dense": {limit: 10, dense: true}, "again": {},
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
