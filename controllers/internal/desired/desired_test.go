package desired

import (
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/testing/golden"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// flags of the operator.
var flags = Platform{Image: "outbox-operator:v1", ImagePullSecrets: []string{"registry"}}

// minimal has no more than it must, with the defaults that the API server fills in.
func minimal() *v1alpha1.OutboxDispatcher {
	return &v1alpha1.OutboxDispatcher{
		ObjectMeta: metav1.ObjectMeta{Name: "orders", Namespace: "shop", UID: "0a1b"},
		Spec: spec.Dispatcher{
			Namespace: "shop",
			Database:  &spec.DispatcherDatabase{SecretRef: spec.SecretRef{Name: "orders-db"}, Schema: "outbox"},
			Sink:      spec.Sink{Log: &spec.LogSink{}},
			Delivery: spec.Delivery{
				Lease:            spec.Duration(30 * time.Second),
				PollInterval:     spec.Duration(time.Second),
				BatchSize:        100,
				Concurrency:      16,
				MaxInFlightBytes: 32 << 20,
				MaxAttempts:      20,
				Backoff:          spec.Backoff{Strategy: spec.BackoffExponential},
				Ordering:         spec.OrderingNone,
				OnDead:           spec.OnDeadContinue,
				WakeUp:           spec.WakeUpNone,
				Timeout:          spec.Duration(5 * time.Minute),
				GracePeriod:      spec.Duration(30 * time.Second),
			},
			Replicas: ptr.To[int32](1),
			State:    spec.Running,
			Message:  spec.Message{Format: spec.FormatCloudEvents},
			Pods:     spec.Pods{Log: spec.Log{Level: spec.LogInfo}},
		},
	}
}

// whatever is an Outbox that says much.
func whatever() *v1alpha1.Outbox {
	return &v1alpha1.Outbox{
		ObjectMeta: metav1.ObjectMeta{Name: "main", Namespace: "shop", UID: "2c3d"},
		Spec: spec.Outbox{
			SecretRef:  spec.SecretRef{Name: "orders-db-app"},
			SecretKeys: &spec.ConnectionKeys{Host: "host", Port: "port", Database: "dbname", User: "username", Password: "password"},
			Schema:     "orders_outbox",
			TLS:        &spec.DatabaseTLS{Mode: "VerifyCA", CASecretRef: &spec.SecretRef{Name: "orders-db-ca", Key: "root.pem"}},
			Migration:  &spec.Migration{Policy: spec.MigrationJob, SecretRef: &spec.SecretRef{Name: "orders-db-owner", Key: "uri"}},
			Retention: spec.Retention{
				Delivered: new(spec.Duration), DeadResolved: spec.Duration(48 * time.Hour), DeadUnresolved: spec.Duration(2160 * time.Hour),
			},
		},
	}
}

// full has everything, with [whatever] as its Outbox.
func full() *v1alpha1.OutboxDispatcher {
	obd := minimal()
	s := &obd.Spec
	s.Topics = []string{"orders", "invoices"}
	s.Database, s.OutboxRef = nil, &spec.OutboxRef{Name: "main"}
	s.Sink = spec.Sink{
		HTTP: &spec.HTTPSink{
			URL:       "https://orders.example.com/events",
			BatchSize: 50,
			Headers:   []spec.HTTPHeader{{Name: "X-Team", Value: "orders"}},
		},
		ContentMode: spec.Batch,
		Auth:        &spec.Auth{Type: spec.AuthBasic, SecretRef: &spec.SecretRef{Name: "orders-consumer"}},
		TLS: &spec.TLS{
			CAConfigMapRef:      &spec.ConfigMapRef{Name: "consumer-ca"},
			ClientCertSecretRef: &spec.SecretRef{Name: "orders-client"},
			ServerName:          "orders.internal",
		},
		Timeout: spec.Duration(5 * time.Second),
	}
	s.Delivery.Backoff = spec.Backoff{
		Strategy:      spec.BackoffMultiplier,
		Base:          spec.Duration(2 * time.Second),
		Max:           spec.Duration(time.Minute),
		Multiplier:    "1.5",
		JitterPercent: ptr.To[int32](0),
	}
	s.Delivery.Ordering, s.Delivery.OnDead, s.Delivery.WakeUp = spec.OrderingKey, spec.OnDeadBlock, spec.WakeUpListen
	s.Delivery.MaxInFlightBytes, s.Pods.Log.Level = 64<<20, spec.LogDebug
	s.Delivery.Timeout = spec.Duration(10 * time.Minute)
	s.Delivery.GracePeriod = spec.Duration(1500 * time.Millisecond)
	s.Replicas = ptr.To[int32](3)
	s.State = spec.Paused
	s.Delivery.ConsumerPolicy = spec.ConsumersVerified
	s.Pods.ServiceAccount = &spec.ServiceAccount{Annotations: []spec.Annotation{{Name: "eks.amazonaws.com/role-arn", Value: "arn:aws:iam::1:role/orders"}}}
	s.Pods.ImagePullSecrets = []spec.SecretName{{Name: "registry"}, {Name: "team-registry"}}
	s.Pods.Template = json.RawMessage(`{
		"metadata": {"labels": {"team": "orders"}, "annotations": {"example.com/scrape": "true"}},
		"spec": {
			"tolerations": [{"key": "spot", "operator": "Exists"}],
			"initContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
			"containers": [
				{"name": "dispatcher", "resources": {"limits": {"memory": "256Mi"}}, "env": [{"name": "TZ", "value": "UTC"}]},
				{"name": "logs", "image": "logs:1"}
			]
		}
	}`)
	return obd
}

func TestObjectsMatchTheGoldenFiles(t *testing.T) {
	for name, c := range map[string]struct {
		obd    *v1alpha1.OutboxDispatcher
		outbox *v1alpha1.Outbox
	}{"minimal": {minimal(), nil}, "full": {full(), whatever()}, "migrated": {migrated(), nil}} {
		obd := c.obd
		deployment, err := deployment(obd, c.outbox, flags)
		need.OK(t, err)
		objects := []any{StateConfigMap(obd), ServiceAccount(obd), ConfigMap(obd, c.outbox), deployment, PodDisruptionBudget(obd)}
		if obd.Spec.Delivery.ConsumerPolicy == spec.ConsumersVerified {
			objects = append(objects, ConsumersConfigMap(obd, []string{"order.placed", "payment.*"}))
		}
		if c.outbox != nil {
			migration, err := NewOutboxMigration(c.outbox, flags)
			need.OK(t, err)
			objects = append(objects, OutboxConfigMap(c.outbox), migration.Job(1))
		} else if name == "migrated" {
			obd.Spec.Pods.Template = full().Spec.Pods.Template
			migration, err := NewMigration(obd, flags)
			need.OK(t, err)
			objects = []any{MigrationConfigMap(obd), migration.Job(1)}
		}
		var documents []string
		for _, o := range objects {
			b, err := yaml.Marshal(o)
			need.OK(t, err)
			documents = append(documents, withoutOwner(t, string(b)))
		}
		golden.Check(t, "objects.golden", name+".yaml", strings.Join(documents, "---\n"))
	}
}

// migrated is minimal with a migration Job of its own.
func migrated() *v1alpha1.OutboxDispatcher {
	obd := minimal()
	obd.Spec.Database.MigrationSecretRef = &spec.SecretRef{Name: "orders-db-owner"}
	return obd
}

// An account of the user's is named, and none is made.
func TestServiceAccount(t *testing.T) {
	obd := migrated()
	obd.Spec.Pods.ServiceAccount = &spec.ServiceAccount{Name: "mine"}
	d, err := deployment(obd, nil, flags)
	need.OK(t, err)
	m, err := NewMigration(obd, flags)
	need.OK(t, err)
	for _, name := range []string{*d.Spec.Template.Spec.ServiceAccountName, *m.Job(1).Spec.Template.Spec.ServiceAccountName} {
		need.Want(t, "mine", "the pods are %s, want mine", name)
	}
	made := ServiceAccount(obd)
	need.That(t, made == nil, "makes %+v", made)
}

// withoutOwner removes what each object has: the dispatcher or the Outbox as its owner.
func withoutOwner(t *testing.T, object string) string {
	t.Helper()
	rest := owned.ReplaceAllString(object, "")
	need.That(t, rest != object, "an object is not owned by the dispatcher or the Outbox:\n%s", object)
	return rest
}

var owned = regexp.MustCompile(`  ownerReferences:
  - apiVersion: outbox.dev/v1alpha1
    controller: true
    kind: (OutboxDispatcher
    name: orders
    uid: 0a1b|Outbox
    name: main
    uid: 2c3d)
`)

func TestNetworkPolicyGolden(t *testing.T) {
	b, err := yaml.Marshal(NetworkPolicy(minimal(), "outbox-system"))
	need.OK(t, err)
	golden.Check(t, "objects.golden", "networkpolicy.yaml", string(b))
}

func deployment(obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox, p Platform) (*appsv1ac.DeploymentApplyConfiguration, error) {
	return Deployment(obd, outbox, *ConfigMap(obd, outbox).Name, p)
}

// What rolls pods, and what has the schema migrated again.
//
// CONTRACT: C-37, C-61, C-102
func TestPodsRollAndMigrationsRunOnlyOnWhatTheyRead(t *testing.T) {
	type both struct {
		*v1alpha1.OutboxDispatcher
		*v1alpha1.Outbox
	}
	made := func(own bool, change func(both), p Platform) (pods, migration string) {
		t.Helper()
		b := both{full(), whatever()}
		if own {
			b = both{migrated(), nil}
		}
		change(b)
		d, err := deployment(b.OutboxDispatcher, b.Outbox, p)
		need.OK(t, err)
		m, err := NewMigration(b.OutboxDispatcher, p)
		if !own {
			m, err = NewOutboxMigration(b.Outbox, p)
		}
		need.OK(t, err)
		if m != nil {
			migration = m.Hash
		}
		return Hash(d.Spec.Template), migration
	}
	d := func(change func(*spec.Dispatcher)) func(both) {
		return func(b both) { change(&b.OutboxDispatcher.Spec) }
	}
	o := func(change func(*spec.Outbox)) func(both) { return func(b both) { change(&b.Outbox.Spec) } }
	for name, c := range map[string]struct {
		change          func(both)
		own             bool
		rolls, migrates bool
	}{
		"nothing":                     {change: func(both) {}},
		"nothing, of its own":         {change: func(both) {}, own: true},
		"a label":                     {change: func(b both) { b.OutboxDispatcher.Labels = map[string]string{"a": "b"} }},
		"the batch size":              {change: d(func(s *spec.Dispatcher) { s.Delivery.BatchSize = 7 }), rolls: true},
		"the batch size, of its own":  {change: d(func(s *spec.Dispatcher) { s.Delivery.BatchSize = 7 }), own: true, rolls: true},
		"the log":                     {change: d(func(s *spec.Dispatcher) { s.Pods.Log.Level = spec.LogWarn }), rolls: true},
		"the gate":                    {change: d(func(s *spec.Dispatcher) { s.Delivery.ConsumerPolicy = spec.ConsumersAny }), rolls: true},
		"the template":                {change: d(func(s *spec.Dispatcher) { s.Pods.Template = nil }), rolls: true},
		"the state":                   {change: d(func(s *spec.Dispatcher) { s.State = spec.Running })},
		"the replicas":                {change: d(func(s *spec.Dispatcher) { s.Replicas = ptr.To[int32](9) })},
		"the scaling":                 {change: d(func(s *spec.Dispatcher) { s.Pods.Scaling = &spec.Scaling{Min: 1, Max: 2} })},
		"the order of topics":         {change: d(func(s *spec.Dispatcher) { s.Topics = []string{"invoices", "orders"} })},
		"the login":                   {change: o(func(s *spec.Outbox) { s.SecretRef.Name = "other" }), rolls: true, migrates: true},
		"the schema":                  {change: o(func(s *spec.Outbox) { s.Schema = "other" }), rolls: true, migrates: true},
		"the migration's login":       {change: o(func(s *spec.Outbox) { s.Migration.SecretRef.Name = "other" }), migrates: true},
		"its login, of its own":       {change: d(func(s *spec.Dispatcher) { s.Database.MigrationSecretRef.Name = "other" }), own: true, migrates: true},
		"its schema, of its own":      {change: d(func(s *spec.Dispatcher) { s.Database.Schema = "other" }), own: true, rolls: true, migrates: true},
		"the journal":                 {change: o(func(s *spec.Outbox) { s.Journal = &spec.Journal{Mode: spec.JournalEnabled} }), migrates: true},
		"the index of tenants":        {change: o(func(s *spec.Outbox) { s.Migration.Tenants = "Indexed" }), migrates: true},
		"no migration":                {change: o(func(s *spec.Outbox) { s.Migration = nil }), migrates: true},
		"the retention":               {change: o(func(s *spec.Outbox) { s.Retention.DeadUnresolved = 0 }), rolls: true},
		"the notifications":           {change: o(func(s *spec.Outbox) { s.Notify = &spec.Notify{URL: "https://n"} }), rolls: true},
		"the login of replays":        {change: o(func(s *spec.Outbox) { s.ReplayLogin = &spec.ReplayLogin{User: "replay"} }), migrates: true},
		"the template of a migration": {change: o(func(s *spec.Outbox) { s.Migration.PodTemplate = full().Spec.Pods.Template }), migrates: true},
	} {
		podsBefore, migrationBefore := made(c.own, func(both) {}, flags)
		pods, migration := made(c.own, c.change, flags)
		if rolls, migrates := pods != podsBefore, migration != migrationBefore; rolls != c.rolls || migrates != c.migrates {
			t.Errorf("%s changed: pods roll = %v and the schema is migrated = %v, want %v and %v", name, rolls, migrates, c.rolls, c.migrates)
		}
		pods, migration = made(c.own, func(both) {}, Platform{Image: "other:1"})
		need.That(t, pods != podsBefore && migration != migrationBefore, "the image changed: nothing new runs")
	}
}

// The index of tenants may take a day, and the rest of a migration half an hour.
//
// CONTRACT: C-37
func TestDeadlineOfMigrations(t *testing.T) {
	for tenants, want := range map[spec.Tenants]time.Duration{"": 30 * time.Minute, "Indexed": 24 * time.Hour} {
		o := whatever()
		o.Spec.Migration.Tenants = tenants
		m, err := NewOutboxMigration(o, flags)
		need.OK(t, err)
		need.Want(t, want, "with tenants %q the Job has %s, want %s", time.Duration(*m.Job(1).Spec.ActiveDeadlineSeconds)*time.Second, tenants)
	}
}

// A pause, or another number of replicas, changes nothing that pods are made of: so it does not end the wait for a turn in
// an upgrade.
func TestStateAndReplicasDoNotEdit(t *testing.T) {
	obd := full()
	before := specHash(obd)
	obd.Spec.State, obd.Spec.Replicas = spec.Running, new(int32(7))
	need.Want(t, before, "the state or the number of replicas counts as an edit", specHash(obd))
	obd.Spec.Delivery.BatchSize++
	need.That(t, specHash(obd) != before, "another batch size does not count as an edit")
}

func TestPodTemplateErrors(t *testing.T) {
	for name, c := range map[string]struct{ template, want string }{
		"unknown scalar": {`{"spec":{"nodeName2":"x"}}`, "nodeName2"},
		"unknown object": {`{"spec":{"afinity":{"a":"b"}}}`, "afinity"},
		"unknown deep":   {`{"spec":{"containers":[{"name":"dispatcher","resource":{"limits":{"cpu":"1"}}}]}}`, "resource"},
		"wrong type":     {`{"spec":{"containers":"dispatcher"}}`, "containers"},
		"wrong quantity": {`{"spec":{"containers":[{"name":"dispatcher","resources":{"limits":{"cpu":"much"}}}]}}`, "quantities must match"},
		"our labels": {`{"metadata":{"labels":{"outbox.dev/managed-by":"x","outbox.dev/component":"x","outbox.dev/other":"x","app.kubernetes.io/name":"x"}}}`,
			"(outbox.dev/component, outbox.dev/managed-by)"},
		"without container": {`{"spec":{"containers":[{"name":"dispatcher","$patch":"delete"}]}}`, `removes the container "dispatcher"`},
		"too large":         {`{"metadata":{"annotations":{"a":"` + strings.Repeat("x", 64<<10) + `"}}}`, "has 65573 bytes of JSON, and 65536 are the most"},
		"long list":         {`{"spec":{"volumes":[{"name":"a"}` + strings.Repeat(`,{"name":"a"}`, 256) + `]}}`, "spec.volumes has 257 entries, and 256 are the most"},
		"long list, deep":   {`{"spec":{"containers":[{"name":"dispatcher","env":[{"name":"A"}` + strings.Repeat(`,{"name":"A"}`, 256) + `]}]}}`, "spec.containers[0].env has 257"},
		"account":           {`{"spec":{"serviceAccountName":"ci-admin"}}`, "in spec.pods.serviceAccount"},
		"our volume":        {`{"spec":{"volumes":[{"$retainKeys":["name","projected"],"name":"secrets","projected":{"sources":[{"serviceAccountToken":{"path":"sink/token"}}]}}]}}`, `the volume "secrets"`},
		"our volume goes":   {`{"spec":{"volumes":[{"name":"state","$patch":"delete"}]}}`, `the volume "state"`},
		"our mount":         {`{"spec":{"volumes":[{"name":"mine","emptyDir":{}}],"containers":[{"name":"dispatcher","volumeMounts":[{"name":"mine","mountPath":"/etc/outbox/secrets"}]}]}}`, "mounted at /etc/outbox/secrets"},
		"over our mounts":   {`{"spec":{"volumes":[{"name":"mine","emptyDir":{}}],"containers":[{"name":"dispatcher","volumeMounts":[{"name":"mine","mountPath":"/etc/outbox/secrets/sink"}]}]}}`, "a volume at /etc/outbox/secrets/sink"},
		"above our mounts":  {`{"spec":{"volumes":[{"name":"mine","emptyDir":{}}],"containers":[{"name":"dispatcher","volumeMounts":[{"name":"mine","mountPath":"/etc"}]}]}}`, "a volume at /etc"},
		"without metadata":  {`{"metadata":null}`, "(outbox.dev/component, outbox.dev/dispatcher, outbox.dev/managed-by)"},
	} {
		t.Run(name, func(t *testing.T) {
			obd := minimal()
			obd.Spec.Pods.Template = json.RawMessage(c.template)
			_, err := deployment(obd, nil, flags)
			need.That(t, err != nil && strings.Contains(err.Error(), c.want) && errors.Is(err, ErrPodTemplate) && strings.HasPrefix(err.Error(), "spec.pods.template cannot be used: "),
				"error %v, want one about spec.pods.template with %q", err, c.want)
		})
	}
}

// The recommended labels are a chart's, or whose you like. CONTRACT: C-100
func TestRecommendedLabelsAreDefaults(t *testing.T) {
	obd := minimal()
	obd.Spec.Pods.Template = json.RawMessage(`{"metadata":{"labels":{
		"app.kubernetes.io/name":"shop","app.kubernetes.io/instance":"prod","app.kubernetes.io/managed-by":"Helm","helm.sh/chart":"shop-1.2.3"}}}`)
	d, err := deployment(obd, nil, flags)
	need.OK(t, err)
	labels := d.Spec.Template.Labels
	for key, want := range map[string]string{"app.kubernetes.io/name": "shop", "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "shop-1.2.3",
		LabelDispatcher: "orders", LabelComponent: ComponentDispatcher, LabelManagedBy: Manager} {
		need.Want(t, want, "label %s is %q, want %q", labels[key], key)
	}
	for key := range d.Spec.Selector.MatchLabels {
		need.That(t, strings.HasPrefix(key, "outbox.dev/"), "the selector has %s, which a template may change", key)
	}
}

// The number of pods is the recommended one with mode Apply alone, within the bounds, and never against a stop.
//
// CONTRACT: C-107
func TestScaling(t *testing.T) {
	scaling := func(mode spec.ScalingMode) *spec.Scaling {
		return &spec.Scaling{Mode: mode, Min: 2, Max: 6}
	}
	for name, c := range map[string]struct {
		replicas    *int32
		scaling     *spec.Scaling
		recommended int32
		want        int32
	}{
		"without":                  {nil, nil, 5, 1},
		"without, in the spec":     {ptr.To[int32](3), nil, 5, 3},
		"recommended alone":        {ptr.To[int32](3), scaling(spec.ScalingRecommend), 5, 3},
		"applied":                  {ptr.To[int32](3), scaling(spec.ScalingApply), 5, 5},
		"the first":                {ptr.To[int32](3), scaling(spec.ScalingApply), 0, 3},
		"the first, below min":     {nil, scaling(spec.ScalingApply), 0, 2},
		"the first, above max":     {ptr.To[int32](9), scaling(spec.ScalingApply), 0, 6},
		"recommended before max":   {ptr.To[int32](3), scaling(spec.ScalingApply), 9, 6},
		"recommended before min":   {ptr.To[int32](3), scaling(spec.ScalingApply), 1, 2},
		"stopped":                  {ptr.To[int32](0), scaling(spec.ScalingApply), 5, 0},
		"stopped, recommend alone": {ptr.To[int32](0), scaling(spec.ScalingRecommend), 5, 0},
	} {
		obd := minimal()
		obd.Spec.Replicas, obd.Spec.Pods.Scaling = c.replicas, c.scaling
		obd.Status.Scaling = &v1alpha1.ScalingStatus{Recommended: c.recommended}
		need.Want(t, c.want, "%s: %d pods, want %d", Replicas(obd), name)
		other := minimal()
		other.Spec.Replicas = c.replicas
		need.That(t, specHash(obd) == specHash(other), "%s: it rolls pods", name)
	}
}

// Fields that the operator's own apply does not have are named, but for those that are meant to be others'.
func TestOthersNamesWhoHasSetAField(t *testing.T) {
	const env = `{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"dispatcher\"}":{"f:env":{".":{},"k:{\"name\":\"FOO\"}":{".":{},"f:name":{},"f:value":{}}}}}}}}}`
	own := metav1.ManagedFieldsEntry{Manager: Manager, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:revisionHistoryLimit":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"dispatcher\"}":{".":{},"f:name":{}}}}}}}`)}
	for _, c := range []struct{ manager, fields, want string }{
		{"argocd", `{"f:spec":{"f:revisionHistoryLimit":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"dispatcher\"}":{".":{},"f:name":{}}}}}}}`, ""}, // as the operator has set it too
		{"kubectl-set", env, `"kubectl-set" has set spec.template.spec.containers[name="dispatcher"].env[name="FOO"].name`},
		{"kubectl-patch", `{"f:spec":{"f:progressDeadlineSeconds":{}}}`, `"kubectl-patch" has set spec.progressDeadlineSeconds`},
		{Manager, env, ""},
		{"keda", `{"f:spec":{"f:replicas":{}}}`, ""},
		{"kubectl-rollout", `{"f:spec":{"f:template":{"f:metadata":{"f:annotations":{".":{},"f:kubectl.kubernetes.io/restartedAt":{}}}}}}`, ""},
		{"kube-controller-manager", `{"f:metadata":{"f:annotations":{"f:deployment.kubernetes.io/revision":{}}},"f:status":{"f:replicas":{}}}`, ""},
	} {
		got := Others([]metav1.ManagedFieldsEntry{{Manager: "a"}, own, {Manager: c.manager, FieldsV1: metav1.NewFieldsV1(c.fields)}})
		need.Want(t, c.want, "%s: %q, want %q", got, c.manager)
		need.That(t, strings.Contains(RemedyOfOthers(got), "spec.pods.template") == strings.Contains(got, "env"), "%s: %s", got, RemedyOfOthers(got))
	}
}
