package adopt_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

var (
	tables = flag.Int("adopt.tables", 16, "how many tables TestCommittedRowsAreEvents makes; 76 have 5,000 transactions")
	seed   = flag.Uint64("adopt.seed", 1, "of the first of them")
)

// Tables made at random are adopted, cut over and given back, while producers insert, update, delete, roll back to savepoints and hold
// transactions open, at each level of isolation, and their worker works on. A row that was committed was sent once, as it was
// committed, by one side. Nothing else was sent, and no producer got an error but 40001 and 40P01, which it repeats.
//
// CONTRACT: C-91
func TestCommittedRowsAreEvents(t *testing.T) {
	for n := range uint64(*tables) {
		t.Run(fmt.Sprint(*seed+n), func(t *testing.T) { makeTable(*seed + n).play(t) })
	}
}

// randomTable is a table of a service made at random, and what became of its rows. A row has a number, and a version that each update raises:
// "7.2" is the row 7 as the second update left it.
type randomTable struct {
	rig
	*rand.Rand
	spec             adopt.Spec
	name             string
	ddl, constraints []string
	columns, values  []string // of an insert; %d is its number
	open, done       string   // the condition of open rows, and what makes one complete; empty where they are deleted
	opens, drafts    string   // what an update sets too, that makes a row open, and that keeps it from being sent
	child            bool
	zone, more, body string // of the table: what follows its columns, and the type of the payload

	sync.Mutex
	next              int
	committed, theirs map[string]int
}

func (r *randomTable) play(t *testing.T) {
	create := fmt.Sprintf("%s; create table %s (%s)%s", randomTypes, r.name, strings.Join(append(r.ddl, r.constraints...), ", "), r.more)
	r.rig = newRig(t, oldService{spec: r.spec, ddl: create})
	r.exec(fmt.Sprintf(`do $$ begin execute format('alter database %%I set timezone = %%L', current_database(), '%s'); end $$`, r.zone))
	r.Reset()
	during := func(step adopt.Step, state adopt.State) {
		wait := r.writers(3, 4)
		r.step(step, state, true)
		wait()
	}
	r.transactions(r.Rand, 3, false)
	r.work()
	during(adopt.ToShadow, adopt.Shadow)
	r.transactions(r.Rand, 3, false)
	s := r.status()
	need.That(t, s.OK() && s.Refused == 0, "in the shadow: %+v", s)
	r.work()
	r.transactions(r.Rand, 2, false)
	old, err := r.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	need.OK(t, err)
	defer func() { _ = old.Rollback(context.WithoutCancel(t.Context())) }()
	need.OK(t, need.Err(old.Exec(t.Context(), `select count(*) from pg_class`))) // its snapshot is from before
	during(adopt.Cutover, adopt.Live)
	key, err := r.insert(t.Context(), old)
	need.OK(t, err)
	need.OK(t, old.Commit(t.Context()))
	r.committed[key]++
	r.writers(3, 4)()
	r.transactions(r.Rand, 4, true)
	s = r.status()
	need.That(t, s.OK() && s.Refused == 0 && s.OpenRows == 0, "after the cut-over: %+v", s)
	r.settle("after the cut-over")
	r.exec(`update outbox.outbox_events set status = 'delivered'`)
	r.transactions(r.Rand, 3, false)
	r.exec(`update outbox.outbox_events set status = 'delivered' where id in (select id from outbox.outbox_events where live order by seq limit 3)`)
	during(adopt.Back, adopt.None)
	r.transactions(r.Rand, 2, false)
	r.work()
	pgtest.Want(r, 0, "%d events wait after the way back", `select count(*) from outbox.outbox_events where live`)
	r.settle("after the way back")
	if t.Failed() {
		t.Logf("the table is %s, mapped by %v, open %q, zone %s", create, r.spec.Columns, r.spec.Open, r.zone)
	}
}

