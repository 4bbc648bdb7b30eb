package pipeline_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pipeline"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
)

// sent is what goes to the sink for an event.
func sent(t *testing.T, p *pipeline.Pipeline, e *dispatcher.Event) *dispatcher.Event {
	t.Helper()
	inner := &sinktest.Recording{}
	if err := p.Wrap(inner).Deliver(t.Context(), []*dispatcher.Event{e})[0]; err != nil {
		t.Fatal(err)
	}
	return inner.Events()[0]
}

// placed is an event with what messages are made of.
func placed(payload string) *dispatcher.Event {
	e := event("OrderPlaced", payload)
	e.Seq, e.LeaseNumber, e.AggregateType, e.AggregateID = 9007199254740993, 7, "order", "order-7"
	e.CreatedAt = time.Unix(1_000_000_000, 0).UTC()
	e.Headers["correlation_id"] = "c-42"
	return e
}

// Headers are computed for each event, in the order of their names; one without a value is left out. They see the
// payload as it is sent. The event that was claimed stays as it is.
//
// CONTRACT: C-70
func TestMessageHeaders(t *testing.T) {
	p := compile(t, config.Config{
		Message: config.Message{Headers: map[string]string{
			"z_type": `event.type`, "a_total": `payload.total`, "m_none": `event.headers.?zone`, "n_card": `payload.?card`, "token": `event.token`,
		}, Transform: []config.Transformation{{Payload: `without(payload, ["card"])`}}},
	}, pipeline.Options{})
	e := placed(`{"total": 9007199254740993, "card": "` + secret + `"}`)
	got := sent(t, p, e)
	want := dispatcher.Message{Headers: []dispatcher.Header{{Name: "a_total", Value: "9007199254740993"}, {Name: "token", Value: "7"}, {Name: "z_type", Value: "OrderPlaced"}}}
	if !reflect.DeepEqual(got.Message, want) {
		t.Errorf("%+v, want %+v", got.Message, want)
	}
	if len(e.Message.Headers) != 0 || !strings.Contains(string(e.Payload), secret) {
		t.Errorf("the event was changed: %+v", e)
	}

	p = compile(t, config.Config{Message: config.Message{Headers: map[string]string{"a_id": "event.id"}}}, pipeline.Options{})
	if got := sent(t, p, event("", "no JSON at all")); got.Message.Headers[0].Value != got.ID.String() {
		t.Errorf("%+v", got.Message) // a payload that no header mentions is not read
	}
}

// CONTRACT: C-33, C-73
func TestHeaderCannotBeComputed(t *testing.T) {
	p := compile(t, config.Config{Message: config.Message{Headers: map[string]string{"a_total": `payload.total.size()`}}}, pipeline.Options{})
	inner := &sinktest.Recording{}
	bad, good := placed(`{"total": `+"1"+`, "card": "`+secret+`"}`), placed(`{"total": "12"}`)
	errs := p.Wrap(inner).Deliver(t.Context(), []*dispatcher.Event{bad, good})
	if errs[1] != nil || len(inner.Events()) != 1 || inner.Events()[0].ID != good.ID {
		t.Errorf("the other event: %v", errs[1])
	}
	want := "event " + bad.ID.String() + `: message.headers["a_total"] cannot be computed: line 1, column 19: a value is of a type that is not expected there; correct the expression (payload.total.size()), or what is enqueued`
	if err := errs[0]; !dispatcher.IsDestinationFault(err) || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), secret) {
		t.Errorf("%v\nwant %s", err, want)
	}
	if cause := dispatcher.CauseOf(errs[0]); cause.Class != dispatcher.ClassMessage || cause.Code != `message.headers["a_total"]` {
		t.Errorf("%+v", cause)
	}
	if found := pipeline.Findings(errs[0]); len(found) != 1 || found[0].Field != `message.headers["a_total"]` {
		t.Errorf("%+v", found)
	}
	_, err := pipeline.New(config.Config{Sink: config.Sink{Kafka: &config.KafkaSink{}}, Message: config.Message{Headers: map[string]string{"a_b": "paylaod.x"}}}, pipeline.Options{})
	if err == nil || !strings.HasPrefix(err.Error(), `message.headers["a_b"]: line 1, column 1: undeclared reference`) {
		t.Error(err)
	}
}

