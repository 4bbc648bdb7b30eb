package retention_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Whatever the planner knows of the tables, pages are read by their numbers and dead letters by an index, without a
// sequential scan.
func TestStatementsUseIndexes(t *testing.T) {
	t.Parallel()
	for _, analyzed := range []string{"empty", "small", "large"} {
		o := newOutbox(t)
		fill := func(n int) {
			pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload, status, updated_at)
				select gen_random_uuid(), 'shop', 'orders', '{}', 'delivered', now() - interval '8 days' from generate_series(1, $1::integer)`, n)
			pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts)
				select id, 'shop', 'orders', 'poison_message', 1 from outbox.outbox_events`)
		}
		switch analyzed {
		case "small":
			fill(10)
			pgtest.Exec(o, `analyze outbox.outbox_events, outbox.outbox_dead_letters`)
			fill(20_000)
		case "large":
			fill(20_000)
			pgtest.Exec(o, `analyze outbox.outbox_events, outbox.outbox_dead_letters`)
		default:
			fill(20_000)
		}
		ids := fmt.Sprintf("'{%s,%s}'", uuid.New(), uuid.New())
		for name, query := range map[string]struct{ sql, args, uses string }{
			"delivered":    {retention.Statement("delivered"), `'(3,0)', '(5,0)', '7 days', 'shop', '{orders}', 2000`, `"Tid Range Scan"`},
			"dead_letters": {retention.Statement("dead_letters"), `100, 500, '7 days', '7 days', '', '{}'`, "outbox_dead_letters_pkey"},
			"lock":         {retention.Statement("lock"), ids, "outbox_events_pkey"},
			"resolved":     {retention.Statement("resolved"), ids + `, '7 days'`, "outbox_dead_letters_event"},
			"expired":      {retention.Statement("expired"), ids + `, '7 days'`, "outbox_dead_letters_event"},
		} {
			text := o.explain(query.sql, query.args)
			if !strings.Contains(text, query.uses) {
				t.Errorf("%s, %s: the plan has no %s:\n%s", name, analyzed, query.uses, text)
			}
			for _, table := range []string{"outbox_events", "outbox_dead_letters"} {
				if seqScans(t, text, table) {
					t.Errorf("%s, %s: %s is read from end to end:\n%s", name, analyzed, table, text)
				}
			}
		}
	}
}

// explain returns the plan that is kept for every argument, as compact JSON.
func (o outbox) explain(sql, args string) (text string) {
	o.Helper()
	tx, err := o.Begin(o.Context())
	if err != nil {
		o.Fatal(err)
	}
	defer tx.Rollback(o.Context())
	if _, err = tx.Exec(o.Context(), retention.Settings, "5000"); err == nil {
		_, err = tx.Exec(o.Context(), `set local plan_cache_mode = force_generic_plan`)
	}
	if err == nil {
		_, err = tx.Exec(o.Context(), `prepare checked as `+sql)
	}
	if err == nil {
		err = tx.QueryRow(o.Context(), `explain (format json) execute checked (`+args+`)`).Scan(&text)
	}
	if err == nil {
		_, err = tx.Exec(o.Context(), `deallocate checked`)
	}
	if err != nil {
		o.Fatalf("explain: %v", err)
	}
	var compact []any
	if err := json.Unmarshal([]byte(text), &compact); err != nil {
		o.Fatal(err)
	}
	out, _ := json.Marshal(compact)
	return string(out)
}

// seqScans reports whether a plan reads a table from end to end.
func seqScans(t *testing.T, text, table string) bool {
	t.Helper()
	type node struct {
		Type     string `json:"Node Type"`
		Relation string `json:"Relation Name"`
		Plans    []node
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		t.Fatal(err)
	}
	var reads func(n node) bool
	reads = func(n node) bool {
		if n.Type == "Seq Scan" && n.Relation == table {
			return true
		}
		for _, part := range n.Plans {
			if reads(part) {
				return true
			}
		}
		return false
	}
	return reads(plans[0].Plan)
}
