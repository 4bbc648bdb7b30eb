package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// raising makes a trigger on dead letters that runs this body.
func raising(body string) string {
	return `create function refuse() returns trigger language plpgsql as $$ begin ` + body + `; return new; end $$;
		create trigger refuse before insert on outbox.outbox_dead_letters for each row execute function refuse()`
}

// An error of the server says whether the rows of the statement are refused, or the statement may well
// succeed later with the same rows.
// CONTRACT: C-33
func TestServerErrorSeparatesRefusedRowsFromRetryable(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		breaks  string // of the owner; ROLE stands for the dispatcher's login
		setting string // of the dispatcher's sessions
		code    string
		refused bool
	}{
		"exception of a trigger":      {breaks: raising(`raise exception 'not in this table'`), code: "P0001", refused: true},
		"division by zero":            {breaks: raising(`perform 1 / (new.attempts - new.attempts)`), code: "22012", refused: true},
		"table of a trigger is gone":  {breaks: raising(`insert into audit values (new.event_id)`), code: "42P01", refused: true},
		"column of a trigger is gone": {breaks: raising(`new.severity = 1`), code: "42703", refused: true},
		"check":                       {breaks: `alter table outbox.outbox_dead_letters add check (topic <> 'orders') not valid`, code: "23514", refused: true},
		"not null":                    {breaks: `alter table outbox.outbox_dead_letters add column severity integer not null`, code: "23502", refused: true},
		"no right to insert":          {breaks: `revoke insert on outbox.outbox_dead_letters from ROLE`, code: "42501", refused: true},
		"row security":                {breaks: `alter table outbox.outbox_dead_letters enable row level security`, code: "42501", refused: true},

		"statement timeout":   {breaks: raising(`perform pg_sleep(60)`), setting: "&statement_timeout=300", code: "57014"},
		"lock timeout":        {breaks: `begin; lock table outbox.outbox_dead_letters`, setting: "&lock_timeout=300", code: "55P03"},
		"transaction timeout": {breaks: raising(`raise exception 'of PostgreSQL 17 and later' using errcode = '25P04'`), code: "25P04"},
		"full disk":           {breaks: raising(`raise exception 'no space left on device' using errcode = '53100'`), code: "53100"},
		"reads only":          {breaks: `select`, setting: "&default_transaction_read_only=on", code: "25006"},
		"session ended":       {breaks: raising(`perform pg_terminate_backend(pg_backend_pid())`), code: "57P01"},
		"deadlock":            {breaks: raising(`raise exception 'deadlock' using errcode = '40P01'`), code: "40P01"},
		"table is gone":       {breaks: `drop table outbox.outbox_dead_letters`, code: "42P01"},
		"column is gone":      {breaks: `alter table outbox.outbox_dead_letters drop column attempts`, code: "42703"},
		"schema out of reach": {breaks: `alter schema outbox rename to elsewhere`, code: "42P01"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, pgtest.Migrated(t))
			o.fill(1, "orders")
			dsn := o.login(migrations.Dispatcher)
			worker := uuid.New()
			o.stores = pgtest.Pool(t, dsn)
			claimed, err := o.Store("shop", worker).Claim(t.Context(), share("orders", 1))
			need.Must(t, err == nil && len(claimed.Events) == 1, "claimed %d events, %v", len(claimed.Events), err)
			breaker, err := o.Acquire(t.Context()) // keeps its transaction, if it has one
			check(t, "Acquire", err)
			defer func() {
				_, _ = breaker.Exec(context.Background(), `rollback`)
				breaker.Release()
			}()
			_, err = breaker.Exec(t.Context(), strings.ReplaceAll(test.breaks, "ROLE", user(t, dsn)))
			check(t, test.breaks, err)

			o.stores = pgtest.Pool(t, dsn+test.setting)
			_, err = o.Store("shop", worker).Nack(t.Context(), []dispatcher.Failure{{Lease: claimed.Events[0].Lease(), Reason: dispatcher.ReasonPoisonMessage, Delay: time.Second}})
			var pg *pgconn.PgError
			need.Must(t, errors.As(err, &pg) && pg.Code == test.code, "the error is %v, want SQLSTATE %s", err, test.code)
			need.That(t, dispatcher.IsRefused(err) == test.refused, "refused is %v for: %v", !test.refused, err)
			slow := strings.HasSuffix(name, " timeout")
			need.That(t, dispatcher.IsTooSlow(err) == slow, "too slow is %v for: %v", !slow, err)
		})
	}
}

