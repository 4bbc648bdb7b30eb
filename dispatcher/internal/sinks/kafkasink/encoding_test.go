package kafkasink

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"

	"github.com/linkedin/goavro/v2"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// Package encoding has the tests of what is encoded how. These are of what becomes of it on the real
// broker, next to a registry that can be broken.
//
// CONTRACT: C-32, C-70, C-72, C-73
func TestEncodedRecordsReachTheBroker(t *testing.T) {
	schemas := srfake.New()
	t.Cleanup(schemas.Close)
	var unreachable atomic.Bool
	schemas.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		if unreachable.Load() {
			http.Error(w, "", http.StatusServiceUnavailable)
		}
		return unreachable.Load()
	})
	const schema = `{"type":"record","name":"Card","fields":[{"name":"secret","type":"string"}]}`
	topic := newTopic(t, 1)
	cfg := plainConfig(t, "")
	cfg.Encoding = config.KafkaAvro
	s, err := build(cfg, &config.SchemaRegistry{URL: schemas.URL()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(t.Context()) })
	event := func(topic, payload string) *dispatcher.Event {
		e := sinktest.NewEvent()
		e.Topic, e.Payload = topic, []byte(payload)
		return e
	}

	unreachable.Store(true)
	good := event(topic, `{"secret":"`+sinktest.PayloadSecret+`"}`)
	sinktest.Want(t, "the registry is unreachable", s.Deliver(t.Context(), []*dispatcher.Event{good})[0], true, reason.Refusing, "schema registry http://")
	sinktest.Want(t, "Probe", s.Probe(t.Context()), true, reason.Refusing, "schema registry http://")
	unreachable.Store(false)
	schemas.SeedSchema(topic+"-value", 1, 77, sr.Schema{Schema: schema})
	// The registry is queried again after a pause.
	for err := s.Probe(t.Context()); err != nil; err = s.Probe(t.Context()) {
		if !dispatcher.IsUnavailable(err) {
			t.Fatal(err)
		}
	}

	bad, missing := event(topic, `{"secret":4111, "more":"`+sinktest.PayloadSecret+`"}`), event("no-schema", `{}`)
	errs := s.Deliver(t.Context(), []*dispatcher.Event{bad, good, missing})
	sinktest.Want(t, "a payload that does not fit", errs[0], false, reason.Refusing, "/secret does not fit the Avro type string; correct the row, or register a schema that it fits")
	if why, _ := dispatcher.PermanentReason(errs[0]); why != dispatcher.ReasonSchemaValidationFailed {
		t.Errorf("a payload that does not fit is to be retried: %v", errs[0])
	}
	if errs[1] != nil {
		t.Errorf("an event next to it: %v", errs[1])
	}
	sinktest.Want(t, "a subject that is missing", errs[2], false, reason.Refusing, "subject no-schema-value: it is not registered; register it there")
	if _, dead := dispatcher.PermanentReason(errs[2]); dead {
		t.Errorf("a subject can be registered yet: %v", errs[2])
	}

	records := consume(t, topic)
	if len(records) != 1 {
		t.Fatalf("%d records arrived, want 1", len(records))
	}
	headers := headersOf(records[0])
	if headers["content-type"] != "application/avro" || headers["ce_id"] != good.ID.String() || string(records[0].Key) != good.Key() {
		t.Errorf("key %s, headers %v", records[0].Key, headers)
	}
	reader, err := goavro.NewCodec(schema)
	if err != nil {
		t.Fatal(err)
	}
	value := records[0].Value
	if len(value) < 5 || string(value[:5]) != "\x00\x00\x00\x00\x4d" {
		t.Fatalf("the value is %x", value)
	}
	if got, _, err := reader.NativeFromBinary(value[5:]); err != nil || got.(map[string]any)["secret"] != sinktest.PayloadSecret {
		t.Errorf("%x is read as %v, %v", value, got, err)
	}
}

func headersOf(r *kgo.Record) map[string]string {
	headers := map[string]string{}
	for _, h := range r.Headers {
		headers[h.Key] = string(h.Value)
	}
	return headers
}

// The subject that is set is that of all topics, and Protobuf has its own content type.
func TestEncodingOfOneSubject(t *testing.T) {
	schemas := srfake.New()
	t.Cleanup(schemas.Close)
	schemas.SeedSchema("cards", 1, 5, sr.Schema{Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; message Card { string secret = 1; }`})
	s, err := build(config.KafkaSink{Brokers: []string{"127.0.0.1:1"}, Encoding: config.KafkaProtobuf, Subject: "cards"}, &config.SchemaRegistry{URL: schemas.URL()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.record(t.Context(), time.Now(), sinktest.NewEvent())
	if err != nil || headersOf(r)["content-type"] != "application/protobuf" || string(r.Value) != "\x00\x00\x00\x00\x05\x00\x0a\x0c"+sinktest.PayloadSecret {
		t.Errorf("%x, %v, %v", r.Value, headersOf(r), err)
	}
	if _, err := build(config.KafkaSink{Brokers: []string{"127.0.0.1:1"}, Encoding: config.KafkaProtobuf}, nil, nil); err == nil {
		t.Error("an encoder without a registry is made")
	}
}
