package pgstore_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// Each state comes with a sentence that says what to do.
func TestSchemaStateNamesTheRemedy(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	const next = `insert into outbox.outbox_migrations (version, name, checksum, oldest_reader) values (`
	for _, test := range []struct {
		name, sql string
		state     dispatcher.SchemaState
		version   int
		remedy    string
	}{
		{"as migrated", ``, dispatcher.SchemaReady, migrations.Version, ""},
		{"an addition of a newer version", next + `1001, 'x', 'x', 1)`, dispatcher.SchemaReady, 1001, ""},
		{"a break by a newer version", next + `1002, 'x', 'x', 1002)`, dispatcher.SchemaTooNew, 1002, "upgrade the dispatcher"},
		{"an addition after a break", next + `1003, 'x', 'x', 1)`, dispatcher.SchemaTooNew, 1003, "upgrade the dispatcher"},
		{"no migration", `delete from outbox.outbox_migrations`, dispatcher.SchemaMissing, 0, "dispatcher migrate up"},
		{"no table", `drop table outbox.outbox_migrations`, dispatcher.SchemaMissing, 0, "dispatcher migrate up"},
		{"no schema", `drop schema outbox cascade`, dispatcher.SchemaMissing, 0, "dispatcher migrate up"},
	} {
		if test.sql != "" {
			pgtest.Exec(o, test.sql)
		}
		got, err := o.Store("shop", uuid.New()).Schema(t.Context())
		if err != nil || got.State != test.state || got.Version != test.version || got.Required != migrations.Version {
			t.Errorf("%s: %+v, %v, want %s at version %d", test.name, got, err, test.state, test.version)
		}
		if (test.remedy == "") != (got.Message == "") || !strings.Contains(got.Message, test.remedy) {
			t.Errorf("%s: the message is %q, want one with %q", test.name, got.Message, test.remedy)
		}
	}
	_, err := o.Store("shop", uuid.New()).Topics(t.Context())
	if err == nil || !strings.Contains(err.Error(), "dispatcher migrate up") {
		t.Errorf("a verb without a schema: error is %v, want one with the remedy", err)
	}
}

// Without its grants a dispatcher learns which ones to get.
func TestSchemaRefused(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.stores = pgtest.Pool(t, o.login(migrations.Producer))
	store := o.Store("shop", uuid.New())
	_, schemaErr := store.Schema(t.Context())
	_, claimErr := store.Claim(t.Context(), share("orders", 1))
	for _, err := range []error{schemaErr, claimErr} {
		if err == nil || !strings.Contains(err.Error(), "dispatcher migrate grants") {
			t.Errorf("error is %v, want one with the remedy", err)
		}
	}
}
