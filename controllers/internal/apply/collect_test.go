package apply

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// A pod of a Job or of a ReplicaSet that has not started yet reads the files that its template names. CONTRACT: C-101
func TestFilesThatAPodMayReadStay(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		need.OK(t, add(scheme))
	}
	labels := map[string]string{"outbox.dev/dispatcher": "orders"}
	meta := func(name string, owner types.UID) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Labels: labels,
			OwnerReferences: []metav1.OwnerReference{{Kind: "OutboxDispatcher", Name: "orders", UID: owner, Controller: ptr.To(true)}}}
	}
	reads := func(name string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}}}}
	}
	owner := &v1alpha1.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", UID: "orders"}}
	unlabelled := &corev1.ConfigMap{ObjectMeta: meta("unlabelled", "orders")}
	unlabelled.Labels = nil
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(owner, unlabelled,
		&batchv1.Job{ObjectMeta: meta("job", "orders"), Spec: batchv1.JobSpec{Template: reads("of-a-job")}},
		&appsv1.ReplicaSet{ObjectMeta: meta("set", "orders"), Spec: appsv1.ReplicaSetSpec{Template: reads("of-a-replica-set")}},
		&corev1.ConfigMap{ObjectMeta: meta("current", "orders")},
		&corev1.ConfigMap{ObjectMeta: meta("of-a-job", "orders")},
		&corev1.ConfigMap{ObjectMeta: meta("of-a-replica-set", "orders")},
		&corev1.ConfigMap{ObjectMeta: meta("of-another", "another")},
		&corev1.ConfigMap{ObjectMeta: meta("old", "orders")},
	).Build()
	need.OK(t, New(c, c, "Ready").Collect(t.Context(), owner, labels, "current"))
	var left corev1.ConfigMapList
	need.OK(t, c.List(t.Context(), &left, client.InNamespace("shop")))
	var names []string
	for _, m := range left.Items {
		names = append(names, m.Name)
	}
	want := []string{"current", "of-a-job", "of-a-replica-set", "of-another", "unlabelled"}
	need.WantAll(t, want, "%q are left, want %q", names)
}

// An object of a deleted namesake waits for its finalizer, which is named.
func TestFinalizerOfANamesakesObjectIsNamed(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		need.OK(t, add(scheme))
	}
	owner := &v1alpha1.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", UID: "new"}}
	left := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "files", Finalizers: []string{"example.com/held"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "OutboxDispatcher", Name: "orders", UID: "old", Controller: ptr.To(true)}}}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(left).Build()
	err := New(c, c, "Ready").Apply(t.Context(), owner, corev1ac.ConfigMap("files", "shop"), &corev1.ConfigMap{})
	need.Fails(t, "is not collected yet; it has the finalizer example.com/held: see why", "got %v, want an error with %q", err)
}
