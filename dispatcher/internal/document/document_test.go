package document

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/uuid"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// write makes a file of a folder.
func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	need.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
	need.OK(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

const orders = `apiVersion: outbox.dev/v1alpha1
kind: OutboxDispatcher
metadata: {name: orders, namespace: shop}
spec:
  namespace: shop
  outboxRef: {name: main}
  sink:
    http: {url: "https://example.com/events"}
    auth: {type: Basic, secretRef: {name: webhook}}
`

const main = `apiVersion: outbox.dev/v1alpha1
kind: Outbox
metadata: {name: main}
spec:
  secretRef: {name: orders-db}
  migration: {secretRef: {name: owner, key: uri}}
  retention: {delivered: 1h}
`

// The Outbox is found in the same file and in the same folder, and makes the same settings.
func TestLoadMakesTheSettingsOfBothObjects(t *testing.T) {
	inOne, apart := t.TempDir(), t.TempDir()
	one := write(t, inOne, "orders.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: other}\n---\n"+orders+"---\n"+main)
	write(t, apart, "main.yaml", main)
	for dir, path := range map[string]string{inOne: one, apart: write(t, apart, "orders.yaml", orders)} {
		dsn := write(t, dir, "secrets/orders-db/dsn", "postgres://orders@db/shop")
		t.Setenv("WEBHOOK_PASSWORD", "secret")
		c, err := Load(path, Options{})
		need.OK(t, err)
		need.That(t, c.Name == "shop/orders" && c.Namespace == "shop" && c.Database.DSNFile == dsn && c.Retention.Scope == spec.ScopeOutbox && c.Retention.Delivered.D() == time.Hour,
			"name %s, namespace %s, database %+v, retention %+v", c.Name, c.Namespace, c.Database, c.Retention)
		want := &spec.Auth{Type: spec.AuthBasic, SecretRef: &spec.SecretRef{Name: "webhook"}, UsernameFile: filepath.Join(dir, "secrets/webhook/username"), SecretFile: "env:WEBHOOK_PASSWORD"}
		got := c.Sink.HTTP.Auth
		need.That(t, reflect.DeepEqual(got, want), "auth %+v, want %+v", got, want)
		t.Setenv("DATABASE_URL", "postgres://owner@db/shop")
		c, err = Load(path, Options{Login: spec.LoginMigration, Secrets: "/keys"})
		need.That(t, err == nil && (c.Database.DSNFile == "/keys/owner/uri" || c.Database.DSNFile == "env:DATABASE_URL"), "the login of migrations: %+v, %v", c.Database, err)
	}
}

// Each refused object is refused with the API server's words, and with the place of each of them.
//
// CONTRACT: C-28, C-101
func TestLoadRefusesWithTheAPIServersWords(t *testing.T) {
	files, err := filepath.Glob("../../../api/v1alpha1/testdata/refused/*.yaml")
	need.OK(t, err)
	dir, tried := t.TempDir(), 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		need.OK(t, err)
		var parts []struct {
			Base    json.RawMessage
			Refused []struct {
				Name, Says string
				Patch      json.RawMessage
			}
		}
		need.OK(t, yaml.Unmarshal(text, &parts))
		for _, part := range parts {
			for _, r := range part.Refused {
				tried++
				object, err := jsonpatch.MergePatch(part.Base, r.Patch)
				need.OK(t, err)
				object, err = yaml.JSONToYAML(object)
				need.OK(t, err)
				_, err = Load(write(t, dir, "orders.yaml", string(object)), Options{})
				for _, words := range strings.Split(r.Says, "\n") {
					_, own, _ := strings.Cut(words, "strict decoding error: ") // the API server's own form
					if own == "" {
						own = words
					}
					if strings.HasPrefix(own, ".spec.replicas") { // of the scale, which says it again
						continue
					}
					need.That(t, err != nil && strings.Contains(err.Error(), own) && strings.HasPrefix(err.Error(), "line "), "%s: %v, want a line with %q", r.Name, err, own)
				}
			}
		}
	}
	need.That(t, tried >= 300, "only %d objects were tried", tried)
}

// What kubectl apply takes is what a process takes: each OutboxDispatcher of config/samples.
//
// CONTRACT: C-100
func TestLoadTakesEverySample(t *testing.T) {
	files, err := filepath.Glob("../../../config/samples/*.yaml")
	need.OK(t, err)
	tried := 0
	for _, file := range files {
		objects, err := read(file)
		need.Want(t, nil, "%s: %v", err, file)
		for _, o := range objects {
			if o.kind != "OutboxDispatcher" {
				continue
			}
			tried++
			c, err := Load(file, Options{Name: o.name})
			need.That(t, err == nil && c.Sink.Kind() != "" && c.Delivery.Lease != 0, "%s: %s: %v, want settings with a sink and the defaults", file, o.name, err)
		}
	}
	need.That(t, tried >= 20, "only %d samples were tried", tried)
}

