package spec

import (
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// What a file says next to the kind of its sink reaches the kind, with its default.
func TestSinksAreHandedTheirAccess(t *testing.T) {
	for kind, timeout := range map[string]time.Duration{
		"http": 10, "kafka": 30, "log": 0, "nats": 10, "postgres": 30, "pubSub": 10, "rabbitmq": 30, "redis": 10, "serviceBus": 10, "sns": 10, "sqs": 10,
	} {
		c, err := load(t, strings.Replace(minimal, "{log: {}}", "{"+kind+": {}, auth: {type: Basic, username: a}, tls: {caFile: b}}", 1))
		need.OK(t, err)
		a := c.Sink.members()[kind].access()
		if a.Auth.Username != "a" || a.TLS.CAFile != "b" || a.Timeout != Duration(timeout*time.Second) || c.Sink.Timeout != a.Timeout {
			t.Errorf("%s: got %+v, want auth, tls and a timeout of %ds; the sink has %s", kind, a, timeout, c.Sink.Timeout)
		}
		c.Sink.Timeout = Duration(time.Minute)
		if c.ApplyDefaults(); a.Timeout != Duration(time.Minute) {
			t.Errorf("%s: the timeout is %s, want 1m", kind, a.Timeout)
		}
	}
}

// A clone shares no kind with what it was made of.
func TestClonesShareNothing(t *testing.T) {
	s := Sink{HTTP: &HTTPSink{URL: "https://a"}, Timeout: Duration(time.Second)}
	own := s.Clone()
	own.ApplyDefaults()
	if s.HTTP.Timeout != 0 || own.HTTP.Timeout != s.Timeout || own.HTTP.URL != s.HTTP.URL {
		t.Errorf("the clone of %+v is %+v", *s.HTTP, *own.HTTP)
	}
}

// CONTRACT: C-101
func TestSinkAccessValidate(t *testing.T) {
	const (
		kafka    = "kafka: {brokers: ['a:1']}"
		nats     = "nats: {servers: ['nats://a:1']}"
		rabbitmq = "rabbitmq: {addresses: ['a:1']}"
		redis    = "redis: {addresses: ['a:1']}"
		http     = "http: {url: 'https://a'}"
		postgres = "postgres: {dsnFile: a}"
		sqs      = "sqs: {queueURL: 'https://sqs.eu-west-1.amazonaws.com/1/a'}"
		login    = ", username: a, secretFile: b}"
		external = ", auth: {type: External}"
		pair     = ", tls: {clientCertFile: a, clientKeyFile: b}"
	)
	for _, test := range []struct{ sink, want string }{ // "" means that it is valid
		{http + ", auth: {type: Basic" + login + ", tls: {serverName: a}, timeout: 10ms", ""},
		{http + ", auth: {type: Token, secretFile: a}", ""},
		{kafka + ", auth: {type: Plain" + login + ", tls: {}, timeout: 10m", ""},
		{kafka + ", auth: {type: ScramSHA256, usernameFile: a, secretFile: b}", ""},
		{kafka + ", auth: {type: ScramSHA512" + login, ""},
		{kafka + ", auth: {type: OAuthBearer, secretFile: a}", ""},
		{kafka + ", auth: {type: AWSMSKIAM}, tls: {}", ""},
		{nats + ", auth: {type: Basic" + login + ", tls: {}", ""},
		{nats + ", auth: {type: Token, secretFile: a}", ""},
		{nats + ", auth: {type: NKey, secretFile: a}", ""},
		{nats + ", auth: {type: Credentials, secretFile: a}", ""},
		{rabbitmq + ", auth: {type: Plain" + login + ", tls: {}", ""},
		{rabbitmq + external + pair, ""},
		{redis + ", auth: {type: Basic" + login + ", tls: {}", ""},
		{redis + ", auth: {type: Password, secretFile: a}", ""},
		{postgres + pair + ", timeout: 100ms", ""},

		{http + ", auth: {type: Plain" + login, `sink.auth.type is "Plain"; choose one of Basic, Token`},
		{kafka + ", auth: {type: Token, secretFile: a}", `sink.auth.type is "Token"; choose one of Plain, ScramSHA256, ScramSHA512, OAuthBearer, AWSMSKIAM`},
		{nats + ", auth: {type: Password, secretFile: a}", `sink.auth.type is "Password"; choose one of Basic, Token, NKey, Credentials`},
		{rabbitmq + ", auth: {type: Basic" + login, `sink.auth.type is "Basic"; choose one of Plain, External`},
		{redis + ", auth: {type: Token, secretFile: a}", `sink.auth.type is "Token"; choose one of Basic, Password`},
		{http + ", auth: {}", `sink.auth.type is ""; choose one of Basic, Token`},
		{rabbitmq, "sink.auth is missing, and rabbitmq needs it; add it, with type Plain or External"},
		{postgres + ", auth: {type: Basic" + login, "sink.auth is not used by postgres; put the login into the connection string"},
		{sqs + ", auth: {type: Basic" + login, "sink.auth is not used by sqs; remove it"},
		{"log: {}, auth: {type: Basic" + login, "sink.auth is not used by log; remove it"},
		{http + ", auth: {type: Basic, secretFile: a}", "sink.auth.username is missing; set it, or name its file in usernameFile"},
		{http + ", auth: {type: Basic, usernameFile: a" + login, "sink.auth.username is set, and so is usernameFile; keep one of them"},
		{http + ", auth: {type: Token" + login, "sink.auth.username is not used by type Token; remove it"},
		{redis + ", auth: {type: Password, usernameFile: a, secretFile: b}", "sink.auth.username is not used by type Password; remove it"},
		{http + ", auth: {type: Basic, username: a}", "sink.auth.secretFile is missing; set it"},
		{nats + ", auth: {type: NKey}", "sink.auth.secretFile is missing; set it"},
		{kafka + ", auth: {type: AWSMSKIAM, secretFile: a}, tls: {}", "sink.auth.secretFile is not used by type AWSMSKIAM; remove it"},
		{rabbitmq + ", auth: {type: External, secretFile: a}" + pair, "sink.auth.secretFile is not used by type External; remove it"},

		{kafka + ", auth: {type: AWSMSKIAM}", "sink.tls is missing, and sink.auth of type AWSMSKIAM needs it; add it, empty"},
		{rabbitmq + external, "sink.tls.clientCertFile is missing, and sink.auth of type External needs it; set clientCertFile and clientKeyFile"},
		{rabbitmq + external + ", tls: {}", "sink.tls.clientCertFile is missing, and sink.auth of type External needs it"},
		{kafka + ", tls: {clientKeyFile: a}", "sink.tls has only one of clientCertFile and clientKeyFile; set both or neither"},
		{http + ", tls: {clientCertFile: a}", "sink.tls has only one of clientCertFile and clientKeyFile; set both or neither"},
		{http + ", tls: {}", "sink.tls is empty; set caFile"},
		{"http: {url: 'http://a'}, tls: {caFile: a}", "sink.tls needs an https:// url; change url, or remove tls"},
		{postgres + ", tls: {}", "sink.tls has neither caFile nor clientCertFile; set one of them, or remove it"},
		{postgres + ", tls: {caFile: a, serverName: b}", "sink.tls.serverName is not used by postgres; name the server by its host"},
		{sqs + ", tls: {}", "sink.tls is not used by sqs; remove it"},
		{"log: {}, tls: {}", "sink.tls is not used by log; remove it"},

		{http + ", timeout: 9ms", "sink.timeout is 9ms; set it from 10ms to 10m"},
		{kafka + ", timeout: 99ms", "sink.timeout is 99ms; set it from 100ms to 10m"},
		{sqs + ", timeout: 11m", "sink.timeout is 11m; set it from 100ms to 10m"},
		{"log: {}, timeout: 1s", "sink.timeout is not used by log; remove it"},

		{http + ", contentMode: Batch", ""},
		{kafka + ", contentMode: Batch", `sink.contentMode is "Batch"; choose one of Binary, Structured`},
		{postgres + ", contentMode: Binary", "sink.contentMode is not used by postgres; remove it"},
		{sqs + ", contentMode: Binary", "sink.contentMode is not used by sqs; remove it"},
		{"sns: {topicARN: 'arn:aws:sns:eu-west-1:123456789012:all'}, contentMode: Binary", "sink.contentMode is not used by sns; remove it"},
		{"log: {}, contentMode: Binary", "sink.contentMode is not used by log; remove it"},
	} {
		c, err := load(t, strings.Replace(minimal, "log: {}", test.sink, 1)+"delivery: {timeout: 1h}\n")
		if err != nil {
			t.Errorf("%s: %v", test.sink, err)
			continue
		}
		switch err := c.Validate(); {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.sink, err)
		case test.want != "" && (err == nil || !strings.HasPrefix(err.Error(), test.want)):
			t.Errorf("%s: error %v\nwant %s", test.sink, err, test.want)
		}
	}
}

