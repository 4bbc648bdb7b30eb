package adopt_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

// uncommitted inserts an event in a transaction that does not wait for the disk when it commits.
func (r rig) uncommitted(n int) pgx.Tx {
	r.Helper()
	tx, err := r.Begin(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(r.Context())) })
	if _, err = tx.Exec(r.Context(), `set local synchronous_commit = off`); err == nil {
		err = r.old.produce(r.Context(), tx, n)
	}
	if err != nil {
		r.Fatal(err)
	}
	return tx
}

// stepDuring begins a step while a transaction has inserted, and commits that when the step waits for it.
func (r rig) stepDuring(step adopt.Step, tx pgx.Tx) (result adopt.Result) {
	r.Helper()
	done := make(chan error, 1)
	go func() {
		var err error
		result, err = r.try(step, adopt.Options{})
		done <- err
	}()
	r.eventually("the step waits", func() bool {
		return len(done) > 0 || pgtest.Value[bool](r, `select exists (select from pg_locks where relation = 'outboxevent'::regclass and not granted)`)
	})
	if err := tx.Commit(r.Context()); err != nil {
		r.Error(err)
	}
	if err := <-done; err != nil {
		r.Fatal(err)
	}
	return result
}

// held are the numbers of the rows that the slot has, in its order, as "4 2 4".
func (r rig) held() string {
	r.Helper()
	return pgtest.Value[string](r, `select coalesce(string_agg(row -> 'payload' ->> 'n', ' ' order by at), '')
		from outbox.outbox_adopt_log($1, 'dbz_publication', 'outboxevent') with ordinality as l (row, at)`, r.old.spec.Slot)
}

// A step waits for producers that have inserted and not committed, so that their rows are on one side and not on both.
//
// CONTRACT: C-91
func TestDebeziumStepsWaitForProducers(t *testing.T) {
	r, _ := newLogRig(t)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.produce(t.Context(), 1)
	if result := r.stepDuring(adopt.Cutover, r.uncommitted(2)); result.Moved != 2 || r.numbers() != "1 2" {
		t.Errorf("moved %d, events %s; want both", result.Moved, r.numbers())
	}
	r.exec(`update outbox.outbox_events set status = 'delivered' where payload ->> 'n' = '1'`)
	if result := r.stepDuring(adopt.Back, r.uncommitted(3)); result.Returned != 2 || r.held() != "2 3" {
		t.Errorf("returned %d, and the slot has %s; want 2 3", result.Returned, r.held())
	}
}

// A way back that fails has moved the slot, and lost nothing: what the slot had was the outbox's, and still is.
//
// CONTRACT: C-91
func TestDebeziumFailedBackLosesNothing(t *testing.T) {
	r, _ := newLogRig(t)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.produce(t.Context(), 1)
	r.step(adopt.Cutover, adopt.Live, true)
	r.produce(t.Context(), 2)
	r.exec(`create function fail() returns trigger language plpgsql as $$ begin raise 'no more rows'; end $$;
		create trigger fail before insert on outboxevent for each row execute function fail()`)
	if _, err := r.try(adopt.Back, adopt.Options{}); err == nil || !strings.Contains(err.Error(), "no more rows") {
		t.Fatalf("back: %v", err)
	}
	r.exec(`drop trigger fail on outboxevent`)
	if s := r.status(); s.State != adopt.Live || s.OursWaiting != 2 || r.held() != "" {
		t.Errorf("%+v, and the slot has %s", s, r.held())
	}
	r.produce(t.Context(), 3)
	r.exec(`update outbox.outbox_events set status = 'delivered' where payload ->> 'n' = '1'`)
	if result := r.step(adopt.Back, adopt.None, true); result.Returned != 2 || r.held() != "2 3" {
		t.Errorf("returned %d, and the slot has %s; want 2 3", result.Returned, r.held())
	}
}

// Events that are in a dispatcher's hands are waited for. What producers insert meanwhile is the connector's, once.
//
// CONTRACT: C-91
func TestDebeziumBackWaitsForLeases(t *testing.T) {
	r, _ := newLogRig(t)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	r.produce(t.Context(), 1)
	r.produce(t.Context(), 2)
	r.exec(`insert into outboxevent (id, aggregatetype, aggregateid, type, payload) values (gen_random_uuid(), '', '1', 'refused', '{"n": 9}')`)
	r.exec(`update outbox.outbox_events set status = 'processing', locked_by = gen_random_uuid(), locked_until = now() + interval '1 hour' where payload ->> 'n' = '1'`)
	if result, err := r.try(adopt.Back, adopt.Options{Wait: 1}); err == nil || result.State != adopt.Returning || result.Returned != 2 {
		t.Fatalf("back: %+v, %v", result, err)
	}
	r.produce(t.Context(), 3)
	// A clock that was ahead gave this lease, so it is over (CONTRACT C-3).
	r.exec(`update outbox.outbox_events set updated_at = now() + interval '1 hour' where payload ->> 'n' = '1'`)
	if result := r.step(adopt.Back, adopt.None, true); result.Returned != 1 || r.held() != "2 9 3 1" {
		t.Errorf("returned %d, and the slot has %s; want 2 9 3 1", result.Returned, r.held())
	}
}

