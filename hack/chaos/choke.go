package main

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// The rows of a choke: together more than the buffers of a socket, and less than a claim may have.
const (
	bulkyRows  = 16
	bulkyBytes = 900_000
)

// choke has a dispatcher stop half-way through a claim: the server has leased rows that it cannot send. Until
// the claim's transaction is over they are locked, and no other worker can claim them.
//
// To make sure of it, all dispatchers stand still for a moment, and the victim's next claim waits at a gate,
// after it has its snapshot.
func (w *world) choke(ctx context.Context, s *slot, f fault) error {
	wakes, over := w.nap(s)
	defer wakes()
	note, err := w.claimHalf(ctx, s)
	over()
	if err != nil {
		return unlessDisconnected(err)
	}
	defer w.begin(f.kind, s.now.worker, "%s for %s; %s", s.now.name, f.lasts, note)()
	sleep(ctx, f.lasts)
	return nil
}

// nap stops a dispatcher until wakes is called; over says that the nap is at its end.
func (w *world) nap(s *slot) (wakes, over func()) {
	over = w.begin(nap, s.now.worker, "%s, for a choke", s.now.name)
	s.now.Signal(syscall.SIGSTOP)
	return func() { s.now.Signal(syscall.SIGCONT) }, over
}

// claimHalf makes the victim stop in its next claim.
func (w *world) claimHalf(ctx context.Context, victim *slot) (note string, err error) {
	for _, o := range w.slots {
		if o == victim || !o.mu.TryLock() {
			continue
		}
		defer o.mu.Unlock()
		wakes, over := w.nap(o)
		defer over()
		defer wakes()
	}
	rows := make([]odd, bulkyRows)
	for i := range rows {
		rows[i] = newOdd(bulkyType, "")
		rows[i].key, rows[i].bytes = rows[i].id.String(), bulkyBytes
	}
	if err := w.insertOdd(ctx, rows...); err != nil {
		return "", err
	}
	gate, err := w.admin.Begin(ctx)
	if err != nil {
		return "", err
	}
	defer gate.Rollback(context.WithoutCancel(ctx))
	if _, err := gate.Exec(ctx, "set local lock_timeout = '2s'; select pg_advisory_xact_lock(2026)"); err != nil {
		return fmt.Sprintf("the gate could not be closed: %v", err), nil // another claim is still half-way
	}
	var now time.Time // the database's
	if err := gate.QueryRow(ctx, "select clock_timestamp()").Scan(&now); err != nil {
		return "", err
	}
	victim.now.Signal(syscall.SIGCONT)
	came := w.backend(ctx, "advisory", now)
	victim.now.Signal(syscall.SIGSTOP)
	if err := gate.Rollback(ctx); err != nil {
		return "", err
	}
	half := w.backend(ctx, "ClientWrite", now)
	return fmt.Sprintf("a claim came: %t, and stopped half-way: %t", came, half), nil
}

// backend waits, two seconds at most, for a claim that was sent after a time and waits for something.
func (w *world) backend(ctx context.Context, event string, after time.Time) (found bool) {
	for until := time.Now().Add(2 * time.Second); !found && time.Now().Before(until); {
		err := w.admin.QueryRow(ctx, `select exists (select from pg_stat_activity
			where usename = $1 and wait_event = $2 and query_start > $3 and query like '-- Leases%')`, w.shop.Dispatcher.User, event, after).Scan(&found)
		if err != nil || !sleep(ctx, 5*time.Millisecond) {
			return found
		}
	}
	return found
}
