package pgstore_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/servers/pgbouncer"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Nothing is heard through a pooler in transaction mode, and TryListen says so. One in session mode is
// no obstacle, nor is none.
func TestTryListen(t *testing.T) {
	t.Parallel()
	srv := pgtest.Server(t)
	connect := func(dsn string) func(context.Context) (*pgx.Conn, error) {
		return func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, dsn) }
	}
	if err := pgstore.TryListen(t.Context(), connect(srv.DSN("postgres")), pgtest.Schema); err != nil {
		t.Errorf("at the server itself: %v", err)
	}
	for mode, remedy := range map[string]string{"session": "", "transaction": "set wakeUp to None"} {
		t.Run(mode, func(t *testing.T) {
			b, err := pgbouncer.Start(t.Context(), pgbouncer.Options{Server: srv, Settings: map[string]string{"pool_mode": mode}})
			need.Server(t, err, pgbouncer.ErrMissing)
			t.Cleanup(func() {
				if err := b.Stop(context.Background()); err != nil {
					t.Error(err)
				}
			})
			err = pgstore.TryListen(t.Context(), connect(b.DSN("postgres")), pgtest.Schema)
			if (err == nil) != (remedy == "") || err != nil && !strings.Contains(err.Error(), remedy) {
				t.Errorf("in %s mode: %v", mode, err)
			}
		})
	}
}
