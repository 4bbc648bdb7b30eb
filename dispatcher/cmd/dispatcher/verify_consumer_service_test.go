package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	consume "github.com/outbox-operator/outbox-operator/dispatcher/consumer"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// service is an HTTP consumer, with the parts that the broken ones are made of. What the hooks' commands write into the
// files of dir it obeys at the next request.
type service struct {
	*pgxpool.Pool
	*httptest.Server
	dir     string
	handler *consume.Consumer[consume.PGX, pgx.Tx]

	mu     sync.Mutex
	hidden bool // processed_events is renamed
	known  map[uuid.UUID]bool
	seen   map[string]bool // Content-Type and login of the requests
	both   chan struct{}
}

var errCrash = errors.New("killed")

// execer is a transaction or the pool, where each statement commits.
type execer interface {
	Exec(ctx context.Context, statement string, args ...any) (pgconn.CommandTag, error)
}

// is reports whether a hook's command has set the state.
func (s *service) is(hook string) bool {
	state, _ := os.ReadFile(filepath.Join(s.dir, hook))
	return strings.TrimSpace(string(state)) == "on"
}

// effect writes an effect.
func (s *service) effect(ctx context.Context, tx execer, e *consume.Event) error {
	switch {
	case e.EventType != "OrderPlaced":
		return consume.Refuse(errors.New("an unknown type"))
	case s.is("fail"):
		return errors.New("the effect failed")
	}
	if _, err := tx.Exec(ctx, "insert into effects values ($1)", e.ID); err != nil {
		return err
	}
	if s.is("crash") {
		return errCrash
	}
	return nil
}

func (s *service) recorded(ctx context.Context, e *consume.Event) (there bool, err error) {
	err = s.QueryRow(ctx, "select exists (select from processed_events where tracking_id = $1)", e.ID).Scan(&there)
	return there, err
}

// record reports whether the record is new.
func (s *service) record(ctx context.Context, e *consume.Event) (bool, error) {
	tag, err := s.Exec(ctx, "insert into processed_events values ($1, 'broken') on conflict do nothing", e.ID)
	return tag.RowsAffected() == 1, err
}

// meet waits until two deliveries are here, or no second one comes.
func (s *service) meet() {
	select {
	case s.both <- struct{}{}:
	case <-s.both:
	case <-time.After(time.Second):
	}
}

// right keeps all the rules.
func right(ctx context.Context, s *service, e *consume.Event) error {
	_, err := s.handler.Handle(ctx, s, e, func(tx pgx.Tx) error { return s.effect(ctx, tx, e) })
	return err
}

// obey does what the hooks' commands have requested.
func (s *service) obey(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if os.Remove(filepath.Join(s.dir, "restart")) == nil {
		s.known = map[uuid.UUID]bool{}
	}
	if hidden := s.is("record"); hidden != s.hidden {
		from, to := "processed_events", "hidden"
		if s.hidden {
			from, to = to, from
		}
		if _, err := s.Exec(ctx, "alter table "+from+" rename to "+to); err != nil {
			return err
		}
		s.hidden = hidden
	}
	return nil
}

// newService serves a consumer: deliver is nil for the one that a service in Go has.
func newService(t *testing.T, deliver func(context.Context, *service, *consume.Event) error) *service {
	s := &service{Pool: pgtest.Pool(t, pgtest.Empty(t)), dir: t.TempDir(), known: map[uuid.UUID]bool{}, seen: map[string]bool{}, both: make(chan struct{})}
	s.handler = consume.New(consume.Options{ID: "billing", Logger: slog.New(slog.DiscardHandler)})
	_, err := s.Exec(t.Context(), consume.SQL("")+"create table effects (tracking_id uuid)")
	check(t, err)
	events := s.handler.HTTP(s, func(ctx context.Context, tx pgx.Tx, e *consume.Event) error { return s.effect(ctx, tx, e) })
	if deliver != nil {
		events = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			all, err := consume.FromHTTP(r.Header, body)
			if err == nil {
				err = deliver(r.Context(), s, all[0])
			}
			if err != nil {
				http.Error(w, "it failed", http.StatusInternalServerError)
			}
		})
	}
	mux := http.NewServeMux()
	mux.Handle("POST /events", events)
	mux.HandleFunc("GET /effects", func(w http.ResponseWriter, r *http.Request) {
		var n int
		if err := s.QueryRow(r.Context(), "select count(*) from effects where tracking_id = $1", r.FormValue("id")).Scan(&n); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
		fmt.Fprint(w, n)
	})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.obey(r.Context()); err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		s.seen[strings.Join([]string{r.Method, r.Header.Get("Content-Type"), r.Header.Get("Authorization"), r.Header.Get("X-Key")}, " ")] = true
		s.mu.Unlock()
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Server.Close)
	return s
}

// hook is a flag whose command writes into a file of the service.
func (s *service) hook(name string) []string {
	switch path := filepath.Join(s.dir, name); name {
	case "restart":
		return []string{"--restart", "touch " + path}
	case "record":
		return []string{"--fail-record", "echo {state} > " + path}
	default:
		return []string{"--" + name, "echo {state} > " + path}
	}
}

// verify runs the command against the service with a probe, a payload and hooks.
func (s *service) verify(t *testing.T, hooks []string, more ...string) output {
	payload := filepath.Join(t.TempDir(), "order.json")
	check(t, os.WriteFile(payload, []byte(`{"order": 7, "currency": "EUR"}`), 0o600))
	args := []string{"verify-consumer", "--url", s.URL + "/events", "--type", "OrderPlaced", "--payload", payload,
		"--optional", "currency", "--probe", s.URL + "/effects?id={id}"}
	for _, name := range hooks {
		args = append(args, s.hook(name)...)
	}
	return run(t, "", append(args, more...)...)
}

var everyHook = []string{"restart", "fail", "record", "crash"}
