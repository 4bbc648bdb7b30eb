package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/client/consumer"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// sent is an awkward event as the outbox has it, and received as a consumer is to have it.
func sent() (*dispatcher.Event, consumer.Event) {
	id, tenant := uuid.MustParse("0197a1e0-0000-7000-8000-000000000001"), uuid.MustParse("0197a1e0-0000-7000-8000-00000000000a")
	created := time.Date(2026, 3, 4, 5, 6, 7, 123456000, time.UTC)
	payload := []byte(`{"n":9007199254740993,"d":1.10,"e":1e400,"text":"日本 \"%41\" <&>","data":null}`)
	out := &dispatcher.Event{
		ID: id, LeaseNumber: 9007199254740993, Attempt: 3, Seq: 4611686018427387905, AggregateSequence: 9007199254740995, Namespace: "a b/ü", Topic: "orders", EventType: "Order Placed 100%",
		AggregateType: "order", AggregateID: "日本 %41 \"7\"", PartitionKey: "key+1 %2B", DedupeKey: tenant.String() + "/placed 7",
		TenantID: uuid.NullUUID{UUID: tenant, Valid: true}, CreatedAt: created, Payload: payload,
		Headers: map[string]string{"correlation_id": "c 7 %20 ü", "Schema-Version": "2", "source": "till", "traceparent": traceparent, "empty": ""},
	}
	return out, consumer.Event{
		ID: id, FencingToken: 9007199254740993, Attempt: 3, Sequence: 4611686018427387905, AggregateSequence: 9007199254740995, Namespace: "a b/ü", Topic: "orders", EventType: "Order Placed 100%",
		AggregateType: "order", AggregateID: "日本 %41 \"7\"", PartitionKey: "key+1 %2B", DedupeKey: tenant.String() + "/placed 7",
		TenantID: out.TenantID, CreatedAt: created, ContentType: "application/json", Payload: payload,
		Headers: map[string]string{"correlationid": "c 7 %20 ü", "schemaversion": "2", "headersource": "till", "traceparent": traceparent, "empty": ""},
	}
}

// anyOf is a map as brokers' clients have it.
func anyOf(m map[string]string) map[string]any {
	all := map[string]any{}
	for name, value := range m {
		all[name] = value
	}
	return all
}

func listsOf(m map[string]string) map[string][]string {
	all := map[string][]string{}
	for name, value := range m {
		all[name] = []string{value}
	}
	return all
}

func fromHTTP(m draft.Message) (*consumer.Event, error) {
	header := http.Header{}
	for name, value := range m.Headers {
		header.Set(name, value)
	}
	events, err := consumer.FromHTTP(header, m.Body)
	if err != nil || len(events) != 1 {
		return nil, errors.Join(err, errors.New("not one event"))
	}
	return events[0], nil
}

func fromKafka(m draft.Message) (*consumer.Event, error) {
	return consumer.FromKafka(m.Headers, m.Body)
}

func fromNATS(m draft.Message) (*consumer.Event, error) {
	return consumer.FromNATS(listsOf(m.Headers), m.Body)
}

func fromRabbitMQ(m draft.Message) (*consumer.Event, error) {
	headers := map[string]any{}
	for name, value := range m.Headers {
		if name, ok := strings.CutPrefix(name, "header "); ok {
			headers[name] = value
		}
	}
	return consumer.FromRabbitMQ(m.Headers["content_type"], headers, m.Body)
}

// fromAMQP1 is the message of RabbitMQ with the names of the AMQP 1.0 binding.
func fromAMQP1(m draft.Message) (*consumer.Event, error) {
	renamed := draft.Message{Headers: map[string]string{}, Body: m.Body}
	for name, value := range m.Headers {
		renamed.Headers[strings.Replace(name, "header ce-", "header cloudEvents_", 1)] = value
	}
	return fromRabbitMQ(renamed)
}