// An unreachable server refuses nothing.
func TestUnreachableServerDoesNotRefuse(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, "postgres://missing@127.0.0.1:1/none?sslmode=disable")
	store := pgstore.New(pool, pgstore.Options{Namespace: "shop"})
	_, err := store.Ack(t.Context(), []dispatcher.Lease{{ID: uuid.New(), Number: 1}})
	need.That(t, err != nil && !dispatcher.IsRefused(err), "the error is %v", err)
}

// A deadline of the client is of the statement, too.
func TestDeadlineOfTheClientIsTooSlow(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	tx, err := o.Begin(t.Context())
	check(t, "Begin", err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `lock table outbox.outbox_events`)
	check(t, "lock", err)
	_, err = o.Store("shop", uuid.New()).Ack(ctx, []dispatcher.Lease{{ID: uuid.New(), Number: 1}})
	need.That(t, dispatcher.IsTooSlow(err) && !dispatcher.IsRefused(err), "the error is %v", err)
}

// A nack that is tried again, since its response did not arrive, does not say that the rows that it made dead are lost.
// CONTRACT: C-23, C-43
func TestDeadRowIsNotLost(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fill(4, "orders")
	store := o.Store("shop", uuid.New())
	claimed, err := store.Claim(t.Context(), share("orders", 4))
	check(t, "Claim", err)
	var failures []dispatcher.Failure
	for i, reason := range []dispatcher.DeadReason{dispatcher.ReasonPermanentFailure, "", dispatcher.ReasonPoisonMessage} {
		failures = append(failures, dispatcher.Failure{Lease: claimed.Events[i].Lease(), Error: "no", Reason: reason, Delay: time.Hour})
	}
	lost, err := store.Nack(t.Context(), failures)
	need.Must(t, err == nil && len(lost) == 0, "lost %v, %v", lost, err)
	failures = append(failures, dispatcher.Failure{Lease: dispatcher.Lease{ID: claimed.Events[3].ID, Number: 1 << 40}, Error: "no", Reason: dispatcher.ReasonPermanentFailure})
	lost, err = store.Nack(t.Context(), failures)
	want := []dispatcher.Lease{failures[1].Lease, failures[3].Lease}
	need.That(t, err == nil && len(lost) == 2 && slices.Contains(lost, want[0]) && slices.Contains(lost, want[1]),
		"lost are %v, %v; want %v: a retry, and a lease of another", lost, err, want)
	failures[0].Reason = dispatcher.ReasonPoisonMessage // as of a claim that made it dead meanwhile
	lost, err = store.Nack(t.Context(), failures[:1])
	need.That(t, err == nil && len(lost) == 1, "lost are %v, %v; want the one that is dead for another reason", lost, err)
	pgtest.Want(o, 2, "%d dead letters, want 2", `select count(*) from outbox.outbox_dead_letters`)
}

