// Package tracing records a span for each delivery, in the trace of the event's producer.
//
// [Sink] wraps a [dispatcher.Sink]. A service that embeds the engine gives it its own
// TracerProvider; the dispatcher's binary gives it one that the standard environment variables
// configure:
//
//	variable                                   default               meaning
//	OTEL_EXPORTER_OTLP_ENDPOINT                none: no tracing      the collector's URL
//	OTEL_EXPORTER_OTLP_PROTOCOL                http/protobuf         or grpc
//	OTEL_EXPORTER_OTLP_HEADERS                 none                  name=value,name=value: sent along, for tokens
//	OTEL_EXPORTER_OTLP_CERTIFICATE             the system's roots    PEM file of authorities
//	OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE,
//	OTEL_EXPORTER_OTLP_CLIENT_KEY              none                  PEM files, for mutual TLS
//	OTEL_EXPORTER_OTLP_COMPRESSION, _TIMEOUT   none, 10000 (ms)
//	OTEL_SERVICE_NAME                          outbox-dispatcher
//	OTEL_RESOURCE_ATTRIBUTES                   none                  name=value,name=value
//	OTEL_TRACES_SAMPLER, _ARG                  parentbased_always_on every event without a producer's decision
//	OTEL_BSP_SCHEDULE_DELAY, ...               5000 (ms)             how spans are batched and dropped
//	OTEL_TRACES_EXPORTER                       otlp                  none turns tracing off
//	OTEL_SDK_DISABLED                          false                 true turns tracing off
//
// Each OTEL_EXPORTER_OTLP_ variable has a twin OTEL_EXPORTER_OTLP_TRACES_, which wins. With no
// endpoint nothing is wrapped, and a delivery costs what it costs without this package. A collector
// that is unreachable, or slow, delays no delivery: spans beyond the queue (OTEL_BSP_MAX_QUEUE_SIZE,
// 2,048) are dropped. At thousands of events a second sample:
// OTEL_TRACES_SAMPLER=parentbased_traceidratio, OTEL_TRACES_SAMPLER_ARG=0.01.
//
// # The span
//
// One for each attempt of each event, of kind PRODUCER, named "publish" and the topic. The Messaging
// semantic conventions of OpenTelemetry say what it carries:
//
//	messaging.system             kafka, rabbitmq, nats, redis, http, aws_sqs, aws.sns, gcp_pubsub, servicebus, postgresql, log; copy has no span
//	messaging.operation.name     publish
//	messaging.operation.type     send
//	messaging.destination.name   the event's topic in the outbox
//	messaging.message.id         the event's id: what consumers know as tracking_id
//	messaging.message.body.size  bytes of the payload
//	messaging.batch.message_count when the sink got several events at once
//	outbox.namespace             the event's
//	outbox.event_type            the event's, if it has one
//	outbox.attempt               the number of the attempt, from 1; a replay begins again
//	outbox.fencing_token         the fencing token, which only rises for an event
//	outbox.outcome               confirmed, failed, permanent (dead at once) or unavailable (nothing was sent)
//	error.type                   of a delivery that was not confirmed: ConnectionFailed, CertificateInvalid,
//	                             AuthenticationFailed, Refusing, timeout, panic, or the reason of the dead event,
//	                             such as schema_validation_failed
//
// Never in it: the payload, a header, a key, a credential, the text of an error (CONTRACT C-73). The
// text is in the row's last_error, by the event's id.
//
// # Parent, not link
//
// producer.Enqueue leaves the context of the caller's span in the row's headers, as W3C traceparent
// and tracestate (other producers write these headers themselves). That span is the delivery's
// parent, though it may have ended long ago: a delivery span is about one message, also in a batch,
// so that it has one cause; the conventions use links where a span has several. The attempts of
// an event are siblings. An event without a producer's context begins a trace.
//
// # What consumers get
//
// The message carries the delivery span's context in place of the producer's (CONTRACT C-70): the
// same trace, and the span of the attempt that the consumer received: as the CloudEvents attributes
// traceparent and tracestate, and in all but Redis, PostgreSQL, SQS and SNS also as headers of these plain names,
// which instrumented consumers read (not in HTTP requests with several events, which have one trace). A consumer hangs
// its spans below it. Other headers, baggage too, are as the producer wrote them. Without tracing, the
// message carries the producer's own context.
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
