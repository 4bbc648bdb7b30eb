package pgbouncer_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Clients share server sessions, transaction by transaction, also after a restart.
func TestBouncerSharesServerSessions(t *testing.T) {
	srv := pgtest.Server(t)
	b := pgtest.Bouncer(t, srv)
	for range 2 {
		backends := map[int]bool{}
		for range 5 {
			conn, err := pgx.Connect(t.Context(), b.DSN("postgres"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			var pid int
			if err := conn.QueryRow(t.Context(), "select pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid); err != nil {
				t.Fatal(err)
			}
			backends[pid] = true
		}
		if len(backends) != 1 {
			t.Errorf("five clients, one after the other, had %d server sessions, want one", len(backends))
		}
		if err := b.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	b.Kill()
	if conn, err := pgx.Connect(t.Context(), b.DSN("postgres")); err == nil {
		conn.Close(context.Background())
		t.Error("a killed PgBouncer responds")
	}
}
