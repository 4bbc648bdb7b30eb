package sink_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
)

func TestNew(t *testing.T) {
	http := &config.HTTPSink{URL: "https://consumer.example/events", BatchSize: 7}
	for name, test := range map[string]struct {
		cfg  config.Sink
		want string
	}{
		"none":    {config.Sink{}, "sink: nothing is set; set one of its members, such as http"},
		"invalid": {config.Sink{HTTP: &config.HTTPSink{}}, "sink.http.url must be an http:// or https:// URL with a host, such as https://orders.example.com/events"},
	} {
		if got, err := sink.New(config.Config{Sink: test.cfg}, nil); err == nil || err.Error() != test.want || got != nil {
			t.Errorf("%s: got %v, %v; want the error %q", name, got, err, test.want)
		}
	}
	s, err := sink.New(config.Config{Sink: config.Sink{HTTP: http, ContentMode: config.Batch}}, nil)
	if err != nil || s.BatchSize() != 7 {
		t.Errorf("the http sink: %v, %v", s, err)
	}
	s, err = sink.New(config.Config{Sink: config.Sink{Kafka: &config.KafkaSink{Brokers: []string{"kafka.example:9092"}}}}, nil)
	if err != nil || s.BatchSize() != 500 {
		t.Errorf("the kafka sink: %v, %v", s, err)
	}
	var out strings.Builder
	s, err = sink.New(config.Config{Sink: config.Sink{Log: &config.LogSink{}}}, &out)
	if err != nil {
		t.Fatal(err)
	}
	e := &dispatcher.Event{ID: uuid.New(), Topic: "orders"}
	if err := s.Deliver(t.Context(), []*dispatcher.Event{e})[0]; err != nil || !strings.Contains(out.String(), e.ID.String()) {
		t.Errorf("the log sink wrote %q, %v", out.String(), err)
	}
}

func TestReason(t *testing.T) {
	if got := sink.Reason(dispatcher.Unavailable(dispatcher.ErrNoHandler)); got != "ConnectionFailed" {
		t.Errorf("the reason is %q", got)
	}
}
