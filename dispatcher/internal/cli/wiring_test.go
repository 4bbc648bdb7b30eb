package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/outbox"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// elsewhere are the fields of the file that say nothing to the engine and its store, and what they are for.
var elsewhere = map[string]string{
	"StateFile":         "what makes the engine pause while it runs: TestStateFileIsReadAgain",
	"VerifiedTypesFile": "what the engine admits while it runs: TestVerifiedTypesFileIsReadAgain",
	"Journal":           "what migrate up sets in the database: TestMigrateSetsTheJournal of the binary",
	"WakeUp":            "whether run listens: TestDeliveredRowsAreDeletedAtAck of the binary",
	"Sink":              "the sink: TestSinkGetsTheFile",
	"Routes":            "the sink: TestSinkGetsTheFile",
	"Validation":        "the sink: TestSinkGetsTheFile",
	"Transform":         "the sink: TestSinkGetsTheFile",
	"Message":           "the sink: TestMessageOfEveryKindHasTheHeaders",
	"SchemaRegistry":    "the sink: TestSinkGetsTheFile",
	"Pods":              "the logger: TestLogLevelIsThatOfTheFile; the rest is the operator's",
	"OutboxRef":         "where the database is: package document",
	"Objective":         "the metrics: TestObjectiveOfTheFile",
	"Replicas":          "the operator's",
}

// The engine and its store get the file's settings, field by field.
//
// CONTRACT: C-25, C-28, C-34, C-35
func TestEngineGetsTheFile(t *testing.T) {
	whole, smallest, worker := whole(t, "http://127.0.0.1:1"), smallest(t), uuid.New()

	engine := settings(whole)
	if want := (dispatcher.Config{
		Topics: []string{"order.placed", "order.cancelled"}, Lease: time.Minute, PollInterval: 3 * time.Second,
		BatchSize: 7, Concurrency: dispatcher.Auto, MaxConcurrency: 77, MaxBytes: 2 << 20, MaxAttempts: 9,
		RateLimit:       dispatcher.Rate{Events: 100, Period: 2 * time.Second},
		TopicRateLimits: map[string]dispatcher.Rate{"order.placed": {Events: 5, Period: time.Minute}, "order.cancelled": {Events: 3, Period: time.Second}},
		Backoff:         dispatcher.MultiplierBackoff(2*time.Second, 3*time.Minute, 1.5, 0.1),
		Ordering:        dispatcher.OrderingKey, Fairness: dispatcher.FairnessNone, OnDead: dispatcher.OnDeadBlock,
		DeliveryTimeout: 2 * time.Minute, GracePeriod: 4 * time.Second, Paused: true,
	}); !reflect.DeepEqual(engine, want) {
		t.Errorf("the engine gets\n%+v\nwant\n%+v", engine, want)
	}
	differ(t, engine, settings(smallest), "Logger", "Observer", "Fairness", "TenantRateLimit") // newProcess adds two, and fairness has a test of its own

	store := storeOptions(whole, worker)
	if want := (pgstore.Options{Schema: "orders_outbox", Namespace: "shop", Worker: worker, Dispatcher: "orders", ExpireAfter: 48 * time.Hour, DeleteDelivered: true, Notify: true}); store != want {
		t.Errorf("the store gets %+v, want %+v", store, want)
	}
	differ(t, store, storeOptions(smallest, uuid.Nil), "Fair", "WithoutPayloads") // the copying sink has tests of its own

	if got, want := sweep(whole), (outbox.Retention{DeadResolved: 48 * time.Hour, DeadUnresolved: 72 * time.Hour}); got != want {
		t.Errorf("the sweep gets %+v, want %+v", got, want)
	}
	if got, want := sweep(smallest), (outbox.Retention{Own: true, Delivered: 168 * time.Hour, DeadResolved: 720 * time.Hour}); got != want {
		t.Errorf("without a file's retention the sweep gets %+v, want %+v", got, want)
	}

	// Each field of the file is not its default here, and changes what the engine or its store gets.
	for _, field := range reflect.VisibleFields(reflect.TypeFor[spec.Config]()) {
		if field.Anonymous || field.Name == "ReplayLogin" { // which login of the file a command has chosen: no setting
			continue
		}
		name, changed := field.Name, smallest
		reflect.ValueOf(&changed).Elem().FieldByIndex(field.Index).Set(reflect.ValueOf(whole).FieldByIndex(field.Index))
		need.That(t, !reflect.DeepEqual(changed, smallest), "testdata/whole.yaml has no %s, or its default; set it there", name)
		arrives := !reflect.DeepEqual(settings(changed), settings(smallest)) || storeOptions(changed, worker) != storeOptions(smallest, worker)
		if _, other := elsewhere[name]; arrives == other {
			t.Errorf("%s: changes what the engine or its store gets = %v, want %v", name, arrives, !other)
		}
	}
}

