package consumer

import (
	"context"
	"embed"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed sql
var files embed.FS

// statement returns a file of folder sql with names in place of {schema}, {table} and {column}.
func statement(name, schema string, more ...string) string {
	text, err := files.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(err) // it is embedded
	}
	return strings.NewReplacer(append(more, "{schema}", prefix(schema))...).Replace(string(text))
}

// prefix is the schema before a table's name.
func prefix(schema string) string {
	if schema == "" {
		return ""
	}
	return pgx.Identifier{schema}.Sanitize() + "."
}

// tables are the names that schema.sql gives to tables, and not those in the names of indexes.
var tables = regexp.MustCompile(`\b(processed_events|event_tokens|processed_event_holds)\b`)

// SQL returns the statements that make the tables in a schema, for the migrations of your service. They may be run
// again. An empty schema means the first of the connection's search_path; then they are the file schema.sql as it is.
func SQL(schema string) string {
	return tables.ReplaceAllStringFunc(statement("schema", ""), func(table string) string { return prefix(schema) + table })
}

// made is whether all tables and indexes are there, and the column that a table made by hand may lack.
const made = `select (to_regclass($1) is not null and to_regclass($2) is not null and to_regclass($3) is not null
	and exists (select from pg_attribute where attrelid = to_regclass($4) and attname = 'fencing_token'))::int`

// Migrate runs the statements of [SQL] in one transaction, for a service without migrations of its own; where all is there it
// does nothing, and waits for no effect that is under way. Several processes may do so at once. The login needs the right to
// create tables in the schema; to consume it needs only SELECT, INSERT, UPDATE and DELETE on them. It fails when a
// statement does.
func (c *Consumer[DB, Tx]) Migrate(ctx context.Context, db DB) error {
	if c.invalid != nil {
		return c.invalid
	}
	err := c.driver.begin(ctx, db, func(tx Tx) error {
		schema := prefix(c.options.Schema)
		n, err := c.driver.count(ctx, tx, made, schema+"idx_processed_events_ttl", schema+"idx_event_tokens_ttl", schema+"processed_event_holds", schema+"processed_events")
		if err != nil || n == 1 {
			return err
		}
		// Two that create a table at once would meet in the catalog, "if not exists" or not.
		if _, err := c.driver.exec(ctx, tx, "select pg_advisory_xact_lock(hashtext('outbox processed_events'))"); err != nil {
			return err
		}
		_, err = c.driver.exec(ctx, tx, SQL(c.options.Schema))
		return err
	})
	if err != nil {
		return fmt.Errorf("consumer %s: make its tables: %w%s", c.options.ID, err, remedy(err))
	}
	return nil
}
