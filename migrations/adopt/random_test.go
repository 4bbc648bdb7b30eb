package adopt_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

var (
	tables = flag.Int("adopt.tables", 30, "how many tables TestRandomTablesAreAdoptedAndGivenBack makes")
	seed   = flag.Uint64("adopt.seed", 1, "of the first of them")
)

// Tables made at random are adopted, cut over, given back and cut over again, while producers write, roll back and hold
// transactions open, and their worker works on. Each is refused in the first step, or complete: what was committed was
// sent by one side, nothing else was sent, and by both sides only what their worker had in its hands.
//
// CONTRACT: C-91
func TestRandomTablesAreAdoptedAndGivenBack(t *testing.T) {
	var accepted, refused atomic.Int64
	t.Run("tables", func(t *testing.T) {
		for n := range uint64(*tables) {
			t.Run(fmt.Sprint(*seed+n), func(t *testing.T) {
				table := makeTable(*seed + n)
				if table.play(t) {
					accepted.Add(1)
				} else {
					refused.Add(1)
				}
			})
		}
	})
	t.Logf("%d tables were adopted, and %d refused in the first step", accepted.Load(), refused.Load())
	need.That(t, accepted.Load() != 0 && (*tables < 30 || refused.Load() != 0), "all went one way")
}

// randomLedger is what became of the numbers that were committed.
type randomLedger struct {
	rig
	*randomTable
	next         int
	committed    map[string]bool
	inHands      map[string]bool
	theirs, ours map[string]int
}

func (r *randomTable) play(t *testing.T) (adopted bool) {
	table := quoted(strings.TrimPrefix(r.spec.Table, "public."))
	l := &randomLedger{rig: newRig(t, oldService{spec: r.spec, ddl: r.statements(table)}),
		randomTable: r, committed: map[string]bool{}, inHands: map[string]bool{}, theirs: map[string]int{}, ours: map[string]int{}}
	l.exec(fmt.Sprintf(`do $$ begin execute format('alter database %%I set timezone = %%L', current_database(), '%s'); end $$`, r.zone))
	l.Reset()
	l.produce(table, 5+r.IntN(20), pgx.ReadCommitted)
	l.work(table)
	stop := l.writers(table)
	_, err := l.try(adopt.ToShadow, adopt.Options{})
	stop()
	need.Must(t, (err == nil) == r.keyed, "seed %+v: the shadow ends with %v; is its id fit? %v", l.ddl, err, r.keyed)
	if err != nil {
		return false
	}
	l.some(table)
	old := l.beginOld()
	l.cutover(table)
	l.finishHeld(table)
	l.write(old, table)
	need.OK(t, old.Commit(t.Context()))
	l.some(table)
	l.deliver(r.IntN(10))
	s := l.status()
	need.That(t, s.OK() && s.OpenRows == 0, "after the cut-over: %+v", s)
	stop = l.writers(table)
	l.step(adopt.Back, adopt.None, true)
	stop()
	l.some(table)
	if r.IntN(2) == 0 {
		l.step(adopt.ToShadow, adopt.Shadow, true)
		l.some(table)
		l.cutover(table)
		l.finishHeld(table)
		l.deliver(1 << 20)
	}
	l.work(table)
	l.settle()
	return true
}

// cutover is refused first when a row has a status that is in no list.
func (l *randomLedger) cutover(table string) {
	if l.unknown != "" && l.IntN(2) == 0 {
		column, _, _ := strings.Cut(l.spec.Columns["status"], ":")
		l.produce(table, 1, pgx.ReadCommitted)
		l.exec(fmt.Sprintf(`update %[1]s set %[2]s = %[3]s where %[4]s`, table, quoted(column), l.unknown, l.numbered(l.next-1)))
		need.Fails(l, "not known whether they are to be sent", "a row has the status %s, and the cut-over ends with %v", need.Err(l.try(adopt.Cutover, adopt.Options{})), l.unknown)
		l.exec(fmt.Sprintf(`update %[1]s set %[2]s where %[3]s`, table, l.done, l.numbered(l.next-1)))
		l.theirs[fmt.Sprint(l.next-1)]++
	}
	l.hold(table)
	stop := l.writers(table)
	defer stop()
	l.step(adopt.Cutover, adopt.Live, true)
}

// writers commit rows and roll some back, at the same time as a step, until the function that it returns is called. None
// of them fails for the step.
func (l *randomLedger) writers(table string) (stop func()) {
	const writers, rows = 2, 30
	ctx, cancel := context.WithCancel(l.Context())
	committed := make([][]int, writers)
	var wait sync.WaitGroup
	for w := range writers {
		first, dice := l.next, rand.New(rand.NewPCG(uint64(l.next), uint64(w)))
		l.next += rows
		wait.Go(func() {
			for n := first; n < first+rows && (ctx.Err() == nil || n == first); n++ {
				level := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead}[dice.IntN(2)]
				err := pgx.BeginTxFunc(context.WithoutCancel(ctx), l.Pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
					if _, err := tx.Exec(context.WithoutCancel(ctx), l.insert(table, n)); err != nil || dice.IntN(4) > 0 {
						return err
					}
					return errRolledBack
				})
				switch {
				case err == nil:
					committed[w] = append(committed[w], n)
				case !errors.Is(err, errRolledBack):
					l.Errorf("a producer during a step got %v", err)
				}
			}
		})
	}
	return func() {
		cancel()
		wait.Wait()
		for _, n := range slices.Concat(committed...) {
			l.committed[fmt.Sprint(n)] = true
		}
	}
}

