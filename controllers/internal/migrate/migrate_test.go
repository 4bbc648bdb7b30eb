package migrate

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func TestMigrationRunsWhenItsPlanSays(t *testing.T) {
	now := time.Now()
	job := func(hash string, attempt int, ended batchv1.JobConditionType, ago time.Duration) batchv1.Job {
		j := batchv1.Job{ObjectMeta: metav1.ObjectMeta{
			Name:        hash + strconv.Itoa(attempt),
			Labels:      map[string]string{desired.LabelMigration: hash},
			Annotations: map[string]string{desired.AnnotationAttempt: strconv.Itoa(attempt)},
		}}
		if ended != "" {
			j.Status.Conditions = []batchv1.JobCondition{{Type: ended, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-ago))}}
		}
		return j
	}
	for name, c := range map[string]struct {
		jobs     []batchv1.Job
		hash     string
		state    State
		attempt  int
		remove   string
		explains string
		retry    time.Duration
	}{
		"none wanted":          {hash: ""},
		"none wanted any more": {jobs: []batchv1.Job{job("a", 1, "", 0)}, hash: "", remove: "a1"},
		"first":                {hash: "a", state: Running, attempt: 1},
		"running":              {jobs: []batchv1.Job{job("a", 1, "", 0)}, hash: "a", state: Running, explains: "a1"},
		"done":                 {jobs: []batchv1.Job{job("a", 1, batchv1.JobComplete, time.Hour)}, hash: "a", state: Succeeded, explains: "a1"},
		"failed just now":      {jobs: []batchv1.Job{job("a", 1, batchv1.JobFailed, 4*time.Second)}, hash: "a", state: Failed, explains: "a1", retry: 6 * time.Second},
		"failed long ago":      {jobs: []batchv1.Job{job("a", 1, batchv1.JobFailed, 10*time.Second)}, hash: "a", state: Failed, attempt: 2, explains: "a1"},
		"the third waits longer": {jobs: []batchv1.Job{job("a", 3, batchv1.JobFailed, 10*time.Second), job("a", 2, batchv1.JobFailed, time.Minute)}, hash: "a",
			state: Failed, remove: "a2", explains: "a3", retry: 30 * time.Second},
		"runs again": {jobs: []batchv1.Job{job("a", 3, "", 0), job("a", 2, batchv1.JobFailed, time.Minute), job("a", 1, batchv1.JobFailed, time.Hour)}, hash: "a",
			state: Failed, remove: "a1", explains: "a2"},
		"done at last":       {jobs: []batchv1.Job{job("a", 2, batchv1.JobComplete, 0), job("a", 1, batchv1.JobFailed, 0)}, hash: "a", state: Succeeded, remove: "a1", explains: "a2"},
		"another is wanted":  {jobs: []batchv1.Job{job("a", 2, batchv1.JobFailed, 0)}, hash: "b", state: Running, attempt: 1, remove: "a2"},
		"another was wanted": {jobs: []batchv1.Job{job("a", 1, batchv1.JobComplete, 0), job("b", 1, "", 0)}, hash: "b", state: Running, remove: "a1", explains: "b1"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := planFor(c.jobs, c.hash, now)
			var removed []string
			for _, j := range plan.remove {
				removed = append(removed, j.Name)
			}
			explains := ""
			if plan.explains != nil {
				explains = plan.explains.Name
			}
			need.That(t, plan.State == c.state && plan.attempt == c.attempt && strings.Join(removed, " ") == c.remove && explains == c.explains && plan.Retry == c.retry,
				"plan %+v, removes %v; want %+v", plan, removed, c)
		})
	}
}

