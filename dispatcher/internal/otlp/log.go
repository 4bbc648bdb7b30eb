package otlp

import (
	"context"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel/sdk/trace"
)

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
