package logsink_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/logsink"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// writes keeps what each Write was given. It has no lock of its own: the sink must not need one.
type writes struct{ lines [][]byte }

func (w *writes) Write(p []byte) (int, error) {
	w.lines = append(w.lines, bytes.Clone(p))
	return len(p), nil
}

const local = "a line is written to this process's own output"

// CONTRACT: C-70, C-71
func TestLogSinkMeetsTheSinkContract(t *testing.T) {
	for name, cfg := range map[string]spec.LogSink{"WithPayload": {Payload: spec.LogPayloadInclude}, "WithoutPayload": {}} {
		t.Run(name, func(t *testing.T) {
			sinktest.Exercise(t, func(t *testing.T) sinktest.Destination {
				w := &writes{}
				return sinktest.Destination{
					Sink:      logsink.New(cfg, w),
					Refused:   dispatcher.Cause{Class: "log"},
					NoPayload: cfg.Payload != spec.LogPayloadInclude,
					Cannot:    map[string]string{"Refuse": local, "Hang": local, "Stop": local, "Idle": local, "Missing": local},
					Arrived:   func() []sinktest.Message { return parse(t, w.lines) },
				}
			})
		})
	}
}

func parse(t *testing.T, lines [][]byte) (got []sinktest.Message) {
	t.Helper()
	for _, line := range lines {
		need.That(t, bytes.Count(line, []byte("\n")) == 1 && line[len(line)-1] == '\n', "a Write must be one line: %q", line)
		var ce event.Event
		if err := json.Unmarshal(line, &ce); err != nil {
			t.Fatalf("the line is not a CloudEvent: %v\n%s", err, line)
		}
		got = append(got, sinktest.MessageOf(t, binding.ToMessage(&ce)))
	}
	return got
}

// CONTRACT: C-73
func TestPayloadIsOmittedByDefault(t *testing.T) {
	e := &dispatcher.Event{ID: uuid.New(), Topic: "orders", Payload: []byte("{\"secret\":\n \"4111\"}")}
	for payload, want := range map[spec.LogPayload]bool{"": false, spec.LogPayloadOmit: false, spec.LogPayloadInclude: true} {
		var out strings.Builder
		need.OK(t, logsink.New(spec.LogSink{Payload: payload}, &out).Deliver(t.Context(), []*dispatcher.Event{e})[0])
		if got := strings.Contains(out.String(), `"data":{"secret":"4111"}`); got != want {
			t.Errorf("payload %v: the payload is in the line: %v\n%s", payload, got, out.String())
		}
		if got := strings.Contains(out.String(), "4111"); got != want {
			t.Errorf("payload %v: a part of the payload is in the line: %v\n%s", payload, got, out.String())
		}
	}
}

type failing struct{ n int }

func (f failing) Write([]byte) (int, error) { return f.n, errors.New("no space left on device") }

// CONTRACT: C-32, C-73
func TestFailedWriteIsUnavailableIfNothingWasWritten(t *testing.T) {
	e := &dispatcher.Event{ID: uuid.New(), Topic: "orders", Payload: []byte(`"4111"`)}
	for _, w := range []io.Writer{failing{0}, failing{5}} {
		err := logsink.New(spec.LogSink{Payload: spec.LogPayloadInclude}, w).Deliver(t.Context(), []*dispatcher.Event{e})[0]
		if err == nil || !strings.Contains(err.Error(), "no space left on device") || strings.Contains(err.Error(), "4111") {
			t.Errorf("want the writer's error without the payload, got %v", err)
		}
		want := w == io.Writer(failing{0})
		need.Want(t, want, "%+v: unavailable %v, want %v: nothing was written", dispatcher.IsUnavailable(err), w)
	}
	e.Payload = []byte(`{"4111"`)
	err := logsink.New(spec.LogSink{Payload: spec.LogPayloadInclude}, io.Discard).Deliver(t.Context(), []*dispatcher.Event{e})[0]
	need.That(t, err != nil && !strings.Contains(err.Error(), "4111"), "a payload that is not JSON: %v", err)
}

// Sinks of one process share standard output with each other and the log.
func TestOneWriteForEachEvent(t *testing.T) {
	w := &writes{}
	s := logsink.New(spec.LogSink{}, w)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				s.Deliver(t.Context(), []*dispatcher.Event{{ID: uuid.New(), Topic: "a"}, {ID: uuid.New(), Topic: "a"}})
			}
		})
	}
	wg.Wait()
	need.Want(t, 320, "%d writes for 320 events", len(parse(t, w.lines)))
}
