package adopt

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// checkID refuses an id that two rows may share, or that a row may lack: a row is known by its id.
func (r *run) checkID() error {
	id, name, kind, position := quote(r.layout.id), r.their.name(), r.their.types[r.layout.id], r.layout.position
	if of := r.their.types[position]; position != "" && !slices.Contains(integers, of) && !strings.HasPrefix(of, "timestamp") {
		return fmt.Errorf("column %s of table %s is %s, which does not grow from row to row; map the time of creation: --column created=COLUMN", position, r.spec.Table, of)
	}
	if !slices.Contains(append(integers, "uuid", "text", "character varying"), kind) {
		return fmt.Errorf("column %s of table %s is %s; an id is an integer, a uuid or a text; map another column, or add one: alter table %s add column adopted_id bigint generated always as identity unique", r.layout.id, r.spec.Table, kind, name)
	}
	var required, unique bool
	var deferred, partition string
	const look = `select a.attnotnull, exists (select from pg_index as i where i.indrelid = a.attrelid and i.indisunique and i.indimmediate
			and i.indisvalid and i.indpred is null and i.indnkeyatts = 1 and i.indkey[0] = a.attnum),
		coalesce((select min(conname) from pg_constraint where condeferrable and conname <> $4
			and $5 and (conrelid = a.attrelid and (contype in ('t', 'u', 'x') or contype = 'f' and exists (
				select from pg_attribute as m where m.attrelid = conrelid and m.attnum = any (conkey) and m.attname = $6)) or confrelid = a.attrelid and $3)), ''),
		coalesce((select min(relid::regclass::text) from pg_partition_tree(a.attrelid) where isleaf and relid <> a.attrelid), '')
		from pg_attribute as a where a.attrelid = $1::text::regclass and a.attname = $2`
	if err := r.tx.QueryRow(r.ctx, look, name, r.layout.id, r.layout.deletes, r.trigger(), !r.layout.log, r.layout.mark).Scan(&required, &unique, &deferred, &partition); err != nil {
		return err
	}
	switch {
	case !required:
		return fmt.Errorf("column %s of table %s may be null, and it is the id by which an adoption knows a row; run: alter table %s alter column %s set not null", r.layout.id, r.spec.Table, name, id)
	case !unique && partition != "":
		return fmt.Errorf("column %s of table %s is not unique by itself, and it is the id by which an adoption knows a row; adopt each partition by itself (--table, --name), such as %[3]s; before that, run: create unique index concurrently on %[3]s (%[4]s)",
			r.layout.id, r.spec.Table, partition, id)
	case !unique:
		return fmt.Errorf("column %s of table %s is not unique by itself, and it is the id by which an adoption knows a row; map another column (--column id=COLUMN), or run: create unique index concurrently on %s (%s)",
			r.layout.id, r.spec.Table, name, id)
	case deferred != "":
		return fmt.Errorf("constraint %s of table %s may be checked at the end of a transaction, after its rows are marked, so that a producer would get its error; make it not deferrable", deferred, r.spec.Table)
	}
	return nil
}

// checkStatements refuses a mapping whose statements the database does not take, whatever is in a row: types that differ, a value that a
// column cannot have, a generated column.
func (r *run) checkStatements() error {
	if r.options.DryRun {
		return nil
	}
	call := strings.NewReplacer("p_row => v_row", "p_row => null::json", "p_new => v_new", "p_new => false").Replace(r.call())
	all := []string{fmt.Sprintf("select coalesce(%s, false), %s from %s as r", r.open(), call, r.their.name())}
	if r.layout.complete != "" {
		all = append(all, fmt.Sprintf("update %s set %s", r.their.name(), r.layout.complete), fmt.Sprintf("update %s as r set %s from outbox_events as e", r.their.name(), r.layout.reopen))
	}
	for _, sql := range all {
		if _, err := r.tx.Exec(r.ctx, "explain "+sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return r.unfit(err)
		}
	}
	return nil
}

