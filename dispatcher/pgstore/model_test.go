package pgstore_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/model"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// The store does what the table in package dispatcher's documentation says: every verb in every state of
// a row, also where the table has no line for it and nothing may change.
// CONTRACT: C-17, C-18, C-19, C-20, C-21, C-22, C-23, C-24, C-26, C-30, C-31, C-60
func TestStoreFollowsTheTable(t *testing.T) {
	t.Parallel()
	t.Run("Kept", func(t *testing.T) { t.Parallel(); followTable(t, false) })
	t.Run("DeletedAtAck", func(t *testing.T) { t.Parallel(); followTable(t, true) })
}

func followTable(t *testing.T, deleted bool) {
	const most = 2
	table, err := model.Read("../doc.go")
	need.OK(t, err)
	o := newOutbox(t, pgtest.Migrated(t))
	workers := []uuid.UUID{uuid.Nil, uuid.New(), uuid.New()}
	used := map[int]bool{}
	changes, refusals := 0, 0
	for i, row := range everyRow(most) {
		for j, call := range everyCall(most) {
			topic := fmt.Sprintf("%d-%d", i, j) // a claim sees this row alone
			id := uuid.New()
			o.Enqueue(storetest.Event{Event: dispatcher.Event{ID: id, Namespace: "shop", Topic: topic, Payload: []byte("{}")}})
			o.put([]uuid.UUID{id}, []model.Row{row}, workers)
			before := o.Row(id)

			store := pgstore.New(o.stores, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Worker: workers[call.Worker], DeleteDelivered: deleted})
			lost := o.perform(store, call, topic, id, most)
			after := o.Row(id)
			want, changed := table.Step(row, call, most)
			if deleted && changed && want.Status == "delivered" {
				want = model.Row{} // none
			}
			need.Want(t, want, "%+v, %+v: the row is %+v, want %+v", numbered(o.states(workers)[id], row, want), row, call)
			need.That(t, changed || after == before, "%+v, %+v: nothing may change, and %+v became %+v", row, call, before, after)
			again := row.Status == "withdrawn" && call.Verb == "withdraw" ||
				row.Status == "dead" && call.Verb == "nack" && call.Final && call.Lease == row.Lease // by a try whose response did not arrive
			need.That(t, call.Verb == "claim" || again || lost != changed, "%+v, %+v: changed is %t, and the lease was reported lost: %t", row, call, changed, lost)
			if !changed {
				refusals++
				continue
			}
			changes++
			used[table.Line(row, call, most)] = true
		}
	}
	t.Logf("%d transitions and %d refusals compared", changes, refusals)
	for i, line := range table {
		if !used[i] && line.Verb != "replay" { // not a verb of the store
			t.Errorf("no case reached the line %+v", line)
		}
	}
}

// put brings rows into states, and states reads them. Workers are numbered from 1.
func (o outbox) put(ids []uuid.UUID, rows []model.Row, workers []uuid.UUID) {
	o.Helper()
	var batch pgx.Batch
	batch.Queue(`select setval('outbox.outbox_leases', greatest(100, (select last_value from outbox.outbox_leases)))`)
	for i, row := range rows {
		batch.Queue(`update outbox.outbox_events set status = $2, attempts = $3, lease = $8, suspicion = case when $9 then 5 else 4 end, locked_by = nullif($4, $5::uuid),
				locked_until = case when $4 <> $5::uuid then now() + $6 end, next_attempt_at = now() + $7,
				dead_reason = case $2 when 'dead' then 'permanent_failure' end, expires_at = case when $10 then now() end where id = $1`,
			ids[i], row.Status, row.Attempts, workers[row.Holder], uuid.Nil, later(row.Over), later(row.Due), row.Lease, row.Begun, row.Late)
	}
	need.OK(o, o.SendBatch(o.Context(), &batch).Close())
}