func fromRedis(field string) func(m draft.Message) (*consumer.Event, error) {
	return func(m draft.Message) (*consumer.Event, error) {
		fields := anyOf(m.Headers)
		fields[field] = string(m.Body)
		return consumer.FromRedis(fields)
	}
}

func fromServiceBus(m draft.Message) (*consumer.Event, error) {
	contentType := m.Headers["content-type"]
	properties := anyOf(m.Headers)
	delete(properties, "content-type")
	return consumer.FromServiceBus(&contentType, properties, m.Body)
}

func fromPubSub(m draft.Message) (*consumer.Event, error) {
	return consumer.FromPubSub(m.Headers, m.Body)
}

func fromSQS(m draft.Message) (*consumer.Event, error) { return consumer.FromSQS(string(m.Body)) }

// fromNotification is a message of SNS without raw message delivery.
func fromNotification(m draft.Message) (*consumer.Event, error) {
	envelope, err := json.Marshal(map[string]string{"Type": "Notification", "MessageId": "1", "Message": string(m.Body)})
	if err != nil {
		return nil, err
	}
	return consumer.FromSNS(string(envelope))
}

func fromLog(m draft.Message) (*consumer.Event, error) { return consumer.FromJSON(m.Body) }

// Each sink's message, in each contentMode, becomes the same event: every text, the payload byte for byte.
//
// CONTRACT: C-70, C-80
func TestEverySinksMessage(t *testing.T) {
	const serviceBus = "serviceBus: {namespace: n.servicebus.windows.net, endpoint: '127.0.0.1:1'}, contentMode: "
	tested := map[string]bool{"postgres": true, "copy": true} // by TestFromInboxReadsTheSinksRow; no consumer reads copies
	for _, test := range []struct {
		sink string
		read func(draft.Message) (*consumer.Event, error)
	}{
		{"http: {url: 'http://h'}, contentMode: Binary", fromHTTP},
		{"http: {url: 'http://h'}, contentMode: Structured", fromHTTP},
		{"http: {url: 'http://h'}, contentMode: Batch", fromHTTP},
		{"kafka: {brokers: ['h:1']}, contentMode: Binary", fromKafka},
		{"kafka: {brokers: ['h:1']}, contentMode: Structured", fromKafka},
		{"nats: {servers: ['nats://h:1']}, contentMode: Binary", fromNATS},
		{"nats: {servers: ['nats://h:1']}, contentMode: Structured", fromNATS},
		{"rabbitmq: {addresses: ['h:1'], exchange: e}, contentMode: Binary, auth: {type: Plain, secretRef: {name: rabbitmq}}", fromRabbitMQ},
		{"rabbitmq: {addresses: ['h:1'], exchange: e}, contentMode: Structured, auth: {type: Plain, secretRef: {name: rabbitmq}}", fromRabbitMQ},
		{"rabbitmq: {addresses: ['h:1'], exchange: e}, contentMode: Binary, auth: {type: Plain, secretRef: {name: rabbitmq}}", fromAMQP1},
		{"redis: {addresses: ['h:1']}, contentMode: Binary", fromRedis("data")},
		{"redis: {addresses: ['h:1']}, contentMode: Structured", fromRedis("event")},
		{"pubSub: {project: shop-eu, endpoint: 'http://h'}, contentMode: Binary", fromPubSub},
		{"pubSub: {project: shop-eu, endpoint: 'http://h'}, contentMode: Structured", fromPubSub},
		{serviceBus + "Binary", fromServiceBus},
		{serviceBus + "Structured", fromServiceBus},
		{"sqs: {queueURL: 'http://h/1/all', region: eu-west-1}", fromSQS},
		{"sns: {topicARN: 'arn:aws:sns:eu-west-1:123456789012:all'}", fromSQS},
		{"sns: {topicARN: 'arn:aws:sns:eu-west-1:123456789012:all'}", fromNotification},
		{"log: {payload: Include}", fromLog},
	} {
		kind, _, _ := strings.Cut(test.sink, ":")
		tested[kind] = true
		t.Run(test.sink, func(t *testing.T) {
			event, want := sent()
			got, err := test.read(draftOf(t, test.sink, event))
			need.OK(t, err)
			if !reflect.DeepEqual(*got, want) {
				t.Errorf("got  %+v\nwant %+v\npayload %s\nwant    %s", *got, want, got.Payload, want.Payload)
			}
			for name, value := range event.Headers {
				need.Want(t, value, "header %s is %q, want %q", got.Header(name), name)
			}
			// An event with nothing but what a row must have.
			bare := &dispatcher.Event{ID: event.ID, Namespace: "n", Topic: "orders", CreatedAt: event.CreatedAt, Payload: []byte(`null`), Attempt: 1, LeaseNumber: 1}
			got, err = test.read(draftOf(t, test.sink, bare))
			need.OK(t, err)
			if want := (consumer.Event{
				ID: event.ID, FencingToken: 1, Attempt: 1, Namespace: "n", Topic: "orders", EventType: "orders", PartitionKey: event.ID.String(),
				CreatedAt: event.CreatedAt, ContentType: "application/json", Payload: []byte("null"), Headers: map[string]string{},
			}); !reflect.DeepEqual(*got, want) {
				t.Errorf("got  %+v\nwant %+v", *got, want)
			}
		})
	}
	for _, field := range spec.SinkKinds() {
		kind, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		need.That(t, tested[kind], "no message of the sink %q was read", kind)
	}
}

