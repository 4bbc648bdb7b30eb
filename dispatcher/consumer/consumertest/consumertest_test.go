package consumertest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher/consumer"
	"github.com/outbox-operator/outbox-operator/dispatcher/consumer/consumertest"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// service is a consumer with the parts that the broken ones are made of.
type service struct {
	*pgxpool.Pool
	handler *consumer.Consumer[consumer.PGX, pgx.Tx]
	crash   bool // crash when the effect was made, and before its record is committed

	mu    sync.Mutex
	known map[uuid.UUID]bool
	last  int64
	both  chan struct{}
}

var errCrash = errors.New("killed")

// execer is a transaction or the pool, where each statement commits.
type execer interface {
	Exec(ctx context.Context, statement string, args ...any) (pgconn.CommandTag, error)
}

func (s *service) inTransaction(ctx context.Context, e *consumer.Event, effect func(pgx.Tx) error) (consumer.Outcome, error) {
	return s.handler.Handle(ctx, s, e, effect)
}

// effect writes an effect.
func (s *service) effect(ctx context.Context, tx execer, e *consumer.Event) error {
	if _, err := tx.Exec(ctx, "insert into effects values ($1)", e.ID); err != nil {
		return err
	}
	if s.crash {
		return errCrash
	}
	return nil
}

// right keeps all the rules.
func right(ctx context.Context, s *service, e *consumer.Event) error {
	_, err := s.inTransaction(ctx, e, func(tx pgx.Tx) error {
		order := struct {
			Order    int    `json:"order"`
			Currency string `json:"currency"`
		}{Currency: "EUR"}
		if err := e.Decode(&order); err != nil {
			return err
		}
		return s.effect(ctx, tx, e)
	})
	return err
}

func recorded(ctx context.Context, s *service, e *consumer.Event) (there bool, err error) {
	err = s.QueryRow(ctx, "select exists (select from processed_events where tracking_id = $1)", e.ID).Scan(&there)
	return there, err
}

