package adopt_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

// Producers write on, at some 500 events a second, while a service's outbox is adopted, cut over and given back. Each
// event that was committed is delivered, none that was rolled back, none is added twice, and both sides deliver only what
// their worker had in its hands at the cut-over.
//
// CONTRACT: C-91
func TestEachEventSentByOneSide(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]func() oldService{
		"m10": m10Service, "m10 upsert": m10Upsert, "overview": overviewService, "storage": storageService, "columns": columnsService,
	} {
		t.Run(name, func(t *testing.T) { newRig(t, old()).playLedger() })
	}
}

func (r rig) playLedger() {
	l := newLedger()
	for n := -5; n < 0; n++ { // a worker crashed with these
		r.produce(r.Context(), n)
		l.committed[n] = true
	}
	r.exec(r.old.stuck)
	p := producers{rig: r, ledger: l}
	stopWorker := r.work(l, 0)
	wait := p.start(2400)

	p.reach(200)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.ToShadow, adopt.Shadow, false)
	p.reach(800)
	if s := r.status(); !s.OK() || s.Theirs == 0 || s.Theirs != s.Ours || s.Refused != 0 || s.State != adopt.Shadow {
		r.Errorf("in the shadow: %+v", s)
	}
	if n := pgtest.Value[int](r, `select count(*) from outbox.outbox_events`); n != 0 {
		r.Errorf("%d events in the shadow", n)
	}
	moved := r.step(adopt.Cutover, adopt.Live, true)
	stopDispatcher := r.dispatch(l)
	p.reach(1400)
	stopWorker()
	r.step(adopt.Cutover, adopt.Live, false)
	wait()
	r.deliverAll()
	if s := r.status(); !s.OK() || s.Theirs != s.Ours || s.Refused != 0 || s.State != adopt.Live || s.OursWaiting != 0 {
		r.Errorf("after the cut-over: %+v", s)
	}
	r.check(l)
	stopDispatcher()
	theirs, ours := len(l.theirs), len(l.ours)

	// No worker delivers until the way back; their worker delivers the rest.
	wait = p.start(600)
	p.reach(2400)
	returned := r.step(adopt.Back, adopt.None, true)
	stopWorker = r.work(l, 0)
	wait()
	r.eventually("their worker has delivered the rest", func() bool {
		r.exec(fmt.Sprintf(`update %[1]s set %[2]s = now() where %[2]s > now() and %[3]s`, r.old.table(), r.old.due, r.old.open))
		return pgtest.Value[int](r, `select count(*) from `+r.old.table()+` where `+r.old.open) == 0
	})
	stopWorker()
	r.check(l)
	r.step(adopt.Back, adopt.None, false)
	if n := pgtest.Value[int](r, `select count(*) from outbox.outbox_events where live`) + pgtest.Value[int](r, `select count(*) from outbox.outbox_adopted`) +
		pgtest.Value[int](r, `select count(*) from pg_trigger where tgname like 'outbox\_adopt%'`) + pgtest.Value[int](r, `select count(*) from pg_proc where proname like 'outbox\_adopt\_'||$1`, r.old.spec.Layout); n != 0 {
		r.Errorf("%d things are left after the way back", n)
	}
	r.Logf("committed %d, rolled back %d; moved %d, returned %d; delivered by theirs %d, ours %d at the end of the cut-over, %d and %d in all",
		len(l.committed), len(l.rolledBack), moved.Moved, returned.Returned, theirs, ours, len(l.theirs), len(l.ours))
	if moved.Moved < 5 || returned.Returned == 0 || ours == 0 || theirs == 0 {
		r.Errorf("one side had nothing to do")
	}
}

// deliverAll waits until the dispatcher has delivered all, of which some is due later.
func (r rig) deliverAll() {
	r.Helper()
	r.eventually("the dispatcher has delivered all", func() bool {
		r.exec(`update outbox.outbox_events set next_attempt_at = now() where live and status = 'pending' and next_attempt_at > now()`)
		return pgtest.Value[int](r, `select count(*) from outbox.outbox_events where live`) == 0
	})
}

// check holds deliveries against what was committed.
func (r rig) check(l *ledger) {
	r.Helper()
	l.Lock()
	defer l.Unlock()
	// A later event of an aggregate may have replaced an earlier one.
	last := map[int]int{}
	for n := range l.committed {
		key := n
		if r.old.aggregates > 0 {
			key = n % r.old.aggregates
		}
		if m, ok := last[key]; !ok || m < n {
			last[key] = n
		}
	}
	both := 0
	for _, n := range last {
		if l.theirs[n]+l.ours[n] == 0 {
			r.Errorf("event %d is lost", n)
		}
	}
	for n := range l.committed {
		if l.ours[n] > 1 || l.theirs[n] > 1 {
			r.Errorf("event %d was delivered %d times by theirs and %d by ours", n, l.theirs[n], l.ours[n])
		}
		if l.ours[n] > 0 && l.theirs[n] > 0 {
			both++
		}
	}
	if most := map[bool]int{false: 25, true: 0}[r.old.together]; both > most {
		r.Errorf("%d events were delivered by both, want at most %d, which their worker had in its hands", both, most)
	}
	for n := range l.rolledBack {
		if l.theirs[n]+l.ours[n] > 0 {
			r.Errorf("event %d was rolled back, and delivered", n)
		}
	}
	if n := pgtest.Value[int](r, `select count(*) from (select from outbox.outbox_events group by payload having count(*) > 1) as twice`); n != 0 {
		r.Errorf("%d events were added twice", n)
	}
}

// producers are four connections.
type producers struct {
	rig
	*ledger
	next, commits atomic.Int64
}

// reach waits until so many events are committed.
func (p *producers) reach(n int64) {
	p.Helper()
	p.eventually(fmt.Sprint(n, " commits"), func() bool { return p.commits.Load() >= n })
}

// start produces n more events, each tenth of which is rolled back, and returns what waits for the end. A connection has
// aggregates of its own. Each fourth transaction has a snapshot from before it writes.
func (p *producers) start(n int64) (wait func()) {
	var group sync.WaitGroup
	first := p.next.Load()
	for k := range int64(4) {
		group.Go(func() {
			rate := time.NewTicker(8 * time.Millisecond)
			defer rate.Stop()
			for i := first + k; i < first+n && p.Context().Err() == nil; i += 4 {
				p.one(int(i))
				<-rate.C
			}
		})
	}
	p.next.Add(n)
	p.Cleanup(group.Wait)
	return group.Wait
}

func (p *producers) one(n int) {
	ctx := context.WithoutCancel(p.Context())
	level := pgx.ReadCommitted
	if n%16 < 4 && p.old.aggregates == 0 {
		level = pgx.RepeatableRead
	}
	tx, err := p.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	if err != nil {
		p.Errorf("a producer got %v", err)
		return
	}
	defer func() { _ = tx.Rollback(ctx) }() // nothing after a commit
	_, err = tx.Exec(ctx, `select 1`)
	if err == nil {
		err = p.old.produce(ctx, tx, n)
	}
	if err == nil && n%10 == 3 {
		p.do(func() { p.rolledBack[n] = true })
		err = tx.Rollback(ctx)
	} else if err == nil {
		if err = tx.Commit(ctx); err == nil {
			p.do(func() { p.committed[n] = true })
			p.commits.Add(1)
		}
	}
	if err != nil {
		p.Errorf("a producer got %v", err)
	}
}
