package outboxdispatcher

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// Who claims from the same tables, and whose migration is that of another. CONTRACT: C-104
func TestPeersClaimFromTheSameTables(t *testing.T) {
	secret := func(name string) *api.OutboxSpec {
		return &api.OutboxSpec{Secret: api.DatabaseSecret{Name: name}, Schema: "outbox", Migration: &api.Migration{}}
	}
	server := func(host, user string) *api.OutboxSpec {
		return &api.OutboxSpec{Server: &api.DatabaseServer{Host: host, Port: 5432, Database: "shop"}, User: user, Schema: "outbox", Migration: &api.Migration{},
			IAM: &api.DatabaseIAM{Provider: "AWS"}}
	}
	with := func(d *api.OutboxSpec, change func(*api.OutboxSpec)) *api.OutboxSpec { change(d); return d }
	for name, c := range map[string]struct {
		a, b            *api.OutboxSpec
		tables, migrate bool
	}{
		"one Secret":                      {secret("db"), secret("db"), true, true},
		"two Secrets":                     {secret("db"), secret("other"), false, false},
		"two keys of one Secret":          {secret("db"), with(secret("db"), func(d *api.OutboxSpec) { d.Secret.DSNKey = "other" }), false, false},
		"two schemas":                     {secret("db"), with(secret("db"), func(d *api.OutboxSpec) { d.Schema = "other" }), false, false},
		"one server without a Secret":     {server("a", "orders"), server("a", "orders"), true, true},
		"two servers without a Secret":    {server("a", "orders"), server("b", "orders"), false, false},
		"two logins of a server":          {server("a", "orders"), server("a", "returns"), true, false},
		"two servers with one Secret":     {with(server("a", ""), func(d *api.OutboxSpec) { d.Secret.Name = "db" }), with(server("b", ""), func(d *api.OutboxSpec) { d.Secret.Name = "db" }), false, false},
		"a server, and a Secret that may": {server("a", "orders"), secret("db"), false, false},
		"other owners":                    {secret("db"), with(secret("db"), func(d *api.OutboxSpec) { d.Migration.User = "owner" }), true, false},
		"another retention":               {secret("db"), with(secret("db"), func(d *api.OutboxSpec) { d.Retention.Delivered = &metav1.Duration{} }), true, true},
	} {
		a := &api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: api.OutboxDispatcherSpec{Database: c.a}}
		b := &api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: api.OutboxDispatcherSpec{Database: c.b}}
		if got := tablesKey(c.a) == tablesKey(c.b) && sameTables(c.a, c.b); got != c.tables {
			t.Errorf("%s: the same tables = %v", name, got)
		}
		if got := len(older([]*api.OutboxDispatcher{a}, b)) == 1; c.tables && got != c.migrate {
			t.Errorf("%s: one migration = %v", name, got)
		}
	}
}

// The Outbox that migrates for others is the same one in each pass. CONTRACT: C-104
func TestOldestOutbox(t *testing.T) {
	tables := api.OutboxSpec{Secret: api.DatabaseSecret{Name: "db"}, Schema: "outbox"}
	named := func(name string, age time.Duration, spec api.OutboxSpec) *api.Outbox {
		return &api.Outbox{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1_000_000, 0).Add(-age))}, Spec: api.OutboxObjectSpec{OutboxSpec: spec}}
	}
	a, b, old := named("a", 0, tables), named("b", 0, tables), named("z", time.Hour, tables)
	other := named("o", 2*time.Hour, api.OutboxSpec{Secret: api.DatabaseSecret{Name: "db"}, Schema: "outbox", User: "another"})
	for _, c := range []struct {
		want *api.Outbox
		all  []*api.Outbox
	}{
		{a, []*api.Outbox{a, b}}, {a, []*api.Outbox{b, a}},
		{old, []*api.Outbox{a, old, b, other}}, {old, []*api.Outbox{other, b, old, a}},
		{nil, []*api.Outbox{other}},
	} {
		if got := oldestOf(c.all, &tables); got != c.want {
			t.Errorf("of %+v: %+v, want %+v", c.all, got, c.want)
		}
	}
}

// An edit wakes the peers only when they look at what it changes: of a thousand dispatchers of one database each
// would wake all others.
func TestConcernsPeers(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*api.OutboxDispatcher)
		want   bool
	}{
		"replicas":    {func(o *api.OutboxDispatcher) { o.Spec.Replicas = ptr.To[int32](7) }, false},
		"no replicas": {func(o *api.OutboxDispatcher) { o.Spec.Replicas = ptr.To[int32](0) }, true},
		"a pause":     {func(o *api.OutboxDispatcher) { o.Spec.State = api.StatePaused }, true},
		"batchSize":   {func(o *api.OutboxDispatcher) { o.Spec.BatchSize = 7 }, false},
		"the status":  {func(o *api.OutboxDispatcher) { o.Status.Pods = "1/1" }, false},
		"topics":      {func(o *api.OutboxDispatcher) { o.Spec.Topics = []string{"orders"} }, true},
		"namespace":   {func(o *api.OutboxDispatcher) { o.Spec.Namespace = "shop" }, true},
		"outboxRef":   {func(o *api.OutboxDispatcher) { o.Spec.OutboxRef, o.Spec.Database = &api.OutboxRef{Name: "shop"}, nil }, true},
		"schema":      {func(o *api.OutboxDispatcher) { o.Spec.Database.Schema = "other" }, true},
		"its removal": {func(o *api.OutboxDispatcher) { o.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, true},
	} {
		before := &api.OutboxDispatcher{Spec: api.OutboxDispatcherSpec{Database: &api.OutboxSpec{}}}
		after := before.DeepCopy()
		c.change(after)
		if got := concernsPeers(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	one, other := &api.OutboxDispatcher{}, &api.OutboxDispatcher{}
	one.Spec.OutboxRef, other.Spec.OutboxRef = &api.OutboxRef{Name: "one"}, &api.OutboxRef{Name: "other"}
	if !concernsPeers(event.UpdateEvent{ObjectOld: one, ObjectNew: other}) {
		t.Error("another outboxRef: false")
	}
}
