package adopt

import (
	"errors"
	"fmt"
	"slices"
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
		return "true"
	}
	return fmt.Sprintf("(a.their_row is null and exists (select from %s as r where r.%s = a.their_id::%s))", r.their.name(), quote(r.layout.id), r.their.types[r.layout.id])
}

// reopenRow and insertRow give the row of the event e back, for return.sql. The newest of a row, or of those that a unique
// index of theirs lets be open or there alone, is there. It has replaced the others, as it would have done in their table.
const (
	reopenRow = `begin
            update {table} as r set {reopen} where {id} = e.their_id::{idType} and ({open}) is not true;
            if found then
                v_returned := v_returned + 1;
            end if;
            if exists (select from {table} as r where {id} = e.their_id::{idType} and ({open}) is not true) then
                raise exception 'a trigger or a rule of table % keeps row % closed, so this was undone; disable it, and go back again',
                    {regclass}, e.their_id;
            end if;
        exception when unique_violation then
            null;
        end;`
	insertRow = `if not exists (select from {table} where {id} = e.their_id::{idType}) then
            begin
                insert into {table} ({columns}) overriding system value
                    select {columns} from json_populate_record(null::{table}, e.their_row);
                if not found then
                    raise exception 'a trigger or a rule of table % keeps row % out, so this was undone; disable it, and go back again',
                        {regclass}, e.their_id;
                end if;
                v_returned := v_returned + 1;
            exception when unique_violation then
                null;
            end;
        end if;`
)
