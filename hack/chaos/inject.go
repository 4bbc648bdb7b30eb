package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
)

// injected is a fault as it really happened.
type injected struct {
	kind       kind
	start, end time.Time
	// worker is the dispatcher that it hit. The zero UUID means that it hit no one dispatcher.
	worker uuid.UUID
	event  uuid.UUID // of a veto
	status int       // of the consumer's responses, of a refuse
	topic  string    // that a refuse is of; "" for all
	note   string
}

// play injects the faults of a schedule, and returns when the last is over.
func (w *world) play(ctx context.Context, plan []fault) {
	var all sync.WaitGroup
	defer all.Wait()
	began := time.Now()
	for _, f := range plan {
		if !sleep(ctx, time.Until(began.Add(f.at))) {
			return
		}
		all.Go(func() {
			if err := w.inject(ctx, f); err != nil && ctx.Err() == nil {
				w.fail("the fault %s could not be injected: %v", f.kind, err)
			}
		})
	}
}

// inject makes one fault happen, and heals it.
func (w *world) inject(ctx context.Context, f fault) error {
	switch f.kind {
	case kill, stop, freeze, choke:
		s := w.slots[f.slot]
		s.mu.Lock()
		defer s.mu.Unlock()
		switch f.kind {
		case freeze:
			return w.freeze(ctx, s, f)
		case choke:
			return w.choke(ctx, s, f)
		}
		return w.replace(ctx, s, f)
	case crash, cut, bouncer, lag, jump:
		w.database.Lock()
		defer w.database.Unlock()
		return w.breakDatabase(ctx, f)
	case refuse, hang, restart, mute, gateway, partly, stuck:
		w.destination.Lock()
		defer w.destination.Unlock()
		return w.breakConsumer(ctx, f)
	case loop:
		return w.loopCrashes(ctx, f)
	case limited, reject, veto, unclaimed:
		w.control.RLock()
		defer w.control.RUnlock()
		if f.kind == limited || f.kind == reject {
			return w.hinder(ctx, f)
		}
		return w.veto(ctx, f)
	case slow:
		return w.addSlow(ctx, f)
	case late:
		return w.commitLate(ctx, f)
	case snapshot:
		return w.holdSnapshot(ctx, f)
	case unreadable:
		return w.addUnreadable(ctx, f)
	case revive:
		return w.reviveDead(ctx, f)
	default:
		return w.addOne(ctx, f)
	}
}

// replace ends a dispatcher, and starts another one in its place after a while.
func (w *world) replace(ctx context.Context, s *slot, f fault) error {
	note := w.begin(f.kind, s.now.worker, "%s, the next one after %s", s.now.name, f.lasts)
	if f.kind == kill {
		s.now.end((*process).kill)
	} else {
		w.stopOne(s.now)
	}
	sleep(ctx, f.lasts)
	next, err := w.startDispatcher(ctx, s.now.role, "dispatcher", "")
	note()
	if err == nil {
		s.now = next
	}
	return err
}

// stopOne stops a dispatcher in order, which must succeed whatever else is broken.
func (w *world) stopOne(d *dispatching) {
	d.end(func(p *process) {
		if err := p.stop(gracePeriod + 15*time.Second); err != nil {
			w.fail("%v", err)
		}
	})
}

func (w *world) freeze(ctx context.Context, s *slot, f fault) error {
	defer w.begin(f.kind, s.now.worker, "%s for %s", s.now.name, f.lasts)()
	s.now.Signal(syscall.SIGSTOP)
	defer s.now.Signal(syscall.SIGCONT)
	sleep(ctx, f.lasts)
	return nil
}

func (w *world) breakDatabase(ctx context.Context, f fault) error {
	switch f.kind {
	case crash:
		defer w.begin(f.kind, uuid.Nil, "for %s", f.lasts)()
		w.server.Kill()
		sleep(ctx, f.lasts)
		return w.server.Restart(context.WithoutCancel(ctx))
	case lag:
		w.control.Lock()
		defer w.control.Unlock()
		return w.failOver(ctx, f)
	case jump:
		return w.jumpClock(ctx, f)
	case cut:
		share := []int{1, 2}[f.pick%2]
		defer w.begin(f.kind, uuid.Nil, "one in %d of the dispatchers' connections", share)()
		_, err := w.admin.Exec(ctx, `select pg_terminate_backend(pid) from pg_stat_activity
			where usename = $1 and pid % $2::integer = 0`, w.shop.Dispatcher.User, share)
		return err
	default:
		defer w.begin(f.kind, uuid.Nil, "in front of every second dispatcher")()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		return w.bouncer.Restart(ctx)
	}
}

func (w *world) breakConsumer(ctx context.Context, f fault) error {
	// instructed has the consumer do something for a while.
	instructed := func(what, end string) error {
		if err := instruct(ctx, "http://"+w.address, what); err != nil {
			return err
		}
		sleep(ctx, f.lasts)
		return instruct(context.WithoutCancel(ctx), "http://"+w.address, end)
	}
	switch f.kind {
	case refuse, gateway:
		status := []int{500, 503, 429, 404}[f.pick%4]
		of := append([]string{""}, w.sent()...)
		topic := of[f.pick/4%len(of)]
		if f.kind == gateway {
			status, topic = []int{503, 500, 502, 504}[f.pick%4], ""
		}
		defer w.beginFault(injected{kind: f.kind, status: status, topic: topic}, "responds with %d to topic %q for %s", status, topic, f.lasts)()
		return instructed(fmt.Sprintf("status.%s=%d", topic, status), fmt.Sprintf("status.%s=0", topic))
	case stuck:
		return w.addStuck(ctx, f)
	case partly:
		defer w.begin(f.kind, uuid.Nil, "responds with 500 to one request in ten, and with 429 to one tenant, for %s", f.lasts)()
		return instructed("partly=10", "partly=0")
	case mute:
		defer w.begin(f.kind, uuid.Nil, "leaves one request in three without a response for %s", f.lasts)()
		return instructed("mute=3", "mute=0")
	case hang:
		defer w.begin(f.kind, uuid.Nil, "for %s", f.lasts)()
		w.consumer.Signal(syscall.SIGSTOP)
		defer w.consumer.Signal(syscall.SIGCONT)
		sleep(ctx, f.lasts)
		return nil
	default:
		defer w.begin(f.kind, uuid.Nil, "for %s", f.lasts)()
		w.consumer.kill()
		sleep(ctx, f.lasts)
		return w.startConsumer(context.WithoutCancel(ctx))
	}
}

