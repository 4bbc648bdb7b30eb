package consumertest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher/consumer"
)

// Consumer is what is verified. Deliver, Effects and Event are required. Each hook that is missing leaves out the checks
// that need it, and the report says so.
type Consumer struct {
	// Deliver hands one delivery to the consumer, as your transport does. Nil means that the message is acknowledged.
	Deliver func(ctx context.Context, e *consumer.Event) error
	// Effects counts how often an event took effect: rows, calls, files.
	Effects func(ctx context.Context, id uuid.UUID) (int, error)
	// Event makes an event that the consumer handles. Its payload is a JSON object. The kit sets id, token, attempt and
	// sequence.
	Event func() *consumer.Event

	// Optional are the fields of the payload that may be missing.
	Optional []string
	// Restart ends the consumer, and starts it with nothing but its database.
	Restart func(ctx context.Context) error
	// FailEffect makes effects impossible, or possible again: it takes away the table that they go to, or has the callee
	// refuse.
	FailEffect func(ctx context.Context, fails bool) error
	// FailRecord makes it impossible to look up and write what was handled, or possible again.
	FailRecord func(ctx context.Context, fails bool) error
	// Crash hands over a delivery, and ends the consumer when the effect was made and before its record is committed.
	Crash func(ctx context.Context, e *consumer.Event) error
	// Patience bounds a check. Defaults to 30s.
	Patience time.Duration
}

// Finding is a rule that the consumer breaks.
type Finding struct {
	// Rule is the rule's id, such as RULE-010-002.
	Rule string
	// Check is the name of the check.
	Check string
	// Evidence says what was done and what came of it, and what to change.
	Evidence string
}

// String returns the finding as a line.
func (f Finding) String() string { return f.Rule + " (" + f.Check + "): " + f.Evidence }

// Report is what the checks found.
type Report struct {
	// Passed are the names of the checks that the consumer passed.
	Passed []string
	// Broken are the rules that it breaks.
	Broken []Finding
	// Skipped are the checks that were not made, with the hook that each needs.
	Skipped map[string]string
}

// Verify reports each rule that the consumer breaks as an error of the test, and logs which checks were not made.
func Verify(t *testing.T, c Consumer) {
	t.Helper()
	report, err := Check(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range report.Broken {
		t.Error(finding)
	}
	for check, hook := range report.Skipped {
		t.Logf("not checked: %s; set Consumer.%s", check, hook)
	}
}

// Check makes all checks, one after the other, each with events of its own. Its error says that the consumer cannot be
// checked: a required field is missing, or a hook fails.
func Check(ctx context.Context, c Consumer) (Report, error) {
	if c.Deliver == nil || c.Effects == nil || c.Event == nil {
		return Report{}, fmt.Errorf("consumertest: set Deliver, Effects and Event of the Consumer")
	}
	if c.Patience == 0 {
		c.Patience = 30 * time.Second
	}
	report := Report{Skipped: map[string]string{}}
	for _, check := range checks {
		if !check.has(&c) {
			report.Skipped[check.name] = check.hook
			continue
		}
		limited, cancel := context.WithTimeout(ctx, c.Patience)
		r := &run{ctx: limited, c: &c}
		err := r.safely(check.run)
		cancel()
		switch {
		case err != nil:
			return report, fmt.Errorf("consumertest: %s: %w", check.name, err)
		case len(r.evidence) > 0:
			report.Broken = append(report.Broken, Finding{check.rule, check.name, strings.Join(r.evidence, "; ")})
		default:
			report.Passed = append(report.Passed, check.name)
		}
	}
	return report, nil
}

// run is one check of a consumer.
type run struct {
	ctx      context.Context
	c        *Consumer
	evidence []string
}

// broken ends the check with what a hook returned; the check says nothing of the consumer then.
type broken struct{ err error }

func (r *run) safely(check func(*run)) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			hook, ok := cause.(broken)
			if !ok {
				panic(cause)
			}
			err = hook.err
		}
	}()
	check(r)
	return nil
}

func (r *run) must(hook string, err error) {
	if err != nil {
		panic(broken{fmt.Errorf("the hook %s failed: %w", hook, err)})
	}
}

func (r *run) found(format string, args ...any) {
	r.evidence = append(r.evidence, fmt.Sprintf(format, args...))
}

// event makes a new event, at its first delivery.
func (r *run) event() *consumer.Event {
	e := *r.c.Event()
	e.ID, e.Attempt, e.FencingToken = uuid.Must(uuid.NewV7()), 1, 100
	return &e
}

// again is another delivery of the event.
func again(e *consumer.Event, token int64, attempt int) *consumer.Event {
	next := *e
	next.FencingToken, next.Attempt = token, attempt
	return &next
}

// deliver hands the delivery over, on a copy. A panic is a failure, as it is to whoever runs the consumer.
func (r *run) deliver(e *consumer.Event) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("it panicked: %v", cause)
		}
	}()
	copied := *e
	copied.Headers = map[string]string{}
	for name, value := range e.Headers {
		copied.Headers[name] = value
	}
	copied.Payload = append([]byte(nil), e.Payload...)
	return r.c.Deliver(r.ctx, &copied)
}

// acknowledged delivers, and finds it wrong when the consumer refuses.
func (r *run) acknowledged(what string, e *consumer.Event) bool {
	if err := r.deliver(e); err != nil {
		r.found("%s is refused: %v", what, err)
		return false
	}
	return true
}

// effects finds it wrong when the event has not this many.
func (r *run) effects(what string, e *consumer.Event, want int) {
	n, err := r.c.Effects(r.ctx, e.ID)
	r.must("Effects", err)
	if n != want {
		r.found("%s: %d effects, want %d", what, n, want)
	}
}
