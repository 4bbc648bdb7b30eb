package spec

import (
	"fmt"
	"strings"
	"testing"
)

// CONTRACT: C-70
func TestMessageValidate(t *testing.T) {
	kafka, http := Sink{Kafka: &KafkaSink{}, ContentMode: Binary}, Sink{HTTP: &HTTPSink{Headers: map[string]string{"X-Team": "shop"}}, ContentMode: Binary}
	batch, structured := Sink{HTTP: &HTTPSink{}, ContentMode: Batch}, Sink{Kafka: &KafkaSink{}, ContentMode: Structured}
	headers := func(names ...string) Message {
		m := Message{Format: FormatCloudEvents, Headers: map[string]string{}}
		for _, name := range names {
			m.Headers[name] = "event.type"
		}
		return m
	}
	storage := func(m Message) Message { m.Format = FormatStorage; return m }
	plain := func(m Message) Message { m.Format = FormatPlain; return m }
	var many []string
	for i := range 33 {
		many = append(many, fmt.Sprintf("h%d_", i))
	}
	for _, test := range []struct {
		want    string // "" means that it is valid
		sink    Sink
		message Message
	}{
		{"", Sink{Log: &LogSink{}}, Message{Format: FormatCloudEvents}},
		{"", kafka, headers("event_type", "__TypeId__", "a.b", "id", "X-Y")},
		{"", kafka, Message{Format: FormatDebezium}},
		{"", http, Message{Format: FormatStorage}},
		{"", structured, headers("event_type")},
		{"", Sink{SQS: &SQSSink{}}, headers("a_1", "a_2")},
		{"", Sink{SNS: &SNSSink{}}, plain(headers(many[:10]...))},
		{"", Sink{SNS: &SNSSink{}}, storage(headers(many[:7]...))},
		{"", Sink{SQS: &SQSSink{}}, storage(headers(append([]string{"event_type", "aggregate_id", "correlation_id"}, many[:7]...)...))},
		{"", Sink{Redis: &RedisSink{}, ContentMode: Binary}, plain(headers("id", "type"))},
		{"", Sink{Redis: &RedisSink{}, ContentMode: Binary}, headers("event_type")},
		{`message.format is "Avro"; choose one of CloudEvents, Plain, Debezium, Storage`, kafka, Message{Format: "Avro"}},
		{"message.headers are for sinks whose messages have headers, and those of log have none; remove them", Sink{Log: &LogSink{}}, headers("a_b")},
		{"message.format is for sinks whose messages have headers, and those of postgres have none; remove it", Sink{Postgres: &PostgresSink{}}, Message{Format: FormatPlain}},
		{"message.format Debezium is what its outbox event router writes to Kafka, and the sink is http; choose Plain", http, Message{Format: FormatDebezium}},
		{"message.format Storage has the payload as the whole body, and contentMode is Structured; set contentMode to Binary", structured, Message{Format: FormatStorage}},
		{"message.headers are of one event, and contentMode Batch has several in a request; choose another", batch, headers("a_b")},
		{"message.headers has 33 entries; keep at most 32", kafka, headers(many...)},
		{"message.headers has 3 entries, and a message of sqs has room for 2 in addition to its own; remove some", Sink{SQS: &SQSSink{}}, headers("a_1", "a_2", "a_3")},
		{"message.headers has 11 entries, and a message of sns has room for 10", Sink{SNS: &SNSSink{}}, plain(headers(many[:11]...))},
		{"message.headers has 8 entries, and a message of sqs has room for 7 in addition to its own", Sink{SQS: &SQSSink{}}, storage(headers(many[:8]...))},
		{"message.headers has 9 entries, and a message of sns has room for 8", Sink{SNS: &SNSSink{}}, storage(headers(append([]string{"event_type"}, many[:8]...)...))},
		{`message.headers["a b"] is not the name of a header; use at most 128 alphanumeric characters`, kafka, headers("a b")},
		{`message.headers["a."] is not the name of a header`, kafka, headers("a.")},
		{`is not the name of a header`, kafka, headers(strings.Repeat("a", 129))},
		{`message.headers["a_b"] is there as "A_b" too; remove one`, kafka, headers("a_b", "A_b")},
		{`message.headers["x-team"] is a name that messages of http have already, or keep for themselves; choose another`, http, headers("x-team")},
		{`message.headers["Authorization"] is a name that messages of http have`, http, headers("Authorization")},
		{`message.headers["CE_type"] is a name that messages of kafka have`, kafka, headers("CE_type")},
		{`message.headers["traceparent"] is a name that messages of kafka have`, kafka, plain(headers("traceparent"))},
		{`message.headers["Nats-Msg-Id"] is a name that messages of nats have`, Sink{NATS: &NATSSink{}}, headers("Nats-Msg-Id")},
		{`message.headers["CC"] is a name that messages of rabbitmq have`, Sink{RabbitMQ: &RabbitMQSink{}}, headers("CC")},
		{`message.headers["region"] is a name that messages of redis have`, Sink{Redis: &RedisSink{}}, headers("region")},
		{`message.headers["data"] is a name that messages of redis have`, Sink{Redis: &RedisSink{}}, plain(headers("data"))},
		{`message.headers["google-id"] is a name that messages of pubSub have`, Sink{PubSub: &PubSubSink{}}, headers("google-id")},
		{`message.headers["AWS.id"] is a name that messages of sqs have`, Sink{SQS: &SQSSink{}}, headers("AWS.id")},
		{`message.headers["a_b"] is missing; set it`, kafka, Message{Format: FormatPlain, Headers: map[string]string{"a_b": ""}}},
		{`message.headers["a_b"] has more than 4096 characters`, kafka, Message{Format: FormatPlain, Headers: map[string]string{"a_b": strings.Repeat("a", 4097)}}},
	} {
		c := Config{Sink: test.sink, Message: test.message}
		switch err := c.ValidatePipeline(); {
		case test.want == "" && err != nil:
			t.Error(err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("error %v\nwant %s", err, test.want)
		}
	}
}
