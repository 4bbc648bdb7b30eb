package consumertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/client/consumer"
	"github.com/outbox-operator/outbox-operator/dispatcher/consumertest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// allChecks is how many checks there are.
const allChecks = 19

// each runs a test for each consumer, several at once: they mostly wait.
func each[T any](t *testing.T, consumers map[string]T, test func(*testing.T, T)) {
	var all sync.WaitGroup
	few := make(chan struct{}, 10)
	for name, one := range consumers {
		all.Go(func() {
			few <- struct{}{}
			t.Run(name, func(t *testing.T) { test(t, one) })
			<-few
		})
	}
	all.Wait()
}

// Each wrong consumer is found by the one check that names its flaw, with evidence and a remedy, and no other check calls it broken.
//
// CONTRACT: C-81
// REQUIREMENT: RULE-010-001, RULE-010-002, RULE-010-003, RULE-010-012, RULE-010-020, RULE-010-021, RULE-010-031, RULE-010-032
func TestWrongConsumersAreNamedByTheirCause(t *testing.T) {
	each(t, wrongOnes, func(t *testing.T, wrong wrongOne) {
		c := newService(t).subject(wrong.deliver)
		if wrong.set != nil {
			wrong.set(&c)
		}
		c.EvidenceFile = filepath.Join(t.TempDir(), "evidence.json")
		report, err := consumertest.Check(t.Context(), c)
		need.OK(t, err)
		if len(report.Broken) != 1 || report.Broken[0].Check != wrong.check || !strings.Contains(report.Broken[0].Evidence, wrong.says) {
			t.Fatalf("it breaks %v, want %q, which says %q", report.Broken, wrong.check, wrong.says)
		}
		rules := readEvidence(t, c.EvidenceFile).BrokenRules
		need.That(t, len(rules) == 1 && rules[0] == wrong.rule, "it breaks %q, want %s", rules, wrong.rule)
		for check, cause := range report.Follow {
			need.Want(t, wrong.check, "%s follows from %s, want %s", cause, check)
		}
	})
}

// Each right consumer passes all checks but those that it declares to be without meaning.
//
// CONTRACT: C-81
func TestRightConsumersPass(t *testing.T) {
	each(t, rightOnes, func(t *testing.T, one rightOne) {
		c := newService(t).subject(one.deliver)
		if one.set != nil {
			one.set(&c)
		}
		c.EvidenceFile = filepath.Join(t.TempDir(), "evidence.json")
		report, err := consumertest.Check(t.Context(), c)
		need.That(t, err == nil && len(report.Broken) == 0 && len(report.Skipped) == 0 && len(report.Passed) == allChecks-one.leftOut, "%+v, %v", report, err)
		r := readEvidence(t, c.EvidenceFile)
		need.That(t, len(r.NotTried) == 0, "not tried: %v", r.NotTried)
	})
}

// A check whose hook is missing is reported as not made, and a hook that fails as that.
//
// CONTRACT: C-81
func TestMissingHookIsReportedAsNotChecked(t *testing.T) {
	need.That(t, need.Err(consumertest.Check(t.Context(), consumertest.Consumer{})) != nil, "a consumer without hooks was checked")
	s := map[uuid.UUID]int{}
	var mu sync.Mutex
	c := consumertest.Consumer{
		AnyType: true,
		Event:   func() *consumer.Event { return &consumer.Event{Payload: []byte("{}")} },
		Deliver: func(_ context.Context, e *consumer.Event) error {
			mu.Lock()
			defer mu.Unlock()
			s[e.ID] = 1
			return nil
		},
		Effects: func(_ context.Context, id uuid.UUID) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return s[id], nil
		},
	}
	report, err := consumertest.Check(t.Context(), c)
	need.That(t, err == nil && len(report.Broken) == 0 && len(report.Passed) == 11 && report.Skipped["crash between effect and record"] == "Crash" && len(report.Skipped) == 7,
		"%+v, %v", report, err)
	consumertest.Verify(t, c)
	idle := c
	idle.Deliver = func(context.Context, *consumer.Event) error { return nil }
	if report, err := consumertest.Check(t.Context(), idle); err != nil || len(report.Broken) != 1 || report.Broken[0].Check != "handles an event" {
		t.Errorf("a consumer that does nothing: %+v, %v", report, err)
	}
	c.Restart = func(context.Context) error { return errCrash }
	if _, err := consumertest.Check(t.Context(), c); !errors.Is(err, errCrash) || !strings.Contains(err.Error(), "Restart") {
		t.Errorf("%v", err)
	}
}

