package retention_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// One process sweeps at a time, whichever sweep it is. When it is killed, another continues where it was, once the lease
// has ended on the database's clock. When it returns, it stops.
// CONTRACT: C-60
func TestOneProcessSweepsAtATime(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload, status, updated_at)
		select gen_random_uuid(), 'shop', 'orders', to_jsonb(repeat('x', 500)), 'delivered', now() - interval '8 days' from generate_series(1, 300)`)
	pages := pgtest.Value[int64](o, `select pg_relation_size('outbox.outbox_events') / 8192`)
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	first, frozen, unfreeze := uuid.New(), make(chan struct{}), make(chan struct{})
	one := o.sweeper(func(opts *retention.Options) { opts.Worker = first })
	one.Page()
	steps := 0
	one.Pause(func(context.Context, time.Duration) {
		if steps++; steps == 5 {
			close(frozen)
			<-unfreeze
		}
	})
	ended := make(chan bool, 1)
	go func() {
		ran, err := one.Sweep(ctx)
		need.Want(t, nil, "the first one: %v", err)
		ended <- ran
	}()
	<-frozen
	left := pgtest.Value[int](o, `select count(*) from outbox.outbox_events`)
	for name, other := range map[string]*retention.Sweeper{
		"the same sweep":    o.sweeper(nil),
		"another sweep too": o.sweeper(func(opts *retention.Options) { opts.Name, opts.Namespace = "mine", "shop" }),
	} {
		if ran, err := other.Sweep(t.Context()); ran || err != nil {
			t.Errorf("%s ran at the same time: %v, %v", name, ran, err)
		}
	}
	n := pgtest.Value[int](o, `select count(*) from outbox.outbox_events`)
	need.That(t, n == left && n != 300 && n != 0, "%d rows are left, and %d when the first one had read five pages", n, left)
	need.That(t, pgtest.Value[bool](o, `select holder = $1 and held_until > now() + interval '30 seconds' from outbox.outbox_sweeps where name = 'retention'`, first),
		"the lease is not the first one's")
	position := pgtest.Value[int64](o, `select position from outbox.outbox_sweeps where name = 'retention'`)
	if position != 4 { // the fifth is not noted yet
		t.Errorf("it is noted that page %d is next, want 4", position)
	}

	pgtest.Exec(o, `update outbox.outbox_sweeps set held_until = now() - interval '1 second'`)
	second := o.sweeper(nil)
	second.Page()
	read := int64(0)
	second.Pause(func(context.Context, time.Duration) { read++ })
	if ran, err := second.Sweep(t.Context()); !ran || err != nil {
		t.Errorf("the second one did not take over: %v, %v", ran, err)
	}
	if read != pages-position+2 { // and the dead letters, and the journal
		t.Errorf("the second one took %d steps, want %d: it continues where the first was", read, pages-position+2)
	}
	pgtest.Want(o, 0, "%d rows are left", `select count(*) from outbox.outbox_events`)
	if state, err := second.State(t.Context()); err != nil || state.Running || state.Removed.Delivered < 300-60 || !state.Next.After(*state.Ended) {
		t.Errorf("after it: %+v, %v", state, err)
	}

	pgtest.Exec(o, `update outbox.outbox_sweeps set holder = gen_random_uuid(), held_until = now() + interval '1 minute'`) // a third one's
	close(unfreeze)
	need.That(t, !<-ended, "the first one continues without the lease")
	if state, err := second.State(t.Context()); err != nil || state.Removed.Delivered != 300 {
		t.Errorf("in all %+v were removed, %v; want 300", state.Removed, err)
	}
	need.That(t, !pgtest.Value[bool](o, `select holder is null from outbox.outbox_sweeps where name = 'retention'`), "the first one has given back the lease of another")
}

// A run that ended is due again after a 24th of the shortest age; a worker that stops gives the lease back, and the
// next one continues.
func TestNextRunIsDueAfterAShareOfTheShortestAge(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s := o.sweeper(nil)
	for i, want := range []bool{true, false} {
		ran, err := s.Sweep(t.Context())
		need.That(t, ran == want && err == nil, "run %d: %v, %v", i, ran, err)
	}
	if !pgtest.Value[bool](o, `select next_run - ended_at = interval '6 hours' and holder is null from outbox.outbox_sweeps`) {
		t.Errorf("the row is %s", pgtest.Value[string](o, `select s::text from outbox.outbox_sweeps as s`))
	}
	for want, opts := range map[time.Duration]retention.Options{
		6 * time.Hour:    {Delivered: 7 * day, DeadResolved: 30 * day},
		5 * time.Minute:  {Delivered: 2 * time.Hour, DeadResolved: 30 * day},
		time.Minute:      {Delivered: time.Minute, DeadResolved: 30 * day},
		time.Hour:        {Delivered: 7 * day, DeadResolved: 30 * day, DeadUnresolved: day},
		90 * time.Minute: {Delivered: 0, DeadResolved: 36 * time.Hour},
	} {
		need.Want(t, want, "%+v: every %s, want %s", retention.New(nil, opts).Every(), opts)
	}

	o.add("delivered", 8, "")
	pgtest.Exec(o, `update outbox.outbox_sweeps set next_run = now()`)
	stopping, stop := context.WithCancel(t.Context())
	s.Pause(func(context.Context, time.Duration) { stop() })
	ran, err := s.Sweep(stopping)
	need.That(t, !ran && err != nil, "a run that is stopped: %v, %v", ran, err)
	if !pgtest.Value[bool](o, `select holder is null and began_at is not null and delivered = 1 from outbox.outbox_sweeps`) {
		t.Errorf("after a stop the row is %s", pgtest.Value[string](o, `select s::text from outbox.outbox_sweeps as s`))
	}
	ran, err = o.sweeper(nil).Sweep(t.Context())
	need.That(t, ran && err == nil, "the next one: %v, %v", ran, err)

	pgtest.Exec(o, `update outbox.outbox_sweeps set holder = gen_random_uuid(), held_until = now() + interval '1 day', ended_at = now() + interval '1 day',
		next_run = now() + interval '30 hours'`) // by a clock that was ahead
	ran, err = o.sweeper(nil).Sweep(t.Context())
	need.That(t, ran && err == nil, "after a clock that was ahead: %v, %v", ran, err)
}

// While delivery is saturated, a run takes a fiftieth of the time, else a fifth. It checks that before each statement.
func TestSweepYieldsToDelivery(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration][2]time.Duration{
		10 * time.Millisecond: {40 * time.Millisecond, 490 * time.Millisecond},
		time.Second:           {4 * time.Second, 10 * time.Second},
		time.Minute:           {10 * time.Second, 10 * time.Second},
	} {
		free, busy := retention.PauseAfter(took, false), retention.PauseAfter(took, true)
		need.That(t, free == want[0] && busy == want[1], "after %s it pauses for %s, and for %s when busy; want %v", took, free, busy, want)
	}
	o := newOutbox(t)
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload, status)
		select gen_random_uuid(), 'shop', 'orders', to_jsonb(repeat('x', 500)), 'delivered' from generate_series(1, 100)`)
	checks, pauses := 0, 0
	s := o.sweeper(func(opts *retention.Options) { opts.Busy = func() bool { checks++; return true } })
	s.Page()
	s.Pause(func(_ context.Context, d time.Duration) {
		pauses++
		need.That(t, d > 0, "it pauses for %s", d)
	})
	o.sweep(s)
	if pages := pgtest.Value[int](o, `select pg_relation_size('outbox.outbox_events') / 8192`); checks != pages+2 || pauses != pages+2 { // and the dead letters, and the journal
		t.Errorf("%d pages: it checked %d times and paused %d times, want 3 more than pages", pages, checks, pauses)
	}
}

