package retention_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// replay adds a replay with items of a state, which began and finished some days ago; -1 for never.
func (o outbox) replay(items int, state string, began, finished int) (id uuid.UUID) {
	o.Helper()
	id = uuid.New()
	pgtest.Exec(o, `insert into outbox.outbox_replays (id, namespace, action, reason, requested_by, filter, rate, canary, abort_at, ordering, began_at, finished_at)
		values ($1, $2, 'replay', 'CHG-812', 'ada', '{}', 1, 0, 0, 'key', now() - make_interval(days => $3),
			case when $4::integer >= 0 then now() - make_interval(days => $4) end)`, id, o.namespace, began, finished)
	pgtest.Exec(o, `insert into outbox.outbox_replay_items (replay_id, dead_letter_id, event_id, seq, state)
		select $1, n, gen_random_uuid(), n, case n when 1 then 'requeued' else $3::text end from generate_series(1, $2::integer) as n`, id, items, state)
	return id
}

// The items of a replay go some time after its end, and its row stays. Items that may still have their turn stay, and
// so do those that a command may be waiting for.
// CONTRACT: C-60
func TestItemsOfFinishedReplaysAreRemoved(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	elsewhere := o
	elsewhere.namespace = "other"
	replays := map[string]struct {
		id          uuid.UUID
		month, hour int // items after a sweep of the namespace, resolved ones staying for a month, and for an hour
	}{
		"finished long ago, with many items":     {o.replay(5000, "delivered", 90, 31), 0, 0},
		"finished long ago, again":               {o.replay(3, "dead_again", 90, 31), 0, 0},
		"finished lately":                        {o.replay(3, "delivered", 90, 29), 3, 0},
		"waits since long":                       {o.replay(3, "waiting", 90, -1), 3, 3},
		"was not waited for, and began long ago": {o.replay(3, "requeued", 31, -1), 0, 0},
		"was not waited for, and began lately":   {o.replay(3, "requeued", 29, -1), 3, 3},
		"of another namespace":                   {elsewhere.replay(3, "delivered", 90, 31), 3, 3},
	}
	check := func(what string, want func(month, hour int) int) {
		t.Helper()
		for name, op := range replays {
			if n, want := pgtest.Value[int](o, `select count(*) from outbox.outbox_replay_items where replay_id = $1`, op.id), want(op.month, op.hour); n != want {
				t.Errorf("%s: a replay that %s has %d items, want %d", what, name, n, want)
			}
		}
	}
	o.sweep(o.sweeper(func(opts *retention.Options) { opts.Namespace, opts.Name = o.namespace, "dispatcher shop" }))
	check("a month", func(month, _ int) int { return month })
	o.sweep(o.sweeper(func(opts *retention.Options) {
		opts.Namespace, opts.Name, opts.DeadResolved = o.namespace, "dispatcher shop", time.Hour
	}))
	check("an hour", func(_, hour int) int { return hour })
	if n := pgtest.Value[int](o, `select count(*) from outbox.outbox_replays`); n != len(replays) {
		t.Errorf("%d replays are there, want all %d", n, len(replays))
	}
	o.sweep(o.sweeper(nil))
	if n := pgtest.Value[int](o, `select count(*) from outbox.outbox_replay_items where replay_id = $1`, replays["of another namespace"].id); n != 0 {
		t.Errorf("a sweep of the whole tables left %d items of another namespace", n)
	}
}
