package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
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
	_ = instruct(context.WithoutCancel(ctx), "http://"+w.address, "repaired=0")
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