func TestRetriesWaitLongerEachTime(t *testing.T) {
	for attempt, want := range map[int]time.Duration{1: 10 * time.Second, 2: 20 * time.Second, 5: 160 * time.Second, 6: 5 * time.Minute, 1000: 5 * time.Minute} {
		need.Want(t, want, "after attempt %d: %s, want %s", RetryDelay(attempt), attempt)
	}
}

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
	runs.UID, runs.Status.Conditions, runs.CreationTimestamp = "a", nil, metav1.Now()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a-1", Labels: map[string]string{batchv1.JobNameLabel: "a", batchv1.ControllerUidLabel: "a"}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	waits := func(pod *corev1.Pod) *corev1.Pod {
		pod = pod.DeepCopy()
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Image: "x", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}}
		return pod
	}
	failed := job("before", "wanted", "orders")
	failed.Status.Conditions[0].Type, failed.Status.Conditions[0].Reason = batchv1.JobFailed, batchv1.JobReasonDeadlineExceeded
	ended := job("a", "wanted", "orders")
	ended.UID, ended.Status.Conditions[0].Type, ended.Status.Conditions[0].LastTransitionTime = "a", batchv1.JobFailed, metav1.Now()
	refused := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "refused"}, Reason: "FailedCreate", InvolvedObject: corev1.ObjectReference{UID: "a"}, Message: "quota"}
	hadPod := ended.DeepCopy()
	hadPod.Status.Failed = 1
	unseen := pod.DeepCopy()
	unseen.Name, unseen.Status = "unseen", corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{
		{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "no such host"}}}}}
	reader := func(objects ...client.Object) client.Client {
		return fake.NewClientBuilder().WithObjects(objects...).WithIndex(&corev1.Event{}, "reason", func(o client.Object) []string { return []string{o.(*corev1.Event).Reason} }).
			WithIndex(&corev1.Event{}, "involvedObject.uid", func(o client.Object) []string { return []string{string(o.(*corev1.Event).InvolvedObject.UID)} }).Build()
	}
	const retried = " It is tried again by itself, and at once when the spec changes; see `kubectl logs -l outbox.dev/component=migration,outbox.dev/outbox=orders`."
	runs.Annotations = map[string]string{desired.AnnotationAttempt: "2"}
	const unmade = "The migration Job of Outbox orders is not made yet; the conditions of Outbox orders say why."
	long := runs.DeepCopy()
	long.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	for name, c := range map[string]struct {
		jobs    []client.Object
		due     bool
		removes int
		done    bool
		says    string
	}{
		"none":             {nil, true, 0, false, unmade},
		"a strangers":      {[]client.Object{job("a", "wanted", "stranger"), job("b", "old", "stranger")}, true, 0, false, unmade},
		"its own":          {[]client.Object{job("a", "wanted", "orders"), job("b", "old", "orders")}, false, 1, true, ""},
		"it runs":          {[]client.Object{runs, pod}, false, 0, false, "The migration Job of Outbox orders is under way."},
		"it runs for long": {[]client.Object{long, pod}, false, 0, false, "The migration Job of Outbox orders is under way."},
		"it waits":         {[]client.Object{runs, waits(pod)}, false, 0, false, `The migration of Outbox orders waits: The image "x" cannot be pulled; check its name and the pull secrets.`},
		"it hangs again":   {[]client.Object{failed, runs, waits(pod)}, false, 0, false, `The migration of Outbox orders failed: The image "x" cannot be pulled; check its name and the pull secrets.` + retried},
		"it had no pod":    {[]client.Object{ended, refused}, false, 0, false, "The migration of Outbox orders failed: Its pod cannot be created: quota." + retried},
		"its pod failed":   {[]client.Object{hadPod, refused}, false, 0, false, "The migration of Outbox orders failed." + retried},
		"pod unseen":       {[]client.Object{hadPod, unseen}, false, 0, false, "The migration of Outbox orders failed: no such host." + retried},
	} {
		cached := slices.DeleteFunc(slices.Clone(c.jobs), func(o client.Object) bool { return o.GetName() == "unseen" })
		r := &Runner{Client: reader(cached...), Live: reader(c.jobs...), Mounts: pods.NewMounts(nil)}
		due, err := r.Due(t.Context(), owner, wanted)
		need.That(t, err == nil && due == c.due, "%s: due %v, %v; want %v", name, due, err, c.due)
		if p, err := r.plan(t.Context(), owner, wanted); err != nil || len(p.remove) != c.removes || (p.State == Succeeded) != c.done {
			t.Errorf("%s: %d are removed, state %s, %v", name, len(p.remove), p.State, err)
		}
		m, err := r.Look(t.Context(), owner, wanted)
		need.That(t, m.Late == (name == "it hangs again"), "%s: late %v", name, m.Late)
		if err != nil || !c.done && m.Sentence() != c.says {
			t.Errorf("%s: the sentence is %q, %v; want %q", name, m.Sentence(), err, c.says)
		}
	}
}
