package adopt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// literal is a text in SQL.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// quote is a name in SQL.
func quote(s string) string { return pgx.Identifier{s}.Sanitize() }

func (r *run) trigger() string      { return "outbox_adopt_" + r.spec.Name }
func (r *run) functionName() string { return pgx.Identifier{r.schema, r.trigger()}.Sanitize() }

// open is the condition that a row of the adoption is to be sent, and queued that it waits in their table.
func (r *run) open() string { return r.layout.open + r.spec.chosen(r.layout) }
func (r *run) queued() string {
	if r.layout.log {
		return "false"
	}
	return r.open()
}

// counted is the condition that a row is of the adoption and after the start. One that does not say when it was made is not counted.
func (r *run) counted() string {
	switch {
	case r.layout.log || r.their.types[r.layout.position] == "":
		return "false"
	case r.start == nil:
		return "true" + r.spec.chosen(r.layout)
	}
	return "coalesce(r." + quote(r.layout.position) + " > " + literal(*r.start) + "::" + r.their.types[r.layout.position] + ", false)" + r.spec.chosen(r.layout)
}

// render fills a file in. What is filled in may have such names itself.
func (r *run) render(file string, more map[string]string) string {
	text, err := files.ReadFile("sql/" + file + ".sql")
	if err != nil {
		panic(err) // the file is there
	}
	return r.names(r.fill(string(text), more))
}

// names fills in what is the same in each file.
func (r *run) names(text string) string {
	return r.fill(text, map[string]string{
		"{schema}": quote(r.schema), "{function}": r.functionName(), "{name}": literal(r.spec.Name), "{table}": r.their.name(), "{regclass}": literal(r.their.name()),
		"{id}": quote(r.layout.id), "{idName}": literal(r.layout.id), "{idType}": r.their.types[r.layout.id], "{deletes}": fmt.Sprint(r.layout.deletes),
		"{open}": r.open(), "{queued}": r.queued(), "{counted}": r.counted(), "{opened}": r.layout.opened,
	})
}

func (r *run) fill(text string, with map[string]string) string {
	pairs := make([]string, 0, 2*len(with))
	for from, to := range with {
		pairs = append(pairs, from, to)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// What a step does with a row when its event is added: in the shadow it is undone.
const (
	undo      = "raise sqlstate 'OB042';"
	keepEvent = "v_events := v_events || v_event;"
)

// raise is what a step does when a row can be neither added nor noted: nothing is changed. A producer gets a warning of the
// server's instead: the row stays open in their table, and is missing.
const (
	raise = "raise;"
	warn  = "raise warning 'row % of adoption % has no event: %', v_id, {name}, v_reason;"
)

// markRow marks the row complete. A rule or a trigger of theirs may keep it as it is. Then it is refused, and has no event.
const markRow = `{change} where {id} = v_id::{idType};
    if exists (select from {table} as r where r.{id} = v_id::{idType} and {open}) then
        raise exception 'the row is still to be sent when it is marked: a trigger or a rule of the table keeps it, or --open does not follow the mark';
    end if;
    `

// call is the call of outbox_adopt with a row r.
func (r *run) call() string {
	all := map[string]string{"{row}": "null::json", "{topic}": literal(r.spec.Topic), "{namespace}": literal(r.spec.Namespace)}
	for _, name := range []string{"dedupeKey", "namespace", "topic", "payload", "type", "aggregateType", "aggregateId", "key", "tenantId", "sequence", "headers", "created", "due", "attempts", "maxAttempts", "retry"} {
		e := r.layout.fields[name]
		if e == "" {
			e = "null"
		}
		if all["{"+name+"}"] == "" || all["{"+name+"}"] == "''" {
			all["{"+name+"}"] = e
		}
	}
	if r.layout.log {
		all["{row}"] = "v_row"
	} else if r.layout.deletes {
		all["{row}"] = "row_to_json(r)"
	}
	if r.layout.fields["dedupeKey"] == "" {
		key := "r." + quote(r.layout.id) + "::text"
		if slices.Contains(integers, r.their.types[r.layout.id]) { // other tables have the same numbers
			key = literal(r.spec.Name+"/") + " || " + key
		}
		if tenant := r.layout.fields["tenantId"]; tenant != "" { // CONTRACT C-12 wants it in front
			key = "coalesce(" + tenant + "::text || '/', '') || " + key
		}
		all["{dedupeKey}"] = key
	}
	return strings.TrimSpace(r.render("call", all))
}

// row is the block that makes the event of a row and marks it complete. first finds v_id, and v_row of a log; from has the row r;
// none is what follows when it is not there, then when it is done, and failed when it can be neither added nor noted.
func (r *run) row(first, more, none, then, failed string) string {
	from, mark := "{table} as r where r.{id} = v_id::{idType}"+r.spec.chosen(r.layout)+more, ""
	switch {
	case r.layout.log:
		from = "json_populate_record(null::{table}, v_row) as r"
	case r.layout.deletes:
		mark = strings.Replace(markRow, "{change}", "delete from {table}", 1)
	default:
		mark = strings.Replace(markRow, "{change}", "update {table} set "+r.layout.complete, 1)
	}
	return r.render("row", map[string]string{"{first}": first, "{call}": r.call(), "{from}": from, "{none}": none, "{then}": then, "{failed}": failed, "{mark}": mark})
}

// function is the trigger's. It names no table for what it does, since a transaction with an old snapshot runs it too.
func (r *run) function(live bool) string {
	first := `if tg_op <> 'INSERT' then
        return null;
    end if;
    v_row := row_to_json(new);
    `
	if !r.layout.log {
		first = `if tg_op = 'DELETE' then
        if not exists (select from {table} as r where r.{id} = old.{id}) then
            perform outbox_adopt_gone({name}, old.{id}::text, {deletes});
        end if;
        return null;
    end if;
    `
	}
	then := ""
	if !live { // what their worker does with an open row is nothing new
		then = undo
		if !r.layout.log {
			first += `if tg_op = 'UPDATE' and exists (select from (select old.*) as r where {open})
        and not exists (select from outbox_adopted where adoption = {name} and their_id = old.{id}::text and refused is not null) then
        return null;
    end if;
    `
		}
	}
	return r.render("function", map[string]string{"{body}": r.row(first+"v_id := new.{id}::text;", " and (tg_op <> 'UPDATE' or {open})", "return null", then, warn)})
}

// move makes events of rows that a query gives, by their ids, and for a log as JSON.
func (r *run) move(rows, then string) string {
	return r.render("move", map[string]string{"{rows}": rows, "{body}": r.row("", "", "continue", then, raise)})
}

// openRows are the open rows of their table, in their order.
func (r *run) openRows(order string) string {
	return "select r.{id}::text, null::json from {table} as r where {open} order by " + order
}
