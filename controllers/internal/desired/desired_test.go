package desired

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

var update = flag.Bool("update", false, "write the golden files")

// minimal has no more than it must, with the defaults that the API server fills in.
func minimal() *v1alpha1.OutboxDispatcher {
	return &v1alpha1.OutboxDispatcher{
		ObjectMeta: metav1.ObjectMeta{Name: "orders", Namespace: "shop", UID: "0a1b"},
		Spec: v1alpha1.OutboxDispatcherSpec{
			Namespace:    "shop",
			Database:     v1alpha1.Database{Secret: v1alpha1.DatabaseSecret{Name: "orders-db"}, Schema: "outbox"},
			Sink:         v1alpha1.Sink{Log: &v1alpha1.LogSink{}},
			Lease:        metav1.Duration{Duration: 30 * time.Second},
			PollInterval: metav1.Duration{Duration: time.Second},
			BatchSize:    100,
			Concurrency:  16,
			MaxAttempts:  10,
			Backoff:      v1alpha1.Backoff{Strategy: v1alpha1.BackoffExponential},
			Ordering:     v1alpha1.OrderingNone,
			OnDead:       v1alpha1.OnDeadContinue,
			WakeUp:       v1alpha1.WakeUpNone,
			GracePeriod:  metav1.Duration{Duration: 30 * time.Second},
			Replicas:     ptr.To[int32](1),
			State:        v1alpha1.StateRunning,
		},
	}
}

// full has everything.
func full() *v1alpha1.OutboxDispatcher {
	obd := minimal()
	s := &obd.Spec
	s.Topics = []string{"orders", "invoices"}
	s.Database = v1alpha1.Database{
		Secret: v1alpha1.DatabaseSecret{Name: "orders-db-app", Keys: &v1alpha1.ConnectionKeys{Host: "host", Port: "port", Database: "dbname", User: "username", Password: "password"}},
		Schema: "orders_outbox",
		TLS:    &v1alpha1.DatabaseTLS{Mode: "verify-ca", CA: &v1alpha1.SecretKey{Name: "orders-db-ca", Key: "root.pem"}},
		Migration: &v1alpha1.Migration{
			Policy: v1alpha1.MigrationJob,
			Secret: &v1alpha1.DatabaseSecret{Name: "orders-db-owner", DSNKey: "uri"},
		},
	}
	s.Sink = v1alpha1.Sink{HTTP: &v1alpha1.HTTPSink{
		URL:       "https://orders.example.com/events",
		Mode:      v1alpha1.HTTPBatch,
		BatchSize: ptr.To[int32](50),
		Timeout:   metav1.Duration{Duration: 5 * time.Second},
		Headers:   []v1alpha1.HTTPHeader{{Name: "X-Team", Value: "orders"}},
		Auth:      &v1alpha1.HTTPAuth{Basic: &v1alpha1.SecretName{Name: "orders-consumer"}},
		TLS: &v1alpha1.TLS{
			CA:                &v1alpha1.SecretKey{Name: "consumer-ca", Key: "ca.crt"},
			ClientCertificate: &v1alpha1.SecretName{Name: "orders-client"},
			ServerName:        "orders.internal",
		},
	}}
	s.Backoff = v1alpha1.Backoff{
		Strategy:      v1alpha1.BackoffMultiplier,
		Base:          &metav1.Duration{Duration: 2 * time.Second},
		Max:           &metav1.Duration{Duration: time.Minute},
		Multiplier:    "1.5",
		JitterPercent: ptr.To[int32](0),
	}
	s.Ordering, s.OnDead, s.WakeUp = v1alpha1.OrderingKey, v1alpha1.OnDeadBlock, v1alpha1.WakeUpListen
	s.Retention = v1alpha1.Retention{Delivered: &metav1.Duration{}}
	s.GracePeriod = metav1.Duration{Duration: 1500 * time.Millisecond}
	s.Replicas = ptr.To[int32](3)
	s.State = v1alpha1.StatePaused
	s.PodTemplate = &runtime.RawExtension{Raw: []byte(`{
		"metadata": {"labels": {"team": "orders"}, "annotations": {"example.com/scrape": "true"}},
		"spec": {
			"serviceAccountName": "orders",
			"tolerations": [{"key": "spot", "operator": "Exists"}],
			"initContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
			"containers": [
				{"name": "dispatcher", "resources": {"limits": {"memory": "256Mi"}}, "env": [{"name": "TZ", "value": "UTC"}]},
				{"name": "logs", "image": "logs:1"}
			]
		}
	}`)}
	return obd
}