// commitLate has a producer commit events that it inserted long before. A crash of the database in
// between ends it.
func (w *world) commitLate(ctx context.Context, f fault) error {
	p, err := w.startProducer("-hold", f.lasts.String())
	if err != nil {
		return err
	}
	defer w.begin(f.kind, uuid.Nil, "after %s", f.lasts)()
	select {
	case <-p.Done:
	case <-ctx.Done():
		p.kill()
	}
	return nil
}

func (w *world) holdSnapshot(ctx context.Context, f fault) error {
	defer w.begin(f.kind, uuid.Nil, "for %s", f.lasts)()
	conn, err := pgx.Connect(ctx, w.shop.Admin)
	if err != nil {
		return nil // the database is unreachable: there is no snapshot to hold
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, "begin isolation level repeatable read; select count(*) from outbox.outbox_events")
	if err == nil {
		sleep(ctx, f.lasts)
	}
	return nil // a crash of the database ends it
}

// addOne has one more dispatcher for a while.
func (w *world) addOne(ctx context.Context, f fault) error {
	binary, clockError := "dispatcher", ""
	if f.kind == clock {
		binary, clockError = "wrong-clock", []string{"1h", "-1h"}[f.pick%2]
	}
	d, err := w.startDispatcher(ctx, f.pick/2%(w.copies+1), binary, clockError)
	if err != nil {
		return err
	}
	end := w.begin(f.kind, d.worker, "%s for %s %s", d.name, f.lasts, clockError)
	sleep(ctx, f.lasts)
	end()
	defer w.begin(stop, d.worker, "%s, the one more", d.name)()
	w.stopOne(d)
	return nil
}

// begin writes a fault down. What it returns notes its end.
func (w *world) begin(k kind, worker uuid.UUID, format string, args ...any) (end func()) {
	return w.beginFault(injected{kind: k, worker: worker}, format, args...)
}

func (w *world) beginFault(f injected, format string, args ...any) (end func()) {
	f.start, f.note = time.Now(), fmt.Sprintf(format, args...)
	w.mu.Lock()
	i := len(w.faults)
	w.faults = append(w.faults, f)
	w.mu.Unlock()
	w.log(f.kind, "%s", f.note)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.faults[i].end = time.Now()
	}
}

// log shows what happens.
func (w *world) log(k kind, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.verbose {
		fmt.Fprintf(w.out, "%7.1fs  %-10s %s\n", time.Since(w.began).Seconds(), k, fmt.Sprintf(format, args...))
	}
}

// settle waits until no event waits for a delivery. A backlog may take as long as the run, and what is still tried then is
// the ledger's to judge; standing still may not take longer than a minute.
func (w *world) settle(ctx context.Context) error {
	most, since := int64(-1), time.Now()
	for began := time.Now(); ; {
		var live int
		var claims int64
		err := w.admin.QueryRow(ctx, `select count(*), (select last_value from outbox.outbox_leases) from outbox.outbox_events where live`).Scan(&live, &claims)
		switch {
		case err == nil && live == 0:
			return nil
		case err == nil && claims > most:
			most, since = claims, time.Now()
		case time.Since(since) > settleWithin:
			return fmt.Errorf("%d events are live, and for %s none was tried", live, settleWithin)
		}
		if time.Since(began) > settleWithin+w.total {
			return nil
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// sleep waits, and reports whether it did so to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// failOver has a standby follow the primary no more, and take its place a while later. The primary is gone for good then,
// with what was committed meanwhile: events, claims, outcomes, heartbeats.
func (w *world) failOver(ctx context.Context, f fault) (err error) {
	standby, err := w.server.Standby(ctx, postgres.Options{})
	if err != nil {
		return err
	}
	defer w.begin(f.kind, uuid.Nil, "by %s", f.lasts)()
	if err := unfollow(ctx, standby); err != nil {
		return errors.Join(err, standby.Stop(context.WithoutCancel(ctx)))
	}
	sleep(ctx, f.lasts)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	old := w.server
	old.Kill()
	w.server = standby
	if err = standby.Promote(ctx); err == nil {
		err = standby.TakeOver(ctx, old)
	}
	return errors.Join(err, old.Stop(ctx))
}

// unfollow ends the replication into a standby.
func unfollow(ctx context.Context, standby *postgres.Server) error {
	conn, err := pgx.Connect(ctx, standby.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `alter system set primary_conninfo = ''`); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `select pg_reload_conf()`)
	return err
}

// forgotten reports whether a failover took an event with it: it has no row, and was committed while the standby lagged,
// or, when no producer learned the outcome or the copy of an event, delivered then, or later under a lease of then.
func (h *history) forgotten(e *event) bool {
	from, at := e.committedAt, e.committedAt
	if at.IsZero() {
		from, at = e.arrived().Add(-h.lease), e.arrived()
	}
	return len(e.moves) == 0 && h.overlapping(from, at.Add(forgets), func(f injected) bool { return f.kind == lag }) != ""
}
