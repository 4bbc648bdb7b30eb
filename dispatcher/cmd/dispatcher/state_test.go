package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// mounted is a directory as the kubelet mounts a Secret or a ConfigMap: each file is a symbolic link into
// ..data, which is one itself, and is replaced as a whole.
type mounted string

// set replaces all files, as the kubelet does.
func (m mounted) set(t testing.TB, files map[string]string) {
	t.Helper()
	dir, err := os.MkdirTemp(string(m), "..v")
	check(t, err)
	for name, content := range files {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		if _, err := os.Lstat(m.file(name)); err != nil {
			check(t, os.Symlink(filepath.Join("..data", name), m.file(name)))
		}
	}
	next := m.file("..data_tmp")
	check(t, os.Symlink(filepath.Base(dir), next))
	check(t, os.Rename(next, m.file("..data")))
}

func (m mounted) file(name string) string { return filepath.Join(string(m), name) }

// A pause reaches a running process: events that have not begun are returned, deliveries in flight are finished, and the
// process still responds. CONTRACT: C-105
func TestStateFilePausesARunningProcess(t *testing.T) {
	t.Parallel()
	o := installed(t)
	arrived, release := make(chan struct{}, 100), make(chan struct{}, 100)
	consumer := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}))
	defer consumer.Close()
	defer close(release)
	m := mounted(t.TempDir())
	say := func(state string) { m.set(t, map[string]string{"state": state}) }
	args := []string{"-f", o.file(t, o.dispatcher, dispatching("{http: {url: '"+consumer.URL+"'}}")+"delivery: {concurrency: 2}\n"), "--state-file", m.file("state")}
	says := func(command string) output { return run(t, "", append([]string{command}, args...)...) }

	// At the start.
	say("Paused\n")
	o.enqueue(t, 20)
	says("once").ended(t, 1, "the dispatcher is paused")
	says("check").ended(t, 0, "ok   state: Paused")
	p := launch(t, command(t, append([]string{"run", "--listen", "127.0.0.1:0"}, args...)...))
	p.ready(t)
	await(t, "the backlog is counted", func() bool { b := p.status(t).Backlog; return b != nil && b.Pending == 20 })
	shows := func(state string, unusable, paused string) bool {
		_, metrics := p.get(t, "/metrics")
		labels := `{dispatcher="orders",outbox_namespace="shop",sink="http"} `
		return p.status(t).State == state && strings.Contains(metrics, "outbox_paused"+labels+paused) &&
			strings.Contains(metrics, "outbox_unusable_files"+labels+unusable)
	}
	if !shows("Paused", "0", "1") {
		t.Errorf("it does not say that it is paused: %+v", p.status(t))
	}
	await(t, "other dispatchers can see that it claims nothing", func() bool {
		return pgtest.Value[int](o.admin, "select count(*) from outbox.outbox_workers where paused") == 1
	})

	say("Running")
	<-arrived
	<-arrived
	await(t, "all in flight", func() bool { return p.status(t).InFlight.Rows == 20 })
	if !shows("Running", "0", "0") {
		t.Errorf("it does not say that it runs: %+v", p.status(t))
	}
	say("Paused")
	await(t, "what has not begun is given back", func() bool {
		return o.count(t, "status = 'pending' and attempts = 0 and locked_by is null") == 18
	})
	release <- struct{}{}
	release <- struct{}{}
	await(t, "what is in flight is finished", func() bool { return o.count(t, "status = 'delivered' and attempts = 1") == 2 })
	p.ready(t)

	// What cannot be used changes nothing.
	say("Stopped")
	problem := func(text string) func() bool {
		return func() bool {
			files := p.status(t).FileProblems
			return len(files) == 1 && files[0].Field == "--state-file" && strings.Contains(files[0].Message, text)
		}
	}
	await(t, "the unknown word is reported", problem("says neither Running nor Paused; write one of them into it"))
	m.set(t, nil)
	await(t, "the missing file is reported", problem("no such file or directory"))
	if !shows("Paused", "1", "1") || len(arrived) != 0 {
		t.Errorf("%d deliveries while its file is missing: %+v", len(arrived), p.status(t))
	}
	says("check").ended(t, 1, "FAIL state: --state-file: ")

	say("Running")
	for range 18 {
		release <- struct{}{}
	}
	await(t, "all is delivered", func() bool { return o.count(t, "status = 'delivered' and attempts = 1") == 20 })
	if !shows("Running", "0", "0") || p.status(t).FileProblems != nil {
		t.Errorf("at the end: %+v", p.status(t))
	}
	need.Want(t, 0, "exit code %d, want 0", p.stop(t))
}

