package pgstore_test

import (
	"crypto/rand"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// Every verb works behind a PgBouncer in transaction mode, and no statement fails first.
func TestStoreBehindPgBouncer(t *testing.T) {
	t.Parallel()
	srv := pgtest.Server(t)
	bouncer := pgtest.Bouncer(t, srv)
	admin := newOutbox(t, srv.DSN("postgres"))
	pgtest.Exec(admin, `create database template`)
	conn, err := pgx.Connect(t.Context(), srv.DSN("template"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = migrations.Up(t.Context(), conn, pgtest.Schema)
	conn.Close(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Run("Exercise", func(t *testing.T) {
		storetest.Exercise(t, func(t *testing.T) storetest.Outbox {
			name := "test_" + strings.ToLower(rand.Text())
			pgtest.Exec(admin, `create database `+name+` template template`)
			o := newOutbox(t, srv.DSN(name))
			stores, err := database.Pool(t.Context(), config.Database{DSN: bouncer.DSN(name)}, "orders")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(stores.Close)
			o.stores = stores
			return o
		})
	})
}
