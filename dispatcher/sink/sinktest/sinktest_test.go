package sinktest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// The purpose-made sinks together are a sink that Exercise accepts, and each small break of it is
// one that Exercise refuses.
func TestExerciseAcceptsGoodSinks(t *testing.T) {
	Exercise(t, func(*testing.T) Destination { return memory("") })
}

// TestExerciseBroken is run by TestExerciseNotices in a process of its own: it must fail.
func TestExerciseBroken(t *testing.T) {
	broken := os.Getenv("SINKTEST_BROKEN")
	if broken == "" {
		t.Skip("TestExerciseNotices runs this")
	}
	waitTimeout = 200 * time.Millisecond // it fails in any case
	Exercise(t, func(*testing.T) Destination { return memory(broken) })
}

func TestExerciseNotices(t *testing.T) {
	for broken, complaint := range map[string]string{
		"short result":          "TestExerciseBroken/Results",
		"changes events":        "TestExerciseBroken/Results",
		"loses an event":        "TestExerciseBroken/Results",
		"publishes twice":       "TestExerciseBroken/Concurrent",
		"forgets an attribute":  "TestExerciseBroken/Attributes",
		"adds an attribute":     "TestExerciseBroken/Attributes",
		"results reversed":      "TestExerciseBroken/Refused",
		"forgets the order":     "TestExerciseBroken/Refused",
		"refusal unavailable":   "TestExerciseBroken/Refused",
		"quotes the payload":    "TestExerciseBroken/Refused",
		"ignores ctx":           "TestExerciseBroken/Cancelled",
		"hides ctx":             "TestExerciseBroken/Hanging",
		"outage is a refusal":   "TestExerciseBroken/Unreachable",
		"probe is blind":        "TestExerciseBroken/Unreachable",
		"probe publishes":       "TestExerciseBroken/Probe",
		"close fails":           "TestExerciseBroken/Results",
		"uses dead connections": "TestExerciseBroken/Idle",
		"probe checks no place": "TestExerciseBroken/Missing",
		"missing is a refusal":  "TestExerciseBroken/Missing",
		"a hook is forgotten":   "TestExerciseBroken/Missing",
		"gives no code":         "TestExerciseBroken/Refused",
		"names no cause":        "TestExerciseBroken/Unreachable",
		"cuts a key":            "TestExerciseBroken/Awkward",
		"rounds numbers":        "TestExerciseBroken/Awkward",
	} {
		t.Run(broken, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestExerciseBroken$")
			cmd.Env = append(os.Environ(), "SINKTEST_BROKEN="+broken)
			out, err := cmd.CombinedOutput()
			need.Must(t, err != nil, "Exercise accepts a sink that %s", broken)
			need.That(t, strings.Contains(string(out), "--- FAIL: "+complaint), "want a failure of %s, got:\n%s", complaint, out)
		})
	}
}

// memory is a destination in this process; broken names what it does wrong.
func memory(broken string) Destination {
	record := &Recording{Max: 5}
	refused := map[uuid.UUID]bool{}
	refusing := &Refusing{Sink: record, Refuse: func(e *dispatcher.Event) error {
		if refused[e.ID] {
			if broken == "gives no code" {
				return errors.New("refused; correct it")
			}
			return reason.Coded("refused", errors.New("refused; correct it"))
		}
		return nil
	}}
	hanging := &Hanging{Begun: make(chan []*dispatcher.Event)}
	hang := false
	sw := &Switch{Sink: refusing}
	d := Destination{
		Refuse:  func(id uuid.UUID) { refused[id] = true },
		Refused: dispatcher.Cause{Class: "test", Code: "refused"},
		Stop:    func() { sw.Down.Store(true) },
		Start:   func() { sw.Down.Store(false) },
	}
	b := &breakable{}
	d.Idle = func() { b.stale.Store(true) }
	d.Missing = func() func() {
		b.missing.Store(true)
		return func() { b.missing.Store(false) }
	}
	if broken == "a hook is forgotten" {
		d.Missing = nil
	}
	b.Sink, b.broken, b.record = sw, broken, record
	b.hang = func() dispatcher.Sink {
		if hang {
			return hanging
		}
		return nil
	}
	d.Sink = b
	d.Hang = func() <-chan struct{} {
		hang = true
		waiting := make(chan struct{}, 1)
		go func() { <-hanging.Begun; waiting <- struct{}{} }()
		return waiting
	}
	d.Arrived = func() (got []Message) {
		for _, e := range record.Events() {
			got = append(got, message(e, broken))
		}
		return got
	}
	return d
}