// A row that the database refuses to lease, or to mark dead, is found by a claim of one row, and named. What claims are to skip they leave alone: they
// take what is before and behind it, and in order per key its key waits for it. A row that another one has locked is not
// blamed, and neither is the next.
// CONTRACT: C-33
func TestRowThatIsRefusedAtAClaimIsNamed(t *testing.T) {
	t.Parallel()
	const rows = 12
	on := func(event, body string) string {
		return `create function refuse() returns trigger language plpgsql as $$ begin ` + body + `; return new; end $$;
			create trigger refuse before ` + event + ` on outbox.outbox_events for each row execute function refuse()`
	}
	orders := map[string]func(*dispatcher.ClaimRequest){
		"None":   func(*dispatcher.ClaimRequest) {},
		"Key":    func(r *dispatcher.ClaimRequest) { r.Keys = &dispatcher.KeyOrder{PerKey: 5} },
		"Tenant": func(r *dispatcher.ClaimRequest) { r.Fair = true },
	}
	for name, test := range map[string]struct{ breaks, code string }{ // ID stands for the id of the row
		"check not valid": {`alter table outbox.outbox_events add check (id <> 'ID') not valid`, "23514"},
		"trigger":         {on("update", `if new.id = 'ID' then raise exception 'not this one'; end if`), "P0001"},
		"marking dead":    {`update outbox.outbox_events set attempts = 3, max_attempts = 3 where id = 'ID'; ` + raising(`raise exception 'not in this table'`), "P0001"},
		"cast":            {on("update of status", `perform case when new.id = 'ID' then (new.payload ->> 'n')::integer end`), "22P02"},
		"damaged value": {`set allow_system_table_mods = on; update outbox.outbox_events set payload = (select to_jsonb(string_agg(md5(n::text), '')) from generate_series(1, 1000) as n) where id = 'ID';
			update pg_class set relkind = 'r' where oid = (select reltoastrelid from pg_class where oid = 'outbox.outbox_events'::regclass);
			do $$ begin execute (select format('truncate %s', reltoastrelid::regclass) from pg_class where oid = 'outbox.outbox_events'::regclass); end $$;
			update pg_class set relkind = 't' where oid = (select reltoastrelid from pg_class where oid = 'outbox.outbox_events'::regclass)`, "XX001"},
	} {
		for order, in := range orders {
			t.Run(name+" "+order, func(t *testing.T) {
				t.Parallel()
				o := newTenants(t)
				ids := pgtest.Value[[]uuid.UUID](o, `with made as (insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload, next_attempt_at)
					select gen_random_uuid(), 'shop', 'orders', (n / 3)::text, '{"n": "none"}', now() - interval '1 hour' + n * interval '1 second' from generate_series(1, $1::integer) as n returning id, next_attempt_at)
					select array_agg(id order by next_attempt_at) from made`, rows)
				odd := ids[5] // the first of its key
				pgtest.Exec(o, strings.ReplaceAll(test.breaks, "ID", odd.String()))
				store := o.Store("shop", uuid.New()).(*pgstore.Store)
				got := map[uuid.UUID]bool{}
				claim := func(limit int, skip ...uuid.UUID) error {
					t.Helper()
					req := dispatcher.ClaimRequest{Shares: []dispatcher.Share{{Topic: "orders", Limit: limit}}, Lease: time.Minute, MaxAttempts: 3, Skip: skip}
					in(&req)
					claimed, err := store.Claim(t.Context(), req)
					for _, e := range claimed.Events {
						got[e.ID] = true
					}
					_, failed := store.Ack(t.Context(), leasesOf(claimed.Events))
					need.OK(t, failed)
					return err
				}
				err := claim(rows)
				var row *dispatcher.RefusedRow
				need.Must(t, dispatcher.IsRefused(err) && !errors.As(err, &row), "a claim of all rows: %v", err)
				for tries := 0; !errors.As(err, &row); err = claim(1) {
					tries++
					need.Must(t, tries <= rows, "no claim named the row; the last: %v", err)
				}
				var pg *pgconn.PgError
				need.That(t, row.ID == odd && row.Topic == "orders" && dispatcher.IsRefused(err) && errors.As(err, &pg) && pg.Code == test.code, "it names %v, want %s", row, odd)
				named, err := store.RefusedRows(t.Context(), nil)
				need.That(t, err == nil && len(named) == 1 && named[0].ID == odd, "the first rows of topics that are refused are %v, %v", named, err)

				other := pgtest.Begin(o, `select from outbox.outbox_events where id = $1 for update`, odd)
				named, err = store.RefusedRows(t.Context(), []string{"orders"})
				need.That(t, err == nil && len(named) == 0, "while another one has it locked they are %v, %v", named, err)
				check(t, "Rollback", other.Rollback(t.Context()))

				want := rows - 1
				if order == "Key" {
					want -= 2 // the rows behind it
				}
				o.eventually("all others are claimed", func() bool {
					need.OK(t, claim(rows, odd, uuid.New()))
					return len(got) >= want
				})
				need.That(t, len(got) == want && !got[odd], "%d rows were claimed, want %d", len(got), want)
			})
		}
	}
}

