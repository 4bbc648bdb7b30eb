package migrate

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// Every user may make a Job with our labels: it does not count as the migration of the object, and stays. CONTRACT: C-101
func TestAStrangersJobMigratesNothing(t *testing.T) {
	owner := &v1alpha1.Outbox{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", UID: "orders"}}
	wanted := &desired.Migration{Hash: "wanted"}
	job := func(name, hash string, owned types.UID) *batchv1.Job {
		labels := desired.Labels(owner, desired.ComponentMigration)
		labels[desired.LabelMigration] = hash
		return &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{{Kind: "Outbox", Name: "orders", UID: owned, Controller: ptr.To(true)}}},
			Status:     batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}},
		}
	}
	runs := job("a", "wanted", "orders")
	runs.UID, runs.Status.Conditions = "a", nil
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a-1", Labels: map[string]string{batchv1.JobNameLabel: "a", batchv1.ControllerUidLabel: "a"}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	const unmade = "The migration Job of Outbox orders is not made yet; the conditions of Outbox orders say why."
	for name, c := range map[string]struct {
		jobs    []client.Object
		due     bool
		removes int
		done    bool
		says    string
	}{
		"none":        {nil, true, 0, false, unmade},
		"a strangers": {[]client.Object{job("a", "wanted", "stranger"), job("b", "old", "stranger")}, true, 0, false, unmade},
		"its own":     {[]client.Object{job("a", "wanted", "orders"), job("b", "old", "orders")}, false, 1, true, ""},
		"it runs":     {[]client.Object{runs, pod}, false, 0, false, "The migration Job of Outbox orders runs."},
	} {
		r := &Runner{Client: fake.NewClientBuilder().WithObjects(c.jobs...).Build()}
		due, err := r.Due(t.Context(), owner, wanted)
		if err != nil || due != c.due {
			t.Errorf("%s: due %v, %v; want %v", name, due, err, c.due)
		}
		if p, err := r.plan(t.Context(), owner, wanted); err != nil || len(p.remove) != c.removes || (p.State == Succeeded) != c.done {
			t.Errorf("%s: %d are removed, state %s, %v", name, len(p.remove), p.State, err)
		}
		if m, err := r.Look(t.Context(), owner, wanted); err != nil || !c.done && m.Sentence() != c.says {
			t.Errorf("%s: the sentence is %q, %v; want %q", name, m.Sentence(), err, c.says)
		}
	}
}