// A failure is logged once, with its remedy, and the run tried again; nothing is done before the outbox is ready.
func TestRunLogsAFailureOnce(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	row := o.add("delivered", 8, "")
	role := o.sweeps.Config().ConnConfig.User
	pgtest.Exec(o, `revoke all on outbox.outbox_sweeps from `+role)
	var log lines
	var ready atomic.Bool
	checked := make(chan struct{}, 100)
	s := o.sweeper(func(opts *retention.Options) {
		opts.Logger, opts.PollEvery = slog.New(slog.NewTextHandler(&log, nil)), time.Millisecond
		opts.Ready = func() bool {
			select {
			case checked <- struct{}{}:
			default:
			}
			return ready.Load()
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	defer func() { stop(); <-ended }()
	for range 5 {
		<-checked
	}
	need.Want(t, "", "before the outbox is ready it says %q", s.Problem())
	ready.Store(true)
	wait(t, "the failure", func() bool {
		return strings.Contains(s.Problem(), `have the owner run what "dispatcher migrate grants" prints`)
	})
	for range 5 {
		<-checked
	}
	pgtest.Exec(o, `grant select, insert, update on outbox.outbox_sweeps to `+role)
	wait(t, "the run", func() bool { return s.Problem() == "" && !o.row(row) })
	wait(t, "the log", func() bool { return strings.Contains(log.String(), "retention works again") })
	n := strings.Count(log.String(), "level=WARN")
	need.That(t, n == 1, "the failure is logged %d times, want once:\n%s", n, log.String())
}

// A run's failure counts until a run is known to have ended, and not only until another process has the lease. A check's
// counts until the next check.
func TestAFailureStaysWhileAnotherProcessSweeps(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	pgtest.Exec(o, `insert into outbox.outbox_sweeps (name) values ('retention')`)
	role := o.sweeps.Config().ConnConfig.User
	pgtest.Exec(o, `revoke delete on outbox.outbox_events from `+role)
	o.add("delivered", 8, "")
	var polls atomic.Int64
	s := o.sweeper(func(opts *retention.Options) {
		opts.PollEvery, opts.Ready = time.Millisecond, func() bool { polls.Add(1); return true }
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	defer func() { stop(); <-ended }()
	wait(t, "the failure", func() bool { return s.Problem() != "" })
	pgtest.Exec(o, `update outbox.outbox_sweeps set holder = gen_random_uuid(), held_until = now() + interval '1 minute'`)
	pgtest.Exec(o, `grant delete on outbox.outbox_events to `+role)
	before := polls.Load()
	wait(t, "some checks", func() bool { return polls.Load() > before+5 })
	need.That(t, s.Problem() != "", "the failure is forgotten while another process has the lease")
	pgtest.Exec(o, `update outbox.outbox_sweeps set holder = null, held_until = null`)
	wait(t, "the run", func() bool { return s.Problem() == "" })

	pgtest.Exec(o, `update outbox.outbox_sweeps set holder = gen_random_uuid(), held_until = now() + interval '1 minute', next_run = now() - interval '1 hour'`)
	pgtest.Exec(o, `revoke all on outbox.outbox_sweeps from `+role)
	wait(t, "the check's failure", func() bool { return s.Problem() != "" })
	pgtest.Exec(o, `grant select, insert, update on outbox.outbox_sweeps to `+role)
	wait(t, "a check", func() bool { return s.Problem() == "" })
	need.That(t, !pgtest.Value[bool](o, `select next_run > now() from outbox.outbox_sweeps`), "the failure of a check counts until a run has ended")
}

// wait waits until something is so.
func wait(t *testing.T, what string, so func() bool) {
	t.Helper()
	pgtest.Eventually(t, what, so)
}

// A sweep and its lease work behind PgBouncer in transaction mode.
// CONTRACT: C-60
func TestSweepBehindPgBouncer(t *testing.T) {
	t.Parallel()
	srv := pgtest.Server(t)
	conn, err := pgx.Connect(t.Context(), srv.DSN("postgres"))
	if err == nil {
		_, err = migrations.Up(t.Context(), conn, pgtest.Schema)
		conn.Close(t.Context())
	}
	need.OK(t, err)
	o := outbox{T: t, Pool: pgtest.Pool(t, srv.DSN("postgres")), namespace: "shop"}
	o.sweeps, err = database.Pool(t.Context(), spec.Database{DSN: pgtest.Bouncer(t, srv).DSN("postgres")}, "orders")
	need.OK(t, err)
	t.Cleanup(o.sweeps.Close)
	row, dead := o.add("delivered", 8, ""), o.add("dead", 90, "")
	o.deadLetter(dead, 90, 80)
	for range 20 {
		o.sweep(o.sweeper(nil))
	}
	need.That(t, !o.row(row) && !o.row(dead), "the rows are there")
}

// A run whose lease another worker has taken adds what it removed, and leaves the position to the other.
// CONTRACT: C-60
func TestALostLeaseWritesNoPosition(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	mine, other := uuid.New(), uuid.New()
	pgtest.Exec(o, `insert into outbox.outbox_sweeps (name, holder, held_until, began_at, pages, position) values ('retention', $1, now() + interval '1 minute', now(), 100, 40)`, other)
	for _, c := range []struct {
		name, held string
		worker     uuid.UUID
		position   int64
	}{
		{"another's", "1 minute", mine, 40}, {"mine, and over", "-1 second", other, 40}, {"mine", "1 minute", other, 7},
	} {
		pgtest.Exec(o, `update outbox.outbox_sweeps set held_until = now() + $1::text::interval, delivered = 0`, c.held)
		need.OK(t, need.Err(o.sweeps.Exec(t.Context(), retention.Statement("progress"), "retention", c.worker, int64(7), int64(3), int64(0), int64(0), int64(0), int64(0))))
		need.Want(t, c.position, "%s: the position is %d, want %d", pgtest.Value[int64](o, `select position from outbox.outbox_sweeps`), c.name)
		need.Want(t, 3, "%s: %d removed rows are counted, want 3", pgtest.Value[int64](o, `select delivered from outbox.outbox_sweeps`), c.name)
	}
}

// Pages with more rows than a statement removes are read again until they have none; a lock of the table is not waited for long.
func TestPagesAreReadUntilTheyAreEmpty(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload, status, updated_at)
		select gen_random_uuid(), 'shop', 'orders', '{}', 'delivered', now() - interval '8 days' from generate_series(1, $1::integer)`, 2*retention.MaxRows+1)
	steps := 0
	s := o.sweeper(nil)
	s.Pause(func(context.Context, time.Duration) { steps++ })
	o.sweep(s)
	left := pgtest.Value[int](o, `select count(*) from outbox.outbox_events`)
	need.That(t, left == 0 && steps <= 20, "%d rows are left after %d steps", left, steps)

	pgtest.Begin(o, `lock table outbox.outbox_events in access exclusive mode`)
	pgtest.Exec(o, `update outbox.outbox_sweeps set next_run = now()`)
	need.Fails(t, "55P03", "behind a lock of the table: %v, want the lock's timeout", need.Err(o.sweeper(nil).Sweep(t.Context())))
}

// Pages that one statement does not manage are read in smaller parts; one page that stays too slow fails the run, and the next
// run continues there.
func TestSlowPagesAreReadInSmallerParts(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload, status, updated_at)
		select gen_random_uuid(), 'shop', 'orders', to_jsonb(repeat('x', 500)), 'delivered', now() - interval '8 days' from generate_series(1, 300)`)
	pgtest.Exec(o, `create function outbox.slow() returns trigger language plpgsql as $$ begin raise exception sqlstate '57014'; end $$;
		create trigger slow before delete on outbox.outbox_events for each row when (old.topic = 'slow') execute function outbox.slow();
		update outbox.outbox_events set topic = 'slow' where ctid = (select max(ctid) from outbox.outbox_events)`)
	s, steps := o.sweeper(nil), 0
	s.Pause(func(context.Context, time.Duration) {
		if steps++; steps > 1000 {
			t.Error("it reads the same pages again and again")
			t.FailNow()
		}
	})
	pgtest.Exec(o, `insert into outbox.outbox_sweeps (name) values ('retention')`)
	_, err := s.Sweep(t.Context())
	need.Must(t, err != nil && strings.Contains(err.Error(), "57014"), "a page that is too slow: %v", err)
	left := pgtest.Value[int](o, `select count(*) from outbox.outbox_events`)
	need.That(t, left != 300 && left != 0, "%d rows are left, want those of the slow page and of those after it", left)
	pgtest.Exec(o, `drop trigger slow on outbox.outbox_events`)
	position := pgtest.Value[int64](o, `select position from outbox.outbox_sweeps`)
	need.That(t, position != 0, "the next run begins at the first page")
	o.sweep(o.sweeper(nil))
	left = pgtest.Value[int](o, `select count(*) from outbox.outbox_events`)
	need.That(t, left == 0, "%d rows are left after the next run", left)
}
