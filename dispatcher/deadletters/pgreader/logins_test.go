package pgreader

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// A reader cannot write, whatever its login may, and says what to do about a timeout and a missing schema.
func TestReaderCannotWrite(t *testing.T) {
	t.Parallel()
	_, r := outbox(t)
	err := r.read(t.Context(), "try", func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "update outbox.outbox_dead_letters set resolution = null")
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "25006") {
		t.Errorf("a write: %v", err)
	}
	r.timeout = time.Millisecond
	err = r.read(t.Context(), "try", func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "select pg_sleep(600)")
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "a request may take 1ms: narrow it by topic, group or time") {
		t.Errorf("a long statement: %v", err)
	}
	empty := pgtest.Empty(t)
	r = New(func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, empty) }, Options{})
	if _, err := r.List(t.Context(), deadletters.ListRequest{}); err == nil || !strings.Contains(err.Error(), "run `dispatcher migrate up`") {
		t.Errorf("no schema: %v", err)
	}
}

// A replay login reads dead letters and the status of their events. An error says what it may not read, and what to do.
func TestReplayLoginReadsDeadLettersButNotEvents(t *testing.T) {
	t.Parallel()
	pool, _ := outbox(t)
	story(t, pool)
	login := pgtest.Login(t, pool.Pool, migrations.ReplayLogin)
	r := New(func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, login) }, Options{Namespace: "shop"})
	deadLetter, err := r.Show(t.Context(), eventID(1), true)
	if err != nil || deadLetter.Status != "dead" || deadLetter.Error == "" || len(deadLetter.Failures) != 1 || deadLetter.Payload != nil || !strings.Contains(deadLetter.PayloadOmitted, "such as the dispatcher's") {
		t.Errorf("show: %+v, %v", deadLetter, err)
	}
	pgtest.Exec(pool, `delete from outbox.outbox_events where id = $1`, eventID(1))
	if deadLetter, err = r.Show(t.Context(), eventID(1), false); err != nil || deadLetter.Status != "" || deadLetter.PayloadOmitted != "" {
		t.Errorf("show, of an event whose row is gone: %+v, %v", deadLetter, err)
	}
	for _, id := range []string{eventID(2), "key-2"} {
		if _, err := r.Event(t.Context(), id, false); err == nil || !strings.Contains(err.Error(), "this login may not read the row of an event") ||
			!strings.Contains(err.Error(), "use a login that may select on outbox_events, such as the dispatcher's") {
			t.Errorf("event %s: %v", id, err)
		}
	}
	if page, err := r.List(t.Context(), deadletters.ListRequest{}); err != nil || len(page.DeadLetters) == 0 {
		t.Errorf("list: %+v, %v", page, err)
	}
}