// A consumer that responds in time and needs more of it than a check has is not called broken: the check ends, with a remedy.
//
// CONTRACT: C-81
func TestCheckThatIsCutOffIsNotBroken(t *testing.T) { synctest.Test(t, checkThatIsCutOff) }

func checkThatIsCutOff(t *testing.T) {
	c := consumertest.Consumer{
		Event: func() *consumer.Event { return &consumer.Event{Payload: []byte("{}")} },
		Deliver: func(ctx context.Context, _ *consumer.Event) error { // four take longer than a check may
			select {
			case <-time.After(400 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		Effects:      func(context.Context, uuid.UUID) (int, error) { return 1, nil },
		CheckTimeout: 1500 * time.Millisecond,
	}
	report, err := consumertest.Check(t.Context(), c)
	need.That(t, err != nil && len(report.Broken) == 0 && slices.Equal(report.Passed, []string{"responds in time"}) && strings.Contains(err.Error(), "handles an event: the check was not done within 1.5s"),
		"%+v, %v", report, err)
}

// The evidence says what the checks found. There is none of checks that could not be finished.
//
// CONTRACT: C-81, C-82
func TestEvidenceSaysWhatTheChecksFound(t *testing.T) {
	var mu sync.Mutex
	effects := map[uuid.UUID]int{}
	count := func(_ context.Context, id uuid.UUID) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return effects[id], nil
	}
	c := consumertest.Consumer{
		AnyType: true,
		Event:   func() *consumer.Event { return &consumer.Event{EventType: "OrderPlaced", Payload: []byte("{}")} },
		// It handles everything, and again.
		Deliver: func(_ context.Context, e *consumer.Event) error {
			mu.Lock()
			defer mu.Unlock()
			effects[e.ID]++
			return nil
		},
		Effects:      count,
		EvidenceFile: filepath.Join(t.TempDir(), "evidence.json"),
	}
	found, err := consumertest.Check(t.Context(), c)
	need.OK(t, err)
	e := readEvidence(t, c.EvidenceFile)
	need.That(t, e.EventType == "OrderPlaced" && !e.VerifiedAt.IsZero() && len(e.BrokenRules) != 0 && e.Checks == allChecks && e.Passed == len(found.Passed) && len(e.LeftOut) != 0,
		"it says %+v, want %+v", e, found)
	c.Effects = func(context.Context, uuid.UUID) (int, error) { return 0, errCrash }
	c.EvidenceFile = filepath.Join(t.TempDir(), "evidence.json")
	need.That(t, need.Err(consumertest.Check(t.Context(), c)) != nil, "the checks were finished, although effects cannot be counted")
	if _, err := os.Stat(c.EvidenceFile); !os.IsNotExist(err) {
		t.Errorf("checks that were not finished wrote evidence: %v", err)
	}
	c.Effects, c.EvidenceFile = count, t.TempDir()
	need.That(t, need.Err(consumertest.Check(t.Context(), c)) != nil, "got no error for evidence that cannot be written")
}

func readEvidence(t *testing.T, path string) status.ConsumerEvidence {
	t.Helper()
	var patch struct {
		Spec struct {
			Evidence status.ConsumerEvidence `json:"evidence"`
		} `json:"spec"`
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &patch)
	}
	need.OK(t, err)
	return patch.Spec.Evidence
}

func TestMain(m *testing.M) { pgtest.Main(m) }

// service is a consumer with the parts that the broken ones are made of.
type service struct {
	*pgxpool.Pool
	handler *consumer.Consumer[consumer.PGX, pgx.Tx]
	crash   bool // crash when the effect was made, and before its record is committed
	both    chan struct{}
	counted chan struct{} // a signal for each count of effects

	mu       sync.Mutex
	known    map[string]bool
	outside  map[uuid.UUID]int64 // the tokens of effects outside of the database
	last     int64
	failed   atomic.Bool
	restarts int // requests that are refused since it was restarted
}

var errCrash = errors.New("killed")

// execer is a transaction or the pool, where each statement commits.
type execer interface {
	Exec(ctx context.Context, statement string, args ...any) (pgconn.CommandTag, error)
}

func newService(t *testing.T) *service {
	s := &service{
		Pool: pgtest.Pool(t, pgtest.Empty(t)), known: map[string]bool{}, outside: map[uuid.UUID]int64{},
		both: make(chan struct{}), counted: make(chan struct{}, 1),
	}
	s.handler = consumer.New(consumer.Options{ID: "billing", Logger: slog.New(slog.DiscardHandler)})
	need.OK(t, s.exec(t.Context(), consumer.SQL("")+"create table effects (tracking_id uuid); create table keys (tracking_id uuid primary key)"))
	return s
}

func (s *service) exec(ctx context.Context, statement string) error {
	_, err := s.Exec(ctx, statement)
	return err
}

func (s *service) inTransaction(ctx context.Context, e *consumer.Event, effect func(pgx.Tx) error) error {
	_, err := s.handler.Handle(ctx, s, e, effect)
	return err
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

func (s *service) recorded(ctx context.Context, e *consumer.Event) (there bool, err error) {
	err = s.QueryRow(ctx, "select exists (select from processed_events where tracking_id = $1)", e.ID).Scan(&there)
	return there, err
}

// record returns whether the record is new.
func (s *service) record(ctx context.Context, e *consumer.Event) (bool, error) {
	tag, err := s.Exec(ctx, "insert into processed_events values ($1, 'broken') on conflict do nothing", e.ID)
	return tag.RowsAffected() == 1, err
}

// first reports whether the key was not known before.
func (s *service) first(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.known[key]
	s.known[key] = true
	return !known
}

// meet waits until two deliveries are here, or no second one comes.
func (s *service) meet() {
	select {
	case s.both <- struct{}{}:
	case <-s.both:
	case <-time.After(time.Second):
	}
}

// untilCounted waits until effects were counted, for a second at most.
func (s *service) untilCounted() {
	select {
	case <-s.counted:
	case <-time.After(time.Second):
	}
}

// subject is the consumer with every hook.
func (s *service) subject(deliver func(context.Context, *service, *consumer.Event) error) consumertest.Consumer {
	rename := func(ctx context.Context, table string, hidden bool) error {
		if hidden {
			return s.exec(ctx, "alter table "+table+" rename to hidden_"+table)
		}
		return s.exec(ctx, "alter table hidden_"+table+" rename to "+table)
	}
	return consumertest.Consumer{
		Deliver: func(ctx context.Context, e *consumer.Event) error { return deliver(ctx, s, e) },
		Event: func() *consumer.Event {
			return &consumer.Event{EventType: "OrderPlaced", AggregateID: "o-7", Payload: []byte(`{"order": 7, "currency": "EUR"}`)}
		},
		Optional: []string{"currency"},
		Effects: func(ctx context.Context, id uuid.UUID) (n int, err error) {
			err = s.QueryRow(ctx, "select (select count(*) from effects where tracking_id = $1) + (select count(*) from keys where tracking_id = $1)", id).Scan(&n)
			select {
			case s.counted <- struct{}{}:
			default:
			}
			return n, err
		},
		Token: func(_ context.Context, id uuid.UUID) (int64, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.outside[id], nil
		},
		Restart: func(context.Context) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.known, s.restarts = map[string]bool{}, 3
			s.failed.Store(false)
			return nil
		},
		FailEffect: func(ctx context.Context, fails bool) error {
			return errors.Join(rename(ctx, "effects", fails), rename(ctx, "keys", fails))
		},
		FailRecord: func(ctx context.Context, fails bool) error { return rename(ctx, "processed_events", fails) },
		Crash: func(ctx context.Context, e *consumer.Event) error {
			s.crash = true
			defer func() { s.crash = false }()
			if err := deliver(ctx, s, e); !errors.Is(err, errCrash) {
				return errors.Join(err, errors.New("it did not crash"))
			}
			return nil
		},
	}
}
