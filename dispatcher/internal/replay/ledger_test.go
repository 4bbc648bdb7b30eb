package replay_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

var seeds = flag.Int("replay.seeds", 5, "how many seeds TestOperationsCountWhatBecameOfTheirEvents draws from")

// What operations count as delivered and as dead again is what became of the events that they put back last, whatever happens
// meanwhile: other operations, sweeps that remove rows, discards, stops, events that become dead again, and calls that are cut off.
// CONTRACT: C-42, C-60
func TestOperationsCountWhatBecameOfTheirEvents(t *testing.T) {
	for seed := range *seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			l := newLedger(t, uint64(seed))
			for range 80 {
				l.act()
			}
			l.finish()
			l.check()
		})
	}
}

// ledger draws what happens, and has the database note which operation put an event back, and what became of it.
type ledger struct {
	rig
	rand       *rand.Rand
	replays    *replay.Replays // its calls may be cut off
	sweeper    *retention.Sweeper
	operations []config.ReplayRequest
}

func newLedger(t *testing.T, seed uint64) *ledger {
	r := newRig(t)
	pgtest.Exec(r, `create table public.put_back (n bigserial, event_id uuid, replay_id uuid);
		create table public.became (replay_id uuid, what text);
		create function public.note_put_back() returns trigger language plpgsql security definer as
			$$ begin insert into public.put_back (event_id, replay_id) values (new.event_id, new.replay_id); return null; end $$;
		create trigger note_put_back after update on outbox.outbox_dead_letters for each row
			when (old.replay_state = 'waiting' and new.replay_state = 'requeued') execute function public.note_put_back()`)
	r.dead(150, 20)
	return &ledger{
		rig: r, rand: rand.New(rand.NewPCG(seed, 1)),
		replays: replay.New(pgtest.Pool(t, pgtest.Login(t, r.Pool, migrations.ReplayLogin)), replay.Options{}),
		sweeper: retention.New(r.Pool, retention.Options{Delivered: 7 * 24 * time.Hour, DeadResolved: 30 * 24 * time.Hour}),
	}
}

func (l *ledger) act() {
	l.Helper()
	switch draw := l.rand.IntN(20); {
	case draw < 2 || len(l.operations) == 0:
		o := request()
		o.Limit, o.Canary, o.AbortAt = 10+l.rand.IntN(40), 5*l.rand.IntN(2), 50+50*l.rand.IntN(2)
		if begin := func(ctx context.Context) error { return second(l.replays.Begin(ctx, o)) }; !l.mayBeCut(begin) {
			if err := begin(l.Context()); err != nil { // again: it may have begun
				l.Fatal(err)
			}
		}
		l.operations = append(l.operations, o)
	case draw < 9:
		o := l.one()
		l.mayBeCut(func(ctx context.Context) error { return second(l.replays.Step(ctx, o.ID, 1+l.rand.IntN(15))) })
	case draw < 13:
		l.deliverSome(1 + l.rand.IntN(15))
	case draw < 15:
		l.makeDeadAgain(1 + l.rand.IntN(8))
	case draw < 17:
		o := l.one()
		l.mayBeCut(func(ctx context.Context) error { return second(l.replays.Observe(ctx, o.ID)) })
	case draw < 18:
		l.sweep()
	case draw < 19:
		o := request()
		o.Action, o.Rate, o.Limit = config.ActionDiscard, 0, 3
		l.mayBeCut(func(ctx context.Context) error { return second(l.replays.Begin(ctx, o)) })
	default:
		o := l.one()
		l.mayBeCut(func(ctx context.Context) error { return second(l.replays.Stop(ctx, o.ID, "drawn")) })
	}
}

func (l *ledger) one() config.ReplayRequest { return l.operations[l.rand.IntN(len(l.operations))] }

// mayBeCut does something that is cut off in one case of three, and reports whether it ended.
func (l *ledger) mayBeCut(do func(context.Context) error) bool {
	l.Helper()
	ctx, cancel := l.Context(), func() {}
	if l.rand.IntN(3) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(l.rand.IntN(5000))*time.Microsecond)
	}
	defer cancel()
	err := do(ctx)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		l.Fatal(err)
	}
	return err == nil
}

// pending are events that an operation put back, n at most.
func (l *ledger) pending(n int) []uuid.UUID {
	l.Helper()
	return pgtest.Value[[]uuid.UUID](l.rig, `select coalesce(array_agg(id), '{}') from (select id from outbox.outbox_events where status = 'pending' order by random() limit $1) as e`, n)
}

// note writes down what becomes of events.
func (l *ledger) note(what string, events []uuid.UUID) {
	l.Helper()
	pgtest.Exec(l.rig, `insert into public.became select (select replay_id from public.put_back where event_id = e.id order by n desc limit 1), $1
		from unnest($2::uuid[]) as e (id)`, what, events)
}

func (l *ledger) deliverSome(n int) {
	l.Helper()
	events := l.pending(n)
	l.note("delivered", events)
	pgtest.Exec(l.rig, `update outbox.outbox_events set status = 'delivered' where id = any ($1)`, events)
}

func (l *ledger) makeDeadAgain(n int) {
	l.Helper()
	events := l.pending(n)
	l.note("dead again", events)
	for _, id := range events {
		l.makeDead("id = '" + id.String() + "'")
	}
}

// sweep removes half of the delivered rows, as a sweep in eight days would.
func (l *ledger) sweep() {
	l.Helper()
	pgtest.Exec(l.rig, `with old as (
			update outbox.outbox_events set updated_at = now() - interval '8 days' where status = 'delivered' and seq % 2 = 0 returning id
		)
		update outbox.outbox_dead_letters set resolved_at = now() - interval '8 days' where event_id in (select id from old)`)
	pgtest.Exec(l.rig, `update outbox.outbox_sweeps set next_run = now()`)
	if ran, err := l.sweeper.Sweep(l.Context()); !ran || err != nil {
		l.Fatalf("swept %t, %v", ran, err)
	}
}

// finish delivers what is put back until all operations are over. One may wait for another's earlier events of a key.
func (l *ledger) finish() {
	l.Helper()
	for round := 0; ; round++ {
		open := ""
		for _, o := range l.operations {
			if p := l.observe(o); p.FinishedAt.IsZero() {
				open = p.String()
			}
			if _, err := l.replays.Step(l.Context(), o.ID, 50); err != nil {
				l.Fatal(err)
			}
			l.deliverSome(1000)
		}
		switch {
		case open == "":
			return
		case round > 100:
			l.Fatalf("one does not end: %s", open)
		}
	}
}

func (l *ledger) check() {
	l.Helper()
	all := int64(0)
	for _, o := range l.operations {
		p := l.observe(o)
		noted := func(what string) int64 {
			return pgtest.Value[int64](l.rig, `select count(*) from public.became where replay_id = $1 and what = $2`, o.ID, what)
		}
		if delivered, again := noted("delivered"), noted("dead again"); p.Delivered != delivered || p.DeadAgain != again {
			l.Errorf("%s, and of what it put back %d were delivered and %d dead again", p, delivered, again)
		}
		all += p.Delivered
	}
	if all == 0 {
		l.Error("no event was delivered: this proves nothing")
	}
}
