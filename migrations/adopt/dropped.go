package adopt

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// errNoTable is the error of a table that is not there.
var errNoTable = errors.New("there is no table")

// abandon ends an adoption whose table was dropped, with its triggers: it removes what is kept of it. Events of it that
// are not delivered stay, since there is no row to open again.
func (r *run) abandon() error {
	var left int64
	const look = `select count(*) from outbox_adopted as a join outbox_events as e on e.id = a.event_id
		where a.adoption = $1 and a.live and e.status in ('pending', 'processing')`
	if err := r.tx.QueryRow(r.ctx, look, r.spec.Name).Scan(&left); err != nil {
		return err
	}
	if err := r.limit(0); err != nil { // no producer waits
		return err
	}
	// No enqueue waits for their table, so that the counters can be locked here, as the last. The function goes only where no trigger needs it: one of a table that was renamed does.
	for _, sql := range slices.Concat([]string{"drop function if exists " + r.functionName() + "()"}, r.forget(), r.leaveNumbers()) {
		if err := r.exec(sql); err != nil {
			return err
		}
	}
	if r.numbered() && r.state != Shadow {
		r.result.Warnings = append(r.result.Warnings, "the numbers of its aggregates went with the table: enqueue begins at 1 for each that it has not numbered yet, unless you insert its last one into outbox_aggregate_sequences first")
	}
	r.result.State, r.result.Changed = None, true
	r.result.Next = fmt.Sprintf("Table %s was dropped, and what was kept of its adoption is removed. ", r.spec.Table)
	if left == 0 {
		r.result.Next += "No event of it waits."
	} else {
		r.result.Next += fmt.Sprintf("%d events of it are not delivered yet: they stay in the outbox, and a dispatcher of namespace %s delivers them.", left, r.spec.Namespace)
	}
	return nil
}

// there is the condition that what Back opens again, the row of a note a, is there. One that was deleted may have an heir with
// its id.
func (r *run) there() string {
	if r.layout.keepsRows() {
		return "(a.their_row::text is distinct from 'null')"
	}
	return "(a.their_row is null and exists (select from {table} as r where r.{id} = a.their_id::{idType}))"
}

// give is what gives the row of the event e back, for return.sql. The newest of a row, or of those that a unique index of theirs lets
// be open or there alone, is there. It has replaced the others, as it would have done in their table. Debezium sends what is inserted,
// and passes over what is deleted.
func (r *run) give() string {
	const insert = `insert into {table} ({columns}) overriding system value
                select {columns} from json_populate_record(null::{table}, e.their_row);
            if not found then
                raise exception 'a trigger or a rule of table % keeps row % out', {regclass}, e.their_id;
            end if;
            v_returned := v_returned + 1;`
	once := func(text string) string {
		return "begin\n            " + text + "\n            exception when unique_violation then\n                null;\n            end;"
	}
	switch {
	case r.layout.log:
		return `delete from {table} where {id} = e.their_id::{idType};
            v_there := found;
            ` + insert + `
            if not v_there then
                delete from {table} where {id} = e.their_id::{idType};
            end if;`
	case r.layout.deletes:
		return once("if not exists (select from {table} where {id} = e.their_id::{idType}) then\n            " + insert + "\n            end if;")
	}
	var set []string
	for _, each := range strings.Split(r.layout.reopen, ", ") {
		column, _, _ := strings.Cut(each, " = ")
		if len(r.their.lacks(strings.ReplaceAll(column, `"`, ""))) == 0 {
			set = append(set, each)
		}
	}
	return once(`update {table} as r set ` + strings.Join(set, ", ") + ` where {id} = e.their_id::{idType} and ({opened}) is not true;
            v_there := found;
            if exists (select from {table} as r where {id} = e.their_id::{idType} and ({opened}) is not true) then
                raise exception 'a trigger or a rule of table % keeps row % closed', {regclass}, e.their_id;
            end if;
            v_returned := v_returned + v_there::integer;`)
}

// numbered reports whether the rows of their table have numbers in their aggregates.
func (r *run) numbered() bool { return r.layout.fields["sequence"] != "" }

// numbersName is the function that has enqueue continue above the numbers of their table: when it first numbers an aggregate,
// and again when their table is ahead. Their producers write no number of ours, so that none waits for another.
func (r *run) numbersName() string {
	return quote(r.schema) + "." + quote("outbox_numbers_"+r.spec.Name)
}

// renderNumbers fills in a file about the numbers of their table.
func (r *run) renderNumbers(file string) string {
	return r.render(file, map[string]string{
		"{numbers}": r.numbersName(), "{namespace}": literal(r.spec.Namespace), "{sequence}": r.layout.fields["sequence"],
		"{aggregateType}": r.layout.fields["aggregateType"], "{aggregateId}": r.layout.fields["aggregateId"],
	})
}

// watchNumbers are the statements that make that function, and its trigger.
func (r *run) watchNumbers() []string {
	if !r.numbered() {
		return nil
	}
	return []string{
		r.renderNumbers("numbers"),
		"revoke all on function " + r.numbersName() + "() from public",
		fmt.Sprintf("create or replace trigger %s before insert on outbox_aggregate_sequences for each row when (new.namespace = %s and new.added > 0) execute function %s()",
			r.trigger(), literal(r.spec.Namespace), r.numbersName()),
	}
}

// keepNumbers are the statements that write down the numbers of their table, which is there, for good.
func (r *run) keepNumbers() []string {
	if !r.numbered() || r.state == Shadow || len(r.their.lacks(r.layout.columns...)) > 0 {
		return nil
	}
	return []string{r.renderNumbers("keep_numbers")}
}

// leaveNumbers are the statements that remove what watchNumbers has made.
func (r *run) leaveNumbers() []string {
	if !r.numbered() {
		return nil
	}
	return []string{
		fmt.Sprintf("drop trigger if exists %s on outbox_aggregate_sequences", r.trigger()),
		"drop function if exists " + r.numbersName() + "()",
	}
}

// checkNumbers warns of aggregates whose events have been numbered by enqueue too: their producers, who continue where
// their table ends, would give these numbers again.
func (r *run) checkNumbers() error {
	if !r.numbered() || r.state == Shadow || len(r.their.lacks(r.layout.columns...)) > 0 {
		return nil
	}
	var ahead int64
	count := fmt.Sprintf(`select count(*) from (select from %s as r join outbox_aggregate_sequences as s
		on s.namespace = %s and s.aggregate_type = coalesce(%s, '') and s.aggregate_id = %s
		group by s.namespace, s.aggregate_type, s.aggregate_id, s.last having s.last > max(%s)) as ahead`,
		r.their.name(), literal(r.spec.Namespace), r.layout.fields["aggregateType"], r.layout.fields["aggregateId"], r.layout.fields["sequence"])
	if err := r.tx.QueryRow(r.ctx, count).Scan(&ahead); err != nil || ahead == 0 {
		return err
	}
	r.result.Warnings = append(r.result.Warnings, fmt.Sprintf("enqueue has given numbers beyond their table's to %d aggregates: their producers would give them again; see outbox_aggregate_sequences, and have consumers expect it", ahead))
	return nil
}
