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

// Schema implements [dispatcher.Store].
func (s *Store) Schema(ctx context.Context) (dispatcher.Schema, error) {
	var version, oldestReader int
	err := s.pool.QueryRow(ctx, `select coalesce(max(version), 0), coalesce(max(oldest_reader), 0) from `+
		pgx.Identifier{s.schema, "outbox_migrations"}.Sanitize()).Scan(&version, &oldestReader)
	if code := sqlState(err); code == codeUndefinedTable || code == codeInvalidSchema {
		err = nil // version 0: missing
	}
	if err != nil {
		return dispatcher.Schema{}, s.wrap("read the version", err)
	}
	return compareSchema(s.schema, version, oldestReader, migrations.Version), nil
}

// compareSchema says whether a binary made for a version works with a schema.
func compareSchema(name string, version, oldestReader, required int) dispatcher.Schema {
	schema := dispatcher.Schema{State: dispatcher.SchemaReady, Version: version, Required: required}
	switch {
	case version == 0:
		schema.State = dispatcher.SchemaMissing
		schema.Message = fmt.Sprintf("Schema %q holds no outbox; run \"dispatcher migrate up\".", name)
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

// wrap says what failed and where, and what to do where that is known.
func (s *Store) wrap(action string, err error) error {
	remedy := ""
	switch sqlState(err) {
	case codeUndefinedTable, codeInvalidSchema:
		remedy = `; run "dispatcher migrate up"`
	case codeInsufficientPrivilege:
		remedy = `; have the owner run what "dispatcher migrate grants" prints`
	}
	return fmt.Errorf("%s in schema %q: %w%s", action, s.schema, err, remedy)
}

// sqlState returns the code of a PostgreSQL error, or "".
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
