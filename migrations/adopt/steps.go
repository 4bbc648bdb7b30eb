package adopt

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/*.sql
var files embed.FS

// shadowTimeout ends a statement of a step: producers wait for it.
// Tests have more.
var shadowTimeout = 10 * time.Second

// run is one transaction of a step.
type run struct {
	ctx     context.Context
	tx      pgx.Tx
	schema  string
	spec    Spec
	options Options
	result  Result

	adoption
	layout layout
	their  table
	// dropped: their table is not there any more. failed is the error of a step whose transaction is committed all the same.
	dropped bool
	failed  error
	// waits is their table until it is locked. Locks after that are on tables of the outbox's schema.
	waits string
	// last are the statements that Back runs in another transaction, when producers do not wait any more: there may be many notes.
	// And they lock the counters, and an enqueue that has locked these may wait for their table.
	last []string
}

// adoption is what outbox_adoptions has of one, in addition to the spec.
type adoption struct {
	state  State
	start  *string
	wanted Spec // as it was begun
	since  time.Time
	cutAt  *time.Time
}

func (r *run) step(step Step) error {
	if err := r.prepare(step); err != nil {
		return err
	}
	r.result.Name, r.result.State = r.spec.Name, r.state
	switch step {
	case ToShadow:
		return r.shadow()
	case Cutover:
		return r.cutover()
	}
	return r.back()
}

// prepare finds the adoption and their table, and makes unqualified names those of the outbox's schema.
func (r *run) prepare(step Step) error {
	if err := r.setPath(); err != nil {
		return err
	}
	var outbox bool
	if err := r.tx.QueryRow(r.ctx, `select to_regclass('outbox_events') is not null and to_regprocedure('enqueue_check(text,text,text,boolean,text,text,text,text,uuid,text,jsonb,interval,boolean,jsonb)') is not null`).Scan(&outbox); err != nil {
		return err
	}
	if !outbox {
		return fmt.Errorf("schema %q has no outbox, or one of an older version; run `dispatcher migrate up`", r.schema)
	}
	if err := r.find(step); err != nil || r.spec.Layout == "" {
		return err
	}
	var err error
	if r.layout, err = r.spec.layout(); err != nil {
		return err
	}
	r.spec.Table = cmp.Or(r.spec.Table, r.layout.table)
	err = r.findTheir(step)
	if r.dropped = errors.Is(err, errNoTable) && step == Back; r.dropped {
		return nil
	}
	r.waits = r.their.name()
	return err
}

// lock locks their table, as the first of a step.
func (r *run) lock(mode string) error {
	if err := r.exec("lock table " + r.their.name() + " in " + mode + " mode"); err != nil {
		return err
	}
	r.waits = ""
	return nil
}

// setPath makes the outbox's schema that of names without one.
func (r *run) setPath() error {
	path := fmt.Sprintf(`select set_config('search_path', %s, true), set_config('datestyle', 'ISO', true)`, literal(pgx.Identifier{r.schema}.Sanitize()+", pg_temp"))
	_, err := r.tx.Exec(r.ctx, path)
	return err
}

// end runs what is last, however long it takes: no producer waits, and with a limit of the login each try might end.
func (r *run) end() error {
	if err := errors.Join(r.setPath(), r.limit(0)); err != nil {
		return err
	}
	for _, sql := range r.last {
		if err := r.exec(sql); err != nil {
			return err
		}
	}
	return nil
}

// find reads the adoption. For ToShadow the spec stays that of the caller.
func (r *run) find(step Step) error {
	wanted := r.spec
	all, err := readAll(r.ctx, r.tx, wanted.Name)
	if err != nil {
		return err
	}
	if step == ToShadow {
		r.spec.Name = cmp.Or(wanted.Name, string(wanted.Layout))
		if wanted.Layout == Debezium {
			r.spec.Slot, r.spec.Publication = cmp.Or(wanted.Slot, DefaultSlot), cmp.Or(wanted.Publication, DefaultPublication)
		}
		table := cmp.Or(wanted.Table, presets[wanted.Layout].table)
		if all, err = readAll(r.ctx, r.tx, ""); err != nil {
			return err
		}
		for _, a := range all {
			switch {
			case a.spec.Name == r.spec.Name:
				r.adoption = a.adoption
				if a.state != Shadow {
					return fmt.Errorf("adoption %s is %s; go back first: dispatcher adopt back --name %s", a.spec.Name, a.state, a.spec.Name)
				}
				if a.spec.Table != table {
					return fmt.Errorf("adoption %s is of table %s; go back first (dispatcher adopt back --name %s), or give another name", a.spec.Name, a.spec.Table, a.spec.Name)
				}
			case a.spec.Table == table:
				return fmt.Errorf("table %s is adopted as %s; go back first: dispatcher adopt back --name %s", table, a.spec.Name, a.spec.Name)
			}
		}
		return nil
	}
	switch {
	case len(all) == 1:
		r.spec, r.adoption = all[0].spec, all[0].adoption
	case len(all) > 1:
		return errors.New("there is more than one adoption; name one (dispatcher adopt status shows them)")
	case step == Cutover:
		return errors.New("there is no such adoption; begin with its shadow: dispatcher adopt shadow")
	default:
		r.spec = Spec{Name: wanted.Name}
	}
	return nil
}

// exec runs a statement, unless nothing is to be changed.
func (r *run) exec(sql string) error {
	r.result.SQL = append(r.result.SQL, strings.TrimSpace(sql))
	if r.options.DryRun {
		return nil
	}
	_, err := r.tx.Exec(r.ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

func (r *run) shadow() error {
	table := r.their.name()
	r.result.State, r.result.Next = Shadow, nextShadow
	if err := r.checkID(); err != nil {
		return err
	}
	if r.layout.log {
		r.result.Next = nextShadowLog
		if err := r.checkSlot(); err != nil {
			return err
		}
	}
	if err := r.limit(shadowTimeout); err != nil {
		return err
	}
	if err := r.inspect(); err != nil {
		return err
	}
	there, enabled, err := r.findTrigger()
	if err != nil || enabled && r.state == Shadow && r.isAsWanted() {
		return err
	}
	if r.layout.log {
		if err := r.tryToRead(); err != nil {
			return err
		}
	}
	install, err := files.ReadFile("sql/install.sql")
	if err != nil {
		return err
	}
	if err := r.exec(string(install)); err != nil {
		return err
	}
	if err := r.lock("share row exclusive"); err != nil {
		return err
	}
	if err := r.findStart(); err != nil {
		return err
	}
	if err := r.checkStatements(); err != nil {
		return err
	}
	columns, err := json.Marshal(r.columns())
	if err != nil {
		return err
	}
	start := "null"
	if r.start != nil {
		start = literal(*r.start)
	}
	record := fmt.Sprintf(`insert into outbox_adoptions (name, layout, source_schema, source_table, namespace, topic, columns, open, slot, publication, start, look, state)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, 'Shadow')`, literal(r.spec.Name), literal(string(r.spec.Layout)), literal(r.their.schema), literal(r.their.table),
		literal(r.spec.Namespace), literal(r.spec.Topic), literal(string(columns)), literal(r.spec.Open), literal(r.spec.Slot), literal(r.spec.Publication), start, literal(r.render("status", nil)))
	statements := append(r.forget(), record, r.function(false), "revoke all on function "+r.functionName()+"() from public")
	if there {
		statements = append(statements, fmt.Sprintf("alter table %s enable trigger %s", table, r.trigger()))
	} else { // one that is replaced would need a stronger lock
		statements = append(statements, fmt.Sprintf("create constraint trigger %s after insert or update or delete on %s deferrable initially deferred for each row execute function %s()", r.trigger(), table, r.functionName()))
	}
	if !r.layout.log {
		statements = append(statements, r.move(r.openRows("r."+quote(r.layout.position)+" desc nulls last limit 1 for update of r skip locked"), undo))
	}
	// The counters last: enqueue waits for them, in all namespaces.
	for _, sql := range append(statements, r.watchNumbers()...) {
		if err := r.exec(sql); err != nil {
			return err
		}
	}
	r.result.Changed = true
	if r.options.DryRun {
		return nil
	}
	return r.warnOfRefused("the newest open row, %s, would be refused: %s", false)
}

// warnOfRefused adds a warning for each refused row, at most ten: those without an event, or those whose event stays.
func (r *run) warnOfRefused(text string, live bool) error {
	rows, err := r.tx.Query(r.ctx, `select their_id, refused from outbox_adopted where adoption = $1 and refused is not null and live = $2 and (not live or their_row::text = 'null') order by seq limit 10`, r.spec.Name, live)
	if err != nil {
		return err
	}
	var id, reason string
	_, err = pgx.ForEachRow(rows, []any{&id, &reason}, func() error {
		r.result.Warnings = append(r.result.Warnings, fmt.Sprintf(text, id, reason))
		return nil
	})
	return err
}

// findStart finds the greatest position, after which rows are counted. A time that is not that of the creation would count none.
func (r *run) findStart() error {
	if r.layout.log {
		return nil
	}
	position := quote(r.layout.position)
	later := "false"
	if kind := r.their.types[r.layout.position]; strings.HasPrefix(kind, "timestamp") {
		later = "max(" + position + ")::timestamptz > clock_timestamp() + interval '5 minutes'"
		if r.withoutZone(r.layout.position) { // of one zone or the other
			later += " and max(" + position + ") at time zone 'UTC' > clock_timestamp() + interval '5 minutes'"
		}
	}
	var ahead bool
	if err := r.tx.QueryRow(r.ctx, `select max(`+position+`)::text, coalesce(`+later+`, false) from `+r.their.name()).Scan(&r.start, &ahead); err != nil {
		return err
	}
	if ahead {
		return fmt.Errorf("column %s of table %s is later than now in a row (%s), so that it does not say when a row was created, and no new row would be counted; map the time of creation (--column created=COLUMN), or leave it out where the id grows from row to row", r.layout.position, r.spec.Table, *r.start)
	}
	return nil
}

// isAsWanted reports whether the adoption is as the spec says.
func (r *run) isAsWanted() bool {
	w := r.wanted
	return maps.Equal(r.columns(), w.Columns) && r.spec.Slot == w.Slot && r.spec.Publication == w.Publication && r.spec.Open == w.Open &&
		r.spec.Layout == w.Layout && r.spec.Namespace == w.Namespace && r.spec.Topic == w.Topic
}

// findTrigger reports whether the trigger is there.
func (r *run) findTrigger() (there, enabled bool, err error) {
	const look = `select count(*) > 0, coalesce(bool_or(tgenabled in ('O', 'A')), false) from pg_trigger where tgrelid = $1::text::regclass and tgname = $2`
	err = r.tx.QueryRow(r.ctx, look, r.their.name(), r.trigger()).Scan(&there, &enabled)
	return there, enabled, err
}

// dropTrigger is the statement that removes the trigger. It takes an access exclusive lock.
func (r *run) dropTrigger() string {
	return fmt.Sprintf("drop trigger if exists %s on %s", r.trigger(), r.their.name())
}

// forget are the statements that remove what is kept of the adoption.
func (r *run) forget() []string {
	return []string{
		"delete from outbox_adopted where adoption = " + literal(r.spec.Name),
		"delete from outbox_adoptions where name = " + literal(r.spec.Name),
	}
}

// columns is the mapping, never null.
func (r *run) columns() map[string]string {
	columns := map[string]string{}
	maps.Copy(columns, r.spec.Columns)
	return columns
}
