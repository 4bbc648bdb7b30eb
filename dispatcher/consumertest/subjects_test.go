package consumertest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher/client/consumer"
	"github.com/outbox-operator/outbox-operator/dispatcher/consumertest"
)

// deliver is what a consumer does with a delivery.
type deliver func(context.Context, *service, *consumer.Event) error

type rightOne struct {
	deliver deliver
	set     func(*consumertest.Consumer)
	leftOut int // checks that it declares to be without meaning
}

type wrongOne struct {
	deliver     deliver
	check, rule string // that must name its flaw
	says        string // in the evidence, if it has a word of its own
	set         func(*consumertest.Consumer)
}

// right keeps all the rules.
func right(ctx context.Context, s *service, e *consumer.Event) error {
	if e.EventType != "OrderPlaced" {
		return errors.New("unknown type")
	}
	return s.inTransaction(ctx, e, func(tx pgx.Tx) error {
		order := struct {
			Order    int    `json:"order"`
			Currency string `json:"currency"`
		}{Currency: "EUR"}
		if err := e.Decode(&order); err != nil {
			return err
		}
		return s.effect(ctx, tx, e)
	})
}

// takes is the time of a slow consumer: it is what is tested, and waits for nothing.
func takes(d time.Duration) { <-time.After(d) }

// rightOnes are consumers that keep the rules, each in its own way.
var rightOnes = map[string]rightOne{
	"with record and effect in a transaction": {deliver: right},
	"that is slow": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		takes(100 * time.Millisecond)
		return right(ctx, s, e)
	}},
	"that takes its time to start again": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		s.mu.Lock()
		starts := s.restarts > 0
		s.restarts--
		s.mu.Unlock()
		if starts {
			return errors.New("it starts")
		}
		return right(ctx, s, e)
	}},
	"whose effect has a unique key": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		if e.EventType != "OrderPlaced" {
			return errors.New("unknown type")
		}
		_, err := s.Exec(ctx, "insert into keys values ($1) on conflict do nothing", e.ID)
		return err
	}, set: func(c *consumertest.Consumer) { c.NoRecord = true }, leftOut: 2},
	"that skips older events and any other type": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if e.EventType != "OrderPlaced" || e.Sequence < s.last {
			return nil
		}
		err := right(ctx, s, e)
		if err == nil {
			s.last = e.Sequence
		}
		return err
	}, set: func(c *consumertest.Consumer) { c.LatestOnly, c.AnyType = true, true }, leftOut: 2},
	"that fences": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		s.mu.Lock()
		s.outside[e.ID] = max(s.outside[e.ID], e.FencingToken)
		s.mu.Unlock()
		return right(ctx, s, e)
	}},
}

