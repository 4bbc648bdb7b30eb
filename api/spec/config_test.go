package spec

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

const minimal = `
name: orders
namespace: shop
database: {dsnFile: /etc/outbox/dsn}
sink: {log: {}}
`

func load(t *testing.T, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path)
}

// REQUIREMENT: STORAGE-47, STORAGE-50, STORAGE-54
func TestLoadFillsInDefaults(t *testing.T) {
	seconds := func(n int) Duration { return Duration(time.Duration(n) * time.Second) }
	c, err := load(t, minimal)
	if err != nil {
		t.Fatal(err)
	}
	week := seconds(168 * 3600)
	want := Config{
		Name: "orders", Namespace: "shop", Database: Database{DSNFile: "/etc/outbox/dsn", Schema: "outbox"},
		Delivery: Delivery{
			Lease: seconds(30), PollInterval: seconds(1), BatchSize: 500, Concurrency: 16, MaxConcurrency: 256, MaxInFlightBytes: 32 << 20, MaxAttempts: 20,
			Backoff:  Backoff{Strategy: "Exponential", Base: seconds(1), Max: seconds(3600)},
			Ordering: OrderingNone, Fairness: FairnessNone, OnDead: OnDeadContinue, WakeUp: WakeUpNone, Timeout: seconds(300), GracePeriod: seconds(30),
		},
		Retention: Retention{Delivered: &week, DeadResolved: seconds(720 * 3600), Scope: ScopeDispatcher},
		State:     Running, Sink: Sink{Log: &LogSink{Payload: LogPayloadOmit}},
		Server: Server{Address: "127.0.0.1:8080"}, Log: Log{Level: "Info"}, Message: Message{Format: "CloudEvents"},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("the smallest file is refused: %v", err)
	}

	c, err = load(t, strings.Replace(minimal, "{log: {}}", "{http: {url: 'https://a.example'}, contentMode: Batch}", 1)+
		"delivery: {backoff: {strategy: Multiplier}}\n")
	if err != nil {
		t.Fatal(err)
	}
	percent := int32(25)
	if want := (Backoff{"Multiplier", seconds(1), seconds(3600), "2", &percent}); !reflect.DeepEqual(c.Delivery.Backoff, want) {
		t.Errorf("backoff %+v, want %+v", c.Delivery.Backoff, want)
	}
	if want := (HTTPSink{URL: "https://a.example", BatchSize: 100, CaptureResponse: CaptureNone, Access: Access{ContentMode: Batch, Timeout: seconds(10)}}); !reflect.DeepEqual(*c.Sink.HTTP, want) {
		t.Errorf("sink %+v, want %+v", *c.Sink.HTTP, want)
	}
	parts := Config{Database: Database{Connection: &Connection{Host: "a"}}}
	if parts.ApplyDefaults(); parts.Database.Connection.Port != 5432 {
		t.Errorf("port %d, want 5432", parts.Database.Connection.Port)
	}
	parts.Database.Connection = &Connection{PortFile: "b"}
	if parts.ApplyDefaults(); parts.Database.Connection.Port != 0 {
		t.Errorf("port %d, want none with a file of it", parts.Database.Connection.Port)
	}
	linear := Backoff{Strategy: "Linear"}
	linear.ApplyDefaults()
	if linear.Base != seconds(60) || linear.Max != seconds(3600) {
		t.Errorf("linear backoff %+v, want 60s and 1h", linear)
	}
}

// A file that was written is read unchanged: the controller writes what the binary loads.
func TestRoundTrip(t *testing.T) {
	c, err := load(t, minimal+"delivery: {lease: 1m30s, pollInterval: 250ms, gracePeriod: 1h, ordering: Key, onDead: Block, wakeUp: Listen}\nretention: {delivered: 0s}\n")
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"lease: 1m30s", "pollInterval: 250ms", "gracePeriod: 1h\n", "max: 1h\n", "delivered: 0s\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	again, err := load(t, string(text))
	if err != nil || !reflect.DeepEqual(again, c) {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, again, c)
	}
}

