package desired

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

const replayUID = "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11"

// replayed is a replay that says everything, of an Outbox.
func replayed() Replay {
	return Replay{
		DeadLetterReplay: &v1alpha1.DeadLetterReplay{
			ObjectMeta: metav1.ObjectMeta{Name: "chg-812", Namespace: "shop", UID: replayUID},
			Spec: v1alpha1.DeadLetterReplaySpec{
				OutboxRef: &v1alpha1.OutboxRef{Name: "orders"}, Namespace: "shop-events", Action: v1alpha1.ActionReplay, Reason: "CHG-812", RequestedBy: "ada",
				Selector: v1alpha1.DeadLetterSelector{
					Group: "7f3a9c21", Reason: "PermanentFailure", Topics: []string{"b", "a"}, Type: "OrderPlaced", Aggregate: "order/7", Tenant: replayUID, IDs: []string{"7", replayUID}, ErrorContains: "422",
					Since: &metav1.Time{Time: time.Unix(1000, 0)}, Until: &metav1.Time{Time: time.Unix(2000, 0)},
				},
				Rate: 500, Canary: 10, AbortAt: 20, Limit: 7, DryRun: true,
			},
		},
		Outbox: &v1alpha1.Outbox{ObjectMeta: metav1.ObjectMeta{Name: "orders"}, Spec: v1alpha1.OutboxSpec{
			SecretRef: v1alpha1.SecretRef{Name: "orders-db"}, Schema: "outbox",
			ReplayLogin: &v1alpha1.ReplayLogin{SecretRef: &v1alpha1.SecretRef{Name: "orders-replay"}},
		}},
	}
}

// read decodes the two files as the binary does.
func (r Replay) read(t *testing.T) (o spec.ReplayRequest, c spec.Config) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(r.ConfigMap().Data[keyRequest]), &o); err != nil {
		t.Fatal(err)
	}
	read(t, r.ConfigMap().Data[keyConfig], &c)
	c.ApplyDefaults()
	o.Namespace, o.Topics = c.Namespace, c.Topics
	if err := errors.Join(o.Validate(), deadletters.Filter(o.Filter).Validate(), c.ValidateDatabase()); err != nil {
		t.Error(err)
	}
	return o, c
}

// Whatever the object says, the dispatcher reads by the same name.
// CONTRACT: C-42, C-100
func TestReplayFiles(t *testing.T) {
	r := replayed()
	o, c := r.read(t)
	if o.ID != uuid.MustParse(replayUID) || o.Namespace != "shop-events" || !slices.Equal(o.Topics, []string{"a", "b"}) {
		t.Errorf("the request is %+v", o)
	}
	if c.Name != "shop/chg-812-replay" || !strings.Contains(c.Database.DSNFile, "database/dsn") {
		t.Errorf("the configuration is %+v", c)
	}
	for field, value := range reflect.ValueOf(o).Fields() {
		if value.IsZero() {
			t.Errorf("the request lacks %s", field.Name)
		}
	}
	if o.Filter.Reason != "permanent_failure" {
		t.Errorf("the filter's reason is %s, want the contract's", o.Filter.Reason)
	}
	for field, value := range reflect.ValueOf(o.Filter).Fields() {
		if value.IsZero() && field.Name != "Topic" && field.Name != "Resolved" && field.Name != "Operation" { // topics are the order's
			t.Errorf("the filter lacks %s", field.Name)
		}
	}
	for _, ref := range r.Refs() {
		if ref.Secret != "orders-replay" {
			t.Errorf("the Job reads %+v, and it needs no login but its own", ref)
		}
	}

	discard := replayed()
	discard.Spec.Action, discard.Spec.Canary, discard.Spec.AbortAt = v1alpha1.ActionDiscard, 0, 0
	if o, _ := discard.read(t); o.Action != spec.ActionDiscard {
		t.Errorf("a discard is %q", o.Action)
	}
}

// Pods read each text as it is, also one with characters that YAML refuses or folds. All that the CRDs admit renders.
func TestFilesOfAnyCharacters(t *testing.T) {
	const odd = "CHG-812 \u0096 fix\u0085 \u007f\ufeff\ufffe\uffff\u2028 <end>"
	r := replayed()
	r.Spec.Reason, r.Spec.Selector.Topics = odd, []string{odd}
	if o, _ := r.read(t); o.Reason != odd || !slices.Equal(o.Topics, []string{odd}) {
		t.Errorf("the Job of a replay reads %q of %q", o.Reason, o.Topics)
	}
	obd := minimal()
	obd.Spec.Topics = []string{odd}
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(render(Config(obd, nil))), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := spec.Load(file); err != nil || !slices.Equal(c.Topics, []string{odd}) {
		t.Errorf("a dispatcher reads %q, %v", c.Topics, err)
	}
}

