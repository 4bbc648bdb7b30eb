package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// spans is an OTLP collector that keeps what it gets.
type spans struct {
	mu  sync.Mutex
	got []*trace.Span
}

func (s *spans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var request collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &request)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range request.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			s.got = append(s.got, scope.GetSpans()...)
		}
	}
}

// From the producer's trace, over each attempt, to what the consumer gets: with nothing but the
// standard variables. CONTRACT: C-70, C-73
func TestTraceSpansProducerAttemptsAndConsumer(t *testing.T) {
	t.Parallel()
	o := installed(t)
	const traceID, producer = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	var received []string
	consumer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received = append(received, r.Header.Get("ce-traceparent"))
		if len(received) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer consumer.Close()
	all := &spans{}
	receiver := httptest.NewServer(all)
	defer receiver.Close()
	run(t, `{"namespace": "shop", "topic": "orders", "payload": "`+secret+`", "headers": {"traceparent": "00-`+traceID+`-`+producer+`-01"}}`,
		"enqueue", "-f", o.file(t, o.producer, "")).ok(t)
	file := o.file(t, o.dispatcher, dispatching("{http: {url: '"+consumer.URL+"'}}")+"delivery: {backoff: {base: 1ms, max: 1ms}}\n")
	for code := range 2 { // the first attempt fails, is given back, and so fails its command
		await(t, "the event is due", func() bool { return o.count(t, "next_attempt_at <= clock_timestamp()") == 1 })
		cmd := command(t, "once", "-f", file)
		cmd.Env = append(cmd.Env, "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.URL, "OTEL_EXPORTER_OTLP_HEADERS=authorization="+secret)
		finish(t, cmd, "").ended(t, 1-code)
	}
	if len(all.got) != 2 || len(received) != 2 {
		t.Fatalf("%d spans and %d requests, want 2 of each", len(all.got), len(received))
	}
	for i, span := range all.got {
		text := map[string]string{}
		for _, a := range span.GetAttributes() {
			text[a.GetKey()] = a.GetValue().GetStringValue() + fmt.Sprint(a.GetValue().GetIntValue())
		}
		if fmt.Sprintf("%x", span.GetTraceId()) != traceID || fmt.Sprintf("%x", span.GetParentSpanId()) != producer || span.GetName() != "publish orders" {
			t.Errorf("span %d is %v", i, span)
		}
		if want := []string{"failed0", "confirmed0"}[i]; text["outbox.outcome"] != want || text["outbox.attempt"] != "1" || text["messaging.system"] != "http0" {
			t.Errorf("span %d says %v", i, text)
		}
		if want := fmt.Sprintf("00-%s-%x-01", traceID, span.GetSpanId()); received[i] != want {
			t.Errorf("the consumer got %s, want %s", received[i], want)
		}
		noSecret(t, span.String())
	}

	cmd := command(t, "once", "-f", file)
	cmd.Env = append(cmd.Env, "OTEL_EXPORTER_OTLP_ENDPOINT=collector:4317")
	finish(t, cmd, "").ended(t, 78, "OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL")
}
