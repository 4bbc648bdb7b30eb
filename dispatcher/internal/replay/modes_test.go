package replay_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
)

// A replay works however the driver sends its statements: what is set for PgBouncer before 1.21, too.
func TestEveryModeOfTheDriver(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			r := newRig(t)
			r.dead(3, 2)
			settings, err := pgxpool.ParseConfig(r.Pool.Config().ConnString())
			if err != nil {
				t.Fatal(err)
			}
			settings.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), settings)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			replays := replay.New(pool, replay.Options{})
			o := request()
			o.Canary, o.Topics = 2, []string{"orders"}
			o.Filter = config.DeadLetterFilter{IDs: []string{"1", "2", "3", "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11"}}
			if p, err := replays.DryRun(t.Context(), o); err != nil || p.Matched != 3 {
				t.Fatalf("dry run: %v, %v", p, err)
			}
			if p, err := replays.Begin(t.Context(), o); err != nil || p.Matched != 3 {
				t.Fatalf("begin: %v, %v", p, err)
			}
			if done, err := replays.Step(t.Context(), o.ID, 10); err != nil || done == 0 {
				t.Fatalf("step: %d, %v", done, err)
			}
			r.makeDead("true")
			if p, err := replays.Observe(t.Context(), o.ID); err != nil || p.DeadAgain == 0 {
				t.Fatalf("observe: %v, %v", p, err)
			}
			if p, err := replays.Stop(t.Context(), o.ID, "enough"); err != nil || p.Waiting != 0 {
				t.Fatalf("stop: %v, %v", p, err)
			}
			if p, err := replays.Progress(t.Context(), o.ID); err != nil || p.FinishedAt.IsZero() {
				t.Fatalf("progress: %v, %v", p, err)
			}
		})
	}
}