// An event that is delivered slowly keeps its own megabyte in memory, and not those of the events that were
// claimed with it. (Not parallel: it measures the heap.)
// CONTRACT: C-35
func TestSlowEventKeepsItsOwnMemory(t *testing.T) {
	o := newOutbox(t, pgtest.Migrated(t))
	const events, size = 60, 1 << 20
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload, headers)
		select gen_random_uuid(), 'shop', 'orders', to_jsonb(repeat('x', $2::integer)), jsonb_build_object('h', repeat('y', 60000))
		from generate_series(1, $1::integer)`, events, size)
	before := heap()
	claimed, err := o.Store("shop", uuid.New()).Claim(t.Context(), share("orders", events))
	need.Must(t, err == nil && len(claimed.Events) == events, "claimed %d events, %v", len(claimed.Events), err)
	slow := claimed.Events[events/2]
	all := heap() - before
	runtime.KeepAlive(claimed)
	claimed = dispatcher.Claimed{}
	one := heap() - before
	t.Logf("%d events keep %d KiB, one of them keeps %d KiB", events, all>>10, one>>10)
	need.That(t, all >= events*size && one <= 4*size, "%d events keep %d bytes, and one of them %d, want at most 4 MiB", events, all, one)
	runtime.KeepAlive(slow)
}

// heap is how many bytes are reachable.
func heap() int64 {
	var m runtime.MemStats
	for range 2 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The bytes of a claim are those of payloads and headers, whether the server has compressed these or not.
// CONTRACT: C-35
func TestClaimCountsHeadersAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	const events, size = 20, 50_000
	for name, value := range map[string]string{
		"compressed":   `repeat('x', $2)`,
		"uncompressed": `left((select string_agg(md5(random()::text || i || n), '') from generate_series(1, 2000) as i), $2)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, pgtest.Migrated(t))
			pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload, headers)
				select gen_random_uuid(), 'shop', 'orders', n::text, '{}', jsonb_build_object('h', `+value+`)
				from generate_series(1, $1::integer) as n`, events, size)
			store := o.Store("shop", uuid.New())
			claim := func(keys *dispatcher.KeyOrder) int {
				t.Helper()
				claimed, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
					Shares: []dispatcher.Share{{Topic: "orders", Limit: events}}, Lease: time.Minute, MaxAttempts: 10,
					MaxBytes: 5*size + 5000, Keys: keys,
				})
				need.OK(t, err)
				if lost, err := store.Release(t.Context(), returnsOf(claimed.Events)); err != nil || len(lost) > 0 {
					t.Errorf("lost %v, %v", lost, err)
				}
				return len(claimed.Events)
			}
			n := claim(nil)
			need.That(t, n == 5, "a claim had room for %d rows of %d bytes of headers in %d bytes, want 5", n, size, 5*size+5000)
			for range 3 { // dense is what a claim is when the one before it was full
				need.Want(t, 5, "a claim in order had room for %d rows, want 5", claim(&dispatcher.KeyOrder{PerKey: 3}))
			}
		})
	}
}

// manyDeadLetters adds so many open dead letters of a topic in so many groups, as many in each, and of each another one
// that is resolved.
func (o outbox) manyDeadLetters(topic string, records, groups int) {
	o.Helper()
	pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, class, code, attempts, dead_at, resolution, resolved_at, resolved_by)
		select gen_random_uuid(), 'shop', $1, 'permanent_failure', 'http', (n % $3::integer)::text, 1, now() - n * interval '1 second',
			resolution, case when resolution <> '' then now() end, case when resolution <> '' then 'me' end
		from generate_series(1, $2::integer) as n cross join (values (null), ('discarded')) as r (resolution)`, topic, records, groups)
}

