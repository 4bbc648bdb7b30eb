package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	gort "runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// hostileMeta is metadata as large as the API server takes.
func hostileMeta() metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: "orders", Namespace: "shop", Labels: map[string]string{"team": "shop"}, Annotations: map[string]string{},
		OwnerReferences: []metav1.OwnerReference{{Kind: "Deployment", Name: "orders", UID: "1", Controller: ptr.To(true)}}}
	for _, key := range slices.Concat(ownLabels, ownAnnotations) {
		m.Labels[key], m.Annotations[key] = "orders", strings.Repeat("x", 60<<10)
	}
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
	for _, o := range []client.Object{
		&corev1.ConfigMap{ObjectMeta: hostileMeta(), Data: map[string]string{"state": words, "file": words}, BinaryData: map[string][]byte{"b": []byte(words)}},
		&corev1.ServiceAccount{ObjectMeta: hostileMeta(), Secrets: []corev1.ObjectReference{{Name: words}}},
		&networkingv1.NetworkPolicy{ObjectMeta: hostileMeta(), Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: hostileMeta().Labels}}},
		&policyv1.PodDisruptionBudget{ObjectMeta: hostileMeta(), Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: hostileMeta().Labels}}},
		&appsv1.Deployment{ObjectMeta: hostileMeta(), Spec: appsv1.DeploymentSpec{Paused: true, Template: template}, Status: appsv1.DeploymentStatus{Conditions: []appsv1.DeploymentCondition{{Message: words}}}},
		&appsv1.ReplicaSet{ObjectMeta: hostileMeta(), Spec: appsv1.ReplicaSetSpec{Template: template}},
		&batchv1.Job{ObjectMeta: hostileMeta(), Spec: batchv1.JobSpec{Suspend: ptr.To(true), Template: template}, Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Message: words}}}},
		&corev1.Pod{ObjectMeta: hostileMeta(), Spec: template.Spec, Status: corev1.PodStatus{ContainerStatuses: hostileStatuses(), InitContainerStatuses: hostileStatuses(), Conditions: []corev1.PodCondition{{Message: words}}}},
	} {
		kept := transform(o)
		name := fmt.Sprintf("%T", o)
		bytes := len(encode(t, kept))
		need.That(t, bytes <= 5<<10 || name == "*v1.Pod" && bytes <= 40<<10, "%s: %d bytes are kept", name, bytes)
		labels := kept.GetLabels()
		need.That(t, kept.GetName() == "orders" && kept.GetNamespace() == "shop" && labels[desired.LabelDispatcher] == "orders" && labels["team"] == "shop" && metav1.GetControllerOf(kept) != nil,
			"%s: what finds it is lost: %+v", name, labels)
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

// A large spec takes no memory. What a stop and others read of it stays, and whoever needs the whole sees that it is a part.
func TestLargeSpecsAreNotKept(t *testing.T) {
	large := json.RawMessage(`{"spec":{"nodeName":"` + strings.Repeat("x", maxSpecBytes) + `"}}`)
	topics := []string{"orders", strings.Repeat("ä", 255)}
	obd := &v1alpha1.OutboxDispatcher{ObjectMeta: hostileMeta(), Spec: spec.Dispatcher{Replicas: ptr.To[int32](0), State: spec.Paused, Topics: topics, Pods: spec.Pods{Template: large}}}
	obd.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "hpa", Subresource: "scale"}, {Manager: strings.Repeat("x", 1<<20)}}
	outbox := &v1alpha1.Outbox{Spec: spec.Outbox{Retention: spec.Retention{Delivered: new(spec.Duration(time.Hour))}, Migration: &spec.Migration{PodTemplate: large}}}
	replay := &v1alpha1.DeadLetterReplay{Spec: spec.Replay{Selector: spec.DeadLetterSelector{IDs: slices.Repeat([]string{"8c9f3f0e-4f9e-4f8e-9e0e-0e0e0e0e0e0e"}, 1000)}}}
	for _, o := range []client.Object{obd, outbox, replay} {
		kept := transform(o)
		bytes := len(encode(t, kept))
		need.That(t, bytes <= 4<<10 && kept.GetAnnotations()[desired.AnnotationPart] != "", "%T: %d bytes are kept of %v", o, bytes, kept.GetAnnotations())
		switch kept := kept.(type) {
		case *v1alpha1.OutboxDispatcher:
			is := kept.Spec
			need.That(t, *is.Replicas == 0 && is.State == spec.Paused && is.Topics[0] == "orders" && is.Topics[1] == desired.ShortTopic(topics[1]) && kept.Annotations[desired.AnnotationScaledBy] == "hpa", "got %+v of %v", is, kept.Annotations)
		case *v1alpha1.Outbox:
			need.That(t, kept.Spec.Retention.Delivered.D() == time.Hour, "the retention is lost")
		}
	}
	small := transform(&v1alpha1.OutboxDispatcher{Spec: spec.Dispatcher{Pods: spec.Pods{Template: json.RawMessage(`{}`)}}}).(*v1alpha1.OutboxDispatcher)
	need.That(t, len(small.Spec.Pods.Template) > 0 && small.Annotations == nil, "a small spec is not kept whole: %+v", small)
}

