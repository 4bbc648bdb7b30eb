package desired

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

func piped() *v1alpha1.OutboxDispatcher {
	obd := full() // with a sink that takes routes
	obd.Spec.Sink.Routes = []v1alpha1.Route{{Topics: []string{"refunds", "orders"}, To: `"/a"`}, {To: `"/b"`}}
	obd.Spec.Message.SchemaRegistry = &v1alpha1.SchemaRegistry{URL: "https://registry.example.com"}
	obd.Spec.Message.Validation = []v1alpha1.Validation{
		{Types: []string{"B", "A"}, Schema: &v1alpha1.PayloadSchema{ConfigMapRef: &v1alpha1.ConfigMapRef{Name: "schemas", Key: "order.json"}},
			Rules: []v1alpha1.Rule{{Rule: "payload.total > 0", Message: "positive"}}},
		{Schema: &v1alpha1.PayloadSchema{Inline: "{}"}},
		{Schema: &v1alpha1.PayloadSchema{Registry: &v1alpha1.RegistrySchema{Subject: "latest"}}},
		{Schema: &v1alpha1.PayloadSchema{Registry: &v1alpha1.RegistrySchema{Subject: "fixed", Version: ptr.To[int32](3)}}},
	}
	obd.Spec.Message.Transform = []v1alpha1.Transformation{{Types: []string{"A"}, Payload: "payload"}}
	obd.Spec.Sink.ContentMode, obd.Spec.Sink.HTTP.BatchSize = "Binary", nil // which message requires
	obd.Spec.Message.Format, obd.Spec.Message.Headers = "Plain", []v1alpha1.MessageHeader{{Name: "X-Type", Expression: "event.type"}}
	return obd
}

func TestPipelineReachesTheFile(t *testing.T) {
	obd := piped()
	refs := SchemaRefs(obd)
	if want := []SchemaRef{{"schemas", "order.json", 0}}; !reflect.DeepEqual(refs, want) {
		t.Fatalf("refs %v", refs)
	}
	c := Config(obd, whatever())
	routes := []config.Route{{Topics: []string{"orders", "refunds"}, To: `"/a"`}, {To: `"/b"`}}
	message := config.Message{
		Format: config.FormatPlain, Headers: map[string]string{"X-Type": "event.type"},
		Validation: []config.Validation{
			{Types: []string{"A", "B"}, Schema: &config.PayloadSchema{File: "/etc/outbox/schemas/0.json"}, Rules: []config.Rule{{Rule: "payload.total > 0", Message: "positive"}}},
			{Schema: &config.PayloadSchema{Inline: "{}"}},
			{Schema: &config.PayloadSchema{Registry: &config.RegistrySchema{Subject: "latest"}}},
			{Schema: &config.PayloadSchema{Registry: &config.RegistrySchema{Subject: "fixed", Version: 3}}},
		},
		Transform: []config.Transformation{{Types: []string{"A"}, Payload: "payload"}},
	}
	message.SchemaRegistry = c.Message.SchemaRegistry // TestMountedFilesAreNamedInTheFile is about it
	if !reflect.DeepEqual(c.Sink.Routes, routes) || !reflect.DeepEqual(c.Message, message) {
		t.Errorf("got  %+v %+v\nwant %+v %+v", c.Sink.Routes, c.Message, routes, message)
	}
	c.ApplyDefaults()
	if err := c.ValidatePipeline(); err != nil {
		t.Error(err)
	}
}

// The retention of an Outbox is about all rows of its tables, and that of a dispatcher's own database about those
// that it delivers.
//
// CONTRACT: C-60
func TestScopeOfRetention(t *testing.T) {
	obd := minimal()
	if c := Config(obd, nil); c.Retention.Scope != "" {
		t.Errorf("with a database of its own the scope is %q, want the default", c.Retention.Scope)
	}
	obd.Spec.Database, obd.Spec.OutboxRef = nil, &v1alpha1.OutboxRef{Name: "main"}
	if c := Config(obd, whatever()); c.Retention.Scope != config.ScopeOutbox {
		t.Errorf("with an Outbox the scope is %q", c.Retention.Scope)
	}
}

