package desired

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

const replayUID = "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11"

// replayed is a replay that says everything, of an Outbox.
func replayed() Replay {
	return Replay{
		DeadLetterReplay: &v1alpha1.DeadLetterReplay{
			ObjectMeta: metav1.ObjectMeta{Name: "chg-812", Namespace: "shop", UID: replayUID},
			Spec: spec.Replay{
				OutboxRef: &spec.OutboxRef{Name: "orders"}, Namespace: "shop-events", Action: spec.ActionReplay, Reason: "CHG-812", RequestedBy: "ada",
				Selector: spec.DeadLetterSelector{
					Group: "7f3a9c21", Reason: "PermanentFailure", Topics: []string{"a", "b"}, Type: "OrderPlaced", Aggregate: "order/7", Tenant: replayUID, IDs: []string{replayUID, "7"}, ErrorContains: "422",
					Since: 1000, Until: 2000,
				},
				Rate: 500, Canary: 10, AbortAt: 20, Limit: 7, DryRun: true,
			},
		},
		Outbox: &v1alpha1.Outbox{ObjectMeta: metav1.ObjectMeta{Name: "orders"}, Spec: spec.Outbox{
			SecretRef: spec.SecretRef{Name: "orders-db"}, Schema: "outbox",
			ReplayLogin: &spec.ReplayLogin{SecretRef: &spec.SecretRef{Name: "orders-replay"}},
		}},
	}
}

// read is the object of the Job's file. The Job finds the keys that it names.
func (r Replay) read(t *testing.T) (s spec.Replay) {
	t.Helper()
	all := objectsOf(t, r.ConfigMap().Data[keyConfig])
	if len(all) != 2 || all[0].Kind != kindDeadLetterReplay || all[0].Metadata.UID != replayUID || all[1].Metadata.Name != r.Outbox.Name {
		t.Fatalf("the file has %+v", all)
	}
	job, err := r.Job(flags)
	need.OK(t, err)
	if _, paths := settings(t, all[1:], spec.LoginReplay); !slices.Equal(mounted(job.Spec.Template), paths) {
		t.Errorf("mounted are %v, and the file names %v", mounted(job.Spec.Template), paths)
	}
	convert(t, all[0].Spec, &s)
	return s
}

// The Job reads the object, and no login but its own.
//
// CONTRACT: C-42, C-100
func TestReplayFile(t *testing.T) {
	r := replayed()
	s := r.read(t)
	need.That(t, reflect.DeepEqual(s, r.Spec), "the file has %+v, want %+v", s, r.Spec)
	for _, ref := range r.Refs() {
		need.That(t, ref.Secret == "orders-replay" && ref.Field == "Outbox orders: spec.replayLogin.secretRef", "the Job reads %+v, and it needs no login but its own", ref)
	}
}

// A replay of a dispatcher's dead letters has the dispatcher's namespace, topics, order, account and template.
func TestReplayOfADispatcher(t *testing.T) {
	r := replayed()
	r.Spec.OutboxRef, r.Spec.DispatcherRef, r.Spec.Namespace, r.Spec.Selector = nil, &spec.DispatcherRef{Name: "orders"}, "", spec.DeadLetterSelector{All: true}
	r.Dispatcher = minimal()
	if s := r.read(t); s.Namespace != "shop" || s.OutboxRef.Name != "orders" || !s.Selector.All {
		t.Errorf("without topics the file has %+v", s)
	}
	r.Dispatcher.Spec.Topics = []string{"orders", "bills"}
	r.Dispatcher.Spec.Pods.Template = json.RawMessage(`{"metadata": {"labels": {"team": "shop"}}}`)
	if s := r.read(t); !slices.Equal(s.Selector.Topics, []string{"bills", "orders"}) || s.Selector.All {
		t.Errorf("the file has %+v", s)
	}
	job, err := r.Job(flags)
	need.OK(t, err)
	if pod := job.Spec.Template; pod.Labels["team"] != "shop" || *pod.Spec.ServiceAccountName != "orders-dispatcher" {
		t.Errorf("the pod has the labels %v and runs as %s", pod.Labels, *pod.Spec.ServiceAccountName)
	}
	r.Outbox.Spec.ReplayLogin.PodTemplate = json.RawMessage(`{"spec": {"containers": []}, "metadata": {"labels": {"outbox.dev/replay": "x"}}}`)
	if _, err := r.Job(flags); !errors.Is(err, ErrPodTemplate) || !strings.Contains(err.Error(), "Outbox orders: spec.replayLogin.podTemplate") {
		t.Errorf("a template that takes our labels: %v", err)
	}
}