// record returns whether the record is new.
func record(ctx context.Context, s *service, e *consumer.Event) (bool, error) {
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

// subjects are consumers, with the checks that each must not pass and the rules that explain them.
var subjects = map[string]struct {
	deliver func(context.Context, *service, *consumer.Event) error
	checks  []string
	rules   string
}{
	"right": {right, nil, ""},
	"without a record": {func(ctx context.Context, s *service, e *consumer.Event) error { return s.effect(ctx, s, e) },
		[]string{"duplicates", "duplicates at the same time", "replays", "older tokens", "duplicates after a restart", "effect before the check", "crash between effect and record"}, "RULE-010-002, RULE-010-031"},
	"with a record in memory": {func(ctx context.Context, s *service, e *consumer.Event) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, err := recorded(ctx, s, e); err != nil || s.known[e.ID] {
			return err
		}
		if err := s.effect(ctx, s, e); err != nil {
			return err
		}
		s.known[e.ID] = true
		return nil
	}, []string{"duplicates after a restart", "crash between effect and record"}, "RULE-010-002"},
	"that looks, acts, and notes": {func(ctx context.Context, s *service, e *consumer.Event) error {
		there, err := recorded(ctx, s, e)
		if err != nil || there {
			return err
		}
		s.meet()
		if err := s.effect(ctx, s, e); err != nil {
			return err
		}
		_, err = record(ctx, s, e)
		return err
	}, []string{"duplicates at the same time", "crash between effect and record"}, "RULE-010-012"},
	"that notes before it acts": {func(ctx context.Context, s *service, e *consumer.Event) error {
		isNew, err := record(ctx, s, e)
		if err != nil || !isNew {
			return err
		}
		if s.crash {
			return errCrash
		}
		return s.effect(ctx, s, e)
	}, []string{"failures are made good", "crash between effect and record"}, "RULE-010-012"},
	"that acts before it looks": {func(ctx context.Context, s *service, e *consumer.Event) error {
		if err := s.effect(ctx, s, e); err != nil {
			return err
		}
		_, err := record(ctx, s, e)
		return err
	}, []string{"duplicates", "duplicates at the same time", "replays", "older tokens", "duplicates after a restart", "effect before the check", "crash between effect and record"}, "RULE-010-002, RULE-010-031"},
	"that continues when it cannot check": {func(ctx context.Context, s *service, e *consumer.Event) error {
		if _, err := recorded(ctx, s, e); err != nil {
			return s.effect(ctx, s, e)
		}
		return right(ctx, s, e)
	}, []string{"effect before the check"}, "RULE-010-031"},
	"that swallows errors": {func(ctx context.Context, s *service, e *consumer.Event) error {
		if err := right(ctx, s, e); s.crash {
			return err
		}
		return nil
	}, []string{"failures are reported", "effect before the check"}, "RULE-010-032"},
	"that dedupes on the fenced key": {func(ctx context.Context, s *service, e *consumer.Event) error {
		key := *e
		key.ID = uuid.NewSHA1(uuid.Nil, []byte(e.FencedKey()))
		_, err := s.inTransaction(ctx, &key, func(tx pgx.Tx) error { return s.effect(ctx, tx, e) })
		return err
	}, []string{"duplicates at the same time", "replays", "older tokens", "duplicates after a restart"}, "RULE-010-002"},
	"that refuses unknown fields": {func(ctx context.Context, s *service, e *consumer.Event) error {
		var order struct {
			Order    int
			Currency string
		}
		strict := json.NewDecoder(bytes.NewReader(e.Payload))
		if strict.DisallowUnknownFields(); strict.Decode(&order) != nil {
			return errors.New("unknown field")
		}
		return right(ctx, s, e)
	}, []string{"unknown fields"}, "RULE-010-021"},
	"that needs optional fields": {func(ctx context.Context, s *service, e *consumer.Event) error {
		if !strings.Contains(string(e.Payload), "currency") {
			panic("nil pointer")
		}
		return right(ctx, s, e)
	}, []string{"missing fields"}, "RULE-010-021"},
	"that wants order": {func(ctx context.Context, s *service, e *consumer.Event) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if e.Sequence < s.last && e.Sequence != 0 {
			return errors.New("out of order")
		}
		s.last = e.Sequence
		return right(ctx, s, e)
	}, []string{"another order"}, "RULE-010-020"},
	"that refuses duplicates": {func(ctx context.Context, s *service, e *consumer.Event) error {
		s.mu.Lock() // or deliveries at the same time may all find no record, and be acknowledged
		defer s.mu.Unlock()
		if there, err := recorded(ctx, s, e); err != nil || there {
			return errors.Join(err, errors.New("duplicate"))
		}
		return right(ctx, s, e)
	}, []string{"duplicates", "duplicates at the same time", "replays", "duplicates after a restart"}, "RULE-010-002"},
}

