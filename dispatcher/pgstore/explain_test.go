package pgstore_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// planned is an outbox that is looked at through one connection, without autovacuum: what the
// planner knows of it, and what the server counts, is up to the test.
type planned struct{ outbox }

func newPlanned(t *testing.T, dsn string) planned {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // prepare has the session's statements for itself
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	p := planned{outbox{T: t, Pool: pool, stores: pool}}
	pgtest.Exec(p, `alter table outbox.outbox_events set (autovacuum_enabled = off)`)
	return p
}

// plan is a node of a plan, as EXPLAIN prints it.
type plan struct {
	Type   string `json:"Node Type"`
	Index  string `json:"Index Name"`
	Rows   int    `json:"-"` // a fraction from 18 on, where a node runs several times
	Loops  int    `json:"Actual Loops"`
	Hit    int    `json:"Shared Hit Blocks"`
	Read   int    `json:"Shared Read Blocks"`
	Parts  []plan `json:"Plans"`
	millis float64
}

func (p *plan) UnmarshalJSON(text []byte) error {
	type fields plan
	node := struct {
		*fields
		Rows float64 `json:"Actual Rows"`
	}{fields: (*fields)(p)}
	err := json.Unmarshal(text, &node)
	p.Rows = int(math.Round(node.Rows))
	return err
}

func (p plan) buffers() int { return p.Hit + p.Read }

// written is how many rows it changed.
func (p plan) written() (n int) {
	if p.Type == "ModifyTable" {
		return p.Rows
	}
	for _, part := range p.Parts {
		n += part.written()
	}
	return n
}

// has reports whether a node of the type is in the plan.
func (p plan) has(nodeType string) bool {
	if p.Type == nodeType {
		return true
	}
	for _, part := range p.Parts {
		if part.has(nodeType) {
			return true
		}
	}
	return false
}

// indexes are the names of those that the plan uses.
func (p plan) indexes() map[string]bool {
	names := map[string]bool{}
	if p.Index != "" {
		names[p.Index] = true
	}
	for _, part := range p.Parts {
		for name := range part.indexes() {
			names[name] = true
		}
	}
	return names
}

// prepare makes the plans of claim and ack as of now. They are kept until the next prepare.
func (p planned) prepare() {
	p.Helper()
	pgtest.Exec(p, `deallocate all`)
	pgtest.Exec(p, `prepare claim as `+pgstore.ClaimSQL())
	pgtest.Exec(p, `prepare ack as `+pgstore.AckSQL())
	p.claim("none", 1)
	p.ack("none")
}

const worker = "01900000-0000-7000-8000-000000000001"

// claim claims rows of a topic from the front of its range.
func (p planned) claim(topic string, limit int) plan {
	p.Helper()
	return p.explain(fmt.Sprintf(`execute claim ('shop', '{%s}', '{%d}', '{0001-01-01}',
		'{00000000-0000-0000-0000-000000000000}', 10, 33554432, '%s', '1 minute', true, 33554432)`, topic, limit, worker))
}

// ack acks all leased rows of a topic. They have the same lease number.
func (p planned) ack(topic string) plan {
	p.Helper()
	const leased = `from outbox.outbox_events where live and namespace = 'shop' and topic = $1 and status = 'processing'`
	ids := pgtest.Value[string](p.outbox, `select coalesce(array_agg(id order by id)::text, '{}') `+leased, topic)
	number := pgtest.Value[int64](p.outbox, `select coalesce(max(lease), 1) `+leased, topic)
	return p.explain(fmt.Sprintf(`execute ack ('%s', %d, '%s')`, ids, number, worker))
}

// explain runs a statement with the settings of the hot path, for real, and returns its plan.
func (p planned) explain(sql string) plan {
	p.Helper()
	ctx := p.Context()
	tx, err := p.Begin(ctx)
	if err != nil {
		p.Fatal(err)
	}
	defer tx.Rollback(ctx)
	var text []byte
	if _, err = tx.Exec(ctx, pgstore.Settings); err == nil {
		err = tx.QueryRow(ctx, `explain (analyze, buffers, format json) `+sql).Scan(&text)
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	if err != nil {
		p.Fatalf("explain %s: %v", sql, err)
	}
	var out []struct {
		Plan   plan    `json:"Plan"`
		Millis float64 `json:"Execution Time"`
	}
	if err := json.Unmarshal(text, &out); err != nil {
		p.Fatal(err)
	}
	out[0].Plan.millis = out[0].Millis
	return out[0].Plan
}
