package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

// bulkyType is the event type of the rows of a choke.
const bulkyType = "OrderBulky"

// odd is a row that no producer makes.
type odd struct {
	id        uuid.UUID
	topic     string // "" for one of the shop's
	eventType string
	key       string
	headers   string // JSON
	bytes     int    // of its payload
	attempts  *int   // its own budget
}

func newOdd(eventType, key string) odd {
	return odd{id: uuid.Must(uuid.NewV7()), eventType: eventType, key: key, headers: "{}"}
}

// newOdds are rows of the first customers.
func newOdds(n int, eventType string) []odd {
	rows := make([]odd, n)
	for i := range rows {
		rows[i] = newOdd(eventType, fmt.Sprintf("customer-%d", i))
	}
	return rows
}

// showOdd inserts rows: what happens for a while happens with them present.
func (w *world) showOdd(ctx context.Context, f fault, rows []odd, format string, args ...any) error {
	defer w.begin(f.kind, uuid.Nil, format, args...)()
	err := w.insertOdd(ctx, rows...)
	sleep(ctx, f.lasts)
	return unlessDisconnected(err)
}

// insertOdd commits rows that are inserted directly, and notes them in a journal. They go around the
// first that wait.
func (w *world) insertOdd(ctx context.Context, rows ...odd) error {
	return w.hand.commit(ctx, func(tx pgx.Tx) (ids []uuid.UUID, err error) {
		for i, r := range rows {
			_, err := tx.Exec(ctx, `insert into outbox.outbox_events
					(id, namespace, topic, event_type, aggregate_type, aggregate_id, next_attempt_at, headers, max_attempts, payload)
				values ($1, $2, $3, $4, 'customer', $5, coalesce((select min(next_attempt_at) from outbox.outbox_events
						where live and status = 'pending' and next_attempt_at < now()), now()), $6::text::jsonb, $7, jsonb_build_object('text', repeat('x', $8)))`,
				r.id.String(), scenario.Namespace, cmp.Or(r.topic, topics[i%len(topics)]), r.eventType, r.key, r.headers, r.attempts, r.bytes)
			if err != nil {
				return nil, err
			}
			ids = append(ids, r.id)
		}
		return ids, nil
	}, func() bool { return true })
}

// addUnreadable commits rows that no dispatcher can decode, between others of their keys: headers that are
// nested too deeply for the client's decoder.
func (w *world) addUnreadable(ctx context.Context, f fault) error {
	rows := newOdds(len(topics), unreadableType)
	for i := range rows {
		rows[i].headers = `{"x":` + strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001) + `}`
	}
	return w.showOdd(ctx, f, rows, "%d rows with headers 10,001 deep", len(rows))
}

// refusals are the errors with which a claim may be refused: a trigger's own, a check's, a cast's, that of damaged data.
var refusals = []string{"P0001", "23514", "22P02", "XX001"}

// veto commits events, and has a trigger refuse something of them for a while: to mark one dead that the consumer refuses
// for good, or to claim them. Half of the former have one attempt, so that a claim is to mark them dead. A dispatcher
// leaves the latter alone for five minutes (CONTRACT C-33), so another takes its place in the end.
func (w *world) veto(ctx context.Context, f fault) error {
	rows, code, slots := newOdds(1, scenario.PoisonType), "", []*slot(nil)
	if f.kind == unclaimed {
		rows, code, slots = newOdds(len(topics), "OrderUnclaimed"), refusals[f.pick%len(refusals)], w.slots
	} else if f.pick%2 == 0 {
		one := 1
		rows[0].attempts = &one
	}
	var ids []string
	for _, r := range rows {
		ids = append(ids, r.id.String())
	}
	list := strings.Join(ids, ",")
	end := w.beginFault(injected{kind: f.kind, event: rows[0].id}, "of %d events such as %s for %s %s; it has one attempt: %t", len(rows), ids[0], f.lasts, code, rows[0].attempts != nil)
	defer end()
	err := w.try(ctx, []string{fmt.Sprintf("insert into chaos.vetoed select unnest('{%s}'::uuid[]), '%s'", list, code)})
	if err == nil {
		err = unlessDisconnected(w.insertOdd(ctx, rows...))
	}
	sleep(ctx, f.lasts)
	err = errors.Join(err, w.try(ctx, []string{fmt.Sprintf("delete from chaos.vetoed where id = any ('{%s}')", list)}))
	for _, s := range slots {
		s.mu.Lock()
		err = errors.Join(err, w.replace(ctx, s, fault{kind: stop}))
		s.mu.Unlock()
	}
	return err
}