func (r *run) unfit(err error) error {
	return remedied{fmt.Errorf("the mapping does not fit table %s: %w", r.spec.Table, err), "correct --column and --open, or map a column that can be written"}
}

// What a value of the column of states means.
const (
	MeansOpen    = "to be sent"
	MeansClosed  = "not to be sent"
	MeansUnknown = "not in the mapping"
)

// Value is a value of the column of states.
type Value struct {
	// Value is nil for null.
	Value *string `json:"value"`
	Rows  int64   `json:"rows"`
	// Means is MeansOpen, MeansClosed or MeansUnknown.
	Means string `json:"means"`
}

// values counts the values of the column of states, where there is one: those that the mapping does not know first, at most 20.
func (r *run) values() ([]Value, error) {
	if !r.layout.states {
		return nil, nil
	}
	column, unknown := "r."+quote(r.layout.mark), "false"
	if k := r.layout.known; k != nil {
		unknown = fmt.Sprintf("(%[1]s in (%[2]s, %[3]s)) is not true", column, literal(k[0]), literal(k[1]))
	}
	rows, err := r.tx.Query(r.ctx, fmt.Sprintf(`select * from (
			select %[1]s::text as value, count(*) as rows, case when %[2]s then '%[3]s' when %[4]s then '%[5]s' else '%[6]s' end as means
			from %[7]s as r where true%[8]s group by 1, 3) as v
		order by means = '%[3]s' desc, means desc, rows desc, value limit 20`,
		column, unknown, MeansUnknown, r.layout.open, MeansOpen, MeansClosed, r.their.name(), r.spec.chosen(r.layout)))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Value])
}

// checkValues refuses rows of which the mapping does not say whether they are to be sent.
func (r *run) checkValues() error {
	values, err := r.values()
	if err != nil || len(values) == 0 || values[0].Means != MeansUnknown {
		return err
	}
	v := values[0]
	return fmt.Errorf("%d rows of table %s have %s in column %s, of which it is not known whether they are to be sent; say it by a condition: adopt back, and shadow with --open", v.Rows, r.spec.Table, v.text(), r.layout.mark)
}

func (v Value) text() string {
	if v.Value == nil {
		return "null"
	}
	return fmt.Sprintf("%.100q", *v.Value)
}

// String is a line about the value.
func (v Value) String() string {
	rows := "rows"
	if v.Rows == 1 {
		rows = "row"
	}
	return fmt.Sprintf("%s: %d %s, %s", v.text(), v.Rows, rows, v.Means)
}

// inspect finds what a person compares before the cut-over. It gives up after shadowTimeout: it reads the whole table.
func (r *run) inspect() (err error) {
	err = pgx.BeginFunc(r.ctx, r.tx, func(tx pgx.Tx) error {
		within := *r
		within.tx = tx
		if r.result.Values, err = within.values(); err != nil {
			return err
		}
		r.result.Warnings, err = within.warnings()
		return err
	})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "57014" {
		r.result.Warnings = []string{fmt.Sprintf("the rows of %s were not counted within %s; see dispatcher adopt status", r.spec.Table, shadowTimeout)}
		return nil
	} else if err != nil {
		return r.unfit(err)
	}
	return nil
}

// warnings are what of the rows is right as it is, and perhaps not meant so.
func (r *run) warnings() (all []string, err error) {
	if missing := r.their.lacks(r.layout.columns...); len(missing) > 0 {
		return []string{fmt.Sprintf("the table has no column %s any more, so that each new row is refused, or waits in the table: go back, or give the column its name back", strings.Join(missing, ", "))}, nil
	}
	for _, name := range []string{"created", "due"} {
		if column := r.spec.Columns[name]; r.withoutZone(column) {
			var zone string
			if err := r.tx.QueryRow(r.ctx, `select current_setting('TimeZone')`).Scan(&zone); err != nil {
				return nil, err
			}
			all = append(all, fmt.Sprintf("column %s has no time zone: its values are read in that of the session, which is %s here", column, zone))
		}
	}
	return all, nil
}

func (r *run) withoutZone(column string) bool {
	return r.their.types[column] == "timestamp without time zone"
}
