package retention_test

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// outbox is a migrated database, without autovacuum.
type outbox struct {
	*testing.T
	*pgxpool.Pool               // of the owner
	sweeps        *pgxpool.Pool // with a dispatcher's rights and no other
	namespace     string        // of what is added
}

func newOutbox(t *testing.T) outbox {
	t.Helper()
	o := outbox{T: t, Pool: pgtest.Pool(t, pgtest.Migrated(t)), namespace: "shop"}
	pgtest.Exec(o, `alter table outbox.outbox_events set (autovacuum_enabled = off)`)
	o.sweeps = pgtest.Pool(t, pgtest.Login(t, o.Pool, migrations.Dispatcher))
	return o
}

const day = 24 * time.Hour

// sweeper keeps delivered rows for a week, and resolved dead letters for a month.
func (o outbox) sweeper(change func(*retention.Options)) *retention.Sweeper {
	opts := retention.Options{Delivered: 7 * day, DeadResolved: 30 * day}
	if change != nil {
		change(&opts)
	}
	return retention.New(o.sweeps, opts)
}

// sweep makes a run due, and does it.
func (o outbox) sweep(s *retention.Sweeper) {
	o.Helper()
	pgtest.Exec(o, `update outbox.outbox_sweeps set next_run = now()`)
	ran, err := s.Sweep(o.Context())
	need.Must(o, err == nil && ran, "a run that is due ran: %v, %v", ran, err)
}

// add inserts an event that was changed some days ago.
func (o outbox) add(status string, days int, key string) (id uuid.UUID) {
	o.Helper()
	id = uuid.New()
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, partition_key, payload, status, dead_reason, locked_by, locked_until, updated_at)
		values ($1, $5, 'orders', nullif($4, ''), '{}', $2::text, case $2::text when 'dead' then 'poison_message' end,
			case $2::text when 'processing' then gen_random_uuid() end, case $2::text when 'processing' then now() end, now() - make_interval(days => $3))`,
		id, status, days, key, o.namespace)
	return id
}

// deadLetter adds a dead letter from some days ago, resolved some days ago; -1 for never.
func (o outbox) deadLetter(id uuid.UUID, dead, resolved int) (deadLetter int64) {
	o.Helper()
	return pgtest.Value[int64](o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, reason, attempts, dead_at, resolution, resolved_at, resolved_by)
		select $1, $4, 'orders', e.seq, e.key_hash, 'poison_message', 1, now() - make_interval(days => $2),
			case when $3::integer >= 0 then 'discarded' end, case when $3::integer >= 0 then now() - make_interval(days => $3) end, case when $3::integer >= 0 then 'ada' end
		from (select) as one left join outbox.outbox_events as e on e.id = $1
		returning id`, id, dead, resolved, o.namespace)
}

func (o outbox) row(id uuid.UUID) bool {
	o.Helper()
	return pgtest.Value[bool](o, `select exists (select from outbox.outbox_events where id = $1)`, id)
}

// deadLetters returns the resolutions of an event's dead letters, in their order.
func (o outbox) deadLetters(id uuid.UUID) string {
	o.Helper()
	return pgtest.Value[string](o, `select coalesce(string_agg(coalesce(resolution, 'open'), ' ' order by id), '') from outbox.outbox_dead_letters where event_id = $1`, id)
}

// serve adds a worker of all topics of the namespace.
func (o outbox) serve(blocks bool) {
	o.Helper()
	pgtest.Exec(o, `insert into outbox.outbox_workers (worker, dispatcher, namespace, blocks) values (gen_random_uuid(), 'shop', $2, $1)`, blocks, o.namespace)
}

