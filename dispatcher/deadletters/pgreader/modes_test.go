package pgreader

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Each request has the same result in every mode of the driver, also in the one for PgBouncer before 1.21.
func TestReaderWorksInEveryModeOfTheDriver(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Migrated(t)
	story(t, pgtest.Open(t, dsn))
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		config.DefaultQueryExecMode = mode
		connect := func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, config.Copy()) }
		for name, topics := range map[string][]string{"all topics": nil, "one topic": {"orders"}} {
			r := New(connect, Options{Namespace: "shop", Topics: topics})
			f := deadletters.Filter{
				IDs: []string{eventID(1), "2"}, Topic: "orders", Type: "OrderPlaced", Aggregate: "order/1", Tenant: tenant, Reason: "permanent_failure",
				ErrorContains: "422", Since: noon, Until: noon.AddDate(1, 0, 0),
			}
			groups, err := r.Groups(t.Context(), f)
			if err != nil || len(groups.Groups) != 1 {
				t.Errorf("%s, %s: groups: %+v, %v", mode, name, groups, err)
			}
			page, err := r.List(t.Context(), deadletters.ListRequest{Filter: f})
			if err != nil || len(page.DeadLetters) != 1 {
				t.Errorf("%s, %s: list: %+v, %v", mode, name, page, err)
			}
			deadLetter, err := r.Show(t.Context(), eventID(1), true)
			if err != nil || string(deadLetter.Payload) != `{"card": "s3cr3t"}` || len(deadLetter.Failures) != 1 {
				t.Errorf("%s, %s: show: %+v, %v", mode, name, deadLetter, err)
			}
			if deadLetter, err = r.Show(t.Context(), "2", false); err != nil || deadLetter.ID != 2 {
				t.Errorf("%s, %s: show a number: %+v, %v", mode, name, deadLetter, err)
			}
			history, err := r.Event(t.Context(), "key-4", false)
			if err != nil || history.Event == nil || len(history.DeadLetters) == 0 {
				t.Errorf("%s, %s: event: %+v, %v", mode, name, history, err)
			}
		}
	}
}