// A changed schema file applies from the next event. One that does not compile keeps the schema before it, and is
// reported with line and column. CONTRACT: C-72
func TestSchemaFileAppliesWithoutARestart(t *testing.T) {
	t.Parallel()
	o := installed(t)
	m := mounted(t.TempDir())
	m.set(t, map[string]string{"order.json": `{"properties": {"card": {"type": "string"}}}`})
	o.mount(t, "schemas", string(m))
	yaml := dispatching("{log: {}}") + "message: {validation: [{schema: {configMapRef: {name: schemas, key: order.json}}}]}\n"
	p := start(t, o.file(t, o.dispatcher, yaml))
	o.enqueue(t, 1)
	await(t, "the event is delivered", func() bool { return o.count(t, "status = 'delivered'") == 1 })

	m.set(t, map[string]string{"order.json": "{\"properties\": {\"card\":\n {\"type\": \"objekt\"}}}"})
	await(t, "line and column are reported", func() bool {
		files := p.status(t).FileProblems
		return len(files) == 1 && files[0].Field == "message.validation[0].schema.file" && strings.Contains(files[0].Message, "it is not a JSON Schema: line 2, column 11: at /properties/card/type: ")
	})
	await(t, "it is logged", func() bool { return strings.Contains(p.log.String(), "line 2, column 11: at /properties/card/type: ") })
	o.enqueue(t, 1)
	await(t, "the event is delivered", func() bool { return o.count(t, "status = 'delivered'") == 2 })

	m.set(t, map[string]string{"order.json": `{"properties": {"card": {"type": "number"}}}`})
	await(t, "it is used again", func() bool { return p.status(t).FileProblems == nil })
	o.enqueue(t, 1)
	await(t, "the event is dead", func() bool { return o.count(t, "status = 'dead' and dead_reason = 'schema_validation_failed'") == 1 })
	p.ready(t)
}

// useless are credentials' files that hold something else, and clouds that repeat what they get.
func useless(t *testing.T, dir, closed string) map[string]leak {
	google := filepath.Join(dir, "google")
	check(t, os.WriteFile(filepath.Join(dir, "lines"), []byte("two-"+secret+"\nlines-"+secret), 0o600))
	account, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "a@b.example", "private_key_id": secret, "private_key": secret, "token_uri": "http://" + closed,
	})
	check(t, err)
	check(t, os.WriteFile(google, account, 0o600))
	aws := []string{"AWS_ACCESS_KEY_ID=" + secret, "AWS_SECRET_ACCESS_KEY=" + secret, "AWS_SESSION_TOKEN=" + secret, "AWS_REGION=eu-central-1"}
	echo := consumer(t, http.StatusBadRequest)
	return map[string]leak{
		"http with a token of no use":      {fmt.Sprintf("{http: {url: 'http://%s'}, auth: {type: Token, secretRef: {name: planted, key: lines}}}", closed), unavailable, nil, ""},
		"http with a signature of no use":  {fmt.Sprintf("{http: {url: 'http://%s', signingSecretRef: {name: planted, key: lines}}}", closed), unavailable, nil, ""},
		"http with a client key of no use": {fmt.Sprintf("{http: {url: 'https://%s'}, tls: {clientCertSecretRef: {name: planted, key: lines}, clientKeySecretRef: {name: planted, key: lines}}}", closed), unavailable, nil, ""},
		"nats with credentials of no use":  {fmt.Sprintf("{nats: {servers: ['nats://%s']}, auth: {type: Credentials, secretRef: {name: planted, key: lines}}}", closed), unavailable, nil, ""},
		"sqs that repeats what it gets":    {fmt.Sprintf("{sqs: {queueURL: '%s/1/orders'}}", echo), unavailable, aws, ""},
		"sns that repeats what it gets":    {fmt.Sprintf("{sns: {topicARN: 'arn:aws:sns:eu-central-1:123456789012:orders', endpoint: '%s'}}", echo), unavailable, aws, ""},
		"pubSub with a key of no use":      {"{pubSub: {project: orders-1}, timeout: 1s}", unavailable, []string{"GOOGLE_APPLICATION_CREDENTIALS=" + google}, ""},
	}
}