// Each insert is an event, also one with the id of a row that was deleted: Debezium sends both.
func TestDebeziumReusedIDBecomesNewEvent(t *testing.T) {
	r, _ := newLogRig(t)
	again := func(n int) {
		t.Helper()
		r.exec(fmt.Sprintf(`delete from outboxevent; insert into outboxevent (id, aggregatetype, aggregateid, type, payload)
			values (md5('same')::uuid, 'Order', '1', 'T', '{"n": %d}')`, n))
	}
	r.step(adopt.ToShadow, adopt.Shadow, true)
	again(1)
	again(2)
	if result := r.step(adopt.Cutover, adopt.Live, true); result.Moved != 2 {
		t.Errorf("moved %d", result.Moved)
	}
	again(3)
	if got := r.numbers(); got != "1 2 3" {
		t.Errorf("events %s, want 1 2 3", got)
	}
	if result := r.step(adopt.Back, adopt.None, true); result.Returned != 3 || r.held() != "1 2 3" {
		t.Errorf("returned %d, and the slot has %s; want 1 2 3", result.Returned, r.held())
	}
}

// A row that the outbox has refused is tried again as it is in their table by then. The name of the adoption is that of a
// function of ours, and its steps can be repeated.
func TestDebeziumRefusedRowIsSentOnceFixed(t *testing.T) {
	r, _ := newLogRig(t)
	r.exec(`create domain note as jsonb; alter table outboxevent add note note`)
	r.old.spec.Name = "log"
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.old.spec.Namespace = "market"
	r.step(adopt.ToShadow, adopt.Shadow, true)
	const insert = `insert into outboxevent (id, aggregatetype, aggregateid, type, payload, note) values (md5('%[1]d')::uuid, repeat('T', %[2]d), '1', 'T', '{"n": %[1]d}', '{"n": %[1]d}')`
	for n := 1; n <= 4; n++ {
		r.exec(fmt.Sprintf(insert, n, 1-n%2))
		if n == 2 {
			if result := r.step(adopt.Cutover, adopt.Live, true); result.Moved != 1 || result.Refused != 1 {
				t.Errorf("moved %d, refused %d", result.Moved, result.Refused)
			}
		}
	}
	r.exec(`update outboxevent set aggregatetype = 'fixed' where aggregatetype = ''; delete from outboxevent where payload ->> 'n' = '3'`)
	if result := r.step(adopt.Cutover, adopt.Live, true); result.Moved != 1 || result.Refused != 1 || r.numbers() != "2 4 1" {
		t.Errorf("moved %d, refused %d, events %s", result.Moved, result.Refused, r.numbers())
	}
	if result := r.step(adopt.Back, adopt.None, true); result.Returned != 4 || r.held() != "1 2 3 4" {
		t.Errorf("returned %d, and the slot has %s", result.Returned, r.held())
	}
	if got := pgtest.Value[string](r, `select string_agg(aggregatetype || (note = payload), ' ' order by payload ->> 'n') from outboxevent`); got != "fixedtrue Ttrue Ttrue" {
		t.Errorf("their table has %s", got)
	}
}

// The steps work in every mode of the driver.
func TestDebeziumStepsInEveryQueryMode(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			r, _ := newLogRig(t)
			conn := r.connectIn(mode)
			for n, step := range []adopt.Step{adopt.ToShadow, adopt.Cutover, adopt.Cutover, adopt.Back} {
				if _, err := adopt.Apply(t.Context(), conn, pgtest.Schema, step, r.old.spec, adopt.Options{}); err != nil {
					t.Fatal(err)
				}
				r.produce(t.Context(), n)
				if _, err := adopt.Read(t.Context(), conn, pgtest.Schema, ""); err != nil {
					t.Error(err)
				}
			}
			if held := r.held(); held != "0 1 2 3" {
				t.Errorf("the slot has %s", held)
			}
		})
	}
}