func (o outbox) states(workers []uuid.UUID) map[uuid.UUID]model.Row {
	o.Helper()
	rows, err := o.Query(o.Context(), `select id, status, attempts, lease, locked_by, coalesce(locked_until < now(), false), next_attempt_at <= now(),
			coalesce(status = 'processing' and suspicion >= 5, false), coalesce(live and expires_at <= now(), false)
		from outbox.outbox_events`)
	need.OK(o, err)
	var (
		id     uuid.UUID
		row    model.Row
		holder uuid.NullUUID
		states = map[uuid.UUID]model.Row{}
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &row.Status, &row.Attempts, &row.Lease, &holder, &row.Over, &row.Due, &row.Begun, &row.Late}, func() error {
		row.Holder = slices.Index(workers, holder.UUID)
		states[id] = row
		return nil
	})
	need.OK(o, err)
	return states
}

// numbered gives a row the lease number that the model expects where it rose as it should: the store draws
// the numbers of all rows from one sequence.
func numbered(got, before, want model.Row) model.Row {
	if want.Lease > before.Lease && got.Lease > before.Lease {
		got.Lease = want.Lease
	}
	return got
}

// everyRow lists the states that a row can be in.
func everyRow(most int) (rows []model.Row) {
	for _, due := range []bool{true, false} {
		for attempts := range most + 1 {
			for _, status := range []string{"pending", "delivered", "dead", "withdrawn", "expired"} {
				rows = append(rows, model.Row{Status: status, Attempts: attempts, Lease: attempts, Due: due})
			}
			for holder := 1; holder <= 2 && attempts > 0 && due; holder++ {
				for n := range 4 {
					for lease := 1; lease <= most; lease++ { // an attempt that was given back leaves its lease behind
						rows = append(rows, model.Row{Status: "processing", Attempts: attempts, Lease: lease, Holder: holder, Over: n%2 > 0, Begun: n > 1, Due: due})
					}
				}
			}
			rows = append(rows, model.Row{Status: "pending", Attempts: attempts, Lease: attempts, Due: due, Late: true})
		}
	}
	for n := range 4 {
		rows = append(rows, model.Row{Status: "processing", Attempts: 1, Lease: 1, Holder: 1, Over: n%2 > 0, Begun: n > 1, Due: true, Late: true})
	}
	return rows
}

// everyCall lists what the first worker can call, with each lease that it may think it has.
func everyCall(most int) []model.Call {
	calls := []model.Call{{Verb: "claim", Worker: 1}, {Verb: "withdraw"}}
	for lease := 1; lease <= most; lease++ {
		for _, verb := range []string{"begin", "ack", "copy", "nack", "extend", "release"} {
			calls = append(calls, model.Call{Verb: verb, Worker: 1, Lease: lease})
		}
		calls = append(calls, model.Call{Verb: "nack", Worker: 1, Lease: lease, Final: true},
			model.Call{Verb: "release", Worker: 1, Lease: lease, Delayed: true})
	}
	return calls
}

// later is an hour from now, or an hour ago for what is over.
func later(over bool) time.Duration {
	if over {
		return -time.Hour
	}
	return time.Hour
}

// perform makes the call, and reports whether the store said that the lease is lost.
func (o outbox) perform(store dispatcher.Store, c model.Call, topic string, id uuid.UUID, most int) bool {
	o.Helper()
	t := o.T
	lease := []dispatcher.Lease{{ID: id, Number: int64(c.Lease)}}
	var lost []dispatcher.Lease
	var err error
	switch c.Verb {
	case "withdraw":
		return pgtest.Value[string](o, `select result from outbox.withdraw('shop', $1, p_id => $2)`, topic, id) != "withdrawn"
	case "claim":
		_, err = store.Claim(t.Context(), dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: topic, Limit: 1}}, Lease: time.Minute, MaxAttempts: most})
	case "ack":
		lost, err = store.Ack(t.Context(), lease)
	case "copy":
		lost, err = store.(*pgstore.Store).Copy(t.Context(), []string{topic + ".copy"}, lease)
	case "begin":
		lost, err = store.Begin(t.Context(), lease)
	case "extend":
		lost, err = store.Extend(t.Context(), lease, time.Minute)
	case "release":
		back := dispatcher.Return{Lease: lease[0]}
		if c.Delayed {
			back.Delay, back.Error = time.Hour, "unreachable"
		}
		lost, err = store.Release(t.Context(), []dispatcher.Return{back})
	case "nack":
		failure := dispatcher.Failure{Lease: lease[0], Error: "refused", Delay: time.Hour}
		if c.Final {
			failure.Reason = dispatcher.ReasonPermanentFailure
		}
		lost, err = store.Nack(t.Context(), []dispatcher.Failure{failure})
	}
	need.Must(t, err == nil, "%s: %v", c.Verb, err)
	return len(lost) > 0
}

