package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// logical starts a server from which tables can be replicated, with an empty outbox.
func logical(t *testing.T) outbox {
	t.Helper()
	srv, err := postgres.Start(t.Context(), postgres.Options{Settings: map[string]string{"wal_level": "logical"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	o := newOutbox(t, srv.DSN("postgres"))
	conn, err := pgx.Connect(t.Context(), srv.DSN("postgres"))
	if err == nil {
		_, err = migrations.Up(t.Context(), conn, pgtest.Schema)
		err = errors.Join(err, conn.Close(t.Context()))
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// An outbox moves to another server by logical replication, as migrations/README.md says. Until outbox_moved has run the
// schema is not ready and says so; then producers add events, rows become dead, tokens rise and keys keep their order.
// CONTRACT: C-27
func TestMoveByLogicalReplication(t *testing.T) {
	t.Parallel()
	from, to := logical(t), logical(t)
	enqueue := func(o outbox) error {
		_, err := o.Exec(t.Context(), `select outbox.enqueue('shop', 'orders', '{}', p_partition_key => 'k')`)
		return err
	}
	for range 5 {
		if err := enqueue(from); err != nil {
			t.Fatal(err)
		}
	}
	pgtest.Exec(from, `select setval('outbox.outbox_leases', 5::bigint << 45)`) // as of a server that was promoted more often
	old := from.Store("shop", uuid.New())
	var highest int64
	for range 300 {
		claimed, err := old.Claim(t.Context(), share("orders", 5))
		if err != nil || len(claimed.Events) != 5 {
			t.Fatalf("claimed %d, %v", len(claimed.Events), err)
		}
		highest = claimed.Events[0].LeaseNumber
		if _, err := old.Release(t.Context(), returnsOf(claimed.Events)); err != nil {
			t.Fatal(err)
		}
	}
	kill := func(o outbox) error {
		store := o.Store("shop", uuid.New())
		claimed, err := store.Claim(t.Context(), share("orders", 1))
		if err != nil || len(claimed.Events) != 1 {
			return fmt.Errorf("claimed %d, %w", len(claimed.Events), err)
		}
		if n := claimed.Events[0].LeaseNumber; n <= highest {
			t.Errorf("a claim after the move has number %d, and %d was given before", n, highest)
		}
		highest = claimed.Events[0].LeaseNumber
		lost, err := store.Nack(t.Context(), []dispatcher.Failure{{Lease: claimed.Events[0].Lease(), Reason: dispatcher.ReasonPoisonMessage}})
		if err == nil && len(lost) > 0 {
			err = fmt.Errorf("lost %v", lost)
		}
		return err
	}
	if err := kill(from); err != nil {
		t.Fatal(err)
	}

	const tables = `outbox.outbox_events, outbox.outbox_dead_letters, outbox.outbox_aggregate_sequences, outbox.outbox_replays`
	pgtest.Exec(from, `create publication outbox for table `+tables)
	pgtest.Exec(to, `create subscription outbox connection '`+from.Config().ConnString()+`' publication outbox`)
	if err := enqueue(from); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, "the rows are copied", time.Minute, func() bool {
		const rows = `select (select count(*) from outbox.outbox_events) * 10 + (select count(*) from outbox.outbox_dead_letters)`
		return pgtest.Value[int](to, rows) == pgtest.Value[int](from, rows)
	})
	pgtest.Exec(to, `drop subscription outbox`)

	schema, err := to.Store("shop", uuid.New()).Schema(t.Context())
	if err != nil || schema.State != dispatcher.SchemaSequencesBehind || !strings.Contains(schema.Message, `select "outbox".outbox_moved()`) {
		t.Errorf("before outbox_moved the schema is %+v, %v, want it to name the function", schema, err)
	}
	err = errors.Join(enqueue(to), enqueue(to)) // the first has the number of the dead row
	if err == nil || !strings.Contains(err.Error(), "23505") {
		t.Errorf("before outbox_moved enqueue says %v: this proves nothing", err)
	}
	pgtest.Exec(to, `update outbox.outbox_events set key_hash = 1`) // as by the hash of another major version
	pgtest.Exec(to, `update outbox.outbox_dead_letters set key_hash = 1`)
	pgtest.Exec(to, `select outbox.outbox_moved()`)
	if schema, err = to.Store("shop", uuid.New()).Schema(t.Context()); err != nil || schema.State != dispatcher.SchemaReady {
		t.Errorf("after outbox_moved the schema is %+v, %v, want it ready", schema, err)
	}
	if err := enqueue(to); err != nil {
		t.Error(err)
	}
	for range 7 {
		if err := kill(to); err != nil {
			t.Error(err)
		}
	}
	const hashes = `select string_agg(distinct key_hash::text, ' ') = outbox.outbox_key_hash('shop', 'orders', 'k', null)::text
		from (select key_hash from outbox.outbox_events union all select key_hash from outbox.outbox_dead_letters) as all_of_them`
	if !pgtest.Value[bool](to, hashes) {
		t.Error("not all rows of the key have the hash that new ones get")
	}
}
