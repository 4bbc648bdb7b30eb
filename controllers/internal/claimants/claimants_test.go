package claimants

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
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
	named := outbox("db")
	need.Want(t, ofOutbox("db"), "%q, want %q: dispatchers of an Outbox are found", where(&named))
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

// What is found with a dispatcher is every other that shares a topic with it, each once, and few of those that share none.
func TestThoseThatMayShareATopicAreFound(t *testing.T) {
	scheme := runtime.NewScheme()
	need.OK(t, v1alpha1.AddToScheme(scheme))
	long := strings.Repeat("t", 300)
	topics := map[string][]string{"a": {"a"}, "ab": {"a", "b"}, "all": nil, "b": {"b"}, "long": {long}, "short": {desired.ShortTopic(long)}, "many": {"1", "2", "3", "4", "a"}}
	builder := fake.NewClientBuilder().WithScheme(scheme)
	of := map[string]*v1alpha1.OutboxDispatcher{}
	for name, topics := range topics {
		of[name] = &v1alpha1.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Spec: spec.Dispatcher{OutboxRef: &spec.OutboxRef{Name: "db"}, Topics: topics}}
		builder.WithObjects(of[name])
	}
	need.OK(t, Index(t.Context(), indexer(func(o client.Object, field string, values client.IndexerFunc) error {
		builder.WithIndex(o, field, values)
		return nil
	})))
	cached := builder.Build()
	everybody := []string{"a", "ab", "all", "b", "long", "many", "short"}
	for name, want := range map[string][]string{
		"a": {"a", "ab", "all", "many"}, "ab": {"a", "ab", "all", "b", "many"}, "b": {"ab", "all", "b", "many"},
		"long": {"all", "long", "many", "short"}, "all": everybody, "many": everybody,
	} {
		found, err := With(t.Context(), cached, of[name])
		need.OK(t, err)
		var names []string
		for _, o := range found {
			names = append(names, o.Name)
		}
		need.WantAll(t, want, "with %s: %q, want %q", names, name)
	}
}

type indexer func(client.Object, string, client.IndexerFunc) error

func (f indexer) IndexField(_ context.Context, o client.Object, field string, values client.IndexerFunc) error {
	return f(o, field, values)
}