// reviveDead has the consumer accept what it refused for good, and replays dead events by the command.
func (w *world) reviveDead(ctx context.Context, f fault) error {
	_ = instruct(ctx, "http://"+w.address, "repaired=1") // else they are dead again
	replayed := 0
	end := w.begin(f.kind, uuid.Nil, "for %s", f.lasts)
	defer end()
	for until := time.Now().Add(f.lasts); time.Now().Before(until); sleep(ctx, 500*time.Millisecond) {
		rows, err := w.admin.Query(ctx, "select event_id::text from outbox.outbox_dead_letters where resolution is null order by random() limit 5")
		if err != nil {
			continue // the database is unreachable
		}
		ids, _ := pgx.CollectRows(rows, pgx.RowTo[string])
		if len(ids) == 0 {
			continue
		}
		replay := exec.CommandContext(ctx, filepath.Join(w.binaries, "dispatcher"), "dead", "replay", "-f", w.replayFile(), "--id", strings.Join(ids, ","), "--reason", "chaos")
		if out, err := replay.CombinedOutput(); err != nil {
			w.log(f.kind, "%v: %s", err, out)
			continue
		}
		replayed += len(ids)
	}
	w.log(f.kind, "up to %d events were replayed", replayed)
	_ = instruct(context.WithoutCancel(ctx), "http://"+w.address, w.usual())
	return nil
}

// unlessDisconnected returns err, or nil when a connection ended or the database is unreachable.
func unlessDisconnected(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && !strings.HasPrefix(pg.Code, "57") && !strings.HasPrefix(pg.Code, "08") {
		return err
	}
	return nil
}

// unreadableType is the event type of rows that no dispatcher can decode.
const unreadableType = "OrderUnreadable"

// checkDeadLetters checks that each dead letter has its record, and that an event is dead for what is wrong with itself: one
// that cannot be decoded as poison, one that the consumer always refuses of that, and any other only of
// attempts that the consumer refused one by one: of 404, which is the event's own. An outage kills none (CONTRACT C-32, C-33, C-41).
func (l *ledger) checkDeadLetters(h *history, e *event) {
	if dead, replays := e.count(toDead), e.count(replay); e.deadLetters != dead || e.replayed != replays {
		l.violate(unrecorded, e, "%d dead letters for %d times dead, %d of them replayed for %d replays", e.deadLetters, dead, e.replayed, replays)
	}
	if e.eventType == unreadableType && len(e.deliveries) > 0 {
		l.violate(misjudged, e, "it cannot be decoded, and was delivered")
	}
	for i, m := range e.moves {
		if m.verb != toDead {
			continue
		}
		if e.sent == 0 && e.eventType != unreadableType && !h.isCopied(e) {
			l.violate(neverSent, e, "%s after %d attempts", m.reason, m.to.attempts)
		}
		spent := m.reason == "max_retries_exceeded" || m.reason == "processing_timeout"
		switch {
		case e.eventType == unreadableType && m.reason == "poison_message":
		case e.eventType == scenario.PoisonType && (spent || m.reason == "permanent_failure"):
		case spent && e.eventType != unreadableType:
			if h.overlapping(e.budgetFrom(i), m.at, func(f injected) bool {
				return f.kind == refuse && f.status == http.StatusNotFound || f.kind == reject && h.isCopied(e) // its ack is its copy's
			}) == "" {
				l.violate(starved, e, "%s", m.reason)
			}
		default:
			l.violate(misjudged, e, "%s is dead with %s", e.eventType, m.reason)
		}
	}
}

// budgetFrom is when the attempts began that were spent at a transition.
func (e *event) budgetFrom(i int) (at time.Time) {
	for _, m := range e.moves[:i] {
		if m.verb == insert || m.verb == replay {
			at = m.at
		}
	}
	return at
}

// checkOthers checks that an odd row, or an outcome that the database refuses, does not stop the others: while
// nothing else was wrong, the consumer never waited for longer than the rows of a killed dispatcher do
// (CONTRACT C-33).
func (l *ledger) checkOthers(h *history) {
	for _, f := range h.faults {
		if f.kind != unreadable && f.kind != veto && f.kind != unclaimed {
			continue
		}
		last := f.start
		for _, at := range append(slices.Clone(h.arrivals), f.end) {
			if at.After(f.end) || at.Before(last) {
				continue
			}
			elsewhere := func(o injected) bool { return slices.Contains(foreground, o.kind) || o.kind == stall }
			if at.Sub(last) > h.bound && h.overlapping(last.Add(-h.bound), at, elsewhere) == "" {
				l.violate(stoodStill, nil, "from %s to %s, during %s (%s)", last.Format(clockTime), at.Format(clockTime), f.kind, f.note)
			}
			last = at
		}
	}
}

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
