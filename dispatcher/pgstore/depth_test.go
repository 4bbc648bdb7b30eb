package pgstore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// What waits is pending, whatever it waits for, and has waited since it was due first. What its producer delayed has not waited
// before, and is scheduled until then.
// CONTRACT: C-96
func TestWhatWaitsIsCounted(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	count := func(n int64) dispatcher.Count { return dispatcher.Count{N: n} }
	due, scheduled := dispatcher.TopicDepth{Pending: count(1)}, dispatcher.TopicDepth{Scheduled: count(1)}
	retrying, leased := dispatcher.TopicDepth{Pending: count(1), Retrying: count(1)}, dispatcher.TopicDepth{Processing: count(1)}
	const none, now, epoch, minute = -1, 0, -2, time.Minute
	at := o.Now()
	cases := map[string]struct {
		due           string // an expression; at is now
		columns, more string
		want          dispatcher.TopicDepth
		age           time.Duration // for how long it has waited; it was created 10 minutes ago
	}{
		"due":                       {"at - interval '10m'", "", "", due, 10 * minute},
		"in the past":               {"at - interval '1h'", "", "", due, 10 * minute},
		"due after a delay":         {"at - interval '2m'", "", "", due, 2 * minute},
		"delayed":                   {"at + interval '1h'", "", "", scheduled, none},
		"delayed for ever":          {"'infinity'", "", "", scheduled, none},
		"delayed, and moved to now": {"at", ", first_due_at", ", at + interval '1h'", due, now},
		"failed":                    {"at + interval '1h'", ", lease, attempts", ", 7, 3", retrying, 10 * minute},
		"failed, and due again":     {"at - interval '1s'", ", lease, attempts", ", 7, 3", due, 10 * minute},
		"in an outage":              {"at + interval '1h'", ", lease, last_error", ", 7, '503'", retrying, 10 * minute},
		"given back, and no error":  {"at + interval '1h'", ", lease", ", 7", retrying, 10 * minute},
		"delayed, then failed":      {"at + interval '1h'", ", lease, attempts, first_due_at", ", 7, 1, at - interval '5m'", retrying, 5 * minute},
		"replayed":                  {"at - interval '3m'", ", lease, first_due_at", ", 7, at - interval '3m'", due, 3 * minute},
		"adopted after a failure":   {"at + interval '1h'", ", attempts", ", 1", retrying, 10 * minute},
		"leased":                    {"at - interval '10m'", ", status, locked_by, locked_until", ", 'processing', gen_random_uuid(), at + interval '1h'", leased, 10 * minute},
		"leased after a delay":      {"at - interval '2m'", ", status, locked_by, locked_until", ", 'processing', gen_random_uuid(), at + interval '1h'", leased, 2 * minute},
		"delivered":                 {"at - interval '10m'", ", status", ", 'delivered'", dispatcher.TopicDepth{}, none},
		"dead":                      {"at - interval '10m'", ", status, dead_reason", ", 'dead', 'poison_message'", dispatcher.TopicDepth{}, none},
		"of a clock that was ahead": {"at + interval '1h'", ", created_at", ", at + interval '1h'", retrying, now},
		"created in the year -4712": {"'-infinity'", ", created_at", ", '-infinity'", due, epoch},
	}
	var topics []string
	for topic, c := range cases {
		topics = append(topics, topic)
		if !strings.Contains(c.columns, "created_at") {
			c.columns, c.more = c.columns+", created_at", c.more+", at - interval '10m'"
		}
		pgtest.Exec(o, fmt.Sprintf(`insert into outbox.outbox_events (id, namespace, topic, payload, next_attempt_at%s)
			select gen_random_uuid(), 'shop', $1, '{}', %s%s from (values ($2::timestamptz)) as v (at)`, c.columns, c.due, c.more), topic, at)
	}
	depth, err := o.Store("shop", uuid.New()).Depth(t.Context(), topics)
	need.OK(t, err)
	for _, got := range depth.Topics {
		c := cases[got.Topic]
		c.want.Topic = got.Topic
		c.want.OldestPending = map[time.Duration]time.Time{none: {}, now: depth.ObservedAt, epoch: time.Unix(0, 0)}[c.age]
		if c.age > 0 {
			c.want.OldestPending = at.Add(-c.age)
		}
		need.That(t, got.OldestPending.Equal(c.want.OldestPending), "%s: the oldest is of %v, want %v", got.Topic, got.OldestPending, c.want.OldestPending)
		got.OldestPending = c.want.OldestPending
		need.Want(t, c.want, "%+v, want %+v", got)
	}
	need.Want(t, len(cases), "%d topics, want %d", len(depth.Topics))
}