var errRolledBack = errors.New("rolled back")

// insert adds the row of a number.
func (l *randomLedger) insert(table string, n int) string {
	return fmt.Sprintf(`insert into %s (%s) values (%s)`, table, strings.Join(l.columns, ", "), strings.ReplaceAll(strings.Join(l.values, ", "), "%[1]d", fmt.Sprint(n)))
}

// some is what happens between steps.
func (l *randomLedger) some(table string) {
	for range 1 + l.IntN(4) {
		l.produce(table, l.IntN(6), []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}[l.IntN(3)])
		if l.IntN(2) == 0 {
			l.work(table)
		}
	}
}

// produce commits rows in a transaction, or rolls them back.
func (l *randomLedger) produce(table string, n int, level pgx.TxIsoLevel) {
	l.Helper()
	tx, err := l.BeginTx(l.Context(), pgx.TxOptions{IsoLevel: level})
	need.OK(l, err)
	first := l.next
	for range n {
		l.write(tx, table)
	}
	if l.IntN(5) > 0 || n == 1 {
		err = tx.Commit(l.Context())
	} else {
		err = tx.Rollback(l.Context())
		for ; first < l.next; first++ {
			delete(l.committed, fmt.Sprint(first))
		}
	}
	need.Must(l, err == nil, "a producer got %v", err)
}

func (l *randomLedger) write(tx pgx.Tx, table string) {
	l.Helper()
	_, err := tx.Exec(context.WithoutCancel(l.Context()), l.insert(table, l.next))
	need.Must(l, err == nil, "a producer got %v", err)
	l.committed[fmt.Sprint(l.next)] = true
	l.next++
}

// beginOld begins a transaction whose snapshot is from before the next step.
func (l *randomLedger) beginOld() pgx.Tx {
	tx, err := l.BeginTx(l.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err == nil {
		_, err = tx.Exec(l.Context(), `select count(*) from pg_class`)
	}
	need.OK(l, err)
	return tx
}

// number is a row's number as SQL, and numbered the condition of one.
func (l *randomLedger) number() string {
	return quoted(l.spec.Columns["payload"]) + "::jsonb ->> 'n'"
}
func (l *randomLedger) numbered(n int) string { return fmt.Sprintf(`%s = '%d'`, l.number(), n) }

// work is a pass of their worker.
func (l *randomLedger) work(table string) {
	l.Helper()
	for _, n := range l.list(fmt.Sprintf(`select %s from %s where %s`, l.number(), table, l.open)) {
		l.theirs[n]++
	}
	if l.done == "" {
		l.exec(`delete from ` + table)
	} else {
		l.exec(fmt.Sprintf(`update %s set %s where %s`, table, l.done, l.open))
	}
}

// hold has their worker take rows, which finishHeld sends and reports.
func (l *randomLedger) hold(table string) {
	if l.IntN(2) == 0 {
		return
	}
	l.produce(table, 2, pgx.ReadCommitted)
	for _, n := range l.list(fmt.Sprintf(`select %s from %s where %s limit 2`, l.number(), table, l.open)) {
		l.inHands[n] = true
		if l.take != "" {
			l.exec(fmt.Sprintf(`update %s set %s where %s = '%s'`, table, l.take, l.number(), n))
		}
	}
}

func (l *randomLedger) finishHeld(table string) {
	for _, n := range slices.Collect(maps.Keys(l.inHands)) {
		if l.theirs[n] > 0 {
			continue
		}
		l.theirs[n]++
		if l.done == "" {
			l.exec(fmt.Sprintf(`delete from %s where %s = '%s'`, table, l.number(), n))
		} else {
			l.exec(fmt.Sprintf(`update %s set %s where %s = '%s'`, table, l.done, l.number(), n))
		}
	}
}

// deliver delivers due events, up to the given number.
func (l *randomLedger) deliver(most int) {
	l.Helper()
	late := l.list(`select payload ->> 'n' from outbox.outbox_events where live and next_attempt_at > now()`)
	need.That(l, len(late) == 0, "events %v are not due", late)
	for _, n := range l.list(fmt.Sprintf(`update outbox.outbox_events set status = 'delivered' where id in (
		select id from outbox.outbox_events where live order by next_attempt_at limit %d) returning payload ->> 'n'`, most)) {
		l.ours[n]++
	}
}

func (l *randomLedger) list(sql string) []string {
	l.Helper()
	rows, err := l.Query(l.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	need.OK(l, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	need.OK(l, err)
	return all
}

// settle holds what was sent against what was committed.
func (l *randomLedger) settle() {
	if n := pgtest.Value[int](l, `select count(*) from outbox.outbox_events where live`); n > 0 {
		l.Errorf("%d events wait", n)
	}
	for n := range l.committed {
		switch theirs, ours := l.theirs[n], l.ours[n]; {
		case theirs+ours == 0:
			l.Errorf("row %s is lost", n)
		case theirs+ours > 1 && !l.inHands[n]:
			l.Errorf("row %s was sent %d times by theirs and %d by ours", n, theirs, ours)
		}
	}
	for n := range l.theirs {
		need.That(l, l.committed[n], "row %s was rolled back, and sent by theirs", n)
	}
	for n := range l.ours {
		need.That(l, l.committed[n], "row %s was rolled back, and sent by ours", n)
	}
	if l.Failed() {
		l.Logf("the table is %v, mapped by %v, zone %s", l.ddl, l.spec.Columns, l.zone)
	}
}

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
