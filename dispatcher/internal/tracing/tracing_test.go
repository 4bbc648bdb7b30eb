package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/tracing"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

const (
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	parent  = "00-" + traceID + "-00f067aa0ba902b7-01"
	secret  = "s3cr3t"
)

// destination is a sink that keeps what it gets.
type destination struct {
	dispatcher.Handlers
	ctx     context.Context
	got     []*dispatcher.Event
	respond func(i int) error
}

func (d *destination) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	d.ctx, d.got = ctx, batch
	errs := make([]error, len(batch))
	for i := range errs {
		if d.respond != nil {
			errs[i] = d.respond(i)
		}
	}
	return errs
}

func event(headers map[string]string) *dispatcher.Event {
	return &dispatcher.Event{
		ID: uuid.MustParse("0190b2d4-0000-7000-8000-000000000001"), Namespace: "shop", Topic: "orders", EventType: "OrderPlaced", AggregateID: secret,
		Payload: []byte(`{"card": "` + secret + `"}`), Headers: headers, Attempt: 1,
	}
}

// traced returns a traced sink, and what it has recorded.
func traced(d *destination) (dispatcher.Sink, *tracetest.SpanRecorder) {
	recorder := tracetest.NewSpanRecorder()
	return tracing.Sink(d, sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder)), "kafka"), recorder
}

func attributes(span sdk.ReadOnlySpan) map[string]any {
	all := map[string]any{}
	for _, a := range span.Attributes() {
		all[string(a.Key)] = a.Value.AsInterface()
	}
	return all
}

func traceparent(span sdk.ReadOnlySpan) string {
	return fmt.Sprintf("00-%s-%s-01", span.SpanContext().TraceID(), span.SpanContext().SpanID())
}

// The span hangs below the producer's, and the message carries the span. CONTRACT: C-70
func TestSpanHangsBelowTheProducers(t *testing.T) {
	d := &destination{}
	s, recorder := traced(d)
	headers := map[string]string{"traceparent": parent, "tracestate": "vendor=1", "baggage": "a=b", "correlation_id": secret}
	e := event(headers)
	before := maps.Clone(headers)
	for e.Attempt, e.LeaseNumber = 1, 41; e.Attempt <= 2; e.Attempt, e.LeaseNumber = e.Attempt+1, e.LeaseNumber+1 { // attempts are siblings
		if errs := s.Deliver(t.Context(), []*dispatcher.Event{e}); len(errs) != 1 || errs[0] != nil {
			t.Fatal(errs)
		}
		span := recorder.Ended()[e.Attempt-1]
		if span.Name() != "publish orders" || span.SpanKind() != trace.SpanKindProducer || span.Parent().SpanID().String() != "00f067aa0ba902b7" ||
			span.SpanContext().TraceID().String() != traceID || !span.Parent().IsRemote() || len(span.Links()) != 0 || span.Status().Code != codes.Unset {
			t.Errorf("the span is %v", span)
		}
		if got, want := attributes(span), map[string]any{
			"messaging.system": "kafka", "messaging.operation.name": "publish", "messaging.operation.type": "send",
			"messaging.destination.name": "orders", "messaging.message.id": e.ID.String(), "messaging.message.body.size": int64(len(e.Payload)),
			"outbox.namespace": "shop", "outbox.event_type": "OrderPlaced", "outbox.attempt": int64(e.Attempt), "outbox.fencing_token": e.LeaseNumber, "outbox.outcome": "confirmed",
		}; !reflect.DeepEqual(got, want) {
			t.Errorf("the span says %v, want %v", got, want)
		}
		want := maps.Clone(before)
		want["traceparent"] = traceparent(span)
		sent := d.got[0]
		need.That(t, maps.Equal(sent.Headers, want) && sent.ID == e.ID && sent.Attempt == e.Attempt && string(sent.Payload) == string(e.Payload), "sent %+v", sent)
		need.Want(t, span.SpanContext().SpanID(), "the handler's context does not hold the span", trace.SpanFromContext(d.ctx).SpanContext().SpanID())
	}
	need.That(t, maps.Equal(headers, before), "the event was changed: %v", headers)
}

// Each event of a batch has its own span below its own producer.
func TestEachEventOfABatchHasItsSpan(t *testing.T) {
	d := &destination{respond: func(i int) error {
		if i == 1 {
			return errors.New("refused")
		}
		return nil
	}}
	s, recorder := traced(d)
	batch := []*dispatcher.Event{event(map[string]string{"traceparent": parent}), event(nil), event(map[string]string{"traceparent": "00-broken", "tracestate": "of=another"})}
	engine, stop := sdk.NewTracerProvider().Tracer("").Start(t.Context(), "engine")
	defer stop.End()
	if errs := s.Deliver(engine, batch); errs[0] != nil || errs[1] == nil || errs[2] != nil {
		t.Fatal(errs)
	}
	spans := recorder.Ended()
	need.Must(t, len(spans) == 3, "%d spans, want 3", len(spans))
	for i, span := range spans {
		if got := d.got[i].Headers["traceparent"]; got != traceparent(span) || d.got[i].Headers["tracestate"] != "" {
			t.Errorf("event %d carries %v", i, d.got[i].Headers)
		}
		if (span.SpanContext().TraceID().String() == traceID) != (i == 0) || span.Parent().IsValid() != (i == 0) {
			t.Errorf("event %d: trace %s, parent %s", i, span.SpanContext().TraceID(), span.Parent().SpanID())
		}
		a := attributes(span)
		need.That(t, a["messaging.batch.message_count"] == int64(3) && (a["outbox.outcome"] == "failed") == (i == 1), "event %d: %v", i, a)
	}
	need.That(t, trace.SpanFromContext(d.ctx).SpanContext().Equal(stop.SpanContext()), "what the sink does for the batch is below one of its events")
}