// A count is exact up to the cap, also of a busy topic among quiet ones. Where more is large, each gets an equal part of what one
// look reads, and is an estimate above that.
// CONTRACT: C-96
func TestCountsShareALook(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		quiet                int // topics with 20 rows
		due, scheduled, dead int
		exact                bool
	}{
		"the cap":                       {0, dispatcher.DepthCap, 0, 0, true},
		"above the cap":                 {0, 30_000, 0, 0, false},
		"of dead letters":               {0, 0, 0, dispatcher.DepthCap, true},
		"one of fifty":                  {50, dispatcher.DepthCap, 0, 0, true},
		"three that are not very large": {20, 4000, 4000, 4000, true},
		"three at the cap":              {0, 30_000, 30_000, 30_000, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, pgtest.Migrated(t))
			for i := range c.quiet {
				o.fill(20, fmt.Sprintf("quiet-%d", i))
			}
			o.fill(c.due, "big")
			pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload, next_attempt_at)
				select gen_random_uuid(), 'shop', 'big', '{}', now() + interval '1 hour' from generate_series(1, $1::integer)`, c.scheduled)
			pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, resolution, resolved_at, resolved_by)
				select gen_random_uuid(), 'shop', 'big', 'poison_message', 1, r, case when r <> '' then now() end, case when r <> '' then 'me' end
				from generate_series(1, $1::integer) cross join (values (null), ('replayed')) as r (r)`, c.dead)
			depth, err := o.Store("shop", uuid.New()).Depth(t.Context(), nil)
			need.OK(t, err)
			for _, d := range depth.Topics {
				if d.Topic != "big" {
					need.That(t, d.Pending == dispatcher.Count{N: 20}, "%+v, want 20 pending", d)
					continue
				}
				for _, n := range []struct {
					got  dispatcher.Count
					want int
				}{{d.Pending, c.due}, {d.Scheduled, c.scheduled}, {d.Dead, c.dead}} {
					off := max(int(n.got.N)-n.want, n.want-int(n.got.N))
					need.That(t, n.got.Estimated == !c.exact || n.want == 0, "%+v of %d, want it exact: %v", n.got, n.want, c.exact)
					need.That(t, off == 0 || !c.exact && off <= n.want/10, "%+v of %d", n.got, n.want)
				}
			}
			need.Want(t, c.quiet+1, "%d topics, want %d", len(depth.Topics))
		})
	}
}

// One look reads a bounded number of pages, whatever waits in how many topics, and is about right.
// CONTRACT: C-96
func TestLookIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	p := newPlanned(t, pgtest.Migrated(t))
	pgtest.Exec(p, `alter table outbox.outbox_dead_letters set (autovacuum_enabled = off)`)
	pgtest.Exec(p, `drop index outbox.outbox_events_seq`) // not used here
	const rows, deadLetters = 350_000, 10_000
	cases := []int{1, 50, 256}
	for _, topics := range cases {
		// A fifth waits for a retry. The ids are not in the order of the table's pages: each row is a page more.
		pgtest.Exec(p, `insert into outbox.outbox_events (id, namespace, topic, payload, size_bytes, lease, next_attempt_at)
			select gen_random_uuid(), 'shop-' || $1::integer, 'topic-' || n % $1::integer, '{}', 2, 1, now() + case when n % 1000 < 200 then interval '1 hour' else '0' end
			from generate_series(1, $2::integer) as n`, topics, rows)
		pgtest.Exec(p, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts)
			select gen_random_uuid(), 'shop-' || $1::integer, 'topic-' || n % $1::integer, 'poison_message', 1 from generate_series(1, $2::integer) as n`, topics, deadLetters)
	}
	for _, topics := range cases {
		before := p.blocks()
		depth, err := p.Store(fmt.Sprintf("shop-%d", topics), uuid.New()).Depth(t.Context(), nil)
		need.OK(t, err)
		blocks := p.blocks() - before
		var pending, retrying, least int64 = 0, 0, rows
		for _, d := range depth.Topics {
			pending, retrying, least = pending+d.Pending.N, retrying+d.Retrying.N, min(least, d.Pending.N)
			need.That(t, d.Pending.Estimated, "%+v is exact", d)
		}
		t.Logf("a look at %d topics: %d buffers, %d of %d pending, of which %d retry; %d in the smallest topic", topics, blocks, pending, rows, retrying, least)
		need.That(t, blocks <= 25_000, "a look at %d topics read %d buffers", topics, blocks)
		need.That(t, pending > rows*9/10 && pending < rows*11/10 && retrying > pending/10 && retrying < pending*3/10, "%d pending, of which %d retry", pending, retrying)
		need.That(t, len(depth.Topics) == topics && least >= 20, "%d topics, one with %d rows", len(depth.Topics), least)
	}
}

// A look that takes too long is made again at once with fewer pages, and the next ones begin with these.
// CONTRACT: C-35, C-96
func TestSlowLookReadsFewerPages(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fill(3000, "orders")
	dsn := o.login(migrations.Dispatcher)
	// A transaction that reads more than 2,000 rows takes too long.
	pgtest.Exec(o, `create function outbox.slow() returns boolean language plpgsql as $$
		declare n integer := coalesce(nullif(current_setting('test.rows', true), ''), '0')::integer + 1;
		begin
			perform set_config('test.rows', n::text, true);
			if n > 2000 then
				raise 'too slow' using errcode = '57014';
			end if;
			return true;
		end $$`)
	pgtest.Exec(o, `alter table outbox.outbox_events enable row level security`)
	pgtest.Exec(o, `create policy slow on outbox.outbox_events using (outbox.slow())`)
	o.stores = pgtest.Pool(t, dsn)
	store := o.Store("shop", uuid.New())
	pending := func() dispatcher.Count {
		depth, err := store.Depth(t.Context(), []string{"orders"})
		need.OK(t, err)
		return depth.Topics[0].Pending
	}
	for range 2 {
		n := pending()
		need.That(t, n.Estimated && n.N >= 1000 && n.N <= 6000, "%+v, want an estimate of 3,000", n)
	}
	pgtest.Exec(o, `drop policy slow on outbox.outbox_events`)
	pgtest.Exec(o, `alter table outbox.outbox_events disable row level security`)
	looks := 1
	for pending().Estimated && looks < 30 {
		looks++
	}
	need.That(t, looks > 1 && looks < 30, "%d looks until the count is exact again, want some", looks)
	pgtest.Exec(o, `alter table outbox.outbox_events enable row level security`)
	pgtest.Exec(o, `create policy slow on outbox.outbox_events using (outbox.slow() and outbox.slow() and outbox.slow() and outbox.slow())`)
	_, err := store.Depth(t.Context(), []string{"orders"})
	need.That(t, dispatcher.IsTooSlow(err), "the error is %v where not even the fewest pages can be read", err)
}