// What the resource says about the journal is for the migration, which logs in as the owner: a change of it runs the Job
// again, and rolls no pod. Without it the file says nothing, and the database's journal stays as it is.
//
// CONTRACT: C-61
func TestJournalIsTheMigrations(t *testing.T) {
	o := &v1alpha1.Outbox{}
	o.Name, o.Namespace = "orders", "shop"
	o.Spec = v1alpha1.OutboxSpec{SecretRef: v1alpha1.SecretRef{Name: "db"}, Migration: &v1alpha1.Migration{Policy: v1alpha1.MigrationJob, SecretRef: &v1alpha1.SecretRef{Name: "owner"}}}
	hash := func() string {
		t.Helper()
		m, err := NewOutboxMigration(o, Platform{Image: "outbox"})
		if err != nil {
			t.Fatal(err)
		}
		return m.Hash
	}
	files := func() map[string]string { return OutboxConfigMap(o).Data }
	hashes, dispatches := []string{hash()}, files()[keyConfig]
	if strings.Contains(files()[keyMigrate], "journal") {
		t.Errorf("without a journal the migration's file is\n%s", files()[keyMigrate])
	}
	for _, c := range []struct {
		mode  v1alpha1.JournalMode
		hours int
		want  string
	}{
		{v1alpha1.JournalEnabled, 168, "journal:\n  mode: Enabled\n"}, {v1alpha1.JournalEnabled, 720, "journal:\n  mode: Enabled\n  retention: 720h\n"},
		{v1alpha1.JournalDisabled, 168, "journal:\n  mode: Disabled\n"},
	} {
		o.Spec.Journal = &v1alpha1.Journal{Mode: c.mode}
		o.Spec.Journal.Retention.Duration = time.Duration(c.hours) * time.Hour
		if got := files(); !strings.Contains(got[keyMigrate], c.want) || got[keyConfig] != dispatches {
			t.Errorf("the migration's file is\n%s\nwant in it\n%s\nand the dispatchers' is\n%s", got[keyMigrate], c.want, got[keyConfig])
		}
		hashes = append(hashes, hash())
	}
	seen := map[string]bool{}
	for _, h := range hashes {
		seen[h] = true
	}
	if len(seen) != len(hashes) {
		t.Errorf("the migrations are %v, want each another", hashes)
	}
}

// The index of tenants is made by the migration's Job, which has a day for it, and the dispatchers' file has no word of it.
//
// CONTRACT: C-37
func TestTenantsAreTheMigrations(t *testing.T) {
	o := &v1alpha1.Outbox{}
	o.Name, o.Namespace = "orders", "shop"
	o.Spec = v1alpha1.OutboxSpec{SecretRef: v1alpha1.SecretRef{Name: "db"}, Migration: &v1alpha1.Migration{Policy: v1alpha1.MigrationJob, Tenants: "Indexed"}}
	files := OutboxConfigMap(o).Data
	if !strings.Contains(files[keyMigrate], "tenants: Indexed\n") || strings.Contains(files[keyConfig], "tenants") {
		t.Errorf("the migration's file is\n%s\nand the dispatchers' is\n%s", files[keyMigrate], files[keyConfig])
	}
	for tenants, want := range map[string]time.Duration{"": 30 * time.Minute, "Indexed": 24 * time.Hour} {
		o.Spec.Migration.Tenants = tenants
		m, err := NewOutboxMigration(o, Platform{Image: "outbox"})
		if err != nil {
			t.Fatal(err)
		}
		if got := time.Duration(*m.Job(1).Spec.ActiveDeadlineSeconds) * time.Second; got != want {
			t.Errorf("with tenants %q the Job has %s, want %s", tenants, got, want)
		}
	}
}
