package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// hostileMeta is metadata as large as the API server takes.
func hostileMeta() metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: "orders", Namespace: "shop", Labels: map[string]string{desired.LabelManagedBy: desired.Manager, desired.LabelDispatcher: "orders"}, Annotations: map[string]string{},
		OwnerReferences: []metav1.OwnerReference{{Kind: "Deployment", Name: "orders", UID: "1", Controller: ptr.To(true)}}}
	for i := range 4000 {
		m.Labels[fmt.Sprintf("%0200d", i)] = "x"
		m.Annotations[fmt.Sprint(i)] = strings.Repeat("x", 60)
		m.Finalizers = append(m.Finalizers, fmt.Sprintf("example.com/%0200d", i))
		m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{Kind: strings.Repeat("k", 200)})
	}
	return m
}

// hostileTemplate is a pod template of about a megabyte.
func hostileTemplate() corev1.PodTemplateSpec {
	t := corev1.PodTemplateSpec{ObjectMeta: hostileMeta()}
	t.Spec.Containers = []corev1.Container{{Name: desired.Container, Image: strings.Repeat("i", 100<<10), Env: []corev1.EnvVar{{Name: "A", Value: strings.Repeat("x", 1<<20)}}}}
	for i := range 2000 {
		t.Spec.Volumes = append(t.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", i)})
		t.Spec.InitContainers = append(t.Spec.InitContainers, corev1.Container{Name: fmt.Sprint("c", i)})
	}
	return t
}

func hostileStatuses() (all []corev1.ContainerStatus) {
	for i := range 2000 {
		all = append(all, corev1.ContainerStatus{Name: fmt.Sprint("c", i), Image: strings.Repeat("i", 1<<10), State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Message: strings.Repeat("w", 100)}}})
	}
	return append(all, corev1.ContainerStatus{Name: desired.Container, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: strings.Repeat("t", 1<<20)}}})
}

// What the cache keeps of an object that anybody may make is small, whatever is in it.
func TestHostileObjectsAreSmallInTheCache(t *testing.T) {
	template := hostileTemplate()
	words := strings.Repeat("x", 1<<20)
	for _, o := range []runtime.Object{
		&corev1.ConfigMap{ObjectMeta: hostileMeta(), Data: map[string]string{"state": words, "file": words}, BinaryData: map[string][]byte{"b": []byte(words)}},
		&corev1.ServiceAccount{ObjectMeta: hostileMeta(), Secrets: []corev1.ObjectReference{{Name: words}}},
		&networkingv1.NetworkPolicy{ObjectMeta: hostileMeta(), Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: hostileMeta().Labels}}},
		&policyv1.PodDisruptionBudget{ObjectMeta: hostileMeta(), Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: hostileMeta().Labels}}},
		&appsv1.Deployment{ObjectMeta: hostileMeta(), Spec: appsv1.DeploymentSpec{Paused: true, Template: template}, Status: appsv1.DeploymentStatus{Conditions: []appsv1.DeploymentCondition{{Message: words}}}},
		&appsv1.ReplicaSet{ObjectMeta: hostileMeta(), Spec: appsv1.ReplicaSetSpec{Template: template}},
		&batchv1.Job{ObjectMeta: hostileMeta(), Spec: batchv1.JobSpec{Suspend: ptr.To(true), Template: template}, Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Message: words}}}},
		&corev1.Pod{ObjectMeta: hostileMeta(), Spec: template.Spec, Status: corev1.PodStatus{ContainerStatuses: hostileStatuses(), InitContainerStatuses: hostileStatuses(), Conditions: []corev1.PodCondition{{Message: words}}}},
	} {
		kept := transform(t, o)
		name := fmt.Sprintf("%T", o)
		bytes := len(encode(t, kept))
		need.That(t, bytes <= 40<<10, "%s: %d bytes are kept", name, bytes)
		m := kept.(metav1.Object)
		if m.GetName() != "orders" || m.GetNamespace() != "shop" || m.GetLabels()[desired.LabelDispatcher] != "orders" || metav1.GetControllerOf(m) == nil {
			t.Errorf("%s: what finds it is lost: %.300s", name, encode(t, m))
		}
		switch kept := kept.(type) { // what stops for a while takes no turn of an upgrade
		case *appsv1.Deployment:
			need.That(t, kept.Spec.Paused, "the Deployment is not paused in the cache")
		case *batchv1.Job:
			need.That(t, ptr.Deref(kept.Spec.Suspend, false), "the Job is not suspended in the cache")
		}
		p, ok := kept.(*corev1.Pod)
		need.That(t, !ok || p.Status.ContainerStatuses[len(p.Status.ContainerStatuses)-1].Name == desired.Container, "the status of the dispatcher's container is lost")
	}
}

