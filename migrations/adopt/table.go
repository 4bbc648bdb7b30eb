package adopt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// table is theirs.
type table struct {
	schema, table string
	types         map[string]string // of its columns, by their names; of a domain, what it is made of
	writable      []string          // its columns that an insert may name, quoted
	exact         map[string]bool   // its columns whose values compare as they are as their texts do
}

func (t table) name() string { return pgx.Identifier{t.schema, t.table}.Sanitize() }

// integers are the types of ids that are not of their own in a database.
var integers = []string{"smallint", "integer", "bigint"}

// findTable reads their table, and says what does not fit the layout.
func findTable(ctx context.Context, tx pgx.Tx, s Spec, l layout) (t table, err error) {
	schema, name, _ := strings.Cut(s.Table, ".")
	t = table{schema: schema, table: name, types: map[string]string{}, exact: map[string]bool{}}
	var kind, owner, login string
	var owns, inherited, secured bool
	const look = `select c.relkind::text, pg_get_userbyid(c.relowner), current_user, pg_has_role(c.relowner, 'USAGE'),
		c.relkind = 'r' and exists (select from pg_inherits where inhparent = c.oid), c.relforcerowsecurity
		from pg_class as c join pg_namespace as n on n.oid = c.relnamespace where n.nspname = $1 and c.relname = $2`
	err = tx.QueryRow(ctx, look, schema, name).Scan(&kind, &owner, &login, &owns, &inherited, &secured)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return t, fmt.Errorf("%w %s in this database; name it with --table schema.table", errNoTable, s.Table)
	case err != nil:
		return t, err
	case kind != "r" && kind != "p":
		return t, fmt.Errorf("%s is not a table; an adoption needs the table that producers insert into", s.Table)
	case inherited:
		return t, fmt.Errorf("%s has tables that inherit from it, whose rows no index and no trigger of it covers; make them partitions, or adopt each", s.Table)
	case secured:
		return t, fmt.Errorf("%s forces row level security on its owner, which would hide rows from the adoption; run: alter table %s no force row level security", s.Table, t.name())
	case !owns:
		return t, fmt.Errorf("the login %s is not the owner of table %s; log in as one who is, or have it granted: grant %s to %s", login, s.Table, quote(owner), quote(login))
	}
	const columns = `select attname, kind, attgenerated = '', typcategory in ('B', 'E') or kind in ('smallint', 'integer', 'bigint', 'numeric', 'character')
		from pg_attribute join pg_type as t on t.oid = atttypid cross join format_type(coalesce(nullif(typbasetype, 0), atttypid), null) as kind
		where attrelid = $1::text::regclass and attnum > 0 and not attisdropped order by attnum`
	rows, err := tx.Query(ctx, columns, t.name())
	if err != nil {
		return t, err
	}
	var column, kindOf string
	var writable, exact bool
	var there, missing []string
	if _, err := pgx.ForEachRow(rows, []any{&column, &kindOf, &writable, &exact}, func() error {
		t.types[column], t.exact[column] = kindOf, exact
		there = append(there, column)
		if writable {
			t.writable = append(t.writable, quote(column))
		}
		return nil
	}); err != nil {
		return t, err
	}
	for _, column := range l.columns {
		if t.types[column] == "" {
			missing = append(missing, column)
		}
	}
	if len(missing) > 0 {
		return t, fmt.Errorf("table %s is not of layout %s: it lacks %s; it has %s: choose another layout, or map its columns (--layout columns --column ours=theirs)",
			s.Table, s.Layout, strings.Join(missing, ", "), strings.Join(there, ", "))
	}
	if kind := t.types[l.payload]; !slices.Contains([]string{"jsonb", "json", "text", "character varying"}, kind) || s.Layout != Columns && !l.log && kind != "jsonb" {
		return t, fmt.Errorf("column %s of table %s is %s; a payload is jsonb, or for the layouts debezium and columns json or text that is JSON", l.payload, s.Table, kind)
	}
	if kind := t.types[l.position]; l.position != "" && !slices.Contains(integers, kind) && !strings.HasPrefix(kind, "timestamp") {
		return t, fmt.Errorf("column %s of table %s is %s, which does not grow from row to row; map the time of creation: --column created=COLUMN", l.position, s.Table, kind)
	}
	if kind := t.types[l.id]; !slices.Contains(append(integers, "uuid", "text", "character varying"), kind) {
		return t, fmt.Errorf("column %s of table %s is %s; an id is an integer, a uuid or a text; map another column, or add one: alter table %s add column adopted_id bigint generated always as identity unique", l.id, s.Table, kind, t.name())
	}
	return t, nil
}

// findTheir finds their table, and makes the condition of open rows one that an index on their status serves. None does as a text
// but that of a column that is one. A preset has a text, and checkState has not looked at its values.
func (r *run) findTheir() (err error) {
	r.their, err = findTable(r.ctx, r.tx, r.spec, r.layout)
	if status := r.layout.status; r.spec.Layout == Columns && r.their.exact[status] {
		r.layout.open = "{r}." + quote(status) + " in (" + literals(r.layout.opens) + ")"
	}
	return err
}

// recorded is an adoption as outbox_adoptions has it.
type recorded struct {
	spec Spec
	adoption
}

// readAll reads the adoptions, or the one of a name. There is none where none was ever begun.
func readAll(ctx context.Context, tx pgx.Tx, name string) ([]recorded, error) {
	var there bool
	if err := tx.QueryRow(ctx, `select to_regclass('outbox_adoptions') is not null`).Scan(&there); err != nil || !there {
		return nil, err
	}
	rows, err := tx.Query(ctx, `select name, layout, source_schema || '.' || source_table, namespace, topic, columns::text, slot, publication, start, state, since, cutover_at
		from outbox_adoptions where $1 in ('', name) order by name`, name)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (a recorded, err error) {
		var columns string
		if err = row.Scan(&a.spec.Name, &a.spec.Layout, &a.spec.Table, &a.spec.Namespace, &a.spec.Topic, &columns, &a.spec.Slot, &a.spec.Publication, &a.start, &a.state, &a.since, &a.cutAt); err == nil {
			err = json.Unmarshal([]byte(columns), &a.spec.Columns)
		}
		a.wanted = a.spec
		return a, err
	})
}