// Fairness, which does not go with the order per key of whole.yaml, reaches the engine and its store.
//
// CONTRACT: C-37, C-51
func TestFairnessOfTheFile(t *testing.T) {
	c := dispatching(t, ", delivery: {fairness: Tenant, tenantRateLimit: {events: 3, period: 2s}}")
	if got := settings(c).Fairness; got != dispatcher.FairnessTenant || !storeOptions(c, uuid.Nil).Fair {
		t.Errorf("the engine gets %q, the store %v", got, storeOptions(c, uuid.Nil).Fair)
	}
	if got := settings(c); got.TenantRateLimit != (dispatcher.Rate{Events: 3, Period: 2 * time.Second}) {
		t.Errorf("the engine gets the rate %v", got.TenantRateLimit)
	}
	if none := smallest(t); settings(none).Fairness != dispatcher.FairnessNone || storeOptions(none, uuid.Nil).Fair {
		t.Error("a file without fairness has it")
	}
}

// The objective of the file is what the metrics say, and without one it is five minutes.
// CONTRACT: C-98
func TestObjectiveOfTheFile(t *testing.T) {
	for _, test := range []struct {
		cfg  spec.Config
		want string
	}{{smallest(t), "300 0.999"}, {whole(t, "http://127.0.0.1:1"), "10 0.995"}} {
		registry := prometheus.NewRegistry()
		e, err := newProcess(t.Context(), "v1", test.cfg, registry, io.Discard, io.Discard)
		need.OK(t, err)
		t.Cleanup(func() { e.close(context.WithoutCancel(t.Context())) })
		families, err := registry.Gather()
		need.OK(t, err)
		var got []string
		for _, f := range families {
			if strings.HasPrefix(f.GetName(), "outbox_objective_") {
				got = append(got, fmt.Sprint(f.Metric[0].Gauge.GetValue()))
			}
		}
		need.Want(t, test.want, "the metrics say %q, want %q", strings.Join(got, " "))
	}
}

// differ compares two structs: a field that is the same in both, or zero, got nothing of the file.
func differ(t *testing.T, got, defaults any, but ...string) {
	t.Helper()
	a, b := reflect.ValueOf(got), reflect.ValueOf(defaults)
	for i := range a.NumField() {
		name := a.Type().Field(i).Name
		if !strings.Contains(" "+strings.Join(but, " ")+" ", " "+name+" ") && (a.Field(i).IsZero() || reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface())) {
			t.Errorf("%T.%s is %v, as without a file", got, name, a.Field(i))
		}
	}
}

