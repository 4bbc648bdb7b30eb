package adopt_test

import (
	"math/rand/v2"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

// randomTable is a table of a service made at random, and what its worker does.
type randomTable struct {
	*rand.Rand
	keyed                      bool     // its id fits an adoption
	partitions                 []string // what follows the columns, and the statements that make its partitions; empty for none
	spec                       adopt.Spec
	ddl                        []string
	columns, values            []string // of an insert; %d is its number
	open, take, done, idColumn string
	unknown                    string // a status in neither list
	zone                       string
}

func (r *randomTable) one(of ...string) string { return of[r.IntN(len(of))] }

// makeTable makes the table of a seed.
func makeTable(seed uint64) *randomTable {
	r := &randomTable{Rand: rand.New(rand.NewPCG(seed, 7))}
	name := r.one("box", "Order Events", "select", "größe", `a"b`)
	r.spec = adopt.Spec{Name: "random", Layout: adopt.Columns, Table: "public." + name, Namespace: "shop", Topic: "orders", Columns: map[string]string{}}
	r.zone = r.one("UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Europe/Berlin")
	add := func(ours, column, ddl, value string) {
		if ours != "" {
			r.spec.Columns[ours] = column
		}
		r.ddl = append(r.ddl, quoted(column)+" "+ddl)
		if value != "" {
			r.columns, r.values = append(r.columns, quoted(column)), append(r.values, value)
		}
	}
	add("payload", r.one("data", "Body", "user"), r.one("jsonb", "json", "text", "varchar", "random_body")+" not null", `'{"n": %[1]d}'`)
	add("", "kind", "text not null default 'a'", "")
	grows := r.id(add)
	r.marks(add)
	if !grows || r.IntN(2) == 0 {
		at := r.one("timestamptz", "timestamp")
		add("created", r.one("created_at", "at"), at+" not null default "+map[string]string{
			"timestamptz": "clock_timestamp()", "timestamp": r.one("clock_timestamp()", "(clock_timestamp() at time zone 'utc')")}[at], "")
	}
	if r.IntN(3) == 0 {
		add("attempts", "tries", r.one("smallint", "integer", "bigint")+" default 0", r.one("0", "3", "25", "null"))
	}
	if r.IntN(4) == 0 {
		add("due", "visible at", "timestamptz", r.one("null", "now()"))
	}
	if r.IntN(3) == 0 {
		add("aggregateId", "order", r.one("bigint", "text", "random_number"), `'%[1]d'`)
	}
	if r.IntN(3) == 0 {
		add("headers", "meta", r.one("json", "jsonb"), r.one("null", `'{"a": "b", "n": 1}'`))
	}
	return r
}

// types are those that the columns may have in addition to PostgreSQL's.
const types = `create type random_state as enum ('NEW', 'SENDING', 'SENT', 'RETRY');
	create domain random_word as text check (value <> ''); create domain random_number as bigint check (value >= 0);
	create domain random_body as jsonb check (value is not null)`

// statements make the table of that name.
func (r *randomTable) statements(table string) string {
	all := types + "; create table " + table + " (" + strings.Join(r.ddl, ", ") + ")"
	for i, part := range r.partitions {
		if i > 0 {
			part = "; " + strings.ReplaceAll(part, "%s", table)
		}
		all += part
	}
	return all
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// id adds the key, and reports whether it grows from row to row. Two of three fit.
func (r *randomTable) id(add func(ours, column, ddl, value string)) (grows bool) {
	r.idColumn = r.one("id", "ID", "event id")
	key := func(kind, value, constraint string) {
		add("id", r.idColumn, kind, value)
		r.ddl = append(r.ddl, constraint)
	}
	own := "primary key (" + quoted(r.idColumn) + ")"
	r.keyed = r.IntN(3) > 0
	if !r.keyed {
		switch r.IntN(6) {
		case 0: // two rows share it
			key("bigint not null", "%[1]d / 2", "primary key ("+quoted(r.idColumn)+", kind, seq), seq bigserial")
		case 1:
			key("integer", "nullif(%[1]d % 3, 0) + %[1]d * 3", "unique ("+quoted(r.idColumn)+")")
		case 2:
			key("character(40)", "'k%[1]d'", own)
		case 3:
			key("numeric(12,2)", "%[1]d", own)
		case 4:
			key("bigint not null", "%[1]d", "unique ("+quoted(r.idColumn)+") deferrable")
		case 5: // unique in each partition
			key("bigint", "%[1]d", "primary key ("+quoted(r.idColumn)+", kind)")
			r.partitions = []string{" partition by list (kind)", "create table random_rest partition of %s default"}
		}
		return false
	}
	if r.IntN(5) == 0 {
		r.partitions = []string{" partition by hash (" + quoted(r.idColumn) + ")",
			"create table random_even partition of %s for values with (modulus 2, remainder 0)",
			"create table random_odd partition of %s for values with (modulus 2, remainder 1)"}
	}
	switch r.IntN(6) {
	case 0:
		key("bigint generated always as identity", "", own)
		return true
	case 1:
		key("integer", "%[1]d", own)
		return true
	case 2:
		key(r.one("bigint", "random_number"), "9007199254740993 + %[1]d", own)
		return true
	case 3:
		key("uuid", "gen_random_uuid()", own)
	case 4:
		key(r.one("text", "varchar(60)", "random_word"), `'ORDER/%[1]d "x" #1'`, own)
	case 5:
		key("text not null", `gen_random_uuid()::text`, "unique ("+quoted(r.idColumn)+")")
	}
	return false
}

// marks adds what says that a row is to be sent.
func (r *randomTable) marks(add func(ours, column, ddl, value string)) {
	set := func(column, open, taken, done string) {
		r.open, r.take, r.done = quoted(column)+" = "+open, quoted(column)+" = "+taken, quoted(column)+" = "+done
	}
	switch r.IntN(5) {
	case 0:
		add("completed", "sent at", r.one("timestamptz", "timestamp"), "")
		set("sent at", "null", "null", "now()")
		r.open = quoted("sent at") + " is null"
	case 1:
		add("", "sent", "boolean not null default false", "")
		r.spec.Columns["status"] = "sent:false:true"
		set("sent", "false", "false", "true")
	case 2:
		add("", "State", r.one("text", "varchar(9)", "random_state", "random_word")+" not null default 'NEW'", "")
		r.spec.Columns["status"] = "State:NEW,SENDING:SENT"
		set("State", "'NEW'", "'SENDING'", "'SENT'")
		r.unknown = "'RETRY'"
	case 3:
		add("", "state", r.one("smallint", "random_number")+" not null default 0", "")
		r.spec.Columns["status"] = "state:0,1:2"
		set("state", "0", "1", "2")
		r.unknown = "7"
	case 4:
		r.spec.Columns["sent"] = "delete"
		r.open, r.done = "true", ""
	}
}