// An object of the usual size costs a kilobyte or two.
func TestUsualObjectsCostLittleInTheCache(t *testing.T) {
	m := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "orders", Namespace: "shop", Labels: map[string]string{desired.LabelManagedBy: desired.Manager}}
	}
	words := strings.Repeat("x", 1<<20)
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: desired.Container, Image: "image:1", Env: []corev1.EnvVar{{Value: words}}}}}}
	for _, o := range []runtime.Object{
		&corev1.ConfigMap{ObjectMeta: m(), Data: map[string]string{"file": words}},
		&appsv1.Deployment{ObjectMeta: m(), Spec: appsv1.DeploymentSpec{Template: template}},
		&batchv1.Job{ObjectMeta: m(), Spec: batchv1.JobSpec{Template: template}},
		&corev1.Pod{ObjectMeta: m(), Spec: template.Spec},
	} {
		bytes := len(encode(t, transform(t, o)))
		need.That(t, bytes <= 1<<10, "%T: %d bytes are kept", o, bytes)
	}
}

// A pod template of a user's that is too large takes no memory.
func TestTemplatesThatAreTooLargeAreNotKept(t *testing.T) {
	large := func() json.RawMessage {
		return json.RawMessage(`{"spec":{"nodeName":"` + strings.Repeat("x", 1<<20) + `"}}`)
	}
	db := spec.Outbox{Migration: &spec.Migration{PodTemplate: large()}, ReplayLogin: &spec.ReplayLogin{PodTemplate: large()}}
	for _, o := range []runtime.Object{
		&v1alpha1.OutboxDispatcher{Spec: spec.Dispatcher{Pods: spec.Pods{Template: large()}}},
		&v1alpha1.Outbox{Spec: db},
	} {
		bytes := len(encode(t, transform(t, o)))
		need.That(t, bytes <= 4<<10, "%T: %d bytes are kept", o, bytes)
	}
}

// A spec that is too large takes no memory, and keeps what a stop needs.
func TestSpecsThatAreTooLargeAreNotKept(t *testing.T) {
	obd := &v1alpha1.OutboxDispatcher{Spec: spec.Dispatcher{Replicas: ptr.To[int32](0), State: spec.Paused, Topics: []string{"orders"}}}
	for range 5 {
		obd.Spec.Message.Validation = append(obd.Spec.Message.Validation, spec.Validation{Schema: &spec.PayloadSchema{Inline: strings.Repeat("x", 64<<10)}})
	}
	kept := transform(t, obd).(*v1alpha1.OutboxDispatcher)
	bytes := len(encode(t, kept))
	need.That(t, bytes <= 4<<10, "%d bytes are kept", bytes)
	if !strings.Contains(desired.SpecTooLarge(kept), " have 32") || *kept.Spec.Replicas != 0 || kept.Spec.State != spec.Paused || len(kept.Spec.Topics) != 1 {
		t.Errorf("got %+v, %q", kept.Spec, desired.SpecTooLarge(kept))
	}
}

// transform is what the cache keeps. It checks that the cache keeps the same of that: client-go transforms twice.
func transform(t *testing.T, o runtime.Object) any {
	t.Helper()
	for kind, options := range cacheOptions(nil, nil).ByObject {
		if reflect.TypeOf(kind) != reflect.TypeOf(o) {
			continue
		}
		once, err := options.Transform(o.DeepCopyObject())
		need.OK(t, err)
		text := encode(t, once)
		twice, err := options.Transform(once)
		need.OK(t, err)
		need.Want(t, text, "%T: transformed twice it is another:\n%.500s\n%.500s", encode(t, twice), o, text)
		return twice
	}
	t.Fatalf("%T is not transformed", o)
	return nil
}

func encode(t *testing.T, o any) string {
	t.Helper()
	b, err := json.Marshal(o)
	need.OK(t, err)
	return string(b)
}

func TestReadyWhileTheManagerWorks(t *testing.T) {
	running := func(seconds float64) func() ([]*dto.MetricFamily, error) {
		name := "workqueue_longest_running_processor_seconds"
		return func() ([]*dto.MetricFamily, error) {
			return []*dto.MetricFamily{{Name: &name, Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: &seconds}}}}}, nil
		}
	}
	yes := func(context.Context) bool { return true }
	for name, c := range map[string]struct {
		health *health
		fails  bool
		want   string
	}{
		"works":           {health: &health{synced: yes, metrics: running(59)}},
		"not synced":      {health: &health{synced: func(context.Context) bool { return false }, metrics: running(0)}, want: "the caches are not filled"},
		"silent at first": {health: &health{synced: yes, metrics: running(0)}, fails: true, want: "connection refused"},
		"silent":          {health: &health{synced: yes, metrics: running(0), reached: time.Now().Add(-2 * silentFor)}, fails: true, want: "has not responded for 1m0s"},
		"silent a moment": {health: &health{synced: yes, metrics: running(0), reached: time.Now().Add(-silentFor / 2)}, fails: true},
		"hangs":           {health: &health{synced: yes, metrics: running(301)}, want: "a pass takes more than 5m0s"},
	} {
		h := c.health
		h.reach = func(context.Context) error {
			if c.fails {
				return errors.New("connection refused")
			}
			return nil
		}
		h.tryToReach(t.Context())
		got := ""
		if err := h.check(httptest.NewRequest(http.MethodGet, "/readyz", nil)); err != nil {
			got = err.Error()
		}
		need.That(t, strings.Contains(got, c.want) && (c.want == "") == (got == ""), "%s: %q, want %q", name, got, c.want)
	}
}
