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
//	messaging.system             kafka, rabbitmq, nats, redis, http, aws_sqs, aws.sns, gcp_pubsub, servicebus, postgresql, log
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
