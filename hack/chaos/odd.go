package main

import (
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
	eventType string
	key       string
	headers   string  // JSON
	retry     *string // likewise
	bytes     int     // of its payload
	attempts  *int    // its own budget
}

func newOdd(eventType, key string) odd {
	return odd{id: uuid.Must(uuid.NewV7()), eventType: eventType, key: key, headers: "{}"}
}

// insertOdd commits rows that are inserted directly, and notes them in a journal. They go around the
// first that wait.
func (w *world) insertOdd(ctx context.Context, rows ...odd) error {
	return w.hand.commit(ctx, func(tx pgx.Tx) (ids []uuid.UUID, err error) {
		for i, r := range rows {
			_, err := tx.Exec(ctx, `insert into outbox.outbox_events
					(id, namespace, topic, event_type, aggregate_type, aggregate_id, next_attempt_at, headers, retry, max_attempts, payload)
				values ($1, $2, $3, $4, 'customer', $5, coalesce((select min(next_attempt_at) from outbox.outbox_events
						where live and status = 'pending' and next_attempt_at < now()), now()), $6::text::jsonb, $7::text::jsonb, $8, jsonb_build_object('text', repeat('x', $9)))`,
				r.id.String(), scenario.Namespace, topics[i%len(topics)], r.eventType, r.key, r.headers, r.retry, r.attempts, r.bytes)
			if err != nil {
				return nil, err
			}
			ids = append(ids, r.id)
		}
		return ids, nil
	}, func() bool { return true })
}

// addUnreadable commits rows that no dispatcher can decode, between others of their keys: headers that are
// nested too deeply for the client's decoder or, where the schema refuses those, a policy of retries that is
// none.
func (w *world) addUnreadable(ctx context.Context, f fault) error {
	rows := make([]odd, len(topics))
	for i := range rows {
		rows[i] = newOdd(unreadableType, fmt.Sprintf("customer-%d", i))
		rows[i].headers = `{"x":` + strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001) + `}`
	}
	err := w.insertOdd(ctx, rows...)
	what := "headers 10,001 deep"
	if refusedRow(err) {
		what = "a policy of retries that is none"
		none := `{"base": "soon"}`
		for i := range rows {
			rows[i].headers, rows[i].retry = `{}`, &none
		}
		err = w.insertOdd(ctx, rows...)
	}
	if err != nil {
		return unlessDisconnected(err)
	}
	defer w.begin(f.kind, uuid.Nil, "%d rows with %s", len(rows), what)()
	sleep(ctx, f.lasts) // what happens meanwhile happens with them present
	return nil
}

// vetoDeadLetter commits an event that the consumer refuses for good, and has a trigger refuse to mark it dead for a
// while. Half of them have one attempt, so that a claim is to mark them dead.
func (w *world) vetoDeadLetter(ctx context.Context, f fault) error {
	row := newOdd(scenario.PoisonType, "customer-0")
	if f.pick%2 == 0 {
		one := 1
		row.attempts = &one
	}
	if _, err := w.admin.Exec(ctx, "insert into chaos.vetoed values ($1)", row.id.String()); err != nil {
		return unlessDisconnected(err)
	}
	end := w.beginFault(injected{kind: f.kind, event: row.id}, "of event %s for %s; it has one attempt: %t", row.id, f.lasts, row.attempts != nil)
	defer end()
	err := w.insertOdd(ctx, row)
	sleep(ctx, f.lasts)
	for ctx.Err() == nil { // the database may be unreachable
		if _, err := w.admin.Exec(ctx, "delete from chaos.vetoed where id = $1", row.id.String()); err == nil {
			break
		}
		sleep(ctx, 100*time.Millisecond)
	}
	return unlessDisconnected(err)
}

// reviveDead has the consumer accept what it refused for good, and replays dead events by the command.
func (w *world) reviveDead(ctx context.Context, f fault) error {
	_ = instruct(ctx, "http://"+w.address, "repaired=true") // else they are dead again
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
	_ = instruct(context.WithoutCancel(ctx), "http://"+w.address, "repaired=false")
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

// refusedRow reports whether a constraint refused a row.
func refusedRow(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && strings.HasPrefix(pg.Code, "23")
}
