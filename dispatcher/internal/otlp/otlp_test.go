package otlp_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/hex"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/otlp"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/tracing"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

const secret = "s3cr3t"

// environment sets what a pod's template would.
func environment(t *testing.T, variables map[string]string) {
	t.Helper()
	for _, set := range os.Environ() {
		if name, _, _ := strings.Cut(set, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
	for name, value := range variables {
		t.Setenv(name, value)
	}
}

func provider(t *testing.T, log *bytes.Buffer) (*trace.TracerProvider, error) {
	t.Helper()
	logger := slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return otlp.NewProvider(t.Context(), otlp.Process{Dispatcher: "orders", Version: "v1", Worker: "w"}, logger)
}

// deliver delivers an event with the environment's tracing, and ends it.
func deliver(t *testing.T, log *bytes.Buffer) {
	t.Helper()
	spans, err := provider(t, log)
	need.Must(t, err == nil && spans != nil, "no provider: %v", err)
	handlers := dispatcher.Handlers{"orders": func(context.Context, *dispatcher.Event) error { return nil }}
	errs := tracing.Sink(handlers, spans, "kafka").Deliver(t.Context(), []*dispatcher.Event{{
		ID: uuid.New(), Topic: "orders", Attempt: 1, Payload: []byte(`"` + secret + `"`),
		Headers: map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
	}})
	need.That(t, errs[0] == nil, "%v", errs)
	need.Want(t, nil, "%v", spans.Shutdown(t.Context()))
	need.That(t, !strings.Contains(log.String(), secret), "the log shows a secret: %s", log)
}

// Spans reach a collector as the standard variables say, and nothing else is needed.
func TestSpansReachTheCollector(t *testing.T) {
	authority := sinktest.NewAuthority(t, "collector's")
	certificate := authority.Sign(t, "collector", sinktest.InAnHour()).TLS
	roots := filepath.Join(t.TempDir(), "ca.crt")
	need.OK(t, os.WriteFile(roots, []byte(authority.PEM), 0o600))
	for name, c := range map[string]struct {
		serve       func(*receiver, *testing.T, *tls.Certificate) string
		certificate *tls.Certificate
		more        map[string]string
	}{
		"HTTP by default": {(*receiver).overHTTP, nil, nil},
		"HTTPS":           {(*receiver).overHTTP, &certificate, map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_CERTIFICATE": roots, "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}},
		"gRPC":            {(*receiver).overGRPC, nil, map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}},
		"gRPC with TLS":   {(*receiver).overGRPC, &certificate, map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_CERTIFICATE": roots}},
	} {
		t.Run(name, func(t *testing.T) {
			r, log := newReceiver(), &bytes.Buffer{}
			environment(t, c.more)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.serve(r, t, c.certificate))
			t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20"+secret)
			t.Setenv("OTEL_SERVICE_NAME", "shop-outbox")
			t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
			deliver(t, log)
			need.Must(t, len(r.spans) == 1, "%d spans arrived, want 1; the log: %s", len(r.spans), log)
			span := <-r.spans
			if span.name != "publish orders" || span.traceID != "4bf92f3577b34da6a3ce929d0e0e4736" || span.parentID != "00f067aa0ba902b7" ||
				span.token != "Bearer "+secret || span.attributes["messaging.system"] != "kafka" {
				t.Errorf("received %+v", span)
			}
			for key, want := range map[string]string{
				"service.name": "shop-outbox", "deployment.environment": "test", "service.version": "v1", "service.instance.id": "w",
				"outbox.dispatcher": "orders", "telemetry.sdk.language": "go",
			} {
				need.Want(t, want, "the resource has %s = %q, want %q", span.resource[key], key)
			}
		})
	}
}