// The address is checked as that of sink http, and an error names its own field.
func TestNotifyRefusesInvalidAddresses(t *testing.T) {
	c, err := load(t, minimal+"\nnotify: {url: 'https://oncall.example.com/dead-letters', auth: {type: Token, secretFile: a}, signingSecretFile: b, tls: {serverName: c}}\n")
	need.OK(t, err)
	if err := c.Validate(); err != nil {
		t.Errorf("a whole one is refused: %v", err)
	}
	for want, change := range map[string]func(*Notify){
		"notify.url must be an http:// or https:// URL":         func(n *Notify) { n.URL = "" },
		"notify.url must not hold a user or a password":         func(n *Notify) { n.URL = "https://a:b@c" },
		`notify.auth.type is ""; choose one of Basic, Token`:    func(n *Notify) { n.Auth = &Auth{} },
		"notify.tls needs an https:// url; change url":          func(n *Notify) { n.URL = "http://a" },
		"notify.tls is empty; set caFile":                       func(n *Notify) { n.TLS = &TLS{} },
		"notify.tls has only one of clientCertFile and clientK": func(n *Notify) { n.TLS = &TLS{ClientKeyFile: "a"} },
	} {
		changed := *c.Notify
		change(&changed)
		wrong := c
		wrong.Notify = &changed
		if err := wrong.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestRegistryDefaults(t *testing.T) {
	c, err := load(t, minimal+"\nmessage: {schemaRegistry: {url: 'https://registry.example.com'}}\n")
	need.OK(t, err)
	if want := (SchemaRegistry{URL: "https://registry.example.com", Refresh: Duration(5 * time.Minute)}); *c.Message.SchemaRegistry != want {
		t.Errorf("got  %+v\nwant %+v", *c.Message.SchemaRegistry, want)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("the smallest registry is refused: %v", err)
	}
	c.Message.SchemaRegistry.URL = ""
	if err := c.Validate(); err == nil {
		t.Error("Validate does not look at schemaRegistry")
	}
	c.Message.SchemaRegistry, c.Sink = nil, Sink{Kafka: &KafkaSink{Brokers: []string{"a:1"}, Encoding: KafkaAvro}}
	c.ApplyDefaults()
	if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), "message.schemaRegistry is missing, and sink.kafka.encoding Avro needs it; add it") {
		t.Errorf("Avro without a registry: %v", err)
	}
}