// CONTRACT: C-70, C-71
func TestFormatDebezium(t *testing.T) {
	cfg := config.Config{Message: config.Message{Format: config.FormatDebezium, Headers: map[string]string{"eventType": "event.type"}}}
	p := compile(t, cfg, pipeline.Options{})
	e := placed(`{"total":10.10,"id":9007199254740993}`)
	if to, err := p.Route()(e); err != nil || to != "outbox.event.order" {
		t.Errorf("%q, %v", to, err)
	}
	got := sent(t, p, e)
	want := dispatcher.Message{Bare: true, Headers: []dispatcher.Header{{Name: "eventType", Value: "OrderPlaced"}, {Name: "id", Value: e.ID.String()}}}
	if !reflect.DeepEqual(got.Message, want) || string(got.Payload) != string(e.Payload) {
		t.Errorf("%+v %s, want %+v", got.Message, got.Payload, want)
	}
	e.AggregateType = ""
	if to, err := p.Route()(e); err != nil || to != "outbox.event.orders" {
		t.Errorf("without an aggregate type: %q, %v", to, err)
	}

	cfg.Sink.Routes = []config.Route{{To: `"mine"`}}
	if to, _ := compile(t, cfg, pipeline.Options{}).Route()(e); to != "mine" {
		t.Errorf("with a route of its own: %q", to)
	}
	cfg.Sink.Routes, cfg.Sink = nil, config.Sink{Kafka: &config.KafkaSink{Topic: "fixed"}}
	fixed, err := pipeline.New(cfg, pipeline.Options{})
	if err != nil || fixed.Route() != nil {
		t.Errorf("with a topic, there is a route: %v", err)
	}
}

// CONTRACT: C-70
// REQUIREMENT: STORAGE-32, STORAGE-33
func TestFormatStorage(t *testing.T) {
	p := compile(t, config.Config{
		Message: config.Message{Format: config.FormatStorage, Transform: []config.Transformation{{Payload: `with(payload, {"first": true})`}}},
	}, pipeline.Options{})
	e := placed(`{"id": 9007199254740993, "price": 0.1234567890123456789012345, "long": 123456789012345678901234567890, "metadata": "gone"}`)
	got := sent(t, p, e)
	payload := `{"first":true,"id":9007199254740993,"long":123456789012345678901234567890,"metadata":{"correlation_id":"c-42","outbox_id":"` + e.ID.String() +
		`","region":"eu","sequence_number":9007199254740993},"price":0.1234567890123456789012345}`
	if string(got.Payload) != payload {
		t.Errorf("%s\nwant %s", got.Payload, payload)
	}
	if !slices.EqualFunc(got.Message.Headers, config.StorageHeaders, func(h dispatcher.Header, name string) bool { return h.Name == name }) {
		t.Errorf("%+v, want those of config.StorageHeaders, %q", got.Message.Headers, config.StorageHeaders)
	}
	want := dispatcher.Message{Bare: true, Headers: []dispatcher.Header{{Name: "aggregate_id", Value: "order-7"}, {Name: "correlation_id", Value: "c-42"}, {Name: "event_type", Value: "OrderPlaced"}}}
	if !reflect.DeepEqual(got.Message, want) {
		t.Errorf("%+v, want %+v", got.Message, want)
	}
	e.AggregateSequence = 3
	if got := sent(t, p, e); !strings.Contains(string(got.Payload), `"sequence_number":3}`) {
		t.Errorf("%s, want the number in the aggregate", got.Payload)
	}
	e.Headers["outbox_id"] = "outbox_1"
	if got := sent(t, p, e); !strings.Contains(string(got.Payload), `"outbox_id":"outbox_1"`) {
		t.Errorf("%s, want the id that the header has", got.Payload)
	}
	delete(e.Headers, "correlation_id")
	e.AggregateID = ""
	if got := sent(t, p, e).Message.Headers; len(got) != 1 || got[0].Name != "event_type" {
		t.Errorf("what the event does not have: %+v", got)
	}
	p = compile(t, config.Config{Message: config.Message{Format: config.FormatStorage}}, pipeline.Options{})
	err := p.Wrap(&sinktest.Recording{}).Deliver(t.Context(), []*dispatcher.Event{placed(`[1]`)})[0]
	if !dispatcher.IsDestinationFault(err) || !strings.Contains(err.Error(), "message.format cannot be computed") {
		t.Errorf("a payload that is not an object: %v", err)
	}
}
