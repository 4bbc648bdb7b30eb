// Package otlp sends spans to a collector, as OpenTelemetry's standard environment variables say.
// Package tracing lists them.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// Process is what the resource of the spans has in addition to the environment.
type Process struct{ Dispatcher, Version, Worker string }

// NewProvider returns the provider that the environment sets, or nil when it sets none: no
// endpoint is set, or OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER turns tracing off. It connects to
// nothing. Shut it down, so that the last spans are sent. What OpenTelemetry has to say goes to log,
// for the whole process. It fails when a variable of the environment is malformed.
func NewProvider(ctx context.Context, p Process, log *slog.Logger) (*trace.TracerProvider, error) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || setting("ENDPOINT") == "" {
		return nil, nil
	}
	switch exporter := os.Getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "none":
		return nil, nil
	case "", "otlp":
	default:
		return nil, errors.New("OTEL_TRACES_EXPORTER names an exporter that is not built in; set it to otlp or none")
	}
	listen(log)
	exporter, err := newExporter(ctx)
	if err != nil {
		return nil, err
	}
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		semconv.ServiceName("outbox-dispatcher"), semconv.ServiceVersion(p.Version), semconv.ServiceInstanceID(p.Worker),
		attribute.String("outbox.dispatcher", p.Dispatcher),
	), resource.WithFromEnv())
	if err != nil {
		return nil, errors.New("OTEL_RESOURCE_ATTRIBUTES is malformed; write name=value,name=value, and characters other than a-z, A-Z and 0-9 as %2C")
	}
	return trace.NewTracerProvider(trace.WithBatcher(&loggedExporter{SpanExporter: exporter, log: log}), trace.WithResource(about)), nil
}

// setting reads an exporter's variable, the one for traces first.
func setting(name string) string {
	if value := strings.TrimSpace(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_" + name)); value != "" {
		return value
	}
	return strings.TrimSpace(os.Getenv("OTEL_EXPORTER_OTLP_" + name))
}

// newExporter makes the exporter of the protocol. All else it reads from the environment itself.
func newExporter(ctx context.Context) (trace.SpanExporter, error) {
	// The exporter would take the default for an address that it does not understand.
	if u, err := url.Parse(setting("ENDPOINT")); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL; write one such as http://collector:4318")
	}
	switch protocol := setting("PROTOCOL"); protocol {
	case "", "http/protobuf":
		return otlptracehttp.New(ctx)
	case "grpc":
		return otlptracegrpc.New(ctx)
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q; set it to grpc or http/protobuf", protocol)
	}
}

// listen sends to log what OpenTelemetry has to say.
func listen(log *slog.Logger) {
	otel.SetLogger(complaints(log))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("tracing failed", "error", masked(err))
	}))
}

// sayEvery is the shortest time between two log lines about spans that could not be sent.
const sayEvery = time.Minute

// loggedExporter logs what could not be sent, and then returns no error: OpenTelemetry would report
// each batch, several in a second.
type loggedExporter struct {
	trace.SpanExporter
	log *slog.Logger

	mu       sync.Mutex
	lost     int // spans since the last line
	loggedAt time.Time
}

// ExportSpans implements [trace.SpanExporter].
func (e *loggedExporter) ExportSpans(ctx context.Context, spans []trace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost += len(spans)
	if time.Since(e.loggedAt) >= sayEvery {
		e.log.Warn("spans are lost: the collector did not take them; check OTEL_EXPORTER_OTLP_ENDPOINT, and that the collector runs",
			"spans", e.lost, "error", masked(err))
		e.lost, e.loggedAt = 0, time.Now()
	}
	return nil
}

// masked is an error's text without the values of the headers: a collector may repeat them in its response.
func masked(err error) string {
	text := err.Error()
	for header := range strings.SplitSeq(setting("HEADERS"), ",") {
		_, value, _ := strings.Cut(header, "=")
		plain, err := url.PathUnescape(value)
		if err != nil {
			plain = value
		}
		for _, secret := range []string{strings.TrimSpace(value), strings.TrimSpace(plain)} {
			if secret != "" {
				text = strings.ReplaceAll(text, secret, "***")
			}
		}
	}
	return text
}

// complaints is a logger for what OpenTelemetry finds wrong with the environment. It passes on what is
// wrong and not its details: they hold the values of variables, of OTEL_EXPORTER_OTLP_HEADERS too.
func complaints(log *slog.Logger) logr.Logger { return logr.New(&complainer{log}) }

type complainer struct{ log *slog.Logger }

func (*complainer) Init(logr.RuntimeInfo)            {}
func (*complainer) Enabled(int) bool                 { return false } // errors come nevertheless
func (*complainer) Info(int, string, ...any)         {}
func (c *complainer) WithValues(...any) logr.LogSink { return c }
func (c *complainer) WithName(string) logr.LogSink   { return c }
func (c *complainer) Error(_ error, what string, _ ...any) {
	c.log.Warn("OpenTelemetry could not use a setting; check the variables that begin with OTEL_", "what", what)
}
