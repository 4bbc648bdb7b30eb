package adopt

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// checkState refuses a mapping by which no row would ever be open: its counts look right, and nothing would be sent.
func (r *run) checkState() error {
	completed := r.spec.Columns["completed"]
	column := cmp.Or(completed, r.layout.status)
	if column == "" || r.spec.Layout != Columns {
		return nil
	}
	kind := r.their.types[column]
	var category string
	if err := r.tx.QueryRow(r.ctx, `select typcategory::text from pg_type where oid = $1::text::regtype`, kind).Scan(&category); err != nil {
		return err
	}
	switch {
	case completed != "" && category != "D":
		return fmt.Errorf("column %s of table %s is %s, and completed is a time that is null until the row is sent; map status=%s:OPEN:COMPLETE instead, such as status=%s:false:true for a boolean",
			column, r.spec.Table, kind, column, column)
	case completed != "", category == "S":
		return nil
	}
	for _, value := range slices.Concat(r.layout.opens, r.layout.closed) {
		var written string
		if err := r.tx.QueryRow(r.ctx, `select $1::text::`+kind+`::text`, value).Scan(&written); err != nil {
			return fmt.Errorf("the status %q is not a value of column %s of table %s, which is %s: %w; write status=COLUMN:OPEN:COMPLETE with values of the column", value, column, r.spec.Table, kind, err)
		}
		if written != value { // they are compared as texts too
			return fmt.Errorf("the status %q is %q as a value of column %s of table %s, which is %s; write it so: --column status=COLUMN:OPEN:COMPLETE, such as status=%s:false:true for a boolean",
				value, written, column, r.spec.Table, kind, column)
		}
	}
	return nil
}

// checkID refuses an id that two rows may share, or that a row may lack: a row is known by its id.
func (r *run) checkID() error {
	var required, unique bool
	const look = `select a.attnotnull, exists (select from pg_index as i where i.indrelid = a.attrelid and i.indisunique and i.indimmediate
			and i.indisvalid and i.indpred is null and i.indnkeyatts = 1 and i.indkey[0] = a.attnum)
		from pg_attribute as a where a.attrelid = $1::text::regclass and a.attname = $2`
	if err := r.tx.QueryRow(r.ctx, look, r.their.name(), r.layout.id).Scan(&required, &unique); err != nil {
		return err
	}
	id, name := quote(r.layout.id), r.their.name()
	switch {
	case !required:
		return fmt.Errorf("column %s of table %s may be null, and it is the id by which an adoption knows a row; run: alter table %s alter column %s set not null", r.layout.id, r.spec.Table, name, id)
	case !unique:
		return fmt.Errorf("column %s of table %s is not unique by itself, and it is the id by which an adoption knows a row; map another column (--column id=COLUMN), or run: create unique index concurrently on %s (%s)",
			r.layout.id, r.spec.Table, name, id)
	}
	return nil
}

// What a value of the status column means.
const (
	MeansOpen    = "to be sent"
	MeansClosed  = "not to be sent"
	MeansUnknown = "in neither list"
)

// Value is a value of the status column.
type Value struct {
	// Value is nil for null.
	Value *string `json:"value"`
	Rows  int64   `json:"rows"`
	// Means is MeansOpen, MeansClosed or MeansUnknown.
	Means string `json:"means"`
}

// values counts the values of the status column, where there is one: those in neither list first, at most 20.
func (r *run) values() ([]Value, error) {
	if r.layout.status == "" {
		return nil, nil
	}
	column := "r." + quote(r.layout.status) + "::text"
	rows, err := r.tx.Query(r.ctx, fmt.Sprintf(`select %[1]s, count(*), case when %[1]s in (%[2]s) then 2 when %[1]s in (%[3]s) then 3 else 1 end as means
		from %[4]s as r where true%[5]s group by 1, 3 order by 3, 2 desc, 1 limit 20`,
		column, literals(r.layout.opens), literals(r.layout.closed), r.their.name(), r.andChosen("r")))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (v Value, err error) {
		var means int
		err = row.Scan(&v.Value, &v.Rows, &means)
		v.Means = map[int]string{1: MeansUnknown, 2: MeansOpen, 3: MeansClosed}[means]
		return v, err
	})
}

// checkValues refuses rows of which no list says whether they are to be sent.
func (r *run) checkValues() error {
	values, err := r.values()
	if err != nil || len(values) == 0 || values[0].Means != MeansUnknown {
		return err
	}
	v, remedy := values[0], "name it in one of the lists: adopt back, and shadow with --column status=COLUMN:OPEN,…:COMPLETE,…"
	if r.spec.Layout != Columns || v.Value == nil {
		remedy = "give these rows another value"
	}
	return fmt.Errorf("%d rows of table %s have %s in column %s, of which it is not known whether they are to be sent; %s", v.Rows, r.spec.Table, v.text(), r.layout.status, remedy)
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
	}
	return err
}