func draftOf(t *testing.T, section string, e *dispatcher.Event) draft.Message {
	t.Helper()
	d, err := sink.NewDrafts(outboxtest.Settings(t, "", "sink: {"+section+"}\n"))
	check(t, err)
	defer func() { check(t, d.Close(context.WithoutCancel(t.Context()))) }()
	m, err := d.Draft(t.Context(), e)
	check(t, err)
	return m
}

// The format Storage has the event in the payload.
//
// CONTRACT: C-80
func TestStorageMessagesAreDecoded(t *testing.T) {
	for section, read := range map[string]func(draft.Message) (*consumer.Event, error){
		"redis: {addresses: ['h:1']}":                                    fromRedis("data"),
		"kafka: {brokers: ['h:1']}":                                      fromKafka,
		"sqs: {queueURL: 'http://h/1/all', region: eu-west-1}":           fromSQS,
		"sns: {topicARN: 'arn:aws:sns:eu-west-1:123456789012:all'}":      fromNotification,
		"sns: {topicARN: 'arn:aws:sns:eu-west-1:123456789012:all.fifo'}": fromSQS,
	} {
		event, _ := sent()
		event.Payload = []byte(`{"total": 1}`)
		got, err := read(draftOf(t, section+"}\nmessage: {format: Storage", event))
		if err != nil || got.ID != event.ID || got.Header("correlation_id") != event.Headers["correlation_id"] {
			t.Errorf("%s: %+v, %v", section, got, err)
			continue
		}
		if body := strings.HasPrefix(section, "s"); got.EventType != event.EventType && !body || got.AggregateID != event.AggregateID && !body {
			t.Errorf("%s: the type is %q and the aggregate %q, want %q and %q", section, got.EventType, got.AggregateID, event.EventType, event.AggregateID)
		}
	}
}

// A CloudEvent is not taken for a notification of SNS, whatever its type and headers are.
func TestEventsThatLookLikeNotifications(t *testing.T) {
	for _, read := range []func(draft.Message) (*consumer.Event, error){fromSQS, fromNotification} {
		event, _ := sent()
		event.EventType, event.Headers = "Notification", map[string]string{"message": "{}"}
		got, err := read(draftOf(t, "sqs: {queueURL: 'http://h/1/all', region: eu-west-1}", event))
		need.That(t, err == nil && got.ID == event.ID && got.Header("message") == "{}", "%+v, %v", got, err)
	}
}

