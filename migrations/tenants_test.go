package migrations_test

import (
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// The index is made once, and again after a try that was broken off.
func TestUpTenants(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	db, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Release()
	up := func(want bool) {
		t.Helper()
		if made, err := migrations.UpTenants(t.Context(), db.Conn(), pgtest.Schema); err != nil || made != want {
			t.Errorf("UpTenants: %v, %v; want %v", made, err, want)
		}
		var valid bool
		if err := db.QueryRow(t.Context(), `select indisvalid from pg_index where indexrelid = 'outbox.outbox_events_tenant'::regclass`).Scan(&valid); err != nil || !valid {
			t.Errorf("the index is valid: %v, %v", valid, err)
		}
	}
	up(true)
	up(false)
	if _, err := db.Exec(t.Context(), `update pg_index set indisvalid = false where indexrelid = 'outbox.outbox_events_tenant'::regclass`); err != nil {
		t.Fatal(err)
	}
	up(true)
}
