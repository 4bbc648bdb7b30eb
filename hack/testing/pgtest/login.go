package pgtest

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"testing"

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
	t.Cleanup(func() {
		if _, err := owner.Exec(context.Background(), `drop owned by `+role+`; drop role `+role); err != nil {
			t.Errorf("pgtest: drop role: %v", err)
		}
	})
	dsn, err := url.Parse(owner.Config().ConnString())
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	dsn.User = url.UserPassword(role, "test")
	return dsn.String()
}
