package desired

import (
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// What the resource says about the journal is for the migration, which logs in as the owner: a change of it runs the Job
// again, and rolls no pod. Without it the file says nothing, and the database's journal stays as it is.
//
// CONTRACT: C-61
func TestJournalIsTheMigrations(t *testing.T) {
	o := &v1alpha1.Outbox{}
	o.Name, o.Namespace = "orders", "shop"
	o.Spec = v1alpha1.OutboxObjectSpec{OutboxSpec: v1alpha1.OutboxSpec{Secret: v1alpha1.DatabaseSecret{Name: "db"}, Migration: &v1alpha1.Migration{Policy: v1alpha1.MigrationJob, Secret: &v1alpha1.DatabaseSecret{Name: "owner"}}}}
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
		enabled bool
		hours   int
		want    string
	}{
		{true, 168, "journal:\n  enabled: true\n"}, {true, 720, "journal:\n  enabled: true\n  retention: 720h\n"},
		{false, 168, "journal:\n  enabled: false\n"},
	} {
		o.Spec.Journal = &v1alpha1.Journal{Enabled: &c.enabled}
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