// A row of the postgres sink's table.
//
// CONTRACT: C-80
func TestFromInboxReadsTheSinksRow(t *testing.T) {
	pool := pgtest.Open(t, pgtest.Empty(t))
	ddl, err := os.ReadFile("../../internal/sinks/postgressink/inbox.sql")
	check(t, err)
	pgtest.Exec(pool, string(ddl))
	_, want := sent()
	pgtest.Exec(pool, `insert into inbox_events (id, namespace, topic, event_type, aggregate_type, aggregate_id, partition_key, tenant_id, dedupe_key,
		sequence, fencing_token, headers, payload, created_at, aggregate_sequence) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`,
		want.ID, want.Namespace, want.Topic, want.EventType, want.AggregateType, want.AggregateID, want.PartitionKey, want.TenantID, want.DedupeKey,
		want.Sequence, want.FencingToken, `{"correlation_id": "c 7 %20 ü", "Schema-Version": "2", "source": "till", "traceparent": "`+traceparent+`", "empty": ""}`,
		`{"n": 9007199254740993}`, want.CreatedAt, want.AggregateSequence)
	row := pgtest.Value[[]byte](pool, "select to_jsonb(e) from inbox_events e")
	got, err := consumer.FromInbox(row)
	check(t, err)
	want.Attempt, want.Payload, want.CreatedAt, got.CreatedAt = 0, []byte(`{"n": 9007199254740993}`), want.CreatedAt.UTC(), got.CreatedAt.UTC()
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got  %+v\nwant %+v", *got, want)
	}
	pgtest.Exec(pool, "update inbox_events set event_type = null, tenant_id = null, headers = '{}'")
	check(t, pool.QueryRow(t.Context(), "select to_jsonb(e) from inbox_events e").Scan(&row))
	got, err = consumer.FromInbox(row)
	need.That(t, err == nil && got.EventType == "" && !got.TenantID.Valid && len(got.Headers) == 0, "%+v, %v", got, err)
}

// A batch keeps its order, and one that cannot be read is named by its place.
func TestBatchKeepsOrderAndNamesTheUnreadable(t *testing.T) {
	one := `{"specversion":"1.0","id":"0197a1e0-0000-7000-8000-000000000001","data":1}`
	two := `{"specversion":"1.0","id":"0197a1e0-0000-7000-8000-000000000002","data":2}`
	header := http.Header{"Content-Type": {"application/cloudevents-batch+json; charset=utf-8"}}
	events, err := consumer.FromHTTP(header, []byte("["+one+","+two+"]"))
	need.That(t, err == nil && len(events) == 2 && string(events[0].Payload) == "1" && string(events[1].Payload) == "2", "%v, %v", events, err)
	need.Fails(t, "event 2 of 2", "%v", need.Err(consumer.FromHTTP(header, []byte("["+one+",{}]"))))
}

// A message that is not an event of an outbox is refused, without quoting it.
//
// CONTRACT: C-73, C-80
func TestUndecodableMessageIsRefusedWithoutQuotingIt(t *testing.T) {
	const id = "0197a1e0-0000-7000-8000-000000000001"
	for name, headers := range map[string]map[string]string{
		"no id":               {"ce_type": "s3cret"},
		"an id of others":     {"ce_id": "s3cret"},
		"a token of others":   {"ce_id": id, "ce_fencingtoken": "s3cret"},
		"an attempt too high": {"ce_id": id, "ce_attempt": "99999999999999"},
		"a tenant of others":  {"ce_id": id, "ce_tenantid": "s3cret"},
		"no time":             {"ce_id": id, "ce_time": "s3cret"},
		"no object":           {"content-type": "application/cloudevents+json"},
	} {
		_, err := consumer.FromKafka(headers, []byte("s3cret"))
		var refused *consumer.Refused
		need.That(t, errors.As(err, &refused) && !strings.Contains(err.Error(), "s3cret"), "%s: %v", name, err)
	}
	for _, body := range []string{"", "null", "[]", `{"id": "` + id + `", "data_base64": "§"}`, `{"id": "` + id + `", "data_base64": 7}`} {
		e, err := consumer.FromJSON([]byte(body))
		need.That(t, err != nil, "%q is read as %+v", body, e)
	}
}

