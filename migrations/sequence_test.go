package migrations_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// numbered is an enqueue of an event of an aggregate with the option, and what else it is given.
func numbered(aggregate, more string) string {
	return `select outbox.enqueue('shop', 'orders', '1', p_aggregate_type => 'order', p_aggregate_id => '` + aggregate +
		`', p_options => '{"aggregateSequence": true}'` + more + `)`
}

func execute(t *testing.T, db interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}, sql string) {
	t.Helper()
	rows, err := db.Query(t.Context(), sql)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// sequences are the events' aggregates and numbers in the order of insertion, and then the counters.
func sequences(t *testing.T, pool *pgxpool.Pool) (all string) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `select (select coalesce(string_agg(concat_ws(':', aggregate_id, aggregate_sequence), ' ' order by seq), '') from outbox.outbox_events)
		|| ' | ' || (select coalesce(string_agg(concat_ws(':', namespace, aggregate_type, aggregate_id, last), ' ' order by namespace, aggregate_type, aggregate_id), '')
			from outbox.outbox_aggregate_sequences)`).Scan(&all)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Committed events of an aggregate have the numbers 1, 2, 3 without a gap: a rollback takes its number back, one that
// was there before takes none, and events that do not request one have none.
// Storage: 1. Outbox Table Schema, sequence_number; Patterns 1, get_next_sequence_number
// REQUIREMENT: STORAGE-4
func TestAggregateSequenceHasNoGaps(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	execute(t, pool, `select outbox.enqueue('shop', 'orders', '1', p_aggregate_id => 'a', p_options => '{"aggregateSequence": false}')`)
	if got := sequences(t, pool); got != "a | " {
		t.Fatalf("without the option there is %q", got)
	}
	for _, end := range []string{"rollback", "commit"} {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		execute(t, tx, numbered("a", ""))
		execute(t, tx, "savepoint before")
		execute(t, tx, numbered("a", ""))
		execute(t, tx, "rollback to before")
		execute(t, tx, numbered("b", `, p_dedupe_key => 'k'`))
		execute(t, tx, numbered("b", `, p_dedupe_key => 'k'`))
		execute(t, tx, numbered("b", ""))
		execute(t, tx, end)
		_ = tx.Rollback(t.Context()) // of the one that has not ended
	}
	execute(t, pool, numbered("a", `, p_id => '6ba7b810-9dad-11d1-80b4-00c04fd430c8'`))
	execute(t, pool, numbered("a", `, p_id => '6ba7b810-9dad-11d1-80b4-00c04fd430c8'`))
	execute(t, pool, numbered("a", ""))
	if got, want := sequences(t, pool), "a a:1 b:1 b:2 a:2 a:3 | shop:order:a:3 shop:order:b:2"; got != want {
		t.Errorf("the numbers are\n%s\nwant\n%s", got, want)
	}
}

// A batch numbers its events in their order, and those that were there before take no number. Aggregates of other
// types and namespaces count for themselves.
func TestAggregateSequenceOfBatch(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	batch := func(more string) {
		execute(t, pool, `select outbox.enqueue_batch(array['shop', 'shop', 'shop', 'bank', 'shop', 'shop'], array_fill('orders'::text, '{6}'), array_fill('1'::jsonb, '{6}'),
			p_aggregate_types => array['order', 'order', null, 'order', 'order', 'order'], p_aggregate_ids => array['b', 'a', 'a', 'a', 'b', 'b']`+more+`)`)
	}
	batch(`, p_options => '{"aggregateSequence": true}'`)
	batch(`, p_options => '[{"aggregateSequence": true}, null, {}, {"maxAttempts": 3}, {"aggregateSequence": false}, {"maxAttempts": 3, "aggregateSequence": true}]'`)
	want := "b:1 a:1 a:1 a:1 b:2 b:3 b:4 a a a b b:5 | bank:order:a:1 shop::a:1 shop:order:a:1 shop:order:b:5"
	if got := sequences(t, pool); got != want {
		t.Errorf("the numbers are\n%s\nwant\n%s", got, want)
	}

	execute(t, pool, `truncate outbox.outbox_events`)
	execute(t, pool, numbered("b", `, p_dedupe_key => 'first'`))
	batch(`, p_dedupe_keys => array['first', 'x', null, 'y', null, 'second'], p_options => '{"aggregateSequence": true}'`)
	batch(`, p_dedupe_keys => array['third', 'x', null, 'y', 'third', 'fourth'], p_options => '{"aggregateSequence": true}'`)
	want = "b:6 a:2 a:2 a:2 b:7 b:8 b:9 a:3 b:10 | bank:order:a:2 shop::a:3 shop:order:a:2 shop:order:b:10"
	if got := sequences(t, pool); got != want {
		t.Errorf("with duplicates the numbers are\n%s\nwant\n%s", got, want)
	}
}

func TestAggregateSequenceRefusesInvalidOptions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	for call, want := range map[string]string{
		`enqueue('shop', 'orders', '1', p_options => '{"aggregateSequence": true}')`:                                                "no aggregate to number the event in",
		`enqueue('shop', 'orders', '1', p_aggregate_id => 'a', p_options => '{"aggregateSequence": 1}')`:                            "aggregateSequence is neither true nor false",
		`enqueue('shop', 'orders', '1', p_aggregate_id => 'a', p_options => '{"aggregateSequence": null}')`:                         "aggregateSequence is neither true nor false",
		numbered(strings.Repeat("鍵", 1000), "")[len("select outbox."):]:                                                             "more than 2600 bytes",
		`enqueue_batch('{shop,shop}', '{o,o}', '{1,1}', p_aggregate_ids => '{a,null}', p_options => '{"aggregateSequence": true}')`: "event 2: there is no aggregate",
		`enqueue_batch('{shop,shop}', '{o,o}', '{1,1}', p_options => '{"aggregateSequence": true}')`:                                "event 1: there is no aggregate",
	} {
		_, err := pool.Exec(t.Context(), "select outbox."+call)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.120s: %v, want %q", call, err, want)
		}
	}
	if got := sequences(t, pool); got != " | " {
		t.Errorf("there is %q now", got)
	}
}