func TestGolden(t *testing.T) {
	for name, obd := range map[string]*v1alpha1.OutboxDispatcher{"minimal": minimal(), "full": full()} {
		deployment, err := Deployment(obd, "outbox-operator:v1", "digest")
		if err != nil {
			t.Fatal(err)
		}
		objects := []any{ServiceAccount(obd), ConfigMap(obd), deployment, PodDisruptionBudget(obd)}
		migration, err := NewMigration(obd, "outbox-operator:v1", "digest")
		if err != nil {
			t.Fatal(err)
		}
		if migration != nil {
			objects = append(objects, migration.Job(1))
		}
		var documents []string
		for _, o := range objects {
			b, err := yaml.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			documents = append(documents, string(b))
		}
		golden(t, name+".yaml", strings.Join(documents, "---\n"))
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not what is made now; see the difference after `go test ./controllers/internal/desired -update`:\n%s", file, got)
	}
}

// The binary must take what the operator renders, and see the same defaults.
func TestConfigIsValid(t *testing.T) {
	for name, obd := range map[string]*v1alpha1.OutboxDispatcher{"minimal": minimal(), "full": full()} {
		for _, c := range []config.Config{Config(obd), MigrationConfig(obd)} {
			file := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(file, []byte(render(c)), 0o600); err != nil {
				t.Fatal(err)
			}
			loaded, err := config.Load(file)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := loaded.Validate(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// CONTRACT: C-102
func TestPodsRollOnlyOnConfigAndSecrets(t *testing.T) {
	template := func(obd *v1alpha1.OutboxDispatcher, image, secrets string) string {
		t.Helper()
		d, err := Deployment(obd, image, secrets)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(d.Spec.Template)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	before := template(full(), "image:1", "a")
	for name, c := range map[string]struct {
		change  func(*v1alpha1.OutboxDispatcher)
		image   string
		secrets string
		rolls   bool
	}{
		"nothing":             {func(*v1alpha1.OutboxDispatcher) {}, "image:1", "a", false},
		"a secret":            {func(*v1alpha1.OutboxDispatcher) {}, "image:1", "b", true},
		"the image":           {func(*v1alpha1.OutboxDispatcher) {}, "image:2", "a", true},
		"config":              {func(o *v1alpha1.OutboxDispatcher) { o.Spec.BatchSize = 7 }, "image:1", "a", true},
		"state":               {func(o *v1alpha1.OutboxDispatcher) { o.Spec.State = v1alpha1.StateRunning }, "image:1", "a", true},
		"replicas":            {func(o *v1alpha1.OutboxDispatcher) { o.Spec.Replicas = ptr.To[int32](9) }, "image:1", "a", false},
		"a label":             {func(o *v1alpha1.OutboxDispatcher) { o.Labels = map[string]string{"a": "b"} }, "image:1", "a", false},
		"the order of topics": {func(o *v1alpha1.OutboxDispatcher) { o.Spec.Topics = []string{"invoices", "orders"} }, "image:1", "a", false},
		"the migration login": {func(o *v1alpha1.OutboxDispatcher) { o.Spec.Database.Migration.Secret.Name = "other" }, "image:1", "a", false},
		"no migration":        {func(o *v1alpha1.OutboxDispatcher) { o.Spec.Database.Migration = nil }, "image:1", "a", false},
	} {
		obd := full()
		c.change(obd)
		if rolls := template(obd, c.image, c.secrets) != before; rolls != c.rolls {
			t.Errorf("%s changed: rolls = %v, want %v", name, rolls, c.rolls)
		}
	}
}

func TestMigrationHash(t *testing.T) {
	hash := func(obd *v1alpha1.OutboxDispatcher, image, secrets string) string {
		t.Helper()
		m, err := NewMigration(obd, image, secrets)
		if err != nil {
			t.Fatal(err)
		}
		return m.Hash
	}
	before := hash(full(), "image:1", "a")
	for name, c := range map[string]struct {
		change   func(*v1alpha1.OutboxDispatcher)
		image    string
		secrets  string
		migrates bool
	}{
		"nothing":    {func(*v1alpha1.OutboxDispatcher) {}, "image:1", "a", false},
		"a login":    {func(*v1alpha1.OutboxDispatcher) {}, "image:1", "b", true},
		"the image":  {func(*v1alpha1.OutboxDispatcher) {}, "image:2", "a", true},
		"the schema": {func(o *v1alpha1.OutboxDispatcher) { o.Spec.Database.Schema = "other" }, "image:1", "a", true},
		"batch size": {func(o *v1alpha1.OutboxDispatcher) { o.Spec.BatchSize = 7 }, "image:1", "a", false},
		"the sink":   {func(o *v1alpha1.OutboxDispatcher) { o.Spec.Sink.HTTP.URL = "https://other" }, "image:1", "a", false},
		"replicas":   {func(o *v1alpha1.OutboxDispatcher) { o.Spec.Replicas = ptr.To[int32](9) }, "image:1", "a", false},
	} {
		obd := full()
		c.change(obd)
		if migrates := hash(obd, c.image, c.secrets) != before; migrates != c.migrates {
			t.Errorf("%s changed: migrates again = %v, want %v", name, migrates, c.migrates)
		}
	}
}

func TestPodTemplateErrors(t *testing.T) {
	for name, c := range map[string]struct{ template, want string }{
		"unknown scalar":    {`{"spec":{"nodeName2":"x"}}`, "nodeName2"},
		"unknown object":    {`{"spec":{"afinity":{"a":"b"}}}`, "afinity"},
		"unknown deep":      {`{"spec":{"containers":[{"name":"dispatcher","resource":{"limits":{"cpu":"1"}}}]}}`, "resource"},
		"wrong type":        {`{"spec":{"containers":"dispatcher"}}`, "containers"},
		"wrong quantity":    {`{"spec":{"containers":[{"name":"dispatcher","resources":{"limits":{"cpu":"much"}}}]}}`, "quantities must match"},
		"our label":         {`{"metadata":{"labels":{"app.kubernetes.io/instance":"x"}}}`, "app.kubernetes.io/instance"},
		"our annotation":    {`{"metadata":{"annotations":{"outbox.dev/config-hash":"x"}}}`, "outbox.dev/config-hash"},
		"without container": {`{"spec":{"containers":[{"name":"dispatcher","$patch":"delete"}]}}`, `removes the container "dispatcher"`},
		"without metadata":  {`{"metadata":null}`, "app.kubernetes.io/"},
	} {
		t.Run(name, func(t *testing.T) {
			obd := minimal()
			obd.Spec.PodTemplate = &runtime.RawExtension{Raw: []byte(c.template)}
			_, err := Deployment(obd, "image", "")
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), ErrPodTemplate.Error()) {
				t.Errorf("error %v, want one about spec.podTemplate with %q", err, c.want)
			}
		})
	}
}

func TestSecretNames(t *testing.T) {
	got := strings.Join(SecretNames(full()), " ")
	if want := "consumer-ca orders-client orders-consumer orders-db-app orders-db-ca orders-db-owner"; got != want {
		t.Errorf("Secrets %s, want %s", got, want)
	}
	obd := full()
	obd.Spec.Database.Migration.Policy = v1alpha1.MigrationNone
	if got := strings.Join(SecretNames(obd), " "); strings.Contains(got, "owner") {
		t.Errorf("Secrets %s, want no login of a migration that nobody runs", got)
	}
}
