package database

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Transactions run at READ COMMITTED whatever the login's default is, in every mode of pgx, and the default is
// reported.
func TestIsolation(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Empty(t)
	admin := pgtest.Pool(t, dsn)
	role := "strict_" + strings.ToLower(rand.Text())
	for _, sql := range []string{
		`create role ` + role + ` login password 'test'`,
		`alter role ` + role + ` set default_transaction_isolation = 'serializable'`,
	} {
		_, err := admin.Exec(t.Context(), sql)
		check(t, err)
	}
	t.Cleanup(func() {
		_, err := admin.Exec(context.Background(), `drop role `+role)
		check(t, err)
	})
	for name, option := range map[string]string{"as it is": "", "exec": "exec", "simple": "simple_protocol"} {
		t.Run(name, func(t *testing.T) {
			pool := newPool(t, change(t, dsn, func(u *url.URL) {
				u.User = url.UserPassword(role, "test")
				if option != "" {
					u.RawQuery += "&default_query_exec_mode=" + option
				}
			}))
			wantLevel(t, pool, "read committed")
			detail, err := Isolation(t.Context(), pool)
			if err != nil || !strings.Contains(detail, "serializable") || !strings.Contains(detail, role) {
				t.Errorf("reported %q, %v", detail, err)
			}
		})
	}
	conn, err := Connect(t.Context(), config.Database{DSN: change(t, dsn, func(u *url.URL) { u.User = url.UserPassword(role, "test") })}, "orders")
	check(t, err)
	defer conn.Close(context.Background())
	var level string
	check(t, conn.QueryRow(t.Context(), `show transaction_isolation`).Scan(&level))
	if level != "read committed" {
		t.Errorf("a command's transaction runs at %s", level)
	}
}

// Behind a pooler the level is not set, for the session is shared, and the remedy is reported.
func TestIsolationBehindPgBouncer(t *testing.T) {
	t.Parallel()
	srv := pgtest.Server(t)
	bouncer := pgtest.Bouncer(t, srv)
	admin := pgtest.Pool(t, srv.DSN("postgres"))
	for _, sql := range []string{`create database strict`, `alter database strict set default_transaction_isolation = 'repeatable read'`} {
		_, err := admin.Exec(t.Context(), sql)
		check(t, err)
	}
	pool := newPool(t, bouncer.DSN("strict"))
	wantLevel(t, pool, "repeatable read")
	_, err := Isolation(t.Context(), pool)
	if err == nil || !strings.Contains(err.Error(), "repeatable read") {
		t.Fatalf("reported %v", err)
	}
	_, remedy, _ := strings.Cut(err.Error(), "run: ")
	_, err = admin.Exec(t.Context(), remedy)
	check(t, err)
	_, err = admin.Exec(t.Context(), `select pg_terminate_backend(pid, 60000) from pg_stat_activity where datname = 'strict'`)
	check(t, err)
	pool = newPool(t, bouncer.DSN("strict"))
	wantLevel(t, pool, "read committed")
	if detail, err := Isolation(t.Context(), pool); err != nil || detail != "read committed" {
		t.Errorf("reported %q, %v", detail, err)
	}
}

func wantLevel(t *testing.T, pool *pgxpool.Pool, want string) {
	t.Helper()
	var level string
	check(t, pool.QueryRow(t.Context(), `show transaction_isolation`).Scan(&level))
	if level != want {
		t.Errorf("a transaction runs at %s, want %s", level, want)
	}
}
