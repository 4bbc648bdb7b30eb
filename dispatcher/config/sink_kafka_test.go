package config

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
		Brokers: []string{"kafka.example:9092"}, Mode: KafkaBinary, Encoding: KafkaJSON, ClientID: "outbox-dispatcher",
		Compression: "snappy", MaxMessageBytes: 1_000_000, Timeout: Duration(30 * time.Second),
	}
	if !reflect.DeepEqual(*c.Sink.Kafka, want) {
		t.Errorf("got  %+v\nwant %+v", *c.Sink.Kafka, want)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("the smallest file is refused: %v", err)
	}
}

func TestKafkaValidate(t *testing.T) {
	sasl := func(s KafkaSASL) func(*KafkaSink) { return func(k *KafkaSink) { k.SASL = &s } }
	for want, change := range map[string]func(*KafkaSink){
		"": func(k *KafkaSink) {
			k.TLS, k.Topic, k.Brokers = &TLS{}, "shop.orders-1_a", append(k.Brokers, "[::1]:9092", "a_b:65535")
		},
		"sink.kafka.brokers has 0 entr":                                              func(k *KafkaSink) { k.Brokers = nil },
		`sink.kafka.brokers[1] is "kafka"; write it as host:port`:                    func(k *KafkaSink) { k.Brokers = append(k.Brokers, "kafka") },
		`sink.kafka.brokers[0] is ":9092"; write it as host:port`:                    func(k *KafkaSink) { k.Brokers = []string{":9092"} },
		`sink.kafka.brokers[0] is "a:90920"; write it as host:port`:                  func(k *KafkaSink) { k.Brokers = []string{"a:90920"} },
		`sink.kafka.brokers[0] is "a/b:9092"; write it as host:port`:                 func(k *KafkaSink) { k.Brokers = []string{"a/b:9092"} },
		`sink.kafka.brokers[0] is "a:0"; write it as host:port`:                      func(k *KafkaSink) { k.Brokers = []string{"a:0"} },
		`sink.kafka.encoding is "XML"; choose one of JSON, Avro, Protobuf`:           func(k *KafkaSink) { k.Encoding = "XML" },
		"sink.kafka.encoding is Avro, which belongs to mode Binary":                  func(k *KafkaSink) { k.Encoding, k.Mode = KafkaAvro, KafkaStructured },
		"sink.kafka.subject belongs to encoding Avro and Protobuf; choose":           func(k *KafkaSink) { k.Subject = "orders" },
		"sink.kafka.subject has more than 255 characters; shorten it":                func(k *KafkaSink) { k.Encoding, k.Subject = KafkaAvro, strings.Repeat("a", 256) },
		`sink.kafka.topic is "a/b", which Kafka does not take; use at most 249`:      func(k *KafkaSink) { k.Topic = "a/b" },
		`sink.kafka.topic is "..", which Kafka does not take`:                        func(k *KafkaSink) { k.Topic = ".." },
		`sink.kafka.mode is "Batch"; choose one of Binary, Structured`:               func(k *KafkaSink) { k.Mode = "Batch" },
		"sink.kafka.clientID has more than 255 characters; shorten it":               func(k *KafkaSink) { k.ClientID = strings.Repeat("a", 256) },
		`sink.kafka.compression is "brotli"; choose one of none, gzip, snappy, lz4`:  func(k *KafkaSink) { k.Compression = "brotli" },
		"sink.kafka.maxMessageBytes is 1023; set it from 1024 to 104857600":          func(k *KafkaSink) { k.MaxMessageBytes = 1023 },
		"sink.kafka.timeout is 11m; set it from 100ms to 10m":                        func(k *KafkaSink) { k.Timeout = Duration(11 * time.Minute) },
		`sink.kafka.sasl.mechanism is "GSSAPI"; choose one of PLAIN, SCRAM-SHA-256`:  sasl(KafkaSASL{Mechanism: "GSSAPI"}),
		"sink.kafka.sasl.usernameFile is missing; set it":                            sasl(KafkaSASL{Mechanism: SASLPlain, PasswordFile: "a"}),
		"sink.kafka.sasl.passwordFile is missing; set it":                            sasl(KafkaSASL{Mechanism: SASLScram512, UsernameFile: "a"}),
		"sink.kafka.sasl.tokenFile is missing; set it":                               sasl(KafkaSASL{Mechanism: SASLOAuthBearer}),
		"sink.kafka.sasl.tokenFile is not used by mechanism PLAIN; remove it":        sasl(KafkaSASL{Mechanism: SASLPlain, UsernameFile: "a", PasswordFile: "b", TokenFile: "c"}),
		"sink.kafka.sasl has usernameFile or passwordFile, which mechanism OAUTHBEA": sasl(KafkaSASL{Mechanism: SASLOAuthBearer, TokenFile: "a", PasswordFile: "b"}),
		"sink.kafka.tls is missing, and AWS_MSK_IAM needs it; add it":                sasl(KafkaSASL{Mechanism: SASLAWSIAM}),
		"sink.kafka.tls has only one of certFile and keyFile; set both or neither":   func(k *KafkaSink) { k.TLS = &TLS{KeyFile: "a"} },
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
