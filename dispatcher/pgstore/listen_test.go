package pgstore_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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

// A session that lives on without its LISTEN, as behind a proxy that has reconnected, is noticed, and another one hears
// the next wake-up.
func TestListenNoticesThatItIsDeaf(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Migrated(t)
	var conn *pgx.Conn // which its listener's goroutine alone uses
	connect := func(ctx context.Context) (_ *pgx.Conn, err error) {
		conn, err = pgx.Connect(ctx, dsn)
		return conn, err
	}
	var wakes atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		pgstore.ListenOften(ctx, connect, pgtest.Schema, "shop", func() {
			if wakes.Add(1) == 1 {
				if _, err := conn.Exec(ctx, "unlisten *"); err != nil {
					t.Error(err)
				}
			}
		}, slog.New(slog.DiscardHandler))
	}()
	defer func() { stop(); <-done }()
	pgtest.Eventually(t, "it listens again", time.Minute, func() bool { return wakes.Load() == 2 })
	pgtest.Exec(pgtest.Open(t, dsn), "select pg_notify($1, 'shop')", pgtest.Schema)
	pgtest.Eventually(t, "it hears a wake-up", time.Minute, func() bool { return wakes.Load() == 3 })
}