// Each broken consumer fails the checks that its flaw breaks, and no other; the right one passes all.
//
// CONTRACT: C-81
// REQUIREMENT: RULE-010-001, RULE-010-002, RULE-010-012, RULE-010-020, RULE-010-021, RULE-010-031, RULE-010-032
func TestBrokenConsumersFailTheirChecks(t *testing.T) {
	for name, subject := range subjects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &service{Pool: pgtest.Pool(t, pgtest.Empty(t)), known: map[uuid.UUID]bool{}, both: make(chan struct{})}
			s.handler = consumer.New(consumer.Options{ID: "billing", Logger: slog.New(slog.DiscardHandler)})
			exec := func(statement string) error { _, err := s.Exec(t.Context(), statement); return err }
			if err := exec(consumer.SQL("") + "create table effects (tracking_id uuid)"); err != nil {
				t.Fatal(err)
			}
			deliver := func(ctx context.Context, e *consumer.Event) error { return subject.deliver(ctx, s, e) }
			under := consumertest.Consumer{
				Deliver: deliver,
				Event: func() *consumer.Event {
					return &consumer.Event{EventType: "OrderPlaced", Payload: []byte(`{"order": 7, "currency": "EUR"}`)}
				},
				Optional: []string{"currency"},
				Effects: func(ctx context.Context, id uuid.UUID) (n int, err error) {
					err = s.QueryRow(ctx, "select count(*) from effects where tracking_id = $1", id).Scan(&n)
					return n, err
				},
				Restart:    func(context.Context) error { s.known = map[uuid.UUID]bool{}; return nil },
				FailEffect: func(_ context.Context, fails bool) error { return exec(rename("effects", fails)) },
				FailRecord: func(_ context.Context, fails bool) error { return exec(rename("processed_events", fails)) },
				Crash: func(ctx context.Context, e *consumer.Event) error {
					s.crash = true
					defer func() { s.crash = false }()
					if err := deliver(ctx, e); !errors.Is(err, errCrash) {
						return errors.Join(err, errors.New("it did not crash"))
					}
					return nil
				},
			}
			if name == "that refuses duplicates" {
				under.CheckTimeout = 3 * time.Second // "at the same time" waits for it
			}
			under.ReportFile = filepath.Join(t.TempDir(), "report.json")
			report, err := consumertest.Check(t.Context(), under)
			if err != nil {
				t.Fatal(err)
			}
			var checks []string
			for _, finding := range report.Broken {
				checks = append(checks, finding.Check)
				if finding.Evidence == "" {
					t.Errorf("%s has no evidence", finding.Check)
				}
			}
			if rules := strings.Join(readReport(t, under.ReportFile).BrokenRules, ", "); !slices.Equal(checks, subject.checks) || rules != subject.rules {
				t.Errorf("it breaks %q and %s, want %q and %s: %v", checks, rules, subject.checks, subject.rules, report.Broken)
			}
			if len(report.Skipped) != 0 || len(report.Passed)+len(report.Broken) != 13 {
				t.Errorf("%d passed, %d broken, skipped %v; want 13 checks", len(report.Passed), len(report.Broken), report.Skipped)
			}
		})
	}
}

func rename(table string, hidden bool) string {
	if hidden {
		return "alter table " + table + " rename to hidden"
	}
	return "alter table hidden rename to " + table
}

// A check whose hook is missing is reported as not made, and a hook that fails as that.
//
// CONTRACT: C-81
func TestMissingHookIsReportedAsNotChecked(t *testing.T) {
	if _, err := consumertest.Check(t.Context(), consumertest.Consumer{}); err == nil {
		t.Error("a consumer without hooks was checked")
	}
	s := map[uuid.UUID]int{}
	var mu sync.Mutex
	c := consumertest.Consumer{
		Event: func() *consumer.Event { return &consumer.Event{Payload: []byte("{}")} },
		Deliver: func(_ context.Context, e *consumer.Event) error {
			mu.Lock()
			defer mu.Unlock()
			s[e.ID] = 1
			return nil
		},
		Effects: func(_ context.Context, id uuid.UUID) (int, error) { return s[id], nil },
	}
	report, err := consumertest.Check(t.Context(), c)
	if err != nil || len(report.Broken) != 0 || len(report.Passed) != 7 || report.Skipped["crash between effect and record"] != "Crash" || len(report.Skipped) != 6 {
		t.Errorf("%+v, %v", report, err)
	}
	consumertest.Verify(t, c)
	idle := c
	idle.Deliver = func(context.Context, *consumer.Event) error { return nil }
	if report, err := consumertest.Check(t.Context(), idle); err != nil || len(report.Broken) != 7 || report.Broken[0].Check != "handles an event" {
		t.Errorf("a consumer that does nothing: %+v, %v", report, err)
	}
	c.Restart = func(context.Context) error { return errCrash }
	if _, err := consumertest.Check(t.Context(), c); !errors.Is(err, errCrash) || !strings.Contains(err.Error(), "Restart") {
		t.Errorf("%v", err)
	}
}
