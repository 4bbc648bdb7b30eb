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
		Brokers: []string{"kafka.example:9092"}, ContentMode: Binary, Encoding: KafkaJSON, ClientID: "outbox-dispatcher",
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
	auth := func(a KafkaAuth) func(*KafkaSink) { return func(k *KafkaSink) { k.Auth = &a } }
	for want, change := range map[string]func(*KafkaSink){
		"": func(k *KafkaSink) {
			k.TLS, k.Topic, k.Brokers = &TLS{}, "shop.orders-1_a", append(k.Brokers, "[::1]:9092", "a_b:65535")
		},
		"sink.kafka.brokers has 0 entr":                                                        func(k *KafkaSink) { k.Brokers = nil },
		`sink.kafka.brokers[1] is "kafka"; write it as host:port`:                              func(k *KafkaSink) { k.Brokers = append(k.Brokers, "kafka") },
		`sink.kafka.brokers[0] is ":9092"; write it as host:port`:                              func(k *KafkaSink) { k.Brokers = []string{":9092"} },
		`sink.kafka.brokers[0] is "a:90920"; write it as host:port`:                            func(k *KafkaSink) { k.Brokers = []string{"a:90920"} },
		`sink.kafka.brokers[0] is "a/b:9092"; write it as host:port`:                           func(k *KafkaSink) { k.Brokers = []string{"a/b:9092"} },
		`sink.kafka.brokers[0] is "a:0"; write it as host:port`:                                func(k *KafkaSink) { k.Brokers = []string{"a:0"} },
		`sink.kafka.encoding is "XML"; choose one of JSON, Avro, Protobuf`:                     func(k *KafkaSink) { k.Encoding = "XML" },
		"sink.kafka.encoding is Avro, which belongs to contentMode Binary":                     func(k *KafkaSink) { k.Encoding, k.ContentMode = KafkaAvro, Structured },
		"sink.kafka.subject belongs to encoding Avro and Protobuf; choose":                     func(k *KafkaSink) { k.Subject = "orders" },
		"sink.kafka.subject has more than 255 characters; shorten it":                          func(k *KafkaSink) { k.Encoding, k.Subject = KafkaAvro, strings.Repeat("a", 256) },
		`sink.kafka.topic is "a/b", which Kafka does not take; use at most 249`:                func(k *KafkaSink) { k.Topic = "a/b" },
		`sink.kafka.topic is "..", which Kafka does not take`:                                  func(k *KafkaSink) { k.Topic = ".." },
		`sink.kafka.contentMode is "Batch"; choose one of Binary, Structured`:                  func(k *KafkaSink) { k.ContentMode = "Batch" },
		"sink.kafka.clientID has more than 255 characters; shorten it":                         func(k *KafkaSink) { k.ClientID = strings.Repeat("a", 256) },
		`sink.kafka.compression is "brotli"; choose one of none, gzip, snappy, lz4`:            func(k *KafkaSink) { k.Compression = "brotli" },
		"sink.kafka.maxMessageBytes is 1023; set it from 1024 to 104857600":                    func(k *KafkaSink) { k.MaxMessageBytes = 1023 },
		"sink.kafka.timeout is 11m; set it from 100ms to 10m":                                  func(k *KafkaSink) { k.Timeout = Duration(11 * time.Minute) },
		`sink.kafka.auth.mechanism is "GSSAPI"; choose one of PLAIN, SCRAM-SHA-256`:            auth(KafkaAuth{Mechanism: "GSSAPI"}),
		"sink.kafka.auth.basic.username is missing; set it, or name its file in usernameFile":  auth(KafkaAuth{Mechanism: SASLPlain, Basic: &BasicAuth{PasswordFile: "a"}}),
		"sink.kafka.auth.basic.passwordFile is missing; set it":                                auth(KafkaAuth{Mechanism: SASLScram512, Basic: &BasicAuth{Username: "a"}}),
		"sink.kafka.auth.tokenFile is missing, and mechanism OAUTHBEARER needs it; set it":     auth(KafkaAuth{Mechanism: SASLOAuthBearer}),
		"sink.kafka.auth.tokenFile is not used by mechanism PLAIN; remove it":                  auth(KafkaAuth{Mechanism: SASLPlain, Basic: &BasicAuth{UsernameFile: "a", PasswordFile: "b"}, TokenFile: "c"}),
		"sink.kafka.auth.basic is not used by mechanism OAUTHBEARER; remove it":                auth(KafkaAuth{Mechanism: SASLOAuthBearer, TokenFile: "a", Basic: &BasicAuth{Username: "a", PasswordFile: "b"}}),
		"sink.kafka.auth.basic is missing, and mechanism SCRAM-SHA-256 needs it":               auth(KafkaAuth{Mechanism: SASLScram256}),
		"sink.kafka.tls is missing, and AWS_MSK_IAM needs it; add it":                          auth(KafkaAuth{Mechanism: SASLAWSIAM}),
		"sink.kafka.tls has only one of clientCertFile and clientKeyFile; set both or neither": func(k *KafkaSink) { k.TLS = &TLS{ClientKeyFile: "a"} },
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