// What the file says about the sink, and about what is in front of it, is what an event meets. The schema
// demands an id, the transformation adds to the payload, and the route names the path.
func TestSinkGetsTheFile(t *testing.T) {
	var path, body string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/subjects/orders/versions/3" {
			_ = json.NewEncoder(w).Encode(map[string]any{"subject": "orders", "version": 3, "id": 1, "schemaType": "JSON", "schema": `{"required": ["id"]}`})
			return
		}
		text, _ := io.ReadAll(r.Body)
		path, body = r.URL.Path, string(text)
	}))
	t.Cleanup(server.Close)
	e, err := newProcess(t.Context(), "v1", whole(t, server.URL), nil, io.Discard, io.Discard)
	need.OK(t, err)
	t.Cleanup(func() { e.close(context.WithoutCancel(t.Context())) })
	event := func(payload string) []*dispatcher.Event {
		return []*dispatcher.Event{{ID: uuid.New(), Namespace: "shop", Topic: "order.placed", Payload: json.RawMessage(payload), Attempt: 1}}
	}
	need.OK(t, e.sink.Deliver(t.Context(), event(`{"id":1}`))[0])
	need.That(t, path == "/routed/order.placed" && strings.Contains(body, `"seen":true`), "%s got %s; want the route's path, and what the transformation makes", path, body)
	err = e.sink.Deliver(t.Context(), event(`{}`))[0]
	if reason, _ := dispatcher.PermanentReason(err); reason != dispatcher.ReasonSchemaValidationFailed {
		t.Errorf("a payload without id: %v, want what the schema of the registry says", err)
	}
}

// Every kind of sink that the file can name is made.
func TestEveryKindOfSinkIsMade(t *testing.T) {
	for _, kind := range spec.SinkKinds() {
		var cfg spec.Config
		reflect.ValueOf(&cfg.Sink).Elem().FieldByIndex(kind.Index).Set(reflect.New(kind.Type.Elem()))
		if made, err := sink.New(cfg, io.Discard); err != nil && strings.Contains(err.Error(), "nothing is set") || err == nil && made == nil {
			t.Errorf("%s: %v", kind.Name, err)
		}
	}
}

func TestLogLevelIsThatOfTheFile(t *testing.T) {
	for level, lines := range map[string]int{"Debug": 4, "Info": 3, "Warn": 2, "Error": 1} {
		var out strings.Builder
		log := newLogger(spec.Config{Dispatcher: spec.Dispatcher{Pods: spec.Pods{Log: spec.Log{Level: spec.LogLevel(level)}}}}, &out)
		log.Debug("")
		log.Info("")
		log.Warn("")
		log.Error("")
		if got := strings.Count(out.String(), "\n"); got != lines {
			t.Errorf("level %s: %d lines, want %d:\n%s", level, got, lines, out.String())
		}
	}
}

// whole is testdata/whole.yaml, with what flags and the login of migrations add.
func whole(t *testing.T, server string) spec.Config {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "whole.yaml"))
	need.OK(t, err)
	c := loaded(t, strings.ReplaceAll(string(text), "SERVER", server))
	c.StateFile, c.VerifiedTypesFile, c.Journal = "/none/state", "/none/types", &spec.Journal{Mode: spec.JournalEnabled}
	return c
}

// smallest has only defaults, but for what a file must have. Each of that is another than whole's.
func smallest(t *testing.T) spec.Config { return dispatching(t, "") }

// dispatching is a dispatcher with few settings, and those that more has.
func dispatching(t *testing.T, more string) spec.Config {
	t.Helper()
	return loaded(t, "apiVersion: outbox.dev/v1alpha1\nkind: OutboxDispatcher\nmetadata: {name: a}\nspec: {namespace: b, database: {secretRef: {name: db}}, sink: {log: {}}"+more+"}\n")
}

// loaded is a file's settings, next to the Secret db.
func loaded(t *testing.T, text string) spec.Config {
	t.Helper()
	dir := t.TempDir()
	file, secret := filepath.Join(dir, "orders.yaml"), filepath.Join(dir, "secrets", "db")
	need.OK(t, errors.Join(os.MkdirAll(secret, 0o700), os.WriteFile(filepath.Join(secret, "dsn"), []byte("host=127.0.0.1"), 0o600), os.WriteFile(file, []byte(text), 0o600)))
	c, err := load(source{file: file}, true)
	if err != nil {
		t.Fatal(fmt.Errorf("%w in\n%s", err, text))
	}
	return c
}