// A claim in order per key takes what the model's prefix rule lets it take, whatever state each of three
// rows of a key is in.
// CONTRACT: C-50
func TestKeyedClaimFollowsTheModel(t *testing.T) {
	t.Parallel()
	const most, perKey = 2, 3
	table, err := model.Read("../doc.go")
	need.OK(t, err)
	o := newOutbox(t, pgtest.Migrated(t))
	workers := []uuid.UUID{uuid.Nil, uuid.New(), uuid.New()}
	kinds := []model.Row{
		{Status: "pending", Due: true}, {Status: "pending", Due: true, Late: true}, {Status: "pending"}, {Status: "pending", Attempts: most, Due: true},
		{Status: "processing", Attempts: 1, Holder: 1, Due: true}, {Status: "processing", Attempts: 1, Holder: 2, Due: true},
		{Status: "processing", Attempts: most, Holder: 2, Due: true, Over: true, Begun: true},
		{Status: "processing", Attempts: 1, Holder: 2, Due: true, Over: true},
		{Status: "delivered", Attempts: 1, Due: true}, {Status: "dead", Attempts: 1, Due: true},
	}
	var events []storetest.Event
	var ids []uuid.UUID
	var rows []model.Row
	for n := range len(kinds) * len(kinds) * len(kinds) {
		for _, kind := range []int{n % len(kinds), n / len(kinds) % len(kinds), n / len(kinds) / len(kinds)} {
			e := storetest.Event{Event: dispatcher.Event{ID: uuid.New(), Namespace: "shop", Topic: "orders", AggregateID: fmt.Sprint(n), Payload: []byte("{}")}}
			events, ids, rows = append(events, e), append(ids, e.ID), append(rows, kinds[kind])
		}
	}
	o.Enqueue(events...)
	o.put(ids, rows, workers)
	var want []model.Row
	for i := 0; i < len(rows); i += 3 {
		want = append(want, rows[i:i+3]...)
		held, waits := false, false // a row of the key is claimed: behind it only those go that can go with it
		for j, row := range want[i:] {
			if row.Status == "delivered" || row.Status == "dead" {
				continue
			}
			next, changed := table.Step(row, model.Call{Verb: "claim", Worker: 1}, most)
			waits = waits || !changed || held && next.Status != "processing"
			if !waits || next.Status == "expired" { // which waits for none
				want[i+j], held = next, held || next.Status == "processing"
			}
		}
	}
	differing := func() (all []int) {
		after := o.states(workers)
		for i := range want {
			if numbered(after[ids[i]], rows[i], want[i]) != want[i] {
				all = append(all, i)
			}
		}
		return all
	}
	store := o.Store("shop", workers[1])
	claimed := 0
	for began := time.Now(); ; {
		got, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: "orders", Limit: 5000}}, Lease: time.Minute, MaxAttempts: most,
			Keys: &dispatcher.KeyOrder{PerKey: perKey},
		})
		need.OK(t, err)
		claimed += len(got.Events)
		// One that took long may have missed rows.
		if len(got.Events) == 0 && (len(differing()) == 0 || time.Since(began) > need.Wait) {
			break
		}
	}
	for _, i := range differing() {
		of := i - i%3
		t.Errorf("of %+v row %d is not %+v", rows[of:of+3], i-of, want[i])
	}
	need.That(t, claimed != 0, "nothing was claimed")
	t.Logf("%d keys, %d rows claimed", len(rows)/3, claimed)
}
