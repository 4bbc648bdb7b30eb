package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
)

// Without an endpoint there is nothing between the engine and the sink, and no exporter: tracing costs
// nothing. With one, the sink is wrapped.
func TestSinkIsWrappedOnlyWithTracing(t *testing.T) {
	for _, set := range os.Environ() {
		if name, _, _ := strings.Cut(set, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
	cfg := config.Config{Name: "orders", Namespace: "shop", Sink: config.Sink{Log: &config.LogSink{}}, Database: config.Database{DSN: "host=127.0.0.1"}}
	cfg.ApplyDefaults()
	bare, err := sink.New(cfg, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for endpoint, traced := range map[string]bool{"": false, "http://127.0.0.1:1": true} {
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
		e, err := newProcess(t.Context(), "v1", cfg, nil, io.Discard, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if same := fmt.Sprintf("%T", e.sink) == fmt.Sprintf("%T", bare); same == traced || (e.spans != nil) != traced {
			t.Errorf("endpoint %q: the sink is a %s, the exporter is %v", endpoint, fmt.Sprintf("%T", e.sink), e.spans)
		}
		e.close(t.Context())
	}
}
