package desired

import (
	"testing"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// The retention of an Outbox is about all rows of its tables, and that of a dispatcher's own database about those
// that it delivers.
//
// CONTRACT: C-60
func TestScopeOfRetention(t *testing.T) {
	obd := minimal()
	if c := Config(obd); c.Retention.Scope != "" {
		t.Errorf("with a database of its own the scope is %q, want the default", c.Retention.Scope)
	}
	obd.Spec.OutboxRef = &v1alpha1.OutboxRef{Name: "orders"}
	if c := Config(obd); c.Retention.Scope != config.ScopeOutbox {
		t.Errorf("with an Outbox the scope is %q", c.Retention.Scope)
	}
}