// Each row goes or stays by its status, its age and its dead letters.
// CONTRACT: C-60
// REQUIREMENT: STORAGE-54
func TestRowsGoAfterTheirRetention(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	for name, test := range map[string]struct {
		status      string
		days        int    // since the row was changed
		key         string // of the row
		deadLetters [][2]int
		unresolved  time.Duration
		serve       []bool // dispatchers with onDead Block, or Continue
		stays       bool
		left        string // dead letters
	}{
		"delivered long ago":         {status: "delivered", days: 8},
		"delivered of late":          {status: "delivered", days: 6, stays: true},
		"pending for long":           {status: "pending", days: 100, stays: true},
		"leased for long":            {status: "processing", days: 100, stays: true},
		"replayed, and live":         {status: "pending", days: 100, deadLetters: [][2]int{{90, 80}}, stays: true, left: "discarded"},
		"unresolved":                 {status: "dead", days: 3000, deadLetters: [][2]int{{3000, -1}}, stays: true, left: "open"},
		"resolved of late":           {status: "dead", days: 90, deadLetters: [][2]int{{90, 29}}, stays: true, left: "discarded"},
		"resolved long ago":          {status: "dead", days: 90, deadLetters: [][2]int{{90, 31}}},
		"dead again, not resolved":   {status: "dead", days: 90, deadLetters: [][2]int{{90, 80}, {79, -1}}, stays: true, left: "discarded open"},
		"dead again, resolved":       {status: "dead", days: 90, deadLetters: [][2]int{{90, 80}, {79, 31}}},
		"dead again, of late":        {status: "dead", days: 90, deadLetters: [][2]int{{90, 80}, {79, 29}}, stays: true, left: "discarded discarded"},
		"the earlier one is open":    {status: "dead", days: 90, deadLetters: [][2]int{{90, -1}, {79, 31}}, stays: true, left: "open discarded"},
		"dead without a dead letter": {status: "dead", days: 90, unresolved: day, stays: true},
		"replayed and delivered":     {status: "delivered", days: 1, deadLetters: [][2]int{{90, 80}}, stays: true},
		"its event is gone":          {deadLetters: [][2]int{{90, 31}}},
		"its event is gone, of late": {deadLetters: [][2]int{{90, 29}}, left: "discarded"},
		"its event is gone, open":    {deadLetters: [][2]int{{90, -1}}, left: "open"},

		"expires":                           {status: "dead", days: 90, deadLetters: [][2]int{{61, -1}}, unresolved: 60 * day, left: "expired"},
		"does not expire yet":               {status: "dead", days: 90, deadLetters: [][2]int{{59, -1}}, unresolved: 60 * day, stays: true, left: "open"},
		"live, and open":                    {status: "pending", days: 90, deadLetters: [][2]int{{61, -1}}, unresolved: 60 * day, stays: true, left: "open"},
		"dead again before it expires":      {status: "dead", days: 90, deadLetters: [][2]int{{61, -1}, {59, -1}}, unresolved: 60 * day, stays: true, left: "open open"},
		"expires after others":              {status: "dead", days: 90, deadLetters: [][2]int{{90, 85}, {61, -1}}, unresolved: 60 * day, left: "discarded expired"},
		"gone, and expires":                 {deadLetters: [][2]int{{61, -1}}, unresolved: 60 * day, left: "expired"},
		"a key, and Continue":               {status: "dead", key: "k", days: 90, deadLetters: [][2]int{{61, -1}}, unresolved: 60 * day, serve: []bool{false}, left: "expired"},
		"a key, and Block":                  {status: "dead", key: "k", days: 90, deadLetters: [][2]int{{61, -1}}, unresolved: 60 * day, serve: []bool{true}, stays: true, left: "open"},
		"a key, and both":                   {status: "dead", key: "k", days: 90, deadLetters: [][2]int{{61, -1}}, unresolved: 60 * day, serve: []bool{false, true}, stays: true, left: "open"},
		"a key, and no dispatcher":          {status: "dead", key: "k", days: 90, deadLetters: [][2]int{{61, -1}}, unresolved: 60 * day, stays: true, left: "open"},
		"a key, Block, resolved by someone": {status: "dead", key: "k", days: 90, deadLetters: [][2]int{{61, 31}}, serve: []bool{true}},
	} {
		t.Run(name, func(t *testing.T) {
			o := o
			o.T, o.namespace = t, name
			id := uuid.New()
			if test.status != "" {
				id = o.add(test.status, test.days, test.key)
			}
			for _, l := range test.deadLetters {
				o.deadLetter(id, l[0], l[1])
			}
			for _, blocks := range test.serve {
				o.serve(blocks)
			}
			var removed retention.Counts
			s := o.sweeper(func(opts *retention.Options) {
				opts.Name, opts.Namespace, opts.DeadUnresolved = name, name, test.unresolved
				opts.Removed = func(c retention.Counts) { removed = c }
			})
			o.sweep(s)
			need.That(t, o.row(id) == test.stays, "the row stays: %v, want %v", !test.stays, test.stays)
			need.Want(t, test.left, "the dead letters are %q, want %q", o.deadLetters(id))
			state, err := s.State(t.Context())
			need.That(t, err == nil && state.Removed == removed && state.Ended != nil && !state.Running, "the table says %+v, %v; Removed got %+v", state, err, removed)
			rows := removed.Delivered + removed.Dead
			gone := test.status != "" && !test.stays
			need.That(t, gone == (rows == 1) && rows <= 1, "counted %+v", removed)
			expired := strings.Count(test.left, "expired")
			need.That(t, removed.Expired == int64(expired), "%d dead letters are counted as expired, want %d", removed.Expired, expired)
		})
	}
}