// transform is what the cache keeps.
func transform(o client.Object) client.Object {
	_, s := limit(cacheOptions(nil, nil, []string{"team"}), 0)
	return s.transform(o.DeepCopyObject().(client.Object))
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

// watchedKind is what the informer of a type has of the shares.
func watchedKind(o client.Object, share int64) (*shares, *kind) {
	_, s := limit(cacheOptions(nil, nil, nil), share)
	return s, s.kindOf(o)
}

// An object is left out while its namespace has no room, and the number of those that are left out is right whatever comes.
func TestWhatHasNoRoomIsLeftOut(t *testing.T) {
	const labelled = 16 << 10 / 3 * 2
	s, k := watchedKind(&corev1.ConfigMap{}, 16<<10)
	jobs := s.kindOf(&batchv1.Job{})
	object := func(namespace, name string, size int) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: strings.Repeat("1", size)}}
	}
	large := labelled/2 - 1500
	for i, step := range []struct {
		event      watch.EventType
		namespace  string
		name       string
		size       int
		want       watch.EventType
		left       int
		room, full bool
	}{
		{watch.Added, "shop", "a", large, watch.Added, 0, false, false},
		{watch.Added, "shop", "b", large, watch.Added, 0, false, false},
		{watch.Added, "shop", "c", large, watch.Deleted, 1, false, true},
		{watch.Modified, "shop", "c", large, watch.Deleted, 1, false, true},
		{watch.Bookmark, "shop", "z", large, watch.Bookmark, 1, false, true},
		{watch.Added, "post", "a", large, watch.Added, 1, false, true},         // another has room
		{watch.Modified, "shop", "a", large, watch.Modified, 1, false, true},   // it is counted once
		{watch.Modified, "shop", "a", 4 * large, watch.Deleted, 2, true, true}, // it has grown, and what is left out is listed again
		{watch.Modified, "shop", "c", large, watch.Modified, 1, false, true},
		{watch.Deleted, "shop", "a", 1, watch.Deleted, 0, false, false}, // it was left out
		{watch.Added, "shop", "d", large, watch.Deleted, 1, false, true},
		{watch.Deleted, "shop", "b", 1, watch.Deleted, 1, true, true}, // it was kept
		{watch.Deleted, "shop", "c", 1, watch.Deleted, 1, true, true},
		{watch.Deleted, "shop", "d", 1, watch.Deleted, 0, false, false},
	} {
		e := k.event(watch.Event{Type: step.event, Object: object(step.namespace, step.name, step.size)})
		in := k.spaces["shop"]
		if in == nil {
			in = &space{}
		}
		if e.Type != step.want || in.left != step.left || k.room() != step.room || s.crowded("shop") != step.full || jobs.room() {
			t.Errorf("step %d: %s, %d are left out, room %v, full %v; want %+v", i, e.Type, in.left, k.room(), s.crowded("shop"), step)
		}
	}
	k.event(watch.Event{Type: watch.Deleted, Object: object("post", "a", 1)})
	need.That(t, len(k.spaces) == 0 && len(s.bytes) == 0, "namespaces without objects are remembered: %v %v", k.spaces, s.bytes)
}

// A list keeps what has room, and begins again: what was counted before it is listed again.
func TestAListKeepsWhatHasRoom(t *testing.T) {
	s, k := watchedKind(&v1alpha1.Outbox{}, 3*3*ownBytes)
	for range 2 {
		list := &v1alpha1.OutboxList{}
		for i := range 3 + reportedOf + 10 {
			list.Items = append(list.Items, v1alpha1.Outbox{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("o", i)}})
		}
		k.begin()
		need.That(t, len(s.bytes) == 0, "begun with %v", s.bytes)
		need.OK(t, k.list(list))
		need.That(t, len(list.Items) == 3 && k.spaces["shop"].left == reportedOf+10 && !s.crowded("shop") && !k.room(), "%d are kept, %+v", len(list.Items), k.spaces["shop"])
		need.Want(t, reportedOf, "%d are reported, want %d", len(s.reports))
		for len(s.reports) > 0 {
			<-s.reports
		}
	}
}

