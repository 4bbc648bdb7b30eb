package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// SQLSTATE codes that have a remedy.
const (
	codeUndefinedTable        = "42P01"
	codeInvalidSchema         = "3F000"
	codeInsufficientPrivilege = "42501"
)

// SQLSTATE codes of a transaction that lost to another one.
const (
	codeSerialization = "40001"
	codeDeadlock      = "40P01"
)

// codeFenceDown is outbox_fence_down's: the leases must be raised before the next claim. Its class is that of the server.
const codeFenceDown = "57OBX"

// Schema implements [dispatcher.Store]. The error is the database's; a missing or old schema is not one.
func (s *Store) Schema(ctx context.Context) (dispatcher.Schema, error) {
	var version, oldestReader int
	var differs string // a migration whose checksum is not this binary's; those that only a newer binary knows are not compared
	err := s.pool.QueryRow(ctx, `select coalesce(max(version), 0), coalesce(max(oldest_reader), 0),
		coalesce(min(name) filter (where checksum <> ($1::text[])[version]), '') from `+
		pgx.Identifier{s.opts.Schema, "outbox_migrations"}.Sanitize(), migrations.Checksums()).Scan(&version, &oldestReader, &differs)
	if code := sqlState(err); code == codeUndefinedTable || code == codeInvalidSchema {
		err = nil // version 0: missing
	}
	if err != nil {
		return dispatcher.Schema{}, s.wrap("read the version", err)
	}
	schema := compareSchema(s.opts.Schema, differs, version, oldestReader, migrations.Version)
	if schema.State != dispatcher.SchemaReady {
		return schema, nil
	}
	if s.opts.Fair {
		indexed := false
		const look = `select coalesce((select indisvalid from pg_index where indexrelid = to_regclass($1)), false)`
		if err := s.pool.QueryRow(ctx, look, pgx.Identifier{s.opts.Schema, "outbox_events_tenant"}.Sanitize()).Scan(&indexed); err != nil {
			return dispatcher.Schema{}, s.wrap("look for the index of tenants", err)
		}
		if !indexed {
			schema.State = dispatcher.SchemaTooOld
			schema.Message = fmt.Sprintf("Schema %q has no index outbox_events_tenant, which fairness Tenant needs; run \"dispatcher migrate up --tenants\", "+
				"set migration.tenants to Indexed in the Outbox, or set fairness to None.", s.opts.Schema)
			return schema, nil
		}
	}
	behind := false
	if err := s.pool.QueryRow(ctx, s.sql["sequences_behind"]).Scan(&behind); err != nil {
		return dispatcher.Schema{}, s.wrap("compare the sequences", err)
	}
	if behind {
		schema.State = dispatcher.SchemaSequencesBehind
		schema.Message = fmt.Sprintf("The sequences of schema %q are behind its tables, as after a move by logical replication; "+
			"run \"select %s.outbox_moved()\" as the owner.", s.opts.Schema, pgx.Identifier{s.opts.Schema}.Sanitize())
	}
	return schema, nil
}

// compareSchema says whether a binary made for a version works with a schema. differs is a migration that is another one there,
// empty for none: no migration up makes them the same.
func compareSchema(name, differs string, version, oldestReader, required int) dispatcher.Schema {
	schema := dispatcher.Schema{State: dispatcher.SchemaReady, Version: version, Required: required}
	switch {
	case version == 0:
		schema.State = dispatcher.SchemaMissing
		schema.Message = fmt.Sprintf("Schema %q holds no outbox; run \"dispatcher migrate up\".", name)
	case differs != "":
		schema.State = dispatcher.SchemaDiffers
		schema.Message = fmt.Sprintf("Schema %q has another %s than this dispatcher: another build has made it. Run the build that made it; or create the schema again, without its events: "+
			"drop schema %s cascade, then \"dispatcher migrate up\".", name, differs, pgx.Identifier{name}.Sanitize())
	case version < required:
		schema.State = dispatcher.SchemaTooOld
		schema.Message = fmt.Sprintf("Schema %q has version %d, and this dispatcher needs %d; run \"dispatcher migrate up\" of this version.",
			name, version, required)
	case oldestReader > required:
		schema.State = dispatcher.SchemaTooNew
		schema.Message = fmt.Sprintf("Schema %q has version %d, which dispatchers older than version %d cannot use, and this one is made for %d; upgrade the dispatcher's image.",
			name, version, oldestReader, required)
	}
	return schema
}

// wrap says what failed and where, and what to do where that is known. Without an error it returns nil.
func (s *Store) wrap(action string, err error) error {
	if err == nil {
		return nil
	}
	refused, remedy := aboutRows(err), ""
	switch code := sqlState(err); {
	case code == codeInsufficientPrivilege:
		remedy = `; have the owner run what "dispatcher migrate grants" prints`
	case !refused && (code == codeUndefinedTable || code == codeInvalidSchema):
		remedy = `; run "dispatcher migrate up"`
	}
	err = fmt.Errorf("%s in schema %q: %w%s", action, s.opts.Schema, err, remedy)
	if refused {
		return dispatcher.Refused(err)
	}
	return err
}

// aboutRows reports whether the server refused the rows of a statement: by a trigger, a check or a missing
// right. All other errors are of the server, the connection, the transaction or the schema, and have
// nothing to do with the rows: the same statement may succeed later.
func aboutRows(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || len(pg.Code) < 2 {
		return false
	}
	switch pg.Code {
	case codeUndefinedTable, "42703", "42883": // undefined column, undefined function
		// Such a name in a statement of this package is missing for all rows: the schema is older. One in a
		// trigger is missing only for the rows for which the trigger looks at it.
		return pg.Where != ""
	case "55P03", "42P05": // lock not available; prepared statement exists, behind a pooler
		return false
	}
	switch pg.Code[:2] {
	case "08", // connection
		"0A",             // not supported: a prepared statement whose table was changed
		"25",             // transaction state, such as read only
		"26",             // prepared statement is gone, behind a pooler
		"28", "3D", "3F", // login, database, schema
		"40",       // transaction rolled back
		"53", "58", // resources, such as a full disk; the operating system
		"57", // operator intervention, such as a timeout or a shutdown
		"72", "F0":
		return false
	}
	return true
}

// sqlState returns the code of a PostgreSQL error, or "".
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
