package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/migrations"
)

// Login makes a role with the grants of a kind and no other right, dropped at cleanup, and returns the connection string of
// its login. The pool is that of the database's owner; it outlives what connects as the role.
func Login(t testing.TB, owner *pgxpool.Pool, kind migrations.Kind) string {
	t.Helper()
	role := "outbox_test_" + strings.ToLower(rand.Text())
	for _, sql := range append([]string{`create role ` + role + ` login password 'test'`}, migrations.Grants(Schema, role, kind)...) {
		if _, err := owner.Exec(t.Context(), sql); err != nil {
			t.Fatalf("pgtest: %s: %v", sql, err)
		}
	}
	DropRole(t, owner, role)
	dsn, err := url.Parse(owner.Config().ConnString())
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	dsn.User = url.UserPassword(role, "test")
	return dsn.String()
}

// DropRole drops a role, and what it owns in the pool's database, at cleanup. A session of the role may outlive its client, and
// have its locks in another order: after a deadlock the role is dropped again.
func DropRole(t testing.TB, pool *pgxpool.Pool, role string) {
	t.Helper()
	t.Cleanup(func() {
		for tries := 1; ; tries++ {
			_, err := pool.Exec(context.Background(), `drop owned by `+role+` cascade; drop role `+role)
			if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "40P01" && tries < 5 { // deadlock_detected
				continue
			}
			if err != nil {
				t.Errorf("pgtest: drop role: %v", err)
			}
			return
		}
	})
}
