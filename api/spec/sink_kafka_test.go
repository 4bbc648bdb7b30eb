package spec

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestKafkaDefaults(t *testing.T) {
	c, err := load(t, strings.Replace(minimal, "{log: {}}", "{kafka: {brokers: ['kafka.example:9092']}}", 1))
	if err != nil {
		t.Fatal(err)
	}
	want := KafkaSink{
		Brokers: []string{"kafka.example:9092"}, Encoding: KafkaJSON, ClientID: "outbox-dispatcher",
		Compression: CompressionSnappy, MaxMessageBytes: 1_000_000, Access: Access{ContentMode: Binary, Timeout: Duration(30 * time.Second)},
	}
	if !reflect.DeepEqual(*c.Sink.Kafka, want) {
		t.Errorf("got  %+v\nwant %+v", *c.Sink.Kafka, want)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("the smallest file is refused: %v", err)
	}
}

func TestKafkaValidate(t *testing.T) {
	for want, change := range map[string]func(*KafkaSink){
		"": func(k *KafkaSink) {
			k.TLS, k.Topic, k.Brokers = &TLS{}, "shop.orders-1_a", append(k.Brokers, "[::1]:9092", "a_b:65535")
		},
		"sink.kafka.brokers has 0 entr":                                             func(k *KafkaSink) { k.Brokers = nil },
		`sink.kafka.brokers[1] is "kafka"; write it as host:port`:                   func(k *KafkaSink) { k.Brokers = append(k.Brokers, "kafka") },
		`sink.kafka.brokers[0] is ":9092"; write it as host:port`:                   func(k *KafkaSink) { k.Brokers = []string{":9092"} },
		`sink.kafka.brokers[0] is "a:90920"; write it as host:port`:                 func(k *KafkaSink) { k.Brokers = []string{"a:90920"} },
		`sink.kafka.brokers[0] is "a/b:9092"; write it as host:port`:                func(k *KafkaSink) { k.Brokers = []string{"a/b:9092"} },
		`sink.kafka.brokers[0] is "a:0"; write it as host:port`:                     func(k *KafkaSink) { k.Brokers = []string{"a:0"} },
		`sink.kafka.encoding is "XML"; choose one of JSON, Avro, Protobuf`:          func(k *KafkaSink) { k.Encoding = "XML" },
		"sink.kafka.encoding is Avro, which belongs to contentMode Binary":          func(k *KafkaSink) { k.Encoding, k.ContentMode = KafkaAvro, Structured },
		"sink.kafka.subject belongs to encoding Avro and Protobuf; choose":          func(k *KafkaSink) { k.Subject = "orders" },
		"sink.kafka.subject has more than 255 characters; shorten it":               func(k *KafkaSink) { k.Encoding, k.Subject = KafkaAvro, strings.Repeat("a", 256) },
		`sink.kafka.topic is "a/b", which Kafka does not take; use at most 249`:     func(k *KafkaSink) { k.Topic = "a/b" },
		`sink.kafka.topic is "..", which Kafka does not take`:                       func(k *KafkaSink) { k.Topic = ".." },
		`sink.contentMode is "Batch"; choose one of Binary, Structured`:             func(k *KafkaSink) { k.ContentMode = "Batch" },
		"sink.kafka.clientID has more than 255 characters; shorten it":              func(k *KafkaSink) { k.ClientID = strings.Repeat("a", 256) },
		`sink.kafka.compression is "brotli"; choose one of None, Gzip, Snappy, LZ4`: func(k *KafkaSink) { k.Compression = "brotli" },
		"sink.kafka.maxMessageBytes is 1023; set it from 1024 to 104857600":         func(k *KafkaSink) { k.MaxMessageBytes = 1023 },
	} {
		k := KafkaSink{Brokers: []string{"kafka.example:9092"}}
		change(&k)
		k.ApplyDefaults()
		switch err := k.Validate(); {
		case want == "" && err != nil:
			t.Error(err)
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("error %v\nwant %s", err, want)
		}
	}
}