// An unreachable or refusing collector delays nothing, and is logged once, without a secret. CONTRACT: C-73
func TestRefusingCollectorDelaysNothing(t *testing.T) {
	r, log := newReceiver(), &bytes.Buffer{}
	r.refuse = "who is"
	environment(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": r.overHTTP(t, nil), "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20" + secret + ",broken " + secret})
	deliver(t, log)
	text := log.String()
	need.That(t, strings.Contains(text, `"spans":1`) && strings.Contains(text, "401") && strings.Contains(text, "who is: ***") && strings.Contains(text, "parse headers") && strings.Count(text, "\n") == 2,
		"the log: %s", text)
}

func TestSamplerFollowsTheVariable(t *testing.T) {
	r, log := newReceiver(), &bytes.Buffer{}
	environment(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": r.overHTTP(t, nil), "OTEL_TRACES_SAMPLER": "always_off"})
	deliver(t, log)
	need.That(t, len(r.spans) == 0 && log.Len() <= 0, "%d spans; the log: %s", len(r.spans), log)
}

// Nothing configured, or turned off: nothing runs.
func TestNothingRunsWhenTracingIsOff(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for name, variables := range map[string]map[string]string{
		"nothing is set": {"OTEL_SERVICE_NAME": "shop", "OTEL_TRACES_SAMPLER": "always_on"},
		"disabled":       {endpoint: "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "True"},
		"no exporter":    {endpoint: "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
	} {
		t.Run(name, func(t *testing.T) {
			environment(t, variables)
			spans, err := provider(t, &bytes.Buffer{})
			need.That(t, err == nil && spans == nil, "a provider: %v, %v", spans, err)
		})
	}
}

// What cannot be meant is refused at the start, by the variable's name and without its value.
func TestWrongVariablesAreRefused(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for variable, variables := range map[string]map[string]string{
		endpoint:                      {endpoint: "collector:4317/" + secret},
		"OTEL_EXPORTER_OTLP_PROTOCOL": {endpoint: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
		"OTEL_TRACES_EXPORTER":        {endpoint: "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "zipkin"},
		"OTEL_RESOURCE_ATTRIBUTES":    {endpoint: "http://127.0.0.1:1", "OTEL_RESOURCE_ATTRIBUTES": secret},
	} {
		t.Run(variable, func(t *testing.T) {
			environment(t, variables)
			_, err := provider(t, &bytes.Buffer{})
			need.That(t, err != nil && strings.HasPrefix(err.Error(), variable+" ") && !strings.Contains(err.Error(), secret), "the error is %v", err)
		})
	}
}

// received is a span as the collector got it.
type received struct {
	name, traceID, parentID, token string
	resource, attributes           map[string]string
}

// receiver is an OTLP collector of the test, for gRPC or HTTP.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	spans  chan received
	refuse string // the response to all, if any
}

func newReceiver() *receiver { return &receiver{spans: make(chan received, 100)} }

func (r *receiver) take(request *collector.ExportTraceServiceRequest, token string) {
	for _, of := range request.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				r.spans <- received{
					span.GetName(), hex.EncodeToString(span.GetTraceId()), hex.EncodeToString(span.GetParentSpanId()), token,
					texts(of.GetResource().GetAttributes()), texts(span.GetAttributes()),
				}
			}
		}
	}
}

func texts(attributes []*common.KeyValue) map[string]string {
	all := map[string]string{}
	for _, a := range attributes {
		all[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return all
}

// Export implements the gRPC service.
func (r *receiver) Export(ctx context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	head, _ := metadata.FromIncomingContext(ctx)
	var token string
	if values := head.Get("authorization"); len(values) > 0 {
		token = values[0]
	}
	r.take(request, token)
	return &collector.ExportTraceServiceResponse{}, nil
}

// ServeHTTP is the same for HTTP.
func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	token := request.Header.Get("Authorization")
	if r.refuse != "" {
		http.Error(w, r.refuse+": "+token, http.StatusUnauthorized)
		return
	}
	body, err := io.ReadAll(request.Body)
	if err == nil && request.Header.Get("Content-Encoding") == "gzip" {
		var unzip *gzip.Reader
		if unzip, err = gzip.NewReader(bytes.NewReader(body)); err == nil {
			body, err = io.ReadAll(unzip)
		}
	}
	var spans collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &spans)
	}
	if err != nil || request.URL.Path != "/v1/traces" {
		http.Error(w, "not spans", http.StatusBadRequest)
		return
	}
	r.take(&spans, token)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// overHTTP serves plain HTTP, or HTTPS, and returns the URL.
func (r *receiver) overHTTP(t *testing.T, certificate *tls.Certificate) string {
	server := httptest.NewUnstartedServer(r)
	if certificate == nil {
		server.Start()
	} else {
		server.TLS = &tls.Config{Certificates: []tls.Certificate{*certificate}}
		server.StartTLS()
	}
	t.Cleanup(server.Close)
	return server.URL
}

// overGRPC does so for gRPC.
func (r *receiver) overGRPC(t *testing.T, certificate *tls.Certificate) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	need.OK(t, err)
	scheme, options := "http", []grpc.ServerOption(nil)
	if certificate != nil {
		scheme, options = "https", []grpc.ServerOption{grpc.Creds(credentials.NewServerTLSFromCert(certificate))}
	}
	server := grpc.NewServer(options...)
	collector.RegisterTraceServiceServer(server, r)
	go func() { _ = server.Serve(listener) }() // ends with Stop
	t.Cleanup(server.Stop)
	return scheme + "://" + listener.Addr().String()
}