// An attribute that a later dispatcher adds is a header; only the id must be there.
//
// REQUIREMENT: RULE-010-021
func TestUnknownAndMissingAttributes(t *testing.T) {
	e, err := consumer.FromKafka(map[string]string{"ce_id": "0197a1e0-0000-7000-8000-000000000001", "ce_later": "x", "other": "y"}, nil)
	need.That(t, err == nil && maps.Equal(e.Headers, map[string]string{"later": "x"}) && e.FencingToken == 0, "%+v, %v", e, err)
	debezium, err := consumer.FromKafka(map[string]string{"id": "0197a1e0-0000-7000-8000-000000000001"}, []byte("{}"))
	need.That(t, err == nil && debezium.IdempotencyKey() == e.IdempotencyKey(), "%+v, %v", debezium, err)
	storage, err := consumer.FromKafka(map[string]string{"event_type": "OrderPlaced", "aggregate_id": "7"},
		[]byte(`{"total": 1, "metadata": {"outbox_id": "outbox_1", "sequence_number": 9007199254740993, "correlation_id": "c", "n": 1.50, "tags": ["a"]}}`))
	if err != nil || storage.EventType != "OrderPlaced" || storage.AggregateID != "7" || storage.AggregateSequence != 9007199254740993 ||
		storage.ID.Version() != 5 || storage.Header("correlation_id") != "c" || storage.Header("n") != "1.50" || storage.Header("tags") != "" {
		t.Errorf("%+v, %v", storage, err)
	}
	again, err := consumer.FromHTTP(http.Header{"Event_type": {"OrderPlaced"}}, []byte(`{"metadata": {"outbox_id": "0197a1e0-0000-7000-8000-000000000001"}}`))
	need.That(t, err == nil && again[0].IdempotencyKey() == e.IdempotencyKey(), "%+v, %v", again, err)
	base64, err := consumer.FromJSON([]byte(`{"id": "0197a1e0-0000-7000-8000-000000000001", "subject": null, "data_base64": "AAEC"}`))
	need.That(t, err == nil && string(base64.Payload) == "\x00\x01\x02" && base64.AggregateID == "", "%+v, %v", base64, err)
}

var upcasters = consumer.Upcasters{"OrderPlaced": {
	1: consumer.Fields(func(f map[string]any) error { f["currency"] = "EUR"; return nil }),
	2: consumer.Fields(func(f map[string]any) error {
		f["cents"] = f["total"]
		delete(f, "total")
		return nil
	}),
}}

// A schema version is brought to the latest step by step; numbers keep their digits.
//
// CONTRACT: C-80
// REQUIREMENT: RULE-010-021
func TestUpcastersRunStepByStep(t *testing.T) {
	const one = `{"total":9007199254740993,"name":"<&>"}`
	for _, test := range []struct{ name, eventType, header, payload, want, version string }{
		{"from 1, which nothing says", "OrderPlaced", "", one, `{"cents":9007199254740993,"currency":"EUR","name":"<&>"}`, "3"},
		{"from the header", "OrderPlaced", "2", `{"total":1.10}`, `{"cents":1.10}`, "3"},
		{"from the header with a v", "OrderPlaced", "v2", `{"total":1.10}`, `{"cents":1.10}`, "3"},
		{"from the payload", "OrderPlaced", "", `{"schema_version":2,"total":1}`, `{"cents":1,"schema_version":2}`, "3"},
		{"from a text in the payload", "OrderPlaced", "", `{"schema_version":"2","total":1}`, `{"cents":1,"schema_version":"2"}`, "3"},
		{"null in the payload", "OrderPlaced", "", `{"schema_version":null,"total":1}`, `{"cents":1,"currency":"EUR","schema_version":null}`, "3"},
		{"header before payload", "OrderPlaced", "3", `{"schema_version":1}`, `{"schema_version":1}`, "3"},
		{"the latest", "OrderPlaced", "3", `{"cents":1}`, `{"cents":1}`, "3"},
		{"newer than ours", "OrderPlaced", "4", `{"cents":1,"new":2}`, `{"cents":1,"new":2}`, "4"},
		{"another type", "OrderShipped", "1", `{"total":1}`, `{"total":1}`, "1"},
	} {
		e := newEvent()
		e.EventType, e.Payload = test.eventType, []byte(test.payload)
		if test.header != "" {
			e.Headers = map[string]string{"schemaversion": test.header}
		}
		for range 2 { // the second time does nothing
			if err := upcasters.Apply(e); err != nil || string(e.Payload) != test.want || e.Header("schema_version") != test.version {
				t.Errorf("%s: %s, version %s, %v; want %s, %s", test.name, e.Payload, e.Header("schema_version"), err, test.want, test.version)
			}
		}
	}
}