// warnings are what of the rows is right as it is, and perhaps not meant so.
func (r *run) warnings() (all []string, err error) {
	for _, name := range []string{"created", "due"} {
		if column := r.spec.Columns[name]; column != "" && r.withoutZone(column) {
			var zone string
			if err := r.tx.QueryRow(r.ctx, `select current_setting('TimeZone')`).Scan(&zone); err != nil {
				return nil, err
			}
			all = append(all, fmt.Sprintf("column %s has no time zone: its values are read in that of the session, which is %s here", column, zone))
		}
	}
	if r.layout.exhausted != "" {
		var n int64
		count := fmt.Sprintf(`select count(*) from %s as r where %s and %s`, r.their.name(), r.open("r"), r.in(r.layout.exhausted, "r"))
		if err := r.tx.QueryRow(r.ctx, count).Scan(&n); err != nil {
			return nil, err
		}
		if n > 0 {
			all = append(all, fmt.Sprintf("%d open rows have no attempt left: each %s", n, r.layout.exhaustedGets))
		}
	}
	if r.layout.log {
		return all, nil
	}
	triggers, err := r.triggersWithoutPath()
	if all = append(all, triggers...); err != nil || r.state == None {
		return all, err
	}
	return r.warningsOfNew(all)
}

// triggersWithoutPath are warnings of triggers of theirs that a marked row calls. A producer's session may have had the path in
// which their functions find a name. The adoption's function does not use that path: it has its owner's rights, and a
// producer could put an operator of its own there.
func (r *run) triggersWithoutPath() ([]string, error) {
	const update, remove = 16, 8 // of pg_trigger.tgtype
	event := update
	if r.layout.deletes {
		event = remove
	}
	const look = `select t.tgname, p.oid::regprocedure::text
		from pg_trigger as t join pg_proc as p on p.oid = t.tgfoid join pg_language as l on l.oid = p.prolang
		where t.tgrelid in (select $1::text::regclass union all select relid from pg_partition_tree($1::text::regclass))
			and t.tgparentid = 0 and not t.tgisinternal and t.tgenabled in ('O', 'A') and t.tgname not like 'outbox\_adopt\_%'
			and (t.tgtype & $2::integer) <> 0 and l.lanname not in ('internal', 'c')
			and not exists (select from unnest(p.proconfig) as setting where setting like 'search\_path=%')
		group by 1, 2 order by 1, 2`
	rows, err := r.tx.Query(r.ctx, look, r.their.name(), event)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var trigger, function string
		err := row.Scan(&trigger, &function)
		return fmt.Sprintf("trigger %s calls %s, which has no search_path of its own: from the cut-over on it runs with that of the outbox, and a row is refused when it does not find a name there; run: alter function %s set search_path = %s, pg_temp",
			trigger, function, function, quote(r.their.schema)), err
	})
}

// warningsOfNew adds what the notes say of the rows that were inserted.
func (r *run) warningsOfNew(all []string) ([]string, error) {
	var created, due, serializable int64
	var createdOff, dueOff string
	const look = `select count(created_off), coalesce(max(created_off), '0')::text, count(due_off), coalesce(max(due_off), '0')::text, count(*) filter (where serializable)
		from outbox_adopted where adoption = $1 and counted`
	if err := r.tx.QueryRow(r.ctx, look, r.spec.Name).Scan(&created, &createdOff, &due, &dueOff, &serializable); err != nil {
		return nil, err
	}
	if created > 0 {
		column := cmp.Or(r.spec.Columns["created"], "created_at")
		why := "the clocks of producers are off, or they write it themselves"
		if r.withoutZone(column) {
			why = "it has no time zone, and its values are of another one than that of the session"
		}
		all = append(all, fmt.Sprintf("%d new rows have a time in column %s that is up to %s from the database's: %s; nothing is delayed, and the time of their events is wrong", created, column, createdOff, why))
	}
	if column := r.spec.Columns["due"]; due > 0 && column != "" && r.withoutZone(column) {
		all = append(all, fmt.Sprintf("%d new rows are due up to %s from when they were inserted, by column %s, which has no time zone; when they are due at once, leave out due, or make the column timestamptz", due, dueOff, column))
	}
	if serializable > 0 {
		all = append(all, fmt.Sprintf("%d new rows were inserted at the isolation level SERIALIZABLE: with the trigger such transactions fail more often with 40001 (28%% of those of 8 sessions, 0%% without it); let their producers try again, or use READ COMMITTED", serializable))
	}
	return all, nil
}

func (r *run) withoutZone(column string) bool {
	return r.their.types[column] == "timestamp without time zone"
}