// registries are schema registries that know the login, refuse it, and repeat it, and payloads that do
// not fit their schemas.
func registries(t *testing.T, closed, brokers, login, wrong string) map[string]leak {
	f := srfake.New(srfake.WithAuth("Basic " + basic))
	t.Cleanup(f.Close)
	f.SeedSchema("orders-value", 1, 1, sr.Schema{Schema: `{"type": "record", "name": "a", "fields": [{"name": "card", "type": "long"}]}`})
	f.SeedSchema("proto", 1, 2, sr.Schema{Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; message A { int64 card = 1; }`})
	f.SeedSchema("json", 1, 3, sr.Schema{Type: sr.TypeJSON, Schema: `{"properties": {"card": {"pattern": "^[0-9]+$"}}}`})
	kafka := func(encoding string) string {
		return fmt.Sprintf("{kafka: {brokers: ['%s'], encoding: %s}, auth: {type: Plain, %s}}", brokers, encoding, login)
	}
	at := func(url, auth string) string {
		return fmt.Sprintf("message: {schemaRegistry: {url: '%s', auth: {%s}}}\n", url, auth)
	}
	known := at(f.URL(), "type: Basic, "+login)
	return map[string]leak{
		"registry's Avro":                    {kafka("Avro"), dead, nil, known},
		"registry's Protobuf":                {kafka("Protobuf, subject: proto"), dead, nil, known},
		"registry's JSON Schema":             {fmt.Sprintf("{http: {url: '%s'}}", consumer(t, http.StatusOK)), dead, nil, strings.TrimSuffix(known, "}\n") + ", validation: [{schema: {registry: {subject: json}}}]}\n"},
		"registry wrong password":            {kafka("Avro"), unavailable, nil, at(f.URL(), "type: Basic, "+wrong)},
		"registry that repeats what it gets": {kafka("Avro"), unavailable, nil, at(consumer(t, http.StatusUnauthorized), bearer)},
		"registry that is another server":    {kafka("Avro"), unavailable, nil, at(consumer(t, http.StatusOK), bearer)},
		"registry with a token of no use":    {kafka("Avro"), unavailable, nil, at(f.URL(), strings.Replace(bearer, "key: bearer", "key: lines", 1))},
		"registry closed":                    {kafka("Avro"), unavailable, nil, at("http://"+closed, bearer)},
	}
}

// spans is an OTLP collector that keeps what it gets.
type spans struct {
	mu  sync.Mutex
	got []*trace.Span
}

func (s *spans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var request collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &request)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range request.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			s.got = append(s.got, scope.GetSpans()...)
		}
	}
}

// From the producer's trace, over each attempt, to what the consumer gets: with nothing but the
// standard variables. CONTRACT: C-70, C-73
func TestTraceSpansProducerAttemptsAndConsumer(t *testing.T) {
	t.Parallel()
	o := installed(t)
	const traceID, producer = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	var received []string
	consumer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received = append(received, r.Header.Get("ce-traceparent"))
		if len(received) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer consumer.Close()
	all := &spans{}
	receiver := httptest.NewServer(all)
	defer receiver.Close()
	run(t, `{"namespace": "shop", "topic": "orders", "payload": "`+secret+`", "headers": {"traceparent": "00-`+traceID+`-`+producer+`-01"}}`,
		"enqueue", "-f", o.file(t, o.producer, "")).ok(t)
	file := o.file(t, o.dispatcher, dispatching("{http: {url: '"+consumer.URL+"'}}")+"delivery: {backoff: {base: 1ms, max: 1ms}}\n")
	for code := range 2 { // the first attempt fails, is given back, and so fails its command
		await(t, "the event is due", func() bool { return o.count(t, "next_attempt_at <= clock_timestamp()") == 1 })
		cmd := command(t, "once", "-f", file)
		cmd.Env = append(cmd.Env, "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.URL, "OTEL_EXPORTER_OTLP_HEADERS=authorization="+secret)
		finish(t, cmd, "").ended(t, 1-code)
	}
	need.Must(t, len(all.got) == 2 && len(received) == 2, "%d spans and %d requests, want 2 of each", len(all.got), len(received))
	for i, span := range all.got {
		text := map[string]string{}
		for _, a := range span.GetAttributes() {
			text[a.GetKey()] = a.GetValue().GetStringValue() + fmt.Sprint(a.GetValue().GetIntValue())
		}
		need.That(t, fmt.Sprintf("%x", span.GetTraceId()) == traceID && fmt.Sprintf("%x", span.GetParentSpanId()) == producer && span.GetName() == "publish orders", "span %d is %v", i, span)
		if want := []string{"failed0", "confirmed0"}[i]; text["outbox.outcome"] != want || text["outbox.attempt"] != "1" || text["messaging.system"] != "http0" {
			t.Errorf("span %d says %v", i, text)
		}
		if want := fmt.Sprintf("00-%s-%x-01", traceID, span.GetSpanId()); received[i] != want {
			t.Errorf("the consumer got %s, want %s", received[i], want)
		}
		noSecret(t, span.String())
	}

	cmd := command(t, "once", "-f", file)
	cmd.Env = append(cmd.Env, "OTEL_EXPORTER_OTLP_ENDPOINT=collector:4317")
	finish(t, cmd, "").ended(t, 78, "OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL")
}