// In random tables, a sweep touches no live row: each is the same in every column and in its place. The rows that the
// model says must go are gone, and the others are there.
// CONTRACT: C-60
func TestLiveRowsAreNeverTouched(t *testing.T) {
	t.Parallel()
	seed := mathrand.Uint64()
	random := mathrand.New(mathrand.NewPCG(seed, 1))
	for round := range 5 {
		o := newOutbox(t)
		o.serve(random.IntN(2) == 0)
		pgtest.Exec(o, `select setseed($1)`, random.Float64())
		pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, partition_key, payload, status, dead_reason, locked_by, locked_until, updated_at)
			select gen_random_uuid(), 'ns' || n % 3, 'topic' || n % 5, case when random() < 0.3 then 'k' || n % 20 end, to_jsonb(repeat('x', n % 700)), s,
				case s when 'dead' then 'poison_message' end, case s when 'processing' then gen_random_uuid() end, case s when 'processing' then now() end,
				now() - random() * interval '20 days'
			from (select n, (array['pending', 'processing', 'delivered', 'dead'])[1 + floor(random() * 4)::integer] as s from generate_series(1, 4000) as n) as made`)
		pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, reason, attempts, dead_at, resolution, resolved_at, resolved_by)
			select id, namespace, topic, seq, key_hash, 'poison_message', 1, now() - interval '90 days', case when ok then 'replayed' end,
				case when ok then now() - random() * interval '60 days' end, case when ok then 'ada' end
			from (select *, random() < 0.7 as ok from outbox.outbox_events, generate_series(1, 2) as n where status = 'dead' or random() < 0.1) as e`)
		const live = `select coalesce(md5(string_agg(e::text || ctid::text || xmin::text || xmax::text, ',' order by id)), '') || count(*) from outbox.outbox_events as e where live`
		const mustGo = `select id from outbox.outbox_events as e where namespace = 'ns1' and (
			status = 'delivered' and updated_at < now() - interval '7 days'
			or status = 'dead' and (select bool_and(coalesce(resolved_at < now() - interval '30 days', false)) from outbox.outbox_dead_letters where event_id = e.id))`
		before := pgtest.Value[string](o, live)
		pgtest.Exec(o, `create table public.gone as `+mustGo)
		pgtest.Exec(o, `create table public.kept as select id from outbox.outbox_events where id not in (select id from public.gone)`)
		n := pgtest.Value[int](o, `select count(*) from public.gone`)
		need.Must(t, n >= 100, "%d rows are to go: the test shows nothing", n)
		o.sweep(o.sweeper(func(opts *retention.Options) { opts.Name, opts.Namespace = "mine", "ns1" }))
		need.That(t, pgtest.Value[string](o, live) == before, "round %d, seed %d: live rows were touched", round, seed)
		n = pgtest.Value[int](o, `select count(*) from public.gone join outbox.outbox_events using (id)`)
		need.That(t, n == 0, "round %d, seed %d: %d rows that must go are there", round, seed, n)
		n = pgtest.Value[int](o, `select count(*) from public.kept left join outbox.outbox_events as e using (id) where e.id is null`)
		need.That(t, n == 0, "round %d, seed %d: %d rows that must stay are gone", round, seed, n)
	}
}

// A sweep of some topics keeps rows of the others.
func TestSweepOfTopicsKeepsOthers(t *testing.T) {
	t.Parallel()
	for topics, stays := range map[string]bool{"orders": false, "invoices": true, "": false} {
		o := newOutbox(t)
		row, dead := o.add("delivered", 8, ""), o.add("dead", 90, "")
		o.deadLetter(dead, 90, 80)
		o.sweep(o.sweeper(func(opts *retention.Options) {
			opts.Name, opts.Namespace = "mine", "shop"
			if topics != "" {
				opts.Topics = []string{topics}
			}
		}))
		need.That(t, o.row(row) == stays && o.row(dead) == stays, "topics %q: the rows stay: %v, want %v", topics, o.row(row), stays)
	}
}

// A sweep skips locked rows without waiting.
func TestSweepSkipsLockedRows(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	held, free, dead := o.add("delivered", 8, ""), o.add("delivered", 8, ""), o.add("dead", 90, "")
	o.deadLetter(dead, 90, 80)
	tx := pgtest.Begin(o, `select from outbox.outbox_events where id = any ($1) for update`, []uuid.UUID{held, dead})
	s := o.sweeper(nil)
	o.sweep(s)
	need.That(t, o.row(held) && o.row(dead) && !o.row(free) && o.deadLetters(dead) == "discarded",
		"locked ones stay: %v %v; the free one stays: %v; dead letters %q", o.row(held), o.row(dead), o.row(free), o.deadLetters(dead))
	need.OK(t, tx.Rollback(t.Context()))
	o.sweep(s)
	need.That(t, !o.row(held) && !o.row(dead), "the rows stay after the lock is released")
}