// REQUIREMENT: RULE-010-021
func TestUpcastersThatAreMissingOrFail(t *testing.T) {
	gap := consumer.Upcasters{"OrderPlaced": {1: upcasters["OrderPlaced"][1], 3: upcasters["OrderPlaced"][2]}}
	failing := consumer.Upcasters{"OrderPlaced": {1: consumer.Fields(func(map[string]any) error { return errEffect })}}
	for name, test := range map[string]struct {
		u             consumer.Upcasters
		payload, want string
	}{
		"a gap":     {gap, `{"schema_version": 2}`, "no upcaster from it; add one, there are those from [1 3]"},
		"too old":   {upcasters, `{"schema_version": 0}`, "has schema_version 0"},
		"no number": {upcasters, `{"schema_version": "s3cret"}`, "whole number"},
		"failing":   {failing, `{}`, errEffect.Error()},
		"no object": {failing, `"s3cret"`, "no field"},
		"null":      {failing, `null`, "no object"},
	} {
		e := newEvent()
		e.Payload = []byte(test.payload)
		err := test.u.Apply(e)
		var refused *consumer.Refused
		if name == "no object" {
			test.want = "is a string"
		}
		need.That(t, errors.As(err, &refused) && strings.Contains(err.Error(), test.want) && !strings.Contains(err.Error(), "s3cret") && string(e.Payload) == test.payload,
			"%s: %v", name, err)
	}
}

// Unknown fields are ignored, missing ones have the defaults of the code, numbers keep their digits.
// REQUIREMENT: RULE-010-021
func TestDecodeKeepsDigitsAndDefaults(t *testing.T) {
	e := newEvent()
	e.Payload = []byte(`{"order": 42, "new_field": {"a": [1]}, "extra": 9007199254740993}`)
	order := struct {
		Order    int `json:"order"`
		Currency string
		Extra    any
	}{Currency: "EUR"}
	check(t, e.Decode(&order))
	need.That(t, order.Order == 42 && order.Currency == "EUR", "%+v", order)
	number, ok := order.Extra.(interface{ String() string })
	need.That(t, ok && number.String() == "9007199254740993", "%v lost digits", order.Extra)
	for payload, want := range map[string]string{
		`{"order": "s3cret"}`:  `field "order" is a string`,
		`{"order": 1234567.5}`: `field "order" is a number, want int`,
		`{"order": s3cret`:     "not valid JSON",
		`{} "s3cret"`:          "more after",
	} {
		e.Payload = []byte(payload)
		err := e.Decode(&order)
		var refused *consumer.Refused
		need.That(t, errors.As(err, &refused) && strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "s3cret") && !strings.Contains(err.Error(), "1234567"),
			"%s: %v", payload, err)
	}
	e.ContentType = "application/avro"
	need.Fails(t, "application/avro", "%v", e.Decode(&order))
}
