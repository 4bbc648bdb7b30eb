package retention_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
)

// A sweep works in every mode of the driver, also in the one for PgBouncer before 1.21.
func TestSweepWorksInEveryModeOfTheDriver(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			o := newOutbox(t)
			delivered, resolved, unresolved := o.add("delivered", 8, ""), o.add("dead", 90, ""), o.add("dead", 90, "")
			o.deadLetter(resolved, 90, 80)
			o.deadLetter(unresolved, 90, -1)
			replay := o.replay(o.deadLetter(o.add("dead", 1, ""), 1, -1))
			config := o.sweeps.Config()
			config.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			s := retention.New(pool, retention.Options{
				Name: "dispatcher shop", Namespace: o.namespace, Topics: []string{"orders"},
				Delivered: 7 * day, DeadResolved: 30 * day, DeadUnresolved: 60 * day,
			})
			o.sweep(s)
			if o.row(delivered) || o.row(resolved) || o.row(unresolved) || o.deadLetters(unresolved) != "expired" {
				t.Errorf("rows stay: %v %v %v; the dead letter is %s", o.row(delivered), o.row(resolved), o.row(unresolved), o.deadLetters(unresolved))
			}
			if got := o.state(replay); got != "waiting 1 pending 0 delivered 0 dead 0 gone 0 stopped 0" {
				t.Errorf("a replay that has begun is %s", got)
			}
			if state, err := s.State(t.Context()); err != nil || state.Removed != (retention.Counts{Delivered: 1, Dead: 2, DeadLetters: 1, Expired: 1}) || state.Next.Before(time.Now()) {
				t.Errorf("state %+v, %v", state, err)
			}
		})
	}
}