// A failure is identified by its class and its word, and by nothing else. CONTRACT: C-73
func TestOutcomesAreIdentifiedByClassAndWord(t *testing.T) {
	inner := errors.New("refused " + secret)
	for name, c := range map[string]struct {
		err                error
		outcome, errorType string
	}{
		"failed":       {inner, "failed", reason.Refusing},
		"broken":       {reason.With(reason.ConnectionFailed, inner), "failed", reason.ConnectionFailed},
		"unavailable":  {dispatcher.Unavailable(reason.With(reason.AuthenticationFailed, inner)), "unavailable", reason.AuthenticationFailed},
		"schema":       {dispatcher.Permanent(dispatcher.ReasonSchemaValidationFailed, inner), "permanent", "schema_validation_failed"},
		"made up":      {dispatcher.Permanent(secret, inner), "permanent", "permanent_failure"},
		"slow":         {fmt.Errorf("%w: %w", inner, context.DeadlineExceeded), "failed", "timeout"},
		"slow network": {fmt.Errorf("post: %w", &net.DNSError{Err: secret, IsTimeout: true}), "failed", "timeout"},
		"stopped":      {fmt.Errorf("%w: %w", inner, context.Canceled), "failed", "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			s, recorder := traced(&destination{respond: func(int) error { return c.err }})
			if errs := s.Deliver(t.Context(), []*dispatcher.Event{event(map[string]string{"authorization": secret})}); !errors.Is(errs[0], c.err) {
				t.Errorf("the error became %v", errs[0])
			}
			span := recorder.Ended()[0]
			a := attributes(span)
			if a["outbox.outcome"] != c.outcome || a["error.type"] != c.errorType || span.Status() != (sdk.Status{Code: codes.Error, Description: c.errorType}) {
				t.Errorf("the span says %v, %v", a, span.Status())
			}
			text := fmt.Sprint(tracetest.SpanStubFromReadOnlySpan(span))
			need.That(t, !strings.Contains(text, secret), "the span shows a secret: %s", text)
		})
	}
}

// A span has an end, whatever the sink does.
func TestSpanEndsAfterAPanic(t *testing.T) {
	s, recorder := traced(&destination{respond: func(int) error { panic("stop") }})
	func() {
		defer func() {
			need.Want(t, "stop", "the panic was kept from the engine", recover())
		}()
		s.Deliver(t.Context(), []*dispatcher.Event{event(nil)})
	}()
	spans := recorder.Ended()
	need.That(t, len(spans) == 1 && attributes(spans[0])["error.type"] == "panic", "the spans are %v", spans)
}

// What the producer chose not to sample stays so, here and behind.
func TestUnsampledEventsStaySo(t *testing.T) {
	d := &destination{}
	s, recorder := traced(d)
	s.Deliver(t.Context(), []*dispatcher.Event{event(map[string]string{"traceparent": strings.TrimSuffix(parent, "1") + "0"})})
	got := d.got[0].Headers["traceparent"]
	if len(recorder.Started()) != 0 || !strings.HasPrefix(got, "00-"+traceID) || !strings.HasSuffix(got, "-00") {
		t.Errorf("%d spans; sent %s", len(recorder.Started()), got)
	}
}

// Every kind has a name; those that the conventions know have theirs.
func TestEveryKindHasItsSystem(t *testing.T) {
	for kind, want := range map[string]string{"kafka": "kafka", "sns": "aws.sns", "sqs": "aws_sqs", "pubSub": "gcp_pubsub", "serviceBus": "servicebus", "postgres": "postgresql", "http": "http"} {
		need.Want(t, want, "%s is %q, want %q", tracing.System(kind), kind)
	}
	page, err := os.ReadFile("tracing.go")
	need.OK(t, err)
	for _, kind := range spec.SinkKinds() {
		name, _, _ := strings.Cut(kind.Tag.Get("json"), ",")
		if !regexp.MustCompile(`messaging\.system .*\b` + regexp.QuoteMeta(tracing.System(name)) + `\b`).Match(page) {
			t.Errorf("tracing.go does not have %s, the messaging.system of %s", tracing.System(name), name)
		}
	}
	need.Want(t, 1, "the batch size is not the sink's", tracing.Sink(&destination{}, sdk.NewTracerProvider(), "kafka").BatchSize())
}