func TestLoadErrors(t *testing.T) {
	for text, want := range map[string]string{
		"delivery: {leaze: 30s}":                        `line 1, column 12: delivery.leaze is not a field; did you mean lease?`,
		"colour: red":                                   `line 1, column 1: colour is not a field; correct its name, or remove it`,
		"NAMESPACE: shop":                               `line 1, column 1: NAMESPACE is not a field; did you mean namespace?`,
		"topics: [a]\nTopics: [b]":                      `line 2, column 1: Topics is not a field; did you mean topics?`,
		"delivery: {maxAttempts: 0}":                    `line 1, column 25: delivery.maxAttempts is 0; write one that is larger, or leave it out for the default, 20`,
		"delivery: {lease: 0s}":                         `line 1, column 19: delivery.lease is 0s; write one that is larger, or leave it out for the default, 30s`,
		"sink: {kafka: {maxMessageBytes: 0}}":           `sink.kafka.maxMessageBytes is 0; write one that is larger, or leave it out for the default, 1000000`,
		"\ndatabase: {dns: a}":                          `line 2, column 12: database.dns is not a field`,
		"delivery: {lease: 30}":                         `line 1, column 19: delivery.lease has a wrong value: 30 is not a duration; write it with its unit, as "30s"`,
		"delivery: {lease: soon}":                       `line 1, column 19: delivery.lease has a wrong value: "soon" is not a duration`,
		"delivery: {batchSize: many}":                   "line 1, column 23: delivery.batchSize is string; write a whole number",
		"topics: [a, {b: c}]":                           "line 1, column 13: topics[1] is object; write a text",
		"sink: http":                                    "line 1, column 7: sink must have fields of its own",
		"sink: {http: {url: {}}}":                       "line 1, column 20: sink.http.url is object; write a text",
		"sink: {http: {tls: {}}}":                       "line 1, column 15: sink.http.tls is not a field; correct its name, or remove it",
		"sink: {tls: {ca: a}}":                          "line 1, column 14: sink.tls.ca is not a field",
		"state: Paused\nleaze: 30s\nname: 7\ntopics: 3": "line 4, column 9: topics is number; write a list",
		"a: 1\nb: 2":                                    "line 2, column 1: b is not a field",
		"name: a\nname: b":                              "line 2, column 1: name is there a second time",
		"sink: [":                                       "did not find",
		"sink: {http: {url: [1]}}:":                     "mapping values are not allowed",
	} {
		_, err := load(t, text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "config.yaml: ") {
			t.Errorf("%q: error %v, want one with the file and %q", text, err, want)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml")); err == nil || !strings.Contains(err.Error(), "none.yaml") || !strings.Contains(err.Error(), "-f") {
		t.Errorf("without a file: %v", err)
	}
}

// CONTRACT: C-28
func TestValidateReportsEveryProblem(t *testing.T) {
	long := strings.Repeat("é", 256)
	http := func(change func(*HTTPSink)) func(*Config) {
		return func(c *Config) {
			c.Sink = Sink{HTTP: &HTTPSink{URL: "https://a.example"}}
			change(c.Sink.HTTP)
		}
	}
	connection := func(parts Connection) func(*Config) {
		return func(c *Config) { c.Database = Database{Connection: &parts} }
	}
	m10 := func(m M10) func(*Config) { return func(c *Config) { c.Database.M10 = &m } }
	iam := func(i IAM, mode string) func(*Config) {
		return func(c *Config) { c.Database.IAM, c.Database.SSLMode = &i, mode }
	}
	percent := int32(101)
	for name, d := range map[string]Database{
		"parts and an IAM login":      {Connection: &Connection{Host: "a", Port: 5432, Database: "b", User: "c"}, SSLMode: "Require", IAM: &IAM{Provider: IAMAWS, Region: "eu-west-1"}},
		"parts, IAM and an authority": {Connection: &Connection{Host: "a", Database: "b", User: "c"}, CAFile: "d", IAM: &IAM{Provider: IAMAWS}},
		"parts and a certificate":     {Connection: &Connection{Host: "a", Database: "b", User: "c"}, ClientCertFile: "d", ClientKeyFile: "e"},
		"parts, and files of others":  {Connection: &Connection{Host: "a", Database: "b", UserFile: "c", PasswordFile: "d"}},
	} {
		d.Schema = "outbox"
		if err := (Config{Database: d}).ValidateDatabase(); err != nil {
			t.Errorf("%s: refused: %v", name, err)
		}
	}
	for want, change := range map[string]func(*Config){
		"name is missing; set it":                               func(c *Config) { c.Name = "" },
		"namespace is missing; set it":                          func(c *Config) { c.Namespace = "" },
		"namespace has more than 255 characters; shorten":       func(c *Config) { c.Namespace = long },
		"topics has 257 entries; list at most 256, or none":     func(c *Config) { c.Topics = make([]string, 257) },
		"topics[1] is missing; set it":                          func(c *Config) { c.Topics = []string{"a", ""} },
		`topics[1] is "a" a second time; remove one`:            func(c *Config) { c.Topics = []string{"a", "a"} },
		"delivery.lease is 2s; set it from 3s to 1h":            func(c *Config) { c.Delivery.Lease = Duration(2 * time.Second) },
		"delivery.pollInterval is 1ms; set it from 10ms to 20m": func(c *Config) { c.Delivery.PollInterval = Duration(time.Millisecond) },
		"delivery.pollInterval must be at most a third of lease (30s), so that a lost lease is noticed in time; lower it to 10s or raise lease to 30.003s": func(c *Config) {
			c.Delivery.PollInterval = Duration(10001 * time.Millisecond)
		},
		"delivery.batchSize is 10001; set it from 1 to 10000":                                     func(c *Config) { c.Delivery.BatchSize = 10_001 },
		"delivery.concurrency is -2; set it to a number from 1 to 1000, or to Auto":               func(c *Config) { c.Delivery.Concurrency = -2 },
		"delivery.maxConcurrency is 1001; set it from 1 to 1000":                                  func(c *Config) { c.Delivery.MaxConcurrency = 1001 },
		"delivery.maxInFlightBytes is 65536; set it from 1048576 (1 MiB) to 17179869184 (16 GiB)": func(c *Config) { c.Delivery.MaxInFlightBytes = 64 << 10 },
		"delivery.maxInFlightBytes is 17179869185; set it from 1048576 (1 MiB) to":                func(c *Config) { c.Delivery.MaxInFlightBytes = 16<<30 + 1 },
		"delivery.maxAttempts is 1001; set it from 1 to 1000":                                     func(c *Config) { c.Delivery.MaxAttempts = 1001 },
		`delivery.ordering is "Strict"; choose one of None, Key`:                                  func(c *Config) { c.Delivery.Ordering = "Strict" },
		`delivery.onDead is "Stop"; choose one of Continue, Block`:                                func(c *Config) { c.Delivery.OnDead = "Stop" },
		"delivery.onDead Block belongs to ordering Key, because without it":                       func(c *Config) { c.Delivery.OnDead = OnDeadBlock },
		"retention.delivered is -1s; set it from 0s to 87600h":                                    func(c *Config) { before := Duration(-time.Second); c.Retention.Delivered = &before },
		"retention.deadResolved is 59m; set it from 1h to 87600h":                                 func(c *Config) { c.Retention.DeadResolved = Duration(59 * time.Minute) },
		"retention.deadUnresolved is 1ms; set it from 1h to 87600h":                               func(c *Config) { c.Retention.DeadUnresolved = Duration(time.Millisecond) },
		"retention.scope is \"All\"":                                                              func(c *Config) { c.Retention.Scope = "All" },
		`delivery.wakeUp is "Notify"; choose one of None, Listen`:                                 func(c *Config) { c.Delivery.WakeUp = "Notify" },
		"delivery.timeout is 999ms; set it from 1s to 1h":                                         func(c *Config) { c.Delivery.Timeout = Duration(999 * time.Millisecond) },
		"delivery.timeout is 5m, shorter than sink.timeout (6m), which then never ends a delivery; raise delivery.timeout to 6m, or lower sink.timeout": func(c *Config) {
			c.Sink = Sink{HTTP: &HTTPSink{URL: "https://a.example"}, Timeout: Duration(6 * time.Minute)}
		},
		"delivery.gracePeriod is 2h; set it from 1s to 1h":                                     func(c *Config) { c.Delivery.GracePeriod = Duration(2 * time.Hour) },
		`state is "Stopped"; choose one of Running, Paused`:                                    func(c *Config) { c.State = "Stopped" },
		`log.level is "loud"; choose one of Debug, Info, Warn, Error`:                          func(c *Config) { c.Log.Level = "loud" },
		`server.address is "8080"; write it as host:port`:                                      func(c *Config) { c.Server.Address = "8080" },
		`server.address is "a:b"; write it as host:port`:                                       func(c *Config) { c.Server.Address = "a:b" },
		"database is missing; set exactly one of its members connection, dsn, dsnEnv, dsnFile": func(c *Config) { c.Database = Database{} },
		"database.dsnEnv is not the name of an environment variable; give one, such as DATABASE_URL, that holds the connection string": func(c *Config) {
			c.Database = Database{DSNEnv: "postgres://outbox:s3cr3t@db/shop"}
		},
		"database has connection and dsn; keep exactly one of them":                        func(c *Config) { c.Database = Database{DSN: "a", Connection: &Connection{}} },
		"database.connection.user is missing; set it, or name its file in userFile":        connection(Connection{}),
		"database.connection.passwordFile is missing; set it, or log in with iam or":       connection(Connection{}),
		"database.connection.host is missing; set it, or name its file in hostFile":        connection(Connection{}),
		"database.connection.database is missing; set it, or name its file in databaseFil": connection(Connection{}),
		"database.connection.host is set, and so is hostFile; keep one of them":            connection(Connection{Host: "a", HostFile: "b"}),
		"database.connection has port and portFile; keep one of them":                      connection(Connection{Port: 1, PortFile: "b"}),
		"database.connection.port is 65536; set it from 0 to 65535":                        connection(Connection{Port: 65536}),
		"database has only one of clientCertFile and clientKeyFile; set both or neither":   func(c *Config) { c.Database.ClientKeyFile = "key" },
		`database.iam.provider is "IBM"; choose one of AWS, Google, Azure`:                 iam(IAM{Provider: "IBM"}, ""),
		"database.iam.region belongs to provider AWS; remove it":                           iam(IAM{Provider: IAMAzure, Region: "eu-west-1"}, ""),
		`database.iam.region is "moon"; write a region`:                                    iam(IAM{Provider: IAMAWS, Region: "moon"}, ""),
		"database.sslMode is Disable, and the token of iam is for a connection with TLS":   iam(IAM{Provider: IAMAWS}, "Disable"),
		"database.sslMode is missing, and the token of iam is for a connection with TLS": func(c *Config) {
			c.Database = Database{Connection: &Connection{Host: "a", Database: "b", User: "c"}, IAM: &IAM{Provider: IAMAWS}}
		},
		`database.m10.namespace is "it's"; give 1 to 255 characters without quotes`:             m10(M10{Namespace: "it's", Topic: "m10", Publish: M10Insert}),
		`database.m10.topic is "$m10$"; give 1 to 255`:                                          m10(M10{Namespace: "shop", Topic: "$m10$", Publish: M10Insert}),
		`database.overview.namespace is "it's"; give 1 to 255`:                                  func(c *Config) { c.Database.Overview = &Overview{Namespace: "it's"} },
		`database.m10.publish is "Replace"; choose one of Insert, Upsert`:                       m10(M10{Namespace: "shop", Topic: "m10", Publish: "Replace"}),
		`database.schema is "Outbox"; use lower-case`:                                           func(c *Config) { c.Database.Schema = "Outbox" },
		`database.schema is "pg_outbox"; use lower-case`:                                        func(c *Config) { c.Database.Schema = "pg_outbox" },
		`database.sslMode is "allow"; choose one of Disable`:                                    func(c *Config) { c.Database.SSLMode = "allow" },
		"database.caFile is missing, and sslMode VerifyFull needs it; name":                     func(c *Config) { c.Database.SSLMode = "VerifyFull" },
		"database.sslMode is Require, which does not verify with caFile; set":                   func(c *Config) { c.Database.SSLMode, c.Database.CAFile = "Require", "ca" },
		`delivery.backoff.strategy is "Random"; choose one of Exponential`:                      func(c *Config) { c.Delivery.Backoff.Strategy = "Random" },
		"delivery.backoff.strategy PowerOfTwo has fixed delays; remove base and max":            func(c *Config) { c.Delivery.Backoff.Strategy, c.Delivery.Backoff.Base = BackoffPowerOfTwo, 1 },
		"delivery.backoff.base is 25h; set it from 1ms to 24h":                                  func(c *Config) { c.Delivery.Backoff.Base = Duration(25 * time.Hour) },
		"delivery.backoff.max is 1ns; set it from 1ms to 24h":                                   func(c *Config) { c.Delivery.Backoff.Max = 1 },
		"delivery.backoff.base is 2h, more than max (1h); lower base or raise max":              func(c *Config) { c.Delivery.Backoff.Base = Duration(2 * time.Hour) },
		`delivery.backoff.multiplier is "0.5"; write a decimal from "1" to "10" in quotes`:      func(c *Config) { c.Delivery.Backoff = Backoff{Strategy: BackoffMultiplier, Multiplier: "0.5"} },
		"delivery.backoff.jitterPercent is 101; set it from 0 to 100":                           func(c *Config) { c.Delivery.Backoff = Backoff{Strategy: BackoffMultiplier, JitterPercent: &percent} },
		"delivery.backoff.strategy is Exponential; multiplier and jitterPercent belong":         func(c *Config) { c.Delivery.Backoff.Multiplier = "2" },
		"sink is missing; set exactly one of its members http, kafka, log":                      func(c *Config) { c.Sink = Sink{} },
		"sink has http and log; keep exactly one of them":                                       func(c *Config) { c.Sink.HTTP = &HTTPSink{URL: "http://a"} },
		"sink.http.url must be an http:// or https:// URL with a host, such as":                 http(func(h *HTTPSink) { h.URL = "ftp://a" }),
		"sink.http.url must not hold a user or a password; put them into files":                 http(func(h *HTTPSink) { h.URL = "https://u:hunter2@a" }),
		`sink.contentMode is "Stream"; choose one of Binary, Structured, Batch`:                 func(c *Config) { c.Sink = Sink{HTTP: &HTTPSink{URL: "https://a.example"}, ContentMode: "Stream"} },
		"sink.http.batchSize belongs to contentMode Batch; set contentMode to Batch, or remove": http(func(h *HTTPSink) { h.BatchSize = 5 }),
		"sink.http.batchSize is 1001; set it from 1 to 1000": func(c *Config) {
			c.Sink = Sink{HTTP: &HTTPSink{URL: "https://a.example", BatchSize: 1001}, ContentMode: Batch}
		},
		`sink.http.headers["a b"] is not a name of alphanumeric characters and dashes; correct`: http(func(h *HTTPSink) { h.Headers = map[string]string{"a b": ""} }),
		`sink.http.headers["Ce-Id"] is set by the dispatcher itself; choose another`:            http(func(h *HTTPSink) { h.Headers = map[string]string{"Ce-Id": ""} }),
		`sink.http.headers["Authorization"] is set by the dispatcher itself; choose`:            http(func(h *HTTPSink) { h.Headers = map[string]string{"Authorization": ""} }),
		`sink.http.headers["a"] has a line break or another control character; write`:           http(func(h *HTTPSink) { h.Headers = map[string]string{"a": "b\n"} }),
		`sink.log.payload is "true"; choose one of Omit, Include`:                               func(c *Config) { c.Sink.Log.Payload = "true" },
	} {
		c, err := load(t, minimal)
		if err != nil {
			t.Fatal(err)
		}
		change(&c)
		c.ApplyDefaults()
		err = c.Validate()
		if err == nil || !strings.Contains("\n"+err.Error(), "\n"+want) {
			t.Errorf("error %v\nwant %s", err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows a password: %v", err)
		}
		if strings.HasPrefix(want, "database") != (c.ValidateDatabase() != nil) {
			t.Errorf("%s: ValidateDatabase says %v", want, c.ValidateDatabase())
		}
	}
	if lines := strings.Count(Config{}.Validate().Error(), "\n"); lines < 8 {
		t.Errorf("an empty configuration has only %d problems; want all of them reported at once", lines+1)
	}
}

// CONTRACT: C-28
func TestPollIntervalOfAThirdIsAllowed(t *testing.T) {
	c, err := load(t, minimal+"delivery: {lease: 30s, pollInterval: 10s}\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

// Every kind of sink is looked at, and has a timeout that delivery.timeout is compared with.
//
// CONTRACT: C-34
func TestEverySinkIsAMember(t *testing.T) {
	for _, kind := range SinkKinds() {
		name, _, _ := strings.Cut(kind.Tag.Get("json"), ",")
		c := Config{Name: "orders", Namespace: "shop", Database: Database{DSN: "a"}}
		reflect.ValueOf(&c.Sink).Elem().FieldByIndex(kind.Index).Set(reflect.New(kind.Type.Elem()))
		if c.Sink.Kind() != name {
			t.Errorf("%s: its kind is %q", name, c.Sink.Kind())
		}
		c.Sink.Timeout = Duration(6 * time.Minute)
		c.ApplyDefaults()
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "delivery.timeout is 5m, shorter than sink.timeout (6m)") {
			t.Errorf("a timeout of 6m: %v, want that delivery.timeout is shorter", err)
		}
	}
	if n := len(SinkKinds()); n != 11 {
		t.Errorf("there are %d kinds of sinks, want 11", n)
	}
}