func TestLoadSaysWhereAndWhatIsMeant(t *testing.T) {
	dir := t.TempDir()
	for want, text := range map[string]string{
		`line 9, column 25: unknown field "spec.sink.auth.secretref"; did you mean secretRef?`:                     strings.Replace(orders, "secretRef: {name: webhook}", "secretref: {name: webhook}", 1) + "---\n" + main,
		`line 16, column 15: unknown field "spec.migration.secretref"; did you mean secretRef?`:                    orders + "---\n" + strings.Replace(main, "{secretRef: {name: owner", "{secretref: {name: owner", 1),
		`spec.outboxRef.name: no Outbox named main is in `:                                                         orders,
		`line 1: no matches for kind "OutboxDispatch" in version "outbox.dev/v1alpha1"; correct it`:                strings.Replace(orders, "OutboxDispatcher", "OutboxDispatch", 1),
		`has several objects of kind OutboxDispatcher (orders, payments); choose one with --object`:                orders + "---\n" + strings.Replace(orders, "name: orders", "name: payments", 1) + "---\n" + main,
		`line 1: it is not an object; write apiVersion: outbox.dev/v1alpha1, kind: OutboxDispatcher, metadata and`: "namespace: shop\n",
		`has no OutboxDispatcher and no Outbox; write one of them there`:                                           "apiVersion: v1\nkind: Secret\n",
	} {
		_, err := Load(write(t, dir, "orders.yaml", text), Options{})
		need.That(t, err != nil && strings.Contains(err.Error(), want), "%v\nwant %s", err, want)
	}
}

// Settings that were made in Go get the defaults, keep their files, and are refused with the API server's words.
//
// CONTRACT: C-73, C-101
func TestCompleteIsWhatAnObjectWouldBe(t *testing.T) {
	auth := &spec.Auth{Type: spec.AuthPlain, UsernameFile: "/a/user", SecretFile: "/a/password"}
	tls := &spec.TLS{CAFile: "/b/ca", ClientCertFile: "/c/cert", ClientKeyFile: "/d/key"}
	c := spec.Config{
		Dispatcher: spec.Dispatcher{
			Sink: spec.Sink{Kafka: &spec.KafkaSink{Brokers: []string{"kafka:9092"}}, Auth: auth, TLS: tls},
			Message: spec.Message{Headers: []spec.MessageHeader{{Name: "x-id", Expression: "event.id"}}, Validation: []spec.Validation{
				{Schema: &spec.PayloadSchema{File: "/e/order.json"}}, {Rules: []spec.Rule{{Rule: "true", Message: "m"}}},
			}},
		},
	}
	made, err := Complete(c)
	need.OK(t, err)
	k := made.Sink.Kafka
	if k.ClientID != "outbox-dispatcher" || k.ContentMode != spec.Binary || k.Timeout != spec.Duration(30*time.Second) || k.Auth.UsernameFile != auth.UsernameFile || k.Auth.SecretFile != auth.SecretFile || k.TLS.CAFile+k.TLS.ClientCertFile+k.TLS.ClientKeyFile != "/b/ca/c/cert/d/key" {
		t.Errorf("the sink is %+v, with %+v and %+v", k, k.Auth, k.TLS)
	}
	m := made.Message
	need.That(t, m.Format == spec.FormatCloudEvents && slices.Equal(m.Headers, c.Message.Headers) && m.Validation[0].Schema.File == "/e/order.json", "the message is %+v", m)
	inbox, err := Complete(spec.Config{Dispatcher: spec.Dispatcher{Sink: spec.Sink{Postgres: &spec.PostgresSink{DSN: "host=db"}}}})
	need.OK(t, err)
	p := inbox.Sink.Postgres
	need.That(t, p.DSN == "host=db" && p.DSNFile == "" && p.Table == "public.inbox_events", "the sink is %+v", p)
	hook, err := Complete(spec.Config{Dispatcher: spec.Dispatcher{Sink: spec.Sink{HTTP: &spec.HTTPSink{URL: "https://a.example", Headers: []spec.HTTPHeader{{Name: "x-team", Value: "shop"}}, SigningSecretFile: "/f"}}}})
	need.OK(t, err)
	if h := hook.Sink.HTTP; h.Headers[0].Value != "shop" || h.SigningSecretFile != "/f" {
		t.Errorf("the sink is %+v", h)
	}

	c.Sink.Kafka.MaxMessageBytes, c.Sink.Auth = 1, &spec.Auth{Type: "Password", SecretFile: "/a"}
	for _, want := range []string{
		"spec.sink.kafka.maxMessageBytes: Invalid value: 1: spec.sink.kafka.maxMessageBytes in body should be greater than or equal to 1024", "spec.sink.auth: Invalid value: ",
	} {
		_, err := Complete(c)
		need.That(t, err != nil && strings.Contains(err.Error(), want), "%v\nwant %s", err, want)
	}
	for _, h := range []spec.HTTPSink{
		{URL: "http://u:hunter2@consumer.example"}, {URL: "http://u:hunter2@host:port/"}, {URL: "http://a", Headers: []spec.HTTPHeader{{Name: "authorization", Value: "hunter2"}}},
		{URL: "http://a", Headers: []spec.HTTPHeader{{Name: "x-a", Value: "hunter2\n"}}},
	} {
		_, err := Complete(spec.Config{Dispatcher: spec.Dispatcher{Sink: spec.Sink{HTTP: &h}}})
		need.That(t, err != nil && !strings.Contains(err.Error(), "hunter2"), "%+v: %v", h, err)
	}
	if _, err := Complete(spec.Config{}); err == nil || !strings.HasPrefix(err.Error(), "spec.sink: Required value") {
		t.Errorf("without a sink: %v", err)
	}
}