// A replay of a dispatcher's dead letters has the dispatcher's namespace, topics, order, account and template.
func TestReplayOfADispatcher(t *testing.T) {
	r := replayed()
	r.Spec.OutboxRef, r.Spec.Namespace, r.Spec.Selector = nil, "", v1alpha1.DeadLetterSelector{All: true}
	r.Dispatcher = minimal()
	r.Dispatcher.Spec.Topics = []string{"orders", "bills"}
	r.Dispatcher.Spec.Pods.Template = &runtime.RawExtension{Raw: []byte(`{"metadata": {"labels": {"team": "shop"}}}`)}
	o, _ := r.read(t)
	if o.Namespace != "shop" || !slices.Equal(o.Topics, []string{"bills", "orders"}) {
		t.Errorf("the request is %+v", o)
	}
	job, err := r.Job(flags)
	if err != nil {
		t.Fatal(err)
	}
	if pod := job.Spec.Template; pod.Labels["team"] != "shop" || *pod.Spec.ServiceAccountName != "orders-dispatcher" {
		t.Errorf("the pod has the labels %v and runs as %s", pod.Labels, *pod.Spec.ServiceAccountName)
	}
	r.Outbox.Spec.ReplayLogin.PodTemplate = &runtime.RawExtension{Raw: []byte(`{"spec": {"containers": []}, "metadata": {"labels": {"outbox.dev/replay": "x"}}}`)}
	if _, err := r.Job(flags); !errors.Is(err, ErrPodTemplate) || !strings.Contains(err.Error(), "Outbox orders: spec.replayLogin.podTemplate") {
		t.Errorf("a template that takes our labels: %v", err)
	}
}

// The certificate of the operator's login takes the place of the dispatchers'.
func TestReplayLogins(t *testing.T) {
	r := replayed()
	r.Outbox.Spec = v1alpha1.OutboxSpec{
		Server: &v1alpha1.DatabaseServer{Host: "db", Port: 5432, Database: "orders"}, User: "dispatcher", Schema: "outbox",
		TLS:         &v1alpha1.DatabaseTLS{Mode: "Require", ClientCertSecretRef: &v1alpha1.SecretRef{Name: "dispatcher-cert"}},
		ReplayLogin: &v1alpha1.ReplayLogin{User: "replay", ClientCertSecretRef: &v1alpha1.SecretRef{Name: "replay-cert"}},
	}
	_, c := r.read(t)
	if c.Database.Connection.User != "replay" || c.Database.SSLMode != "Require" {
		t.Errorf("the connection is %+v, %+v", c.Database, c.Database.Connection)
	}
	mounted := r.Refs()
	if len(mounted) != 2 || mounted[0].Secret != "replay-cert" || c.Database.ClientCertFile != mounted[0].File() || c.Database.ClientKeyFile != mounted[1].File() {
		t.Errorf("%+v is mounted, and the file names %s", mounted, c.Database.ClientCertFile)
	}
}

// The login for replays rolls no pod of a dispatcher.
func TestReplayLoginRollsNoPod(t *testing.T) {
	obd, outbox := full(), whatever()
	outbox.Spec.ReplayLogin = &v1alpha1.ReplayLogin{User: "replay"}
	if render(Config(obd, outbox)) != render(Config(full(), whatever())) {
		t.Error("a login for replays changes the dispatcher's pods")
	}
}

// A pause, or another number of replicas, changes nothing that pods are made of: so it does not end the wait for a turn in
// an upgrade.
func TestStateAndReplicasRollNoPod(t *testing.T) {
	obd := full()
	before := specHash(obd)
	obd.Spec.State, obd.Spec.Replicas = v1alpha1.StateRunning, new(int32(7))
	if specHash(obd) != before {
		t.Error("the state or the number of replicas counts as an edit")
	}
	if obd.Spec.Delivery.BatchSize++; specHash(obd) == before {
		t.Error("another batch size does not count as an edit")
	}
}
