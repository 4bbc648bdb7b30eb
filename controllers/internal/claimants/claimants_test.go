package claimants

import (
	"testing"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// Specs that name the same Outbox, or the same Secret and schema, claim from the same tables. CONTRACT: C-104
func TestSpecsOfOneTableAreClaimants(t *testing.T) {
	of := func(secret, key, schema string) spec.Dispatcher {
		return spec.Dispatcher{Database: &spec.DispatcherDatabase{SecretRef: spec.SecretRef{Name: secret, Key: key}, Schema: schema}}
	}
	outbox := func(name string) spec.Dispatcher {
		return spec.Dispatcher{OutboxRef: &spec.OutboxRef{Name: name}}
	}
	for name, c := range map[string]struct {
		a, b spec.Dispatcher
		same bool
	}{
		"an Outbox":              {outbox("db"), outbox("db"), true},
		"two Outboxes":           {outbox("db"), outbox("other"), false},
		"one Secret":             {of("db", "", "outbox"), of("db", "", "outbox"), true},
		"two Secrets":            {of("db", "", "outbox"), of("other", "", "outbox"), false},
		"two keys of one Secret": {of("db", "", "outbox"), of("db", "uri", "outbox"), false},
		"two schemas":            {of("db", "", "outbox"), of("db", "", "other"), false},
		"the key by default":     {of("db", "", "outbox"), of("db", "dsn", "outbox"), true},
		"neither":                {spec.Dispatcher{}, outbox("db"), false},
		"an Outbox and a Secret": {outbox("db"), of("db", "", "outbox"), false},
	} {
		need.Want(t, c.same, "%s: the same = %v", where(&c.a) == where(&c.b), name)
	}
}
