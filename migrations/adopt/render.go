package adopt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// literal is a text in SQL.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// literals are texts in SQL, with commas.
func literals(all []string) string {
	quoted := make([]string, len(all))
	for i, s := range all {
		quoted[i] = literal(s)
	}
	return strings.Join(quoted, ", ")
}

// quote is a name in SQL.
func quote(s string) string { return pgx.Identifier{s}.Sanitize() }

func (r *run) trigger() string      { return "outbox_adopt_" + r.spec.Name }
func (r *run) functionName() string { return pgx.Identifier{r.schema, r.trigger()}.Sanitize() }

// in is an expression about the row of that name.
func (r *run) in(expression, row string) string {
	return strings.ReplaceAll(expression, "{r}", row)
}

// open is the condition that a row of the adoption is to be sent.
func (r *run) open(row string) string { return r.in(r.layout.open, row) + r.andChosen(row) }

// andChosen is the condition that a row is of the namespace that is adopted, as a continuation.
func (r *run) andChosen(row string) string {
	if chosen := r.spec.chosen(r.layout); chosen != "" {
		return " and " + r.in(chosen, row)
	}
	return ""
}

// counted is the condition that a row is of the adoption and after the start.
func (r *run) counted(row string) string {
	if r.layout.log {
		return "false"
	}
	after := "true"
	if r.start != nil {
		after = row + "." + quote(r.layout.position) + " > " + literal(*r.start) + "::" + r.their.types[r.layout.position]
	}
	return after + r.andChosen(row)
}

// render fills a file in.
func (r *run) render(file string, more map[string]string) string {
	text, err := files.ReadFile("sql/" + file + ".sql")
	if err != nil {
		panic(err) // the file is there
	}
	return r.fill(string(text), more)
}

// fill fills a text in.
func (r *run) fill(text string, more map[string]string) string {
	pairs := []string{
		"{schema}", quote(r.schema), "{function}", r.functionName(), "{name}", literal(r.spec.Name), "{table}", r.their.name(),
		"{id}", quote(r.layout.id), "{payloadColumn}", quote(r.layout.payload),
	}
	for from, to := range more {
		pairs = append(pairs, from, to)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// raise is what a step does when a row can be neither added nor noted: nothing is changed.
const raise = "raise;"

// body is the block that notes the row r, or adds its event and marks it complete. failed is the statement for a row that
// can be neither added nor noted.
func (r *run) body(live, changed, after, failed string) string {
	field := func(name, otherwise string) string {
		if e := r.layout.fields[name]; e != "" {
			return r.in(e, "r")
		}
		return otherwise
	}
	topic := literal(r.spec.Topic)
	if r.spec.Topic == "" {
		topic = field("topic", "")
	}
	mark, row := "", "null"
	if live != "false" && r.layout.keepsRows() {
		row = "row_to_json(r)"
	}
	if live != "false" && !r.layout.log {
		// A rule or a trigger of theirs may keep the row as it is. Then it is refused, and has no event.
		own := "where " + quote(r.layout.id) + " = r." + quote(r.layout.id)
		change := "update " + r.their.name() + " set " + r.layout.complete + " " + own
		if r.layout.deletes {
			change = "delete from " + r.their.name() + " " + own
		}
		mark = "\n    if " + live + " then\n        " + change + ";\n        if exists (select from " + r.their.name() + " as r_after " +
			own + " and " + r.open("r_after") + ") then\n            raise exception 'a trigger or a rule of the table keeps the row open';\n        end if;\n    end if;"
	}
	dedupe := "r." + quote(r.layout.id) + "::text"
	if slices.Contains(integers, r.their.types[r.layout.id]) { // other tables have the same numbers
		dedupe = literal(r.spec.Name+"/") + " || " + dedupe
	}
	if tenant := field("tenantId", ""); tenant != "" { // CONTRACT C-12 wants it in front
		dedupe = "coalesce(" + tenant + "::text || '/', '') || " + dedupe
	}
	namespace := field("namespace", "")
	if r.spec.Namespace != "" {
		namespace = literal(r.spec.Namespace)
	}
	return r.render("body", map[string]string{
		"{r}": "r", "{dedupe}": field("dedupeKey", dedupe), "{tenant}": field("tenantId", "null"), "{sequence}": field("sequence", "null"), "{counted}": r.counted("r"), "{live}": live, "{changed}": changed, "{namespace}": namespace,
		"{topic}": topic, "{payload}": field("payload", ""), "{type}": field("type", "null"), "{aggregateType}": field("aggregateType", "null"),
		"{aggregateId}": field("aggregateId", "null"), "{key}": field("key", "null"), "{headers}": field("headers", "'{}'"),
		"{created}": field("created", "now()"), "{due}": field("due", "clock_timestamp()"), "{attempts}": field("attempts", "0"),
		"{maxAttempts}": field("maxAttempts", "null"), "{retry}": field("retry", "null"), "{mark}": mark + after, "{row}": row, "{failed}": failed,
	})
}

// function is the trigger's. It names no table for what it does, since a transaction with an old snapshot runs it too.
func (r *run) function(live bool) string {
	state := "false"
	switch {
	case live && r.layout.log:
		state = "true"
	case live:
		state = "(" + r.open("r") + ")"
	}
	changed := "v_changed"
	if r.layout.log { // each insert is an event
		changed = "true"
	}
	// A producer never gets an error. The row stays open in their table, and adopt status counts it as missing.
	warn := fmt.Sprintf("raise warning 'row %% of adoption %% has no event: %%', r.%s, %s, sqlerrm;", quote(r.layout.id), literal(r.spec.Name))
	gone, keep, body := "true", "false", r.body(state, changed, "", warn)
	switch {
	case live && r.layout.deletes: // by the trigger itself
		gone = "not live"
	case live: // their clean-up deletes what is complete, and its event may not be delivered yet
		gone, keep = "not (live and exists (select from outbox_events as e where e.id = event_id and e.status in ('pending', 'processing')))", "true"
	}
	if chosen := r.spec.chosen(r.layout); chosen != "" {
		body = "if " + r.in(chosen, "r") + " then\n    " + body + "\n    end if;"
	}
	return r.render("function", map[string]string{"{body}": body, "{gone}": gone, "{keep}": keep})
}