// An event that is replayed while a sweep runs stays: it is live, or dead again with an open dead letter.
func TestSweepKeepsEventsReplayedMeanwhile(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	var ids []uuid.UUID
	for range 200 {
		id := o.add("dead", 90, "")
		o.deadLetter(id, 90, 80)
		ids = append(ids, id)
	}
	replayed := make(chan error, 1)
	go func() {
		for _, id := range ids {
			_, err := o.Exec(t.Context(), `with live as (update outbox.outbox_events set status = 'pending', dead_reason = null where id = $1 and status = 'dead')
				select`, id)
			if err == nil {
				_, err = o.Exec(t.Context(), `with dead as (update outbox.outbox_events set status = 'dead', dead_reason = 'poison_message' where id = $1 returning id)
					insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts) select id, 'shop', 'orders', 'poison_message', 1 from dead`, id)
			}
			if err != nil {
				replayed <- fmt.Errorf("replay: %w", err)
				return
			}
		}
		replayed <- nil
	}()
	s := o.sweeper(nil)
	for done := false; !done; {
		o.sweep(s)
		select {
		case err := <-replayed:
			done = true
			need.OK(t, err)
		default:
		}
	}
	const lost = `select count(*) from outbox.outbox_dead_letters as l where resolution is null and not exists (select from outbox.outbox_events where id = l.event_id)`
	n := pgtest.Value[int](o, lost)
	need.That(t, n == 0, "%d events that are dead again are gone although they are unresolved", n)
	t.Logf("%d of 200 rows were swept, the others replayed", 200-pgtest.Value[int](o, `select count(*) from outbox.outbox_events`))
}