// settle holds what was sent against what was committed.
func (r *randomTable) settle(when string) {
	r.Helper()
	sent := map[string]int{}
	for _, key := range r.list(`select concat(payload ->> 'n', '.', payload ->> 'v') from outbox.outbox_events`) {
		sent[key]++
	}
	for key, n := range r.theirs {
		sent[key] += n
	}
	for key := range r.committed {
		need.That(r, sent[key] == 1, "%s: row %s was sent %d times, %d of them by theirs", when, key, sent[key], r.theirs[key])
		delete(sent, key)
	}
	need.That(r, len(sent) == 0, "%s: %v were sent, and not committed", when, sent)
}

func (r *randomTable) list(sql string) []string {
	r.Helper()
	rows, err := r.Query(r.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	need.OK(r, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	need.OK(r, err)
	return all
}

// work is a pass of their worker.
func (r *randomTable) work() {
	r.Helper()
	sql := fmt.Sprintf(`update %s as r set %s where %s`, r.name, r.done, r.open)
	if r.done == "" {
		sql = `delete from ` + r.name + ` as r where ` + r.open
	}
	for _, key := range r.list(sql + ` returning concat(body::jsonb ->> 'n', '.', body::jsonb ->> 'v')`) {
		r.theirs[key]++
	}
}

// writers commit transactions at the same time, until all have ended.
func (r *randomTable) writers(writers, transactions int) (wait func()) {
	var group sync.WaitGroup
	for range writers {
		dice := rand.New(rand.NewPCG(r.Uint64(), 3))
		group.Go(func() { r.transactions(dice, transactions, false) })
	}
	r.Cleanup(group.Wait)
	return group.Wait
}

// transactions commits some. With again they also open rows of others again.
func (r *randomTable) transactions(dice *rand.Rand, n int, again bool) {
	for range n {
		script := rand.NewPCG(dice.Uint64(), 5)
		for try := range 200 {
			saved := *script // the same when it is repeated
			rows, err := r.transaction(rand.New(&saved), again)
			var pg *pgconn.PgError
			if errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01") && try < 199 {
				continue
			}
			if err != nil && !errors.Is(err, errRolledBack) {
				r.Errorf("a producer got %v", err)
			}
			r.Lock()
			for _, key := range rows {
				r.committed[key]++
			}
			r.Unlock()
			break
		}
	}
}

var errRolledBack = errors.New("rolled back")

// transaction returns the rows that it has left open, with their last versions, when it has committed.
func (r *randomTable) transaction(dice *rand.Rand, again bool) (rows []string, err error) {
	ctx := context.WithoutCancel(r.Context())
	level := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}[dice.IntN(3)]
	left := map[int]string{} // by their numbers
	err = pgx.BeginTxFunc(ctx, r.Pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
		for range 1 + dice.IntN(4) {
			end, before := "", map[int]string{}
			if dice.IntN(4) == 0 {
				for n, key := range left {
					before[n] = key
				}
				if end = "release a"; dice.IntN(2) == 0 {
					end = "rollback to a"
				}
				if _, err := tx.Exec(ctx, "savepoint a"); err != nil {
					return err
				}
			}
			if err := r.write(ctx, tx, dice, left); err != nil {
				return err
			}
			if again && r.done != "" && dice.IntN(2) == 0 {
				if err := r.reopen(ctx, tx, left); err != nil {
					return err
				}
			}
			if end != "" {
				if _, err := tx.Exec(ctx, end); err != nil {
					return err
				}
				if end == "rollback to a" {
					left = before
				}
			}
		}
		if dice.IntN(5) == 0 {
			return errRolledBack
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, key := range left {
		rows = append(rows, key)
	}
	return rows, nil
}

// write inserts a row, and may change it, have another refer to it, or delete it.
func (r *randomTable) write(ctx context.Context, tx pgx.Tx, dice *rand.Rand, left map[int]string) error {
	key, err := r.insert(ctx, tx)
	if err != nil {
		return err
	}
	n := 0
	_, _ = fmt.Sscanf(key, "%d.", &n)
	left[n] = key
	at, more := fmt.Sprintf(" where body::jsonb ->> 'n' = '%d'", n), []string{}
	update := func(v int, set string) {
		more = append(more, fmt.Sprintf(`update %s set body = '{"n": %d, "v": %d}'%s`, r.name, n, v, set)+at)
	}
	switch dice.IntN(7) {
	case 0:
		update(1, r.opens)
		update(2, r.opens)
		left[n] = fmt.Sprintf("%d.2", n)
	case 1:
		update(1, r.drafts)
		if left[n] = fmt.Sprintf("%d.1", n); r.drafts != r.opens {
			delete(left, n)
		}
	case 2:
		update(1, r.drafts)
		update(2, r.opens)
		left[n] = fmt.Sprintf("%d.2", n)
	case 3:
		more = append(more, "delete from "+r.name+at)
		delete(left, n)
	case 4:
		if r.child {
			more = append(more, fmt.Sprintf("insert into children select id from %s", r.name)+at)
		}
	}
	for _, sql := range more {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// reopen has a row that is complete sent again, with another content.
func (r *randomTable) reopen(ctx context.Context, tx pgx.Tx, left map[int]string) error {
	sql := fmt.Sprintf(`update %[1]s set body = (jsonb_set(body::jsonb, '{v}', to_jsonb((body::jsonb ->> 'v')::integer + 100)))::text::%[3]s%[2]s
		where id = (select id from %[1]s as r where not (%[4]s) order by random() limit 1 for update skip locked)
		returning (body::jsonb ->> 'n')::integer, concat(body::jsonb ->> 'n', '.', body::jsonb ->> 'v')`, r.name, r.opens, r.body, r.open)
	var n int
	var key string
	err := tx.QueryRow(ctx, sql, pgx.QueryExecModeSimpleProtocol).Scan(&n, &key)
	if err == nil {
		left[n] = key
	} else if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return err
}

func (r *randomTable) insert(ctx context.Context, tx pgx.Tx) (key string, err error) {
	r.Lock()
	n := r.next
	r.next++
	r.Unlock()
	_, err = tx.Exec(ctx, fmt.Sprintf(`insert into %s (%s) values (%s)`, r.name, strings.Join(r.columns, ", "), strings.ReplaceAll(strings.Join(r.values, ", "), "%d", fmt.Sprint(n))))
	return fmt.Sprintf("%d.0", n), err
}

const randomTypes = `create type random_state as enum ('NEW', 'SENDING', 'SENT', 'DRAFT');
	create domain random_word as text check (value <> ''); create domain random_number as bigint check (value >= 0);
	create table parents (id integer primary key); insert into parents values (1)`

func (r *randomTable) one(of ...string) string { return of[r.IntN(len(of))] }

func (r *randomTable) add(ours, column, ddl, value string) {
	if ours != "" {
		r.spec.Columns[ours] = strings.Trim(column, `"`)
	}
	r.ddl = append(r.ddl, column+" "+ddl)
	if value != "" {
		r.columns, r.values = append(r.columns, column), append(r.values, value)
	}
}

// makeTable makes the table of a seed.
func makeTable(seed uint64) *randomTable {
	r := &randomTable{Rand: rand.New(rand.NewPCG(seed, 7)), committed: map[string]int{}, theirs: map[string]int{}}
	name := r.one("box", "Order Events", "select", "größe", `a"b`)
	r.name = pgx.Identifier{name}.Sanitize()
	r.spec = adopt.Spec{Name: "random", Layout: adopt.Columns, Table: "public." + name, Namespace: "shop", Topic: "orders", Columns: map[string]string{}}
	r.zone = r.one("UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Europe/Berlin")
	r.body = r.one("jsonb", "json", "text", "varchar")
	r.add("payload", "body", r.body+" not null", `'{"n": %d, "v": 0}'`)
	kind := r.one("bigint generated always as identity", "integer", "random_number", "uuid", "text", "random_word")
	r.add("id", "id", kind+" primary key", map[string]string{"integer": "%d", "random_number": "9007199254740993 + %d", "uuid": "gen_random_uuid()",
		"text": `'ORDER/%d "x" #1'`, "random_word": `'%d'`}[kind])
	if r.IntN(4) == 0 {
		r.more = fmt.Sprintf(" partition by hash (id); create table random_even partition of %[1]s for values with (modulus 2, remainder 0); create table random_odd partition of %[1]s for values with (modulus 2, remainder 1)", r.name)
	}
	r.marks()
	if !strings.Contains(kind, "int") && kind != "random_number" || r.IntN(2) == 0 {
		at := r.one("timestamptz default clock_timestamp()", "timestamp default clock_timestamp()", "timestamp default (clock_timestamp() at time zone 'utc')")
		r.add("created", "at", at, r.one("", "default", "clock_timestamp()", "case when mod(%d, 3) > 0 then clock_timestamp() end"))
	}
	if r.IntN(3) == 0 {
		r.add("attempts", "tries", r.one("smallint", "integer", "bigint")+" default 0", r.one("0", "3", "25", "null"))
	}
	if r.IntN(4) == 0 {
		r.add("due", `"visible at"`, "timestamptz", r.one("null", "now()"))
	}
	if r.IntN(3) == 0 {
		r.add("aggregateId", `"order"`, r.one("bigint", "text", "random_number"), r.one("'%d'", "null", "'7'"))
	}
	if r.IntN(3) == 0 {
		r.add("headers", "meta", r.one("json", "jsonb"), r.one("null", `'{"a": "b", "n": 1}'`))
	}
	if r.IntN(3) == 0 {
		r.add("", "size", "integer generated always as (length(body::text)) stored", "")
	}
	if r.IntN(3) == 0 {
		r.add("", "parent", "integer references parents", r.one("1", "null"))
	}
	if r.child = r.done != "" && r.IntN(2) == 0; r.child {
		idType, _, _ := strings.Cut(kind, " ")
		r.more += fmt.Sprintf("; create table children (row %s not null references %s)", idType, r.name)
	}
	return r
}

// marks adds what says that a row is to be sent.
func (r *randomTable) marks() {
	set := func(column, open, drafts, done string) {
		r.open, r.opens, r.drafts, r.done = column+" = "+open, ", "+column+" = "+open, ", "+column+" = "+drafts, column+" = "+done
	}
	switch r.IntN(5) {
	case 0: // a time that a check compares with the application's
		r.add("", "happened", "timestamptz not null", "clock_timestamp()")
		r.add("completed", `"sent at"`, "timestamptz", "")
		r.constraints = append(r.constraints, `check ("sent at" is null or "sent at" >= happened)`)
		set(`"sent at"`, "null", "now() + interval '1 hour'", "clock_timestamp()")
		r.open = `"sent at" is null`
	case 1:
		r.add("", "sent", "boolean not null default false", "")
		r.spec.Columns["status"] = "sent:false:true"
		set("sent", "false", "true", "true")
	case 2: // two columns, of which each may be null
		r.add("", "state", r.one("text", "varchar(9)", "random_state", "random_word")+" default 'NEW'", r.one("'NEW'", "'SENDING'"))
		r.add("", "blocked", "boolean", r.one("null", "false"))
		r.spec.Columns["status"], r.spec.Open = "state:NEW:SENT", "r.state in ('NEW', 'SENDING') and r.blocked is not true"
		set("state", "'NEW'", r.one("null", "'DRAFT'"), "'SENT'")
		r.open = "r.state in ('NEW', 'SENDING') and blocked is not true"
	case 3:
		r.add("", "state", r.one("smallint", "random_number")+" not null default 0", "")
		r.spec.Columns["status"] = "state:0:2"
		set("state", "0", "2", "2")
	case 4:
		r.spec.Columns["sent"] = "delete"
		r.open = "true"
	}
}