const replayed = `apiVersion: outbox.dev/v1alpha1
kind: DeadLetterReplay
metadata: {name: chg-812, namespace: shop, uid: 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11}
spec:
  outboxRef: {name: main}
  namespace: orders
  action: Replay
  reason: CHG-812
  requestedBy: ada
  selector: {topics: [a, b], group: 7f3a9c21, reason: PermanentFailure, type: T, aggregate: order/7, tenant: 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a12,
    ids: ["7"], errorContains: "422", since: 2026-01-01T00:00:00Z, until: 2026-01-02T00:00:00Z}
  rate: 500
  limit: 7
  canary: 10
  abortAt: 20
  expires: 1h
  dryRun: true
`

// The request has all that the object says, and the settings the login of replays.
//
// CONTRACT: C-42
func TestLoadReplay(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "replay.yaml", replayed+"---\n"+strings.Replace(main, "  retention:", "  replayLogin: {secretRef: {name: replay}}\n  retention:", 1))
	c, r, err := LoadReplay(file, Options{})
	need.OK(t, err)
	if want := filepath.Join(dir, "secrets/replay/dsn"); c.Name != "shop/chg-812-replay" || c.Namespace != "orders" || c.Database.DSNFile != want || !slices.Equal(c.Topics, []string{"a", "b"}) {
		t.Errorf("the settings are %+v", c)
	}
	want := replay.Request{
		ID: uuid.MustParse("5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11"), Namespace: "orders", Topics: []string{"a", "b"}, Action: replay.ActionReplay, Reason: "CHG-812", RequestedBy: "ada",
		Filter: deadletters.Filter{Group: "7f3a9c21", Reason: "permanent_failure", Type: "T", Aggregate: "order/7", Tenant: "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a12", IDs: []string{"7"},
			ErrorContains: "422", Since: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Until: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)},
		Rate: 500, Limit: 7, Canary: 10, AbortAt: 20, Expires: time.Hour, DryRun: true,
	}
	need.That(t, reflect.DeepEqual(r, want), "the request is\n%+v\nwant\n%+v", r, want)
	again, err := Load(file, Options{Login: spec.LoginReplay})
	need.That(t, err == nil && reflect.DeepEqual(again, c), "for the commands about replays the settings are %+v, %v", again, err)
	for want, text := range map[string]string{
		`spec.outboxRef.name: no Outbox named main is in `:                                   replayed,
		`metadata.uid is missing; give a UUID, by which the next run continues the replay`:   strings.NewReplacer("uid", "labels: {}, x", "dryRun: true", "dryRun: false").Replace(replayed) + "---\n" + main,
		`spec.dispatcherRef: only the operator knows what that delivers; write outboxRef`:    strings.NewReplacer("outboxRef", "dispatcherRef", "  namespace: orders\n", "").Replace(replayed),
		`: spec.namespace: Invalid value: namespace, the outbox namespace of the events, be`: strings.Replace(replayed, "  namespace: orders\n", "", 1),
		`has no DeadLetterReplay; write one of them there`:                                   main,
	} {
		_, _, err := LoadReplay(write(t, t.TempDir(), "replay.yaml", text), Options{})
		need.That(t, err != nil && strings.Contains(err.Error(), want), "%v\nwant %s", err, want)
	}
}

// Each reason of the contract has one name in the objects. CONTRACT: C-42
func TestDeadReasons(t *testing.T) {
	for contract, object := range map[dispatcher.DeadReason]string{
		dispatcher.ReasonMaxRetriesExceeded: "MaxRetriesExceeded", dispatcher.ReasonPoisonMessage: "PoisonMessage",
		dispatcher.ReasonSchemaValidationFailed: "SchemaValidationFailed", dispatcher.ReasonProcessingTimeout: "ProcessingTimeout",
		dispatcher.ReasonPermanentFailure: "PermanentFailure", "": "",
	} {
		if got := spec.DeadReason(string(contract)); got != object || spec.ContractReason(got) != string(contract) {
			t.Errorf("%s is %s in objects, and %s again", contract, got, spec.ContractReason(got))
		}
	}
}