// message knows the two events of exerciseAttributes, and of others what exerciseAwkward looks at.
func message(e *dispatcher.Event, broken string) Message {
	m := Message{Attributes: map[string]string{"id": e.ID.String()}, Payload: string(e.Payload)}
	want, exact := map[uuid.UUID]map[string]string{wholeEvent().ID: wholeAttributes, bareEvent().ID: bareAttributes}[e.ID]
	if !exact {
		want = map[string]string{
			"source": "/outbox/" + url.PathEscape(e.Namespace) + "/" + url.PathEscape(e.Topic), "type": cmp.Or(e.EventType, e.Topic),
			"subject": e.AggregateID, "time": e.CreatedAt.Format(time.RFC3339Nano), "partitionkey": e.Key(),
		}
		switch broken {
		case "cuts a key":
			want["partitionkey"] = want["partitionkey"][:min(len(e.Key()), 255)]
		case "rounds numbers":
			var payload any
			_ = json.Unmarshal(e.Payload, &payload) // it is JSON
			rounded, _ := json.Marshal(payload)     // which came from JSON
			m.Payload = string(rounded)
		}
	}
	for name, value := range want {
		if broken != "forgets an attribute" || name != "fencingtoken" {
			m.Attributes[name] = value
		}
	}
	if broken == "adds an attribute" {
		m.Attributes["dedupekey"] = ""
	}
	return m
}

type breakable struct {
	dispatcher.Sink
	broken string
	record *Recording
	hang   func() dispatcher.Sink
	// stale is true after Idle; missing while the place is missing.
	stale, missing atomic.Bool
}

func (b *breakable) Deliver(ctx context.Context, batch []*dispatcher.Event) (errs []error) {
	if b.broken != "names no cause" {
		defer reason.Classify("test", &errs)
	}
	if hanging := b.hang(); hanging != nil {
		errs := hanging.Deliver(ctx, batch)
		if b.broken == "hides ctx" {
			return all(batch, errors.New("something happened; look"))
		}
		return errs
	}
	stale, missing := b.stale.Swap(false), b.missing.Load()
	switch {
	case stale && b.broken == "uses dead connections":
		return all(batch, errors.New("the connection is closed; look"))
	case missing && b.broken == "missing is a refusal":
		return all(batch, errMissing)
	case missing:
		return all(batch, dispatcher.Unavailable(errMissing))
	}
	switch b.broken {
	case "ignores ctx":
		ctx = context.WithoutCancel(ctx)
	case "changes events":
		batch[0].Headers["seen"] = "yes"
	case "publishes twice":
		b.Sink.Deliver(ctx, batch)
	case "loses an event":
		return append(b.Sink.Deliver(ctx, batch[1:]), nil)
	}
	errs = b.Sink.Deliver(ctx, batch)
	for i, err := range errs {
		switch {
		case err == nil:
		case b.broken == "refusal unavailable":
			errs[i] = dispatcher.Unavailable(err)
		case b.broken == "outage is a refusal":
			errs[i] = errors.New(err.Error())
		case b.broken == "quotes the payload":
			errs[i] = fmt.Errorf("%w: %s", err, batch[i].Payload)
		}
	}
	switch {
	case b.broken == "short result":
		return errs[1:]
	case b.broken == "results reversed" && len(errs) == 3:
		errs[0], errs[1] = errs[1], errs[0]
	}
	return errs
}

var errMissing = errors.New("the place is missing; create it")

func (b *breakable) KeepsOrder() bool { return b.broken == "forgets the order" }

func (b *breakable) Probe(ctx context.Context) error {
	switch b.broken {
	case "probe is blind":
		return nil
	case "probe publishes":
		b.record.Deliver(ctx, events(1))
	}
	if b.missing.Load() && b.broken != "probe checks no place" {
		return dispatcher.Unavailable(errMissing)
	}
	return b.Sink.Probe(ctx)
}

func (b *breakable) Close(ctx context.Context) error {
	if b.broken == "close fails" {
		return errors.New("cannot close; try again")
	}
	return b.Sink.Close(ctx)
}

func TestRecordingWaits(t *testing.T) {
	r := &Recording{Max: 3}
	done := make(chan error, 1)
	go func() { done <- r.Wait(t.Context(), 3) }()
	r.Deliver(t.Context(), events(1))
	r.Deliver(t.Context(), events(2))
	if err := within(t, done, "Wait did not return after three events"); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Wait(ctx, 4); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait for a fourth event returned %v after its context ended", err)
	}
}

func TestSlowDelays(t *testing.T) {
	r := &Recording{}
	s := &Slow{Sink: r, Delay: time.Hour}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Deliver(ctx, events(1))[0]; !errors.Is(err, context.Canceled) {
		t.Errorf("a slow delivery returned %v after its context ended", err)
	}
	s.Delay = time.Microsecond
	if err := s.Deliver(t.Context(), events(1))[0]; err != nil || len(r.Events()) != 1 {
		t.Errorf("a slow delivery returned %v, and %d events arrived, want one", err, len(r.Events()))
	}
}