func TestRegistryValidate(t *testing.T) {
	for want, change := range map[string]func(*SchemaRegistry){
		"": func(r *SchemaRegistry) { r.TLS, r.Auth = &TLS{CAFile: "a"}, &Auth{Type: AuthToken, SecretFile: "a"} },
		`message.schemaRegistry.auth.type is "Plain"; choose one of Basic, Token`:                          func(r *SchemaRegistry) { r.Auth = &Auth{Type: AuthPlain} },
		"message.schemaRegistry.url must be an http:// or https:// URL with a host":                        func(r *SchemaRegistry) { r.URL = "registry:8081" },
		"message.schemaRegistry.url must be an http:// or https:// URL with a host and without":            func(r *SchemaRegistry) { r.URL = "https://a/?b=c" },
		"message.schemaRegistry.url must not hold a user or a password; put them into files":               func(r *SchemaRegistry) { r.URL = "https://a:b@c" },
		"message.schemaRegistry.refresh is 25h; set it from 1s to 24h":                                     func(r *SchemaRegistry) { r.Refresh = Duration(25 * time.Hour) },
		"message.schemaRegistry.tls is empty; set caFile, clientCertFile and clientKeyFile, or serverName": func(r *SchemaRegistry) { r.TLS = &TLS{} },
		"message.schemaRegistry.tls has only one of clientCertFile and clientKeyFile; set both or neither": func(r *SchemaRegistry) { r.TLS = &TLS{ClientCertFile: "a"} },
		"message.schemaRegistry.tls needs an https:// url; change url, or remove tls":                      func(r *SchemaRegistry) { r.URL, r.TLS = "http://a", &TLS{CAFile: "a"} },
	} {
		r := SchemaRegistry{URL: "https://registry.example.com/v1"}
		change(&r)
		r.ApplyDefaults()
		switch err := r.Validate(); {
		case want == "" && err != nil:
			t.Error(err)
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("error %v\nwant %s", err, want)
		}
	}
}