// Until a list has ended its namespace stays as full as it was, and then what was left out of it is heard of with the list's
// version, for which reads after a write wait.
func TestAfterAListItsVersionIsHeard(t *testing.T) {
	s, k := watchedKind(&corev1.ConfigMap{}, 2<<10) // one has room
	object := func(name, version string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, ResourceVersion: version}}
	}
	ended := object("", "9")
	ended.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	for _, streams := range []bool{true, true, false, false} {
		from, version := watch.NewFakeWithChanSize(9, false), "9"
		want := []string{"ADDED a 1", "DELETED b 2", "BOOKMARK  8", "BOOKMARK  9", "DELETED b 9", "DELETED c 10"}
		was := s.crowded("shop")
		k.begin()
		need.That(t, s.crowded("shop") == was, "the namespace was full: %v, and is not while it is listed", was)
		if streams {
			version = ""
			from.Add(object("a", "1"))
			from.Add(object("b", "2"))
			from.Action(watch.Bookmark, object("", "8"))
			from.Action(watch.Bookmark, ended)
		} else {
			need.OK(t, k.list(&corev1.ConfigMapList{Items: []corev1.ConfigMap{*object("a", "1"), *object("b", "2")}}))
			want = want[4:]
		}
		from.Add(object("c", "10"))
		from.Delete(object("c", "11"))
		from.Stop()
		var heard []string
		for e := range k.follow(from, version).ResultChan() {
			at := e.Object.(client.Object)
			heard = append(heard, fmt.Sprint(e.Type, " ", at.GetName(), " ", at.GetResourceVersion()))
		}
		need.WantAll(t, append(want, "DELETED c 11"), "heard %q, want %q", heard)
		need.That(t, s.crowded("shop") && k.spaces["shop"].left == 1, "%+v", k.spaces["shop"])
	}
	synctest.Test(t, func(*testing.T) { // a watch that is stopped ends, and waits for no reader
		from := watch.NewFakeWithChanSize(1, false)
		from.Add(object("c", "12"))
		w := k.follow(from, "")
		synctest.Wait()
		w.Stop()
	})
	k.begin()
	need.OK(t, k.list(&corev1.ConfigMapList{}))
	need.That(t, len(k.spaces) == 0 && len(s.bytes) == 0, "namespaces without objects are remembered: %v %v", k.spaces, s.bytes)
}

// A report reads the object: that of the event is the informer's, and another operator may hold it by now.
func TestAReportReadsTheObject(t *testing.T) {
	scheme := runtime.NewScheme()
	need.OK(t, v1alpha1.AddToScheme(scheme))
	for holder, written := range map[string]bool{"": true, "own": true, "other": false, "none": false} {
		s, k := watchedKind(&v1alpha1.Outbox{}, 0)
		o := &v1alpha1.Outbox{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}}
		builder := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(o)
		if now := o.DeepCopy(); holder != "none" {
			now.Status.Operator = holder
			builder.WithObjects(now)
		}
		cl := builder.Build()
		k.event(watch.Event{Type: watch.Added, Object: o})
		before := o.DeepCopy()
		need.OK(t, (<-s.reports)(t.Context(), &kstatus.Reporter{Client: cl, Live: cl, Operator: "own", Events: events.NewFakeRecorder(1)}))
		need.That(t, reflect.DeepEqual(before, o), "held by %q: the object of the event is changed: %+v", holder, o)
		now := &v1alpha1.Outbox{}
		need.OK(t, client.IgnoreNotFound(cl.Get(t.Context(), client.ObjectKeyFromObject(o), now)))
		need.That(t, written == (meta.FindStatusCondition(now.Status.Conditions, v1alpha1.StalledCondition) != nil), "held by %q: %+v", holder, now.Status)
	}
}

// What an object counts is near to what it takes, for each kind of the cache, whatever is in it.
func TestObjectsCountAsMuchAsTheyTake(t *testing.T) {
	for o, options := range cacheOptions(nil, nil, nil).ByObject {
		made := reflect.New(reflect.TypeOf(o).Elem()).Interface().(client.Object)
		made.SetLabels(hostileMeta().Labels)
		made.SetAnnotations(hostileMeta().Annotations)
		made.SetName("orders")
		switch made := made.(type) {
		case *v1alpha1.OutboxDispatcher:
			for i := range 256 {
				made.Spec.Topics = append(made.Spec.Topics, fmt.Sprintf("%0255d", i))
			}
		case *corev1.Pod:
			made.Spec, made.Status.ContainerStatuses = hostileTemplate().Spec, hostileStatuses()
		case *appsv1.Deployment:
			made.Spec.Template = hostileTemplate()
		}
		_, err := options.Transform(made)
		need.OK(t, err)
		const copies = 50
		kept := make([]runtime.Object, copies)
		text := encode(t, made)
		heap := func() int64 {
			var is gort.MemStats
			gort.GC() // what a pool holds is garbage to the second
			gort.GC()
			gort.ReadMemStats(&is)
			return int64(is.HeapAlloc)
		}
		before := heap()
		for i := range kept {
			kept[i] = reflect.New(reflect.TypeOf(o).Elem()).Interface().(runtime.Object)
			need.OK(t, json.Unmarshal([]byte(text), kept[i])) // a copy would share the strings
		}
		takes, counts := (heap()-before)/copies, bytesOf(reflect.ValueOf(kept[0]))
		need.That(t, counts > takes*2/3 && counts < takes*4/3, "%T: it takes %d bytes, and counts %d", o, takes, counts)
		gort.KeepAlive(kept)
	}
}