// wrongOnes are consumers with one flaw each, with the check and the rule that must name it, and nothing else.
var wrongOnes = map[string]wrongOne{
	"without a record": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error { return typed(s.effect)(ctx, s, e) },
		check: "duplicates", rule: "RULE-010-002"},
	"with a record in memory": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.known[e.ID.String()] {
			return nil
		}
		err := typed(s.effect)(context.WithoutCancel(ctx), s, e)
		s.known[e.ID.String()] = err == nil
		return err
	}, check: "duplicates after a restart", rule: "RULE-010-002", set: func(c *consumertest.Consumer) { c.NoRecord = true }},
	"that remembers the last 20": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		err := right(ctx, s, e)
		if err == nil {
			_, err = s.Exec(ctx, "delete from processed_events where tracking_id not in (select tracking_id from processed_events order by processed_at desc limit 20)")
		}
		return err
	}, check: "late duplicates", rule: "RULE-010-011"},
	"that looks, acts, and notes": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		there, err := s.recorded(ctx, e)
		if err != nil || there {
			return err
		}
		s.meet()
		if err := typed(s.effect)(ctx, s, e); err != nil {
			return err
		}
		_, err = s.record(ctx, e)
		return err
	}, check: "duplicates at the same time", rule: "RULE-010-012"},
	"that looks, acts, and notes in turn": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		there, err := s.recorded(context.WithoutCancel(ctx), e)
		if err != nil || there {
			return err
		}
		if err := typed(s.effect)(context.WithoutCancel(ctx), s, e); err != nil {
			return err
		}
		_, err = s.record(context.WithoutCancel(ctx), e)
		return err
	}, check: "crash between effect and record", rule: "RULE-010-012"},
	"that notes before it acts": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		ctx = context.WithoutCancel(ctx)
		isNew, err := s.record(ctx, e)
		switch {
		case err != nil || !isNew:
			return err
		case s.crash:
			return errCrash
		}
		return typed(s.effect)(ctx, s, e)
	}, check: "failures are made good", rule: "RULE-010-012", says: "lost"},
	"that notes what failed": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		ctx = context.WithoutCancel(ctx)
		there, err := s.recorded(ctx, e)
		if err != nil || there {
			return err
		}
		if err = right(ctx, s, e); err != nil && !s.crash {
			_, _ = s.record(ctx, e)
		}
		return err
	}, check: "failures are made good", rule: "RULE-010-012", says: "lost"},
	"that acts before it looks": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		if err := typed(s.effect)(ctx, s, e); err != nil {
			return err
		}
		_, err := s.record(ctx, e)
		return err
	}, check: "duplicates", rule: "RULE-010-002"},
	"that continues when it cannot check": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		if _, err := s.recorded(ctx, e); err != nil {
			return s.effect(ctx, s, e)
		}
		return right(ctx, s, e)
	}, check: "effect before the check", rule: "RULE-010-031"},
	"that swallows errors": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		if err := right(ctx, s, e); s.crash {
			return err
		}
		return nil
	}, check: "failures are reported", rule: "RULE-010-032", says: "lost"},
	"that never recovers from a failure": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		if s.failed.Load() {
			return errors.New("current transaction is aborted")
		}
		err := right(ctx, s, e)
		s.failed.Store(err != nil && strings.Contains(err.Error(), `"effects" does not exist`))
		return err
	}, check: "failures are made good", rule: "RULE-010-012", set: func(c *consumertest.Consumer) { c.CheckTimeout = 10 * time.Second }},
	"that dedupes on the fenced key": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		return s.byKey(ctx, e, e.FencedKey())
	}, check: "replays", rule: "RULE-010-002"},
	"that takes rising attempts alone": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		if there, err := s.recorded(ctx, e); there && e.FencingToken > 100 || err != nil {
			return errors.Join(err, errors.New("attempt 1 was before"))
		}
		return right(ctx, s, e)
	}, check: "replays", rule: "RULE-010-002"},
	"that refuses duplicates": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		if there, err := s.recorded(ctx, e); err != nil || there {
			return errors.Join(err, errors.New("410 Gone"))
		}
		return right(ctx, s, e)
	}, check: "duplicates", rule: "RULE-010-002"},
	"that acknowledges what is being handled": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		if !s.first(e.ID.String()) {
			select {
			case s.both <- struct{}{}:
			default:
			}
			return nil
		}
		select {
		case <-s.both: // another one is acknowledged, and counted
			s.untilCounted()
			s.untilCounted()
		case <-time.After(time.Second):
		}
		err := right(ctx, s, e)
		s.mu.Lock()
		s.known[e.ID.String()] = err == nil
		s.mu.Unlock()
		return err
	}, check: "duplicates at the same time", rule: "RULE-010-012", says: "early"},
	"that gives up with its client": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if there, err := s.recorded(context.WithoutCancel(ctx), e); err != nil || there {
			return err
		}
		if err := typed(s.effect)(context.WithoutCancel(ctx), s, e); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(30 * time.Millisecond):
		}
		_, err := s.record(context.WithoutCancel(ctx), e)
		return err
	}, check: "a delivery that was given up", rule: "RULE-010-012"},
	"that acknowledges and acts later": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		time.AfterFunc(300*time.Millisecond, func() { _ = right(context.WithoutCancel(ctx), s, e) })
		return nil
	}, check: "handles an event", rule: "RULE-010-002", says: "early"},
	"that acknowledges and acts in a thread": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		go func() {
			s.untilCounted()
			_ = right(context.WithoutCancel(ctx), s, e)
		}()
		return nil
	}, check: "handles an event", rule: "RULE-010-002", says: "early"},
	"that does nothing": {deliver: func(context.Context, *service, *consumer.Event) error { return nil },
		check: "handles an event", rule: "RULE-010-002", says: "lost"},
	"that dedupes on aggregate and type": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		return s.byKey(ctx, e, e.AggregateID+e.EventType)
	}, check: "handles an event", rule: "RULE-010-002", says: "Dedupe on the event's whole id alone"},
	"that dedupes on the payload": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		return s.byKey(ctx, e, string(e.Payload))
	}, check: "handles an event", rule: "RULE-010-002", says: "Dedupe on the event's whole id alone"},
	"that dedupes on the beginning of the id": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		return s.byKey(ctx, e, e.ID.String()[:6])
	}, check: "handles an event", rule: "RULE-010-002", says: "Dedupe on the event's whole id alone"},
	"that acts twice": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		return s.inTransaction(ctx, e, func(tx pgx.Tx) error { return errors.Join(s.effect(ctx, tx, e), s.effect(ctx, tx, e)) })
	}, check: "handles an event", rule: "RULE-010-002", says: "2 effects"},
	"that fences across events": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		if e.FencingToken < s.last {
			return errors.New("an older token")
		}
		s.last = e.FencingToken
		return right(ctx, s, e)
	}, check: "handles an event", rule: "RULE-010-002", says: "refused"},
	"that ignores the fence": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		s.mu.Lock()
		s.outside[e.ID] = e.FencingToken
		s.mu.Unlock()
		return right(ctx, s, e)
	}, check: "the fence", rule: "RULE-010-003"},
	"that wants order": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if e.Sequence < s.last {
			return errors.New("out of order")
		}
		s.last = e.Sequence
		return right(ctx, s, e)
	}, check: "another order", rule: "RULE-010-020", says: "refused"},
	"that keeps a cursor": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if e.Sequence < s.last {
			return nil
		}
		err := right(ctx, s, e)
		if err == nil {
			s.last = e.Sequence
		}
		return err
	}, check: "another order", rule: "RULE-010-020", says: "lost"},
	"that refuses unknown fields": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		var order struct {
			Order    int
			Currency string
		}
		strict := json.NewDecoder(bytes.NewReader(e.Payload))
		if strict.DisallowUnknownFields(); strict.Decode(&order) != nil {
			return errors.New("unknown field")
		}
		return right(ctx, s, e)
	}, check: "unknown fields", rule: "RULE-010-021"},
	"that needs optional fields": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		if !strings.Contains(string(e.Payload), "currency") {
			panic("nil pointer")
		}
		return right(ctx, s, e)
	}, check: "missing fields", rule: "RULE-010-021"},
	"that skips types that it does not know": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		if e.EventType != "OrderPlaced" {
			return nil
		}
		return right(ctx, s, e)
	}, check: "an unknown type", rule: "RULE-010-032"},
	"that does not look at the type": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		return s.inTransaction(ctx, e, func(tx pgx.Tx) error { return s.effect(ctx, tx, e) })
	}, check: "an unknown type", rule: "RULE-010-032"},
	"that responds too late": {deliver: func(ctx context.Context, s *service, e *consumer.Event) error {
		takes(150 * time.Millisecond)
		return right(ctx, s, e)
	}, check: "responds in time", rule: "RULE-010-022", says: "no response within 100ms", set: func(c *consumertest.Consumer) { c.ResponseTimeout = 100 * time.Millisecond }},
	"that never responds": {deliver: func(ctx context.Context, _ *service, _ *consumer.Event) error {
		<-ctx.Done()
		return fmt.Errorf("no response: %w", ctx.Err())
	}, check: "responds in time", rule: "RULE-010-022", says: "none came in 200ms either", set: func(c *consumertest.Consumer) { c.ResponseTimeout = 100 * time.Millisecond }},
}

// byKey handles an event once for each key.
func (s *service) byKey(ctx context.Context, e *consumer.Event, key string) error {
	other := *e
	other.ID = uuid.NewSHA1(uuid.Nil, []byte(key))
	return s.inTransaction(ctx, &other, func(tx pgx.Tx) error { return typed(s.effect)(ctx, tx, e) })
}

// typed refuses a type that it does not know.
func typed(effect func(context.Context, execer, *consumer.Event) error) func(context.Context, execer, *consumer.Event) error {
	return func(ctx context.Context, tx execer, e *consumer.Event) error {
		if e.EventType != "OrderPlaced" {
			return errors.New("unknown type")
		}
		return effect(ctx, tx, e)
	}
}