// A row that the database refuses to remove stays with its page, or alone where it has a dead letter. All others go, and the run
// ends with that error.
// CONTRACT: C-60
func TestRefusedRowsKeepNoOthers(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload, status, updated_at)
		select gen_random_uuid(), 'shop', 'orders', to_jsonb(repeat('x', 500)), 'delivered', now() - interval '8 days' from generate_series(1, 300)`)
	pgtest.Exec(o, `create table refers (id uuid references outbox.outbox_events)`)
	pgtest.Exec(o, `insert into refers select id from outbox.outbox_events where seq = 150`)
	const page = `select count(*) from outbox.outbox_events as e where split_part(ctid::text, ',', 1) = (select split_part(ctid::text, ',', 1) from outbox.outbox_events where seq = 150)`
	stay := pgtest.Value[int](o, page)
	var dead []uuid.UUID
	for range 3 {
		id := o.add("dead", 90, "")
		o.deadLetter(id, 90, 80)
		dead = append(dead, id)
	}
	pgtest.Exec(o, `insert into refers values ($1)`, dead[1])
	pgtest.Exec(o, `insert into outbox.outbox_sweeps (name) values ('retention')`)
	s := o.sweeper(nil)
	s.Pause(func(context.Context, time.Duration) {})
	ran, err := s.Sweep(t.Context())
	need.Must(t, ran && err != nil && strings.Contains(err.Error(), "refers_id_fkey"), "a run with rows that are referred to: %v, %v", ran, err)
	need.That(t, !o.row(dead[0]) && o.row(dead[1]) && !o.row(dead[2]) && o.deadLetters(dead[1]) == "discarded",
		"of the dead rows %v, %v, %v are there, want the second", o.row(dead[0]), o.row(dead[1]), o.row(dead[2]))
	left := pgtest.Value[int](o, `select count(*) from outbox.outbox_events`)
	need.That(t, left == stay+1, "%d rows are left, want the page of the one that is referred to, which has %d, and the dead one", left, stay)
	state, err := s.State(t.Context())
	need.That(t, err == nil && !state.Running && state.Removed.Delivered == int64(300-stay) && state.Removed.Dead == 2, "the state is %+v, %v", state, err)
	pgtest.Exec(o, `drop table refers`)
	refused := func() error {
		t.Helper()
		ran, err := s.Sweep(t.Context())
		need.Must(t, !ran && err == nil, "a run before the next one is due: %v, %v", ran, err)
		return s.Refused()
	}
	need.That(t, refused() != nil, "the refusal is forgotten before another run")
	pgtest.Exec(o, `update outbox.outbox_sweeps set ended_at = ended_at + interval '1 second'`) // by another process
	need.Want(t, nil, "after a run of another process there is still %v", refused())
	o.sweep(s)
	pgtest.Want(o, 0, "%d rows are left when none is referred to", `select count(*) from outbox.outbox_events`)
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Whatever the planner knows of the tables, pages are read by their numbers and dead letters by an index, without a
// sequential scan.
func TestStatementsUseIndexes(t *testing.T) {
	t.Parallel()
	for _, analyzed := range []string{"empty", "small", "large"} {
		o := newOutbox(t)
		fill := func(n int) {
			pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload, status, updated_at)
				select gen_random_uuid(), 'shop', 'orders', '{}', 'delivered', now() - interval '8 days' from generate_series(1, $1::integer)`, n)
			pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts)
				select id, 'shop', 'orders', 'poison_message', 1 from outbox.outbox_events`)
		}
		switch analyzed {
		case "small":
			fill(10)
			pgtest.Exec(o, `analyze outbox.outbox_events, outbox.outbox_dead_letters`)
			fill(20_000)
		case "large":
			fill(20_000)
			pgtest.Exec(o, `analyze outbox.outbox_events, outbox.outbox_dead_letters`)
		default:
			fill(20_000)
		}
		ids := fmt.Sprintf("'{%s,%s}'", uuid.New(), uuid.New())
		for name, query := range map[string]struct{ sql, args, uses string }{
			"delivered":    {retention.Statement("delivered"), `'(3,0)', '(5,0)', '7 days', 'shop', '{orders}', 2000`, "Tid Range Scan"},
			"dead_letters": {retention.Statement("dead_letters"), `100, 500, '7 days', '7 days', '', '{}'`, "outbox_dead_letters_pkey"},
			"lock":         {retention.Statement("lock"), ids, "outbox_events_pkey"},
			"resolved":     {retention.Statement("resolved"), ids + `, '7 days'`, "outbox_dead_letters_event"},
			"expired":      {retention.Statement("expired"), ids + `, '7 days'`, "outbox_dead_letters_event"},
		} {
			text := pgtest.GenericPlan(o, retention.Settings, query.sql, query.args)
			need.That(t, strings.Contains(text, query.uses), "%s, %s: the plan has no %s:\n%s", name, analyzed, query.uses, text)
			for _, table := range []string{"outbox_events", "outbox_dead_letters"} {
				need.That(t, !strings.Contains(text, "Seq Scan on "+table), "%s, %s: %s is read from end to end:\n%s", name, analyzed, table, text)
			}
		}
	}
}

// A sweep works in every mode of the driver, also in the one for PgBouncer before 1.21.
func TestSweepWorksInEveryModeOfTheDriver(t *testing.T) {
	t.Parallel()
	pgtest.EachMode(t, func(t *testing.T, mode pgtest.Mode) {
		o := newOutbox(t)
		young, late := o.add("expired", 6, ""), o.add("expired", 8, "")
		withdrawn, delivered, resolved, unresolved := o.add("withdrawn", 8, ""), o.add("delivered", 8, ""), o.add("dead", 90, ""), o.add("dead", 90, "")
		o.deadLetter(resolved, 90, 80)
		o.deadLetter(unresolved, 90, -1)
		replay := o.replay(o.deadLetter(o.add("dead", 1, ""), 1, -1))
		pool := pgtest.Pool(t, mode.In(o.sweeps.Config().ConnString()))
		s := retention.New(pool, retention.Options{
			Name: "dispatcher shop", Namespace: o.namespace, Topics: []string{"orders"},
			Delivered: 7 * day, DeadResolved: 30 * day, DeadUnresolved: 60 * day,
		})
		o.sweep(s)
		need.That(t, o.row(young) && !o.row(late) && !o.row(withdrawn) && !o.row(delivered) && !o.row(resolved) && !o.row(unresolved) && o.deadLetters(unresolved) == "expired",
			"rows stay: %v %v %v %v %v; the dead letter is %s", o.row(young), o.row(withdrawn), o.row(delivered), o.row(resolved), o.row(unresolved), o.deadLetters(unresolved))
		need.Want(t, "waiting 1 pending 0 delivered 0 dead 0 gone 0 stopped 0", "a replay that has begun is %s", o.state(replay))
		if state, err := s.State(t.Context()); err != nil || state.Removed != (retention.Counts{Delivered: 1, Withdrawn: 2, Dead: 2, DeadLetters: 1, Expired: 1}) || state.Next.Before(time.Now()) {
			t.Errorf("state %+v, %v", state, err)
		}
	})
}
