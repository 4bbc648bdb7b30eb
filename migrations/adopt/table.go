package adopt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// table is theirs.
type table struct {
	schema, table string
	types         map[string]string // of its columns, by their names; of a domain, what it is made of
	writable      []string          // its columns that an insert may name, quoted
}

func (t table) name() string { return pgx.Identifier{t.schema, t.table}.Sanitize() }

// integers are the types of ids that are not of their own in a database.
var integers = []string{"smallint", "integer", "bigint"}

// findTable reads their table, and says why it cannot be adopted.
func findTable(ctx context.Context, tx pgx.Tx, s Spec) (t table, err error) {
	schema, name, _ := strings.Cut(s.Table, ".")
	t = table{schema: schema, table: name, types: map[string]string{}}
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
	const columns = `select attname, kind, attgenerated = ''
		from pg_attribute join pg_type as t on t.oid = atttypid cross join format_type(coalesce(nullif(typbasetype, 0), atttypid), null) as kind
		where attrelid = $1::text::regclass and attnum > 0 and not attisdropped order by attnum`
	rows, err := tx.Query(ctx, columns, t.name())
	if err != nil {
		return t, err
	}
	var column, kindOf string
	var writable bool
	if _, err := pgx.ForEachRow(rows, []any{&column, &kindOf, &writable}, func() error {
		t.types[column] = kindOf
		if writable {
			t.writable = append(t.writable, quote(column))
		}
		return nil
	}); err != nil {
		return t, err
	}
	return t, nil
}

// lacks are the columns that it does not have.
func (t table) lacks(columns ...string) []string {
	return slices.DeleteFunc(slices.Clone(columns), func(column string) bool { return column == "" || t.types[column] != "" })
}

// findTheir finds their table. A step needs the columns of the layout; but to look and to go back, the id and the mark are enough.
func (r *run) findTheir(step Step) (err error) {
	if r.their, err = findTable(r.ctx, r.tx, r.spec); err != nil {
		return err
	}
	need := []string{r.layout.id, r.layout.mark}
	if step == ToShadow || step == Cutover {
		need = r.layout.columns
	}
	if missing := r.their.lacks(need...); len(missing) > 0 {
		return fmt.Errorf("table %s is not of layout %s: it lacks %s; it has %s: choose another layout, or map its columns (--layout columns --column ours=theirs); of a table that is adopted, give the column its name back",
			r.spec.Table, r.spec.Layout, strings.Join(missing, ", "), strings.Join(slices.Sorted(maps.Keys(r.their.types)), ", "))
	}
	return nil
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
	rows, err := tx.Query(ctx, `select name, layout, source_schema || '.' || source_table, namespace, topic, columns::text, open, slot, publication, start, state, since, cutover_at
		from outbox_adoptions where $1 in ('', name) order by name`, name)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (a recorded, err error) {
		var columns string
		if err = row.Scan(&a.spec.Name, &a.spec.Layout, &a.spec.Table, &a.spec.Namespace, &a.spec.Topic, &columns, &a.spec.Open, &a.spec.Slot, &a.spec.Publication, &a.start, &a.state, &a.since, &a.cutAt); err == nil {
			err = json.Unmarshal([]byte(columns), &a.spec.Columns)
		}
		a.wanted = a.spec
		return a, err
	})
}