// The groups of 100,000 dead letters are found by the index alone: it is not read from end to end, and neither is the
// table; and what is sorted are groups. With old statistics and none.
// CONTRACT: C-96
// REQUIREMENT: OVERVIEW-5, STORAGE-20
func TestGroupsPlanReadsTheIndexAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	p := newPlanned(t, pgtest.Migrated(t))
	pgtest.Exec(p, `alter table outbox.outbox_dead_letters set (autovacuum_enabled = off)`)
	pgtest.Exec(p, `prepare groups as `+pgstore.GroupsSQL())
	groups := func() plan { return p.explain(`execute groups ('shop', '{orders,none}', 1000, 10000, 20000, 20)`) }
	groups() // makes the plan of an empty table
	p.manyDeadLetters("orders", 100_000, 30)
	for _, statistics := range []string{"of an empty table", "none", "new"} {
		switch statistics {
		case "none":
			pgtest.Exec(p, `deallocate groups; prepare groups as `+pgstore.GroupsSQL())
		case "new":
			pgtest.Exec(p, `vacuum analyze outbox.outbox_dead_letters`)
			pgtest.Exec(p, `deallocate groups; prepare groups as `+pgstore.GroupsSQL())
		}
		plan := groups()
		t.Logf("statistics %s: %d groups, %d buffers in %.1f ms", statistics, plan.Rows, plan.buffers(), plan.millis)
		need.Want(t, 20, "statistics %s: %d groups, want 20", plan.Rows, statistics)
		need.That(t, !plan.has("Seq Scan") && !plan.has("Bitmap Heap Scan"), "statistics %s: the table is read: %+v", statistics, plan)
		for name := range plan.indexes() {
			need.Want(t, "outbox_dead_letters_open", "statistics %s: the index %s is used", name, statistics)
		}
		n := plan.sorted()
		need.That(t, n <= 40, "statistics %s: %d rows are sorted, want at most the steps to 30 groups", statistics, n)
		// 666 of each of 30 groups are counted, each with its page of the table while nothing was vacuumed.
		n = plan.buffers()
		need.That(t, n <= 30_000, "statistics %s: %d buffers", statistics, n)
	}
}

// sorted is the most rows that a node sorts.
func (p plan) sorted() (n int) {
	if p.Type == "Sort" || p.Type == "Incremental Sort" {
		n = p.Rows
		for _, part := range p.Parts {
			n = max(n, part.Rows)
		}
	}
	for _, part := range p.Parts {
		n = max(n, part.sorted())
	}
	return n
}

// Small groups are counted, large ones estimated, and the largest twenty are listed.
// CONTRACT: C-96
func TestLargeGroupsAreEstimated(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.manyDeadLetters("orders", 25_000, 1)
	o.manyDeadLetters("small", 25*10, 25)
	depth, err := o.Store("shop", uuid.New()).Depth(t.Context(), nil)
	need.OK(t, err)
	need.Must(t, len(depth.Groups) == dispatcher.GroupsListed, "%d groups, want %d", len(depth.Groups), dispatcher.GroupsListed)
	for i, g := range depth.Groups {
		need.That(t, i == 0 || (g.Topic == "small" && g.Count == dispatcher.Count{N: 10}), "group %d is %+v, want ten of topic small", i, g)
	}
	if g := depth.Groups[0]; g.Topic != "orders" || !g.Count.Estimated || g.Count.N < 20_000 || g.Count.N > 30_000 || g.Count.N%1000 != 0 {
		t.Errorf("the first group is %+v, want about 25,000 of topic orders, in thousands", g)
	}
	for _, d := range depth.Topics {
		want := (dispatcher.Count{N: 250})
		need.That(t, d.Topic != "small" || d.Dead == want, "the topic with small groups has %+v, want %+v", d.Dead, want)
	}
}

// The nack of an event is what writes its failures: their size is printed with the other budgets.
func TestNackBudgetIsPrinted(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	p, _ := newServer(t)
	const events = 1000
	p.fill(events, "orders")
	store := p.Store("shop", uuid.New())
	for attempt := 1; attempt <= 7; attempt++ {
		claimed, err := store.Claim(t.Context(), share("orders", events))
		need.Must(t, err == nil && len(claimed.Events) == events, "claimed %d events, %v", len(claimed.Events), err)
		failures := make([]dispatcher.Failure, events)
		for i, e := range claimed.Events {
			failures[i] = dispatcher.Failure{Lease: e.Lease(), Cause: dispatcher.Cause{Class: "http", Code: "503"},
				Error: fmt.Sprintf("https://shop.example/events returned 503 Service Unavailable; the destination's log says why; the event is retried %d", i)}
		}
		written := p.wal(func() {
			if lost, err := store.Nack(t.Context(), failures); err != nil || len(lost) > 0 {
				t.Fatalf("lost %v, %v", lost, err)
			}
		}) / events
		t.Logf("WAL bytes per event: %d for nack %d", written, attempt)
		need.That(t, written <= 4000, "nack %d writes %d bytes of WAL for an event, want at most 4000", attempt, written)
	}
}
