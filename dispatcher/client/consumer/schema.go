package consumer

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
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

// Upcasters bring the payloads of an event type from the key's schema version to the next one (RULE-010-021): from 1 to 2,
// from 2 to 3.
type Upcasters map[string]map[int]func(payload []byte) ([]byte, error)

// Apply brings e's payload, step by step, to the version after the last upcaster of its type, and notes that version in e's
// header, so that a second Apply does nothing. A type without upcasters and a version that is newer than all of them stay as
// they are: fields that your code does not know are ignored by [Event.Decode]. Call it within the effect. Its
// error is a [Refused].
func (u Upcasters) Apply(e *Event) error {
	steps := u[e.EventType]
	if len(steps) == 0 {
		return nil
	}
	version, err := e.SchemaVersion()
	if err != nil {
		return Refuse(err)
	}
	var latest int
	for from := range steps {
		latest = max(latest, from+1)
	}
	payload := e.Payload
	for ; version < latest; version++ {
		step := steps[version]
		if step == nil {
			return Refuse(fmt.Errorf("event %s of type %s has schema_version %d, and there is no upcaster from it; add one, there are those from %v",
				e.ID, e.EventType, version, versions(steps)))
		}
		if payload, err = step(payload); err != nil {
			return Refuse(fmt.Errorf("event %s of type %s: from schema_version %d to %d: %w", e.ID, e.EventType, version, version+1, err))
		}
	}
	e.Payload = payload
	if e.Headers == nil {
		e.Headers = map[string]string{}
	}
	e.Headers[versionHeader] = strconv.Itoa(version)
	return nil
}

func versions[T any](steps map[int]T) []int {
	all := make([]int, 0, len(steps))
	for version := range steps {
		all = append(all, version)
	}
	slices.Sort(all)
	return all
}

// Fields makes an upcaster of a function that changes the fields of a JSON object. Numbers are [json.Number], and keep
// their digits.
func Fields(change func(fields map[string]any) error) func([]byte) ([]byte, error) {
	return func(payload []byte) ([]byte, error) {
		var fields map[string]any
		if err := decodeJSON(payload, &fields); err != nil {
			return nil, err
		}
		if fields == nil {
			return nil, errors.New("the payload is null, and no object")
		}
		if err := change(fields); err != nil {
			return nil, err
		}
		var out bytes.Buffer
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		err := encoder.Encode(fields)
		return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
	}
}
