package tracing

import (
	"context"
	"errors"
	"maps"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// Scope is the name of the tracer: the instrumentation scope of every span.
const Scope = "github.com/outbox-operator/outbox-operator/dispatcher/internal/tracing"

// Sink returns next with a span around each delivery. system is the value of messaging.system, such
// as kafka. Panics of next go through, with their spans ended.
func Sink(next dispatcher.Sink, provider trace.TracerProvider, system string) dispatcher.Sink {
	return &sink{
		Sink:   next,
		tracer: provider.Tracer(Scope, trace.WithSchemaURL(semconv.SchemaURL)),
		fixed: trace.WithAttributes(
			semconv.MessagingSystemKey.String(system), semconv.MessagingOperationName("publish"), semconv.MessagingOperationTypeSend),
	}
}

type sink struct {
	dispatcher.Sink
	tracer trace.Tracer
	fixed  trace.SpanStartEventOption // the attributes that every span has
}

// KeepsOrder implements [dispatcher.Ordered]: events are handed on as they come.
func (s *sink) KeepsOrder() bool { return dispatcher.KeepsOrder(s.Sink) }

// w3c reads and writes the headers traceparent and tracestate.
var w3c propagation.TraceContext

// Deliver implements [dispatcher.Sink].
func (s *sink) Deliver(ctx context.Context, batch []*dispatcher.Event) (errs []error) {
	spans, sent := make([]trace.Span, len(batch)), make([]*dispatcher.Event, len(batch))
	below := ctx
	for i, e := range batch {
		below, spans[i], sent[i] = s.start(ctx, e, len(batch))
	}
	if len(batch) > 1 {
		below = ctx // the spans of what the sink does belong to no single one
	}
	defer func() {
		for i, span := range spans {
			if len(errs) != len(spans) { // next panicked, or broke its promise
				end(span, outcomeFailed, "panic")
			} else {
				end(span, outcomeOf(errs[i]), typeOf(errs[i]))
			}
		}
	}()
	return s.Sink.Deliver(below, sent)
}

// start begins the span of an attempt, and returns the event as it is to be sent: with the span's
// context in place of its producer's.
func (s *sink) start(ctx context.Context, e *dispatcher.Event, batch int) (context.Context, trace.Span, *dispatcher.Event) {
	headers := propagation.MapCarrier(maps.Clone(e.Headers))
	if headers == nil {
		headers = propagation.MapCarrier{}
	}
	// The producer's span alone is the parent: one that the caller has in ctx is of the engine.
	ctx = w3c.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), headers)
	delete(headers, "traceparent") // a malformed one would stay, and so would the tracestate of another trace
	delete(headers, "tracestate")
	ctx, span := s.tracer.Start(ctx, "publish "+e.Topic, trace.WithSpanKind(trace.SpanKindProducer), s.fixed,
		trace.WithAttributes(semconv.MessagingDestinationName(e.Topic)))
	describe(span, e, batch)
	w3c.Inject(ctx, headers)
	sent := *e
	sent.Headers = headers
	return ctx, span, &sent
}

// describe adds what no sampler decides by.
func describe(span trace.Span, e *dispatcher.Event, batch int) {
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(semconv.MessagingMessageID(e.ID.String()), semconv.MessagingMessageBodySize(len(e.Payload)),
		attribute.String("outbox.namespace", e.Namespace), attribute.Int("outbox.attempt", e.Attempt), attribute.Int64("outbox.fencing_token", e.LeaseNumber))
	if e.EventType != "" {
		span.SetAttributes(attribute.String("outbox.event_type", e.EventType))
	}
	if batch > 1 {
		span.SetAttributes(semconv.MessagingBatchMessageCount(batch))
	}
}

func end(span trace.Span, outcome, errorType string) {
	if span.IsRecording() {
		span.SetAttributes(attribute.String("outbox.outcome", outcome))
		if errorType != "" {
			span.SetAttributes(semconv.ErrorTypeKey.String(errorType))
			span.SetStatus(codes.Error, errorType)
		}
	}
	span.End()
}

// System is the value of messaging.system for a kind of sink, as the conventions have it.
func System(kind string) string {
	switch kind {
	case "postgres":
		return "postgresql"
	case "pubSub":
		return semconv.MessagingSystemGCPPubSub.Value.AsString()
	case "serviceBus":
		return semconv.MessagingSystemServiceBus.Value.AsString()
	case "sns":
		return semconv.MessagingSystemAWSSNS.Value.AsString()
	case "sqs":
		return semconv.MessagingSystemAWSSQS.Value.AsString()
	default:
		return kind
	}
}

// The values of outbox.outcome.
const (
	outcomeConfirmed   = "confirmed"
	outcomeFailed      = "failed"
	outcomePermanent   = "permanent"
	outcomeUnavailable = "unavailable"
)

func outcomeOf(err error) string {
	_, permanent := dispatcher.PermanentReason(err)
	switch {
	case err == nil:
		return outcomeConfirmed
	case permanent:
		return outcomePermanent
	case dispatcher.IsUnavailable(err):
		return outcomeUnavailable
	default:
		return outcomeFailed
	}
}

// typeOf is the value of error.type: one of a few words, and never text from outside.
func typeOf(err error) string {
	if err == nil {
		return ""
	}
	switch why, permanent := dispatcher.PermanentReason(err); {
	case !permanent:
	case why == dispatcher.ReasonSchemaValidationFailed, why == dispatcher.ReasonPoisonMessage:
		return string(why)
	default: // what the engine makes of any other
		return string(dispatcher.ReasonPermanentFailure)
	}
	var slow interface{ Timeout() bool } // context.DeadlineExceeded and net.Error have it
	switch {
	case errors.As(err, &slow) && slow.Timeout():
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled" // a stop, or a lost lease: nothing about the destination
	default:
		return reason.Of(err)
	}
}
