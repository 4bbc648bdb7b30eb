package outboxdispatcher

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/apply"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/observe"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pace"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
	"github.com/outbox-operator/outbox-operator/controllers/internal/scaling"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// The newest run that ended is reported, and one that removed nothing only after some minutes.
// CONTRACT: C-3, C-60
func TestStatusHasTheNewestRetentionRun(t *testing.T) {
	var s api.OutboxDispatcherStatus
	run := func(at time.Duration, delivered int64) status.Status {
		return status.Status{Retention: &status.Retention{RetentionTotals: status.RetentionTotals{LastRun: status.At(time.Unix(1000, 7).Add(at)), NextRun: status.At(time.Unix(2000, 7).Add(at)), Delivered: delivered}}}
	}
	setRetention(&s, []status.Status{{}, {Retention: &status.Retention{Running: true}}})
	need.That(t, s.Retention == nil, "before the first run it says %+v", s.Retention)
	setRetention(&s, []status.Status{run(0, 5), run(time.Minute, 7), run(-time.Minute, 3)})
	need.That(t, s.Retention != nil && s.Retention.Delivered == 7 && s.Retention.LastRun == 1060 && s.Retention.NextRun == 2060, "it says %+v, want the newest run", s.Retention)
	for after, want := range map[time.Duration]status.Time{-time.Hour: 1060, staleAfter - time.Second: 1060, staleAfter: 1060 + status.Time(staleAfter.Seconds())} {
		idle := spec.Copy(s)
		setRetention(&idle, []status.Status{run(time.Minute+after, 7)})
		need.That(t, idle.Retention.LastRun == want, "an idle run %s later: it says %+v", after, idle.Retention)
	}
	setRetention(&s, nil)
	setRetention(&s, []status.Status{run(2*time.Minute, 8)})
	need.That(t, s.Retention.Delivered == 8, "after a run that removed something it says %+v", s.Retention)
	later := run(3*time.Minute, 8)
	for ahead, want := range map[time.Duration]status.Time{time.Minute: 1240, time.Hour: 1180} {
		s.Retention.LastRun = status.At(time.Unix(1180, 0).Add(ahead))
		later.Backlog = &status.Backlog{ObservedAt: time.Unix(1180, 0)}
		setRetention(&s, []status.Status{later})
		need.That(t, s.Retention.LastRun == want, "a run that ended with the clock ahead by %s: it says %+v", ahead, s.Retention)
	}
}

// The version is the highest that pods report now: after a restore it is a lower one. It stays when none reports one.
func TestSetSchemaVersion(t *testing.T) {
	var s api.OutboxDispatcherStatus
	for _, test := range []struct {
		reported []int
		want     int64
	}{{[]int{5, 6}, 6}, {[]int{0, 5}, 5}, {[]int{0}, 5}, {nil, 5}} {
		var pods []status.Status
		for _, version := range test.reported {
			pods = append(pods, status.Status{Schema: status.Schema{Version: version}})
		}
		if setSchemaVersion(&s, pods); *s.SchemaVersion != test.want {
			t.Errorf("pods report %d, and the version is %d, want %d", test.reported, *s.SchemaVersion, test.want)
		}
	}
}

func TestStatusHasTheCountsOfThePods(t *testing.T) {
	var s api.OutboxDispatcherStatus
	a, b := podStatus(), podStatus()
	a.Backlog = &status.Backlog{ObservedAt: time.Unix(10, 0), Counts: status.Counts{Pending: 1, Dead: 2}}
	b.Backlog = &status.Backlog{ObservedAt: time.Unix(20, 5), Counts: status.Counts{Pending: 3, Estimated: true, OldestPending: status.At(time.Unix(7, 9))}}
	setCounts(&s, observe.NewestBacklog([]status.Status{b, a}), false)
	need.That(t, s.Pending == 3 && s.Dead == 0 && s.Estimated && s.OldestPending == 7 && s.ObservedTime.Unix() == 20, "counts %+v, want those of the newest", s)
	before := spec.Copy(s)
	b.Backlog.ObservedAt = time.Unix(30, 0)
	setCounts(&s, b.Backlog, false)
	setCounts(&s, nil, false)
	need.That(t, equal(before, s), "counts %+v, want them unchanged: %+v", s, before)
	for after, want := range map[time.Duration]time.Duration{staleAfter - time.Second: 0, staleAfter: staleAfter} {
		late := s
		b.Backlog.ObservedAt = time.Unix(20, 0).Add(after)
		setCounts(&late, b.Backlog, false)
		need.That(t, late.ObservedTime.Sub(s.ObservedTime.Time) == want, "%s later: observed at %s, was %s", after, late.ObservedTime, s.ObservedTime)
	}
	b.Backlog.ObservedAt = time.Unix(30, 0)
	b.Backlog.OldestPending = 0
	setCounts(&s, b.Backlog, false)
	need.That(t, s.OldestPending == 0 && s.ObservedTime.Unix() == 30, "counts %+v, want no oldest, as of the newest time", s)
	b.Backlog.BlockedKeys = 4
	if setCounts(&s, b.Backlog, false); s.BlockedKeys != nil {
		t.Errorf("blocked keys %d of a dispatcher that blocks none", *s.BlockedKeys)
	}
	setCounts(&s, b.Backlog, true)
	need.That(t, s.BlockedKeys != nil && *s.BlockedKeys == 4, "blocked keys %v, want 4", s.BlockedKeys)
	setCounts(&s, nil, true)
	need.That(t, s.BlockedKeys != nil, "the count was removed when no pod responded")
	setCounts(&s, nil, false)
	need.That(t, s.BlockedKeys == nil, "the count stayed when keys block no more")
}

// The status says since when events are later than the objective, once: another event that is late changes nothing.
// CONTRACT: C-98
func TestStatusSaysSinceWhenItIsLate(t *testing.T) {
	obd := &api.OutboxDispatcher{Spec: spec.Dispatcher{Replicas: ptr.To[int32](1), Objective: spec.Objective{Freshness: spec.Duration(time.Minute)}}}
	count := func(at, oldest int64) *status.Backlog {
		return &status.Backlog{ObservedAt: time.Unix(at, 0), Counts: status.Counts{OldestPending: status.Time(oldest)}}
	}
	var s api.OutboxDispatcherStatus
	for _, test := range []struct {
		what  string
		count *status.Backlog
		want  status.Time
	}{
		{"nothing waits", count(1000, 0), 0},
		{"an event waits for a minute", count(1000, 940), 0},
		{"an event waits for longer", count(1001, 940), 1000},
		{"another is late", count(1200, 1100), 1000},
		{"no pod responds", nil, 1000},
		{"all were delivered", count(1200, 1190), 0},
		{"late again", count(1300, 1190), 1250},
	} {
		setLate(&s, test.count, obd)
		need.Want(t, test.want, test.what+": late since %d, want %d", s.LateSince)
	}
	paused, none := spec.Copy(obd), spec.Copy(obd)
	paused.Spec.State, none.Spec.Replicas = spec.Paused, new(int32)
	for _, stopped := range []*api.OutboxDispatcher{paused, none} {
		late := s
		setLate(&late, count(1300, 1190), stopped)
		need.Want(t, 0, "stopped: late since %d, want %d", late.LateSince)
	}
}

// The pods of two revisions may count other rows: those of the newest are believed, whichever counted last, once they have.
func TestCountsOfTheNewestRevision(t *testing.T) {
	o := running()
	rolling(func(s *status.Status) {
		s.Backlog = &status.Backlog{ObservedAt: time.Unix(5, 0), Counts: status.Counts{Pending: 5, Dead: 7}}
		s.Data = &status.Data{ObservedAt: time.Unix(5, 0), OrphanTopics: []status.OrphanTopic{{Namespace: o.obd.Spec.Namespace, Topic: "x", Unserved: 1}}}
	})(&o)
	o.statuses[0].Backlog.ObservedAt, o.statuses[0].Data.ObservedAt = time.Unix(9, 0), time.Unix(9, 0)
	check := func(when string, pending, dead int64) {
		t.Helper()
		var s api.OutboxDispatcherStatus
		setStatus(&s, o)
		present, healthy := meta.IsStatusConditionTrue(s.Conditions, api.DeadLettersPresentCondition), !meta.IsStatusConditionFalse(s.Conditions, api.DataHealthyCondition)
		need.That(t, s.Pending == pending && s.Dead == dead && present == (dead > 0) && healthy == (dead == 0) && sample(o, time.Now()).Pending == pending,
			"%s: %d pending, %d dead, DeadLettersPresent %v, DataHealthy %v", when, s.Pending, s.Dead, present, healthy)
	}
	check("the newest revision has counted", 5, 7)
	o.statuses[2].Backlog, o.statuses[2].Data = nil, nil
	check("it has not", 300, 0)
}

func TestFailureLeavesReadyAsItWas(t *testing.T) {
	var s api.OutboxDispatcherStatus
	kstatus.SetConditions(&s.Conditions, 1, conditions(well()))
	need.That(t, len(s.Conditions) == 6, "a healthy dispatcher has %d conditions, want 6: %v", len(s.Conditions), s.Conditions)
	before := meta.FindStatusCondition(s.Conditions, api.ReadyCondition).DeepCopy()
	kstatus.SetFailure(&s.Conditions, 2, api.ReadyCondition, errors.New("the server is down"))
	if got := meta.FindStatusCondition(s.Conditions, api.ReadyCondition); *got != *before {
		t.Errorf("Ready is %+v, want %+v: the operator's trouble is not the object's", got, before)
	}
	if got := meta.FindStatusCondition(s.Conditions, api.ReconcilingCondition); got == nil || !strings.Contains(got.Message, "the server is down") {
		t.Errorf("Reconciling is %+v, want the failure", got)
	}
	kstatus.SetConditions(&s.Conditions, 2, conditions(well()))
	if got := meta.FindStatusCondition(s.Conditions, api.ReconcilingCondition); got != nil {
		t.Errorf("Reconciling is %+v after a pass that went well, want none", got)
	}
	var fresh api.OutboxDispatcherStatus
	kstatus.SetFailure(&fresh.Conditions, 1, api.ReadyCondition, errors.New("the server is down"))
	if got := meta.FindStatusCondition(fresh.Conditions, api.ReadyCondition); got == nil || got.Status != metav1.ConditionUnknown {
		t.Errorf("Ready is %+v, want Unknown: it is always there", got)
	}
}

// A pass has made a step up, and its status is not written yet: the worker of the state reads the recommendation before, and
// does not apply that. CONTRACT: C-107
func TestAStepIsNotTakenBackBeforeTheStatusIsWritten(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, api.AddToScheme} {
		need.OK(t, add(scheme))
	}
	obd := &api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", UID: "orders"}}
	obd.Spec.State, obd.Spec.Pods.Scaling = spec.Running, &spec.Scaling{Mode: spec.ScalingApply, Min: 1, Max: 8}
	obd.Status = api.OutboxDispatcherStatus{Operator: "outbox-system", Scaling: &api.ScalingStatus{Recommended: 1}}
	meta := metav1.ObjectMeta{Namespace: "shop", Name: desired.Name(obd), OwnerReferences: []metav1.OwnerReference{
		*metav1.NewControllerRef(obd, api.GroupVersion.WithKind("OutboxDispatcher"))}}
	deployment := &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](5)}}
	state := &corev1.ConfigMap{ObjectMeta: meta, Data: desired.StateData(spec.Running)}
	state.Name = *desired.StateConfigMap(obd).Name
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(obd, deployment, state).Build()
	r := &Reconciler{Reporter: &kstatus.Reporter{Client: c, Operator: "outbox-system"}, cache: c, applied: apply.New(c, c, api.WorkloadAvailableCondition)}
	key := client.ObjectKeyFromObject(obd)
	r.scalers.all = map[types.NamespacedName]*scaling.Scaler{key: {Decision: scaling.Decision{Replicas: 5}}}

	need.OK(t, need.Err(r.reconcileState(t.Context(), ctrl.Request{NamespacedName: key})))
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment); err != nil || *deployment.Spec.Replicas != 5 {
		t.Errorf("%d replicas, want 5 (%v)", *deployment.Spec.Replicas, err)
	}
}

// rolling is a rollout whose new pod sees something else than those from before.
func rolling(change func(*status.Status)) func(*observed) {
	return func(o *observed) {
		o.pods, o.sets = append(o.pods, runningPod("c")), []types.UID{"old", "old", "new"}
		for i, set := range o.sets {
			o.pods[i].OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", UID: set, Controller: ptr.To(true)}}
			o.pods[i].CreationTimestamp = metav1.Unix([]int64{1, 9, 5}[i], 0) // the second was evicted, and made again
		}
		o.deployment.Status.Replicas, o.deployment.Status.UpdatedReplicas = 3, 1
		o.deployment.Status.Conditions[0].Reason = "ReplicaSetUpdated"
		fresh := podStatus()
		change(&fresh)
		o.statuses = append(o.statuses, fresh)
	}
}

// While some pods deliver, Ready is True, whatever others see. CONTRACT: C-101
func TestReadyDespiteTrouble(t *testing.T) {
	checkConditions(t, map[string]conditionsCase{
		"a new pod cannot log in": {rolling(func(s *status.Status) {
			s.Source, s.Schema.State = status.Link{State: status.Unreachable, Reason: "AuthenticationFailed", Message: "no"}, "Unknown"
		}), yes, api.ReasonDeliveringDespiteTrouble, []string{"SourceReachable=False/AuthenticationFailed", "WorkloadAvailable=False/PartlyAvailable", "Reconciling=True/AuthenticationFailed"}, nil},
		"a new pod finds an older schema": {rolling(func(s *status.Status) { s.Schema = status.Schema{State: "TooOld", Message: "migrate"} }),
			yes, api.ReasonDeliveringDespiteTrouble, []string{"SchemaReady=False/TooOld", "WorkloadAvailable=False/PartlyAvailable", "Reconciling=True/TooOld"}, nil},
		"a new pod has another destination, which is down": {rolling(func(s *status.Status) { s.Sink = down }),
			yes, api.ReasonDeliveringDespiteTrouble, []string{"SinkReachable=False/ConnectionFailed", "WorkloadAvailable=False/PartlyAvailable", "Reconciling=True/ConnectionFailed"}, nil},
		"the destination is down in a rollout": {func(o *observed) {
			rolling(func(s *status.Status) { s.Sink = down })(o)
			o.statuses[1].Sink = down
		}, no, api.ReasonConnectionFailed, nil, nil},
		"a new pod knows nothing yet": {rolling(func(s *status.Status) { *s = status.Status{} }),
			yes, api.ReasonDelivering, []string{"WorkloadAvailable=True/Available", "Reconciling=True/Progressing"}, nil},
		"a new pod's image cannot be pulled": {func(o *observed) {
			rolling(func(s *status.Status) { *s = status.Status{} })(o)
			o.statuses, o.sets = o.statuses[:2], o.sets[:2]
			o.pods[2].Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}}
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"WorkloadAvailable=False/PartlyAvailable", "Reconciling=True/ImagePullFailed"}, nil},
		"new pods refuse an expression": {func(o *observed) {
			o.problem = problem.Stalling(api.WorkloadAvailableCondition, api.ReasonInvalidPipeline, "x")
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"Stalled=True/InvalidPipeline", "WorkloadAvailable=False/InvalidPipeline"}, nil},
		"one of two pods cannot reach the database": {func(o *observed) { o.statuses[0].Source = down },
			yes, api.ReasonDeliveringDespiteTrouble, []string{"SourceReachable=False/ConnectionFailed", "WorkloadAvailable=True/Available"}, []string{"Reconciling"}},
		"the old pods see the database down, and the new one does not": {func(o *observed) {
			rolling(func(*status.Status) {})(o)
			o.statuses[0].Source, o.statuses[1].Source = down, down
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"SourceReachable=False/ConnectionFailed", "WorkloadAvailable=True/Available", "Reconciling=True/Progressing"}, nil},
		"the old pods see the destination down, and the new one does not": {func(o *observed) {
			rolling(func(*status.Status) {})(o)
			o.statuses[1].Sink = down // each pod of a revision has the same destination
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"SinkReachable=False/ConnectionFailed"}, nil},
		"two revisions of one second": {func(o *observed) {
			rolling(func(s *status.Status) { s.Source = down })(o)
			for i := range o.pods {
				o.pods[i].CreationTimestamp = metav1.Unix(1, 0)
			}
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"WorkloadAvailable=False/PartlyAvailable", "Reconciling=True/ConnectionFailed"}, nil},
		"a Secret is gone, and the database is down": {func(o *observed) {
			o.gone = problem.Waiting(api.ReferencesResolvedCondition, api.ReasonSecretNotFound, "x")
			o.statuses[0].Source, o.statuses[1].Source = down, down
		}, no, api.ReasonConnectionFailed, []string{"ReferencesResolved=False/SecretNotFound"}, nil},
		"a Secret is gone, and no pod can log in": {func(o *observed) {
			o.gone = problem.Waiting(api.ReferencesResolvedCondition, api.ReasonSecretNotFound, "x")
			o.statuses[0].Source = status.Link{State: status.Unreachable, Reason: "AuthenticationFailed"}
			o.statuses[1].Source = o.statuses[0].Source
		}, no, api.ReasonSecretNotFound, []string{"SourceReachable=False/AuthenticationFailed"}, nil},
		"no pod works: one misses the database, the other the schema": {func(o *observed) { o.statuses[0].Source, o.statuses[1].Schema.State = down, "TooOld" },
			no, api.ReasonConnectionFailed, nil, nil},
	})
}

// A rollout is Stalled at its deadline, for the cause that is known; that of a template before says nothing of the next one.
func TestDeadlineOfARollout(t *testing.T) {
	late := func(o *observed) {
		rolling(func(*status.Status) {})(o)
		o.deployment.Status.Conditions[0].Status, o.deployment.Status.Conditions[0].Reason = corev1.ConditionFalse, progressDeadlineExceeded
	}
	checkConditions(t, map[string]conditionsCase{
		"the reason is unknown": {late, yes, api.ReasonDeliveringDespiteTrouble, []string{"Stalled=True/ProgressDeadlineExceeded"}, []string{"Reconciling"}},
		"a Secret is missing": {func(o *observed) {
			late(o)
			o.missing = problem.Waiting(api.ReferencesResolvedCondition, api.ReasonSecretNotFound, "x")
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"Stalled=True/SecretNotFound"}, []string{"Reconciling"}},
		"a new pod is refused": {func(o *observed) {
			late(o)
			o.deployment.Status.Conditions = append(o.deployment.Status.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota"})
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"WorkloadAvailable=False/Unavailable", "Stalled=True/ProgressDeadlineExceeded"}, nil},
		"the spec was edited since": {func(o *observed) {
			late(o)
			o.deployment.Generation++
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"Reconciling=True/Progressing"}, []string{"Stalled"}},
	})
}

// A pod of a template before that refuses its files says nothing of the newest ones.
func TestPodsOfTheNewestTemplateRefuse(t *testing.T) {
	template := func(files string) corev1.PodSpec {
		return corev1.PodSpec{Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: files}}}}}}
	}
	d, pod := &appsv1.Deployment{}, corev1.Pod{Spec: template("new")}
	d.Spec.Template.Spec = template("new")
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: desired.Container, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: exitConfig, Message: "sink.kafka.brokers is missing"}}}}
	if p := refusal(d, []corev1.Pod{pod}, time.Now()); p == nil || p.Reason != api.ReasonInvalidConfiguration {
		t.Errorf("of the newest template: %+v", p)
	}
	pod.Spec = template("old")
	if p := refusal(d, []corev1.Pod{pod}, time.Now()); p != nil {
		t.Errorf("of a template before: %+v", p)
	}
}

// While pods may still claim, Ready does not say that nothing is claimed.
func TestPausingIsNotPausedWhilePodsClaim(t *testing.T) {
	o := well()
	o.obd.Spec.State = spec.Paused
	o.statuses[0].State, o.statuses[1].State = "Paused", "Paused"
	if c := ready(o, nil); !strings.HasPrefix(c.Message, "Nothing is claimed") {
		t.Errorf("paused: %q", c.Message)
	}
	o.statuses[1].State = "Running"
	if c := ready(o, nil); !strings.HasPrefix(c.Message, "Pods stop claiming") {
		t.Errorf("while one claims: %q", c.Message)
	}
}

// Each try of a ReplicaSet has another name for the pod, which no message may have.
func TestRefusedPodsAreReportedWithoutTheirNames(t *testing.T) {
	o := well()
	o.deployment.Status.Conditions = append(o.deployment.Status.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue,
		Message: `pods "orders-dispatcher-6d4cf56db6-x7k2p" is forbidden: exceeded quota: team`})
	const want = "Pods cannot be created: a pod is forbidden: exceeded quota: team."
	need.Want(t, want, "got %q, want %q", podsRefused(o.deployment))
}

// Topics that wait for a verified consumer are reported with their types, whichever pod holds them, and change neither what
// is said of the destination nor Ready. Those whose destination fails are reported first.
//
// CONTRACT: C-82
func TestTopicsThatWaitForAConsumer(t *testing.T) {
	o := well()
	o.statuses = append(o.statuses, o.statuses[0])
	o.statuses[0].Gated = []status.GatedTopic{{Topic: "refunds", EventType: "order.refunded"}}
	o.statuses[1].Gated = []status.GatedTopic{{Topic: "orders", EventType: ""}, {Topic: "refunds", EventType: "order.refunded", Waiting: 7}}
	find := func(kind string) metav1.Condition {
		t.Helper()
		for _, c := range conditions(o) {
			if c.Type == kind {
				return c
			}
		}
		t.Fatalf("no condition %s", kind)
		return metav1.Condition{}
	}
	c := find(api.TopicsPausedCondition)
	want := `: "orders" (no type, so for a consumer of *), "refunds" (type "order.refunded"). Make its evidence`
	need.That(t, c.Status == metav1.ConditionTrue && c.Reason == api.ReasonConsumersNotVerified && strings.Contains(c.Message, want), "%+v, want %s", c, want)
	for _, kind := range []string{api.ReadyCondition, api.SinkReachableCondition} {
		c := find(kind)
		need.That(t, c.Status == metav1.ConditionTrue, "%s is %s, %s", kind, c.Status, c.Message)
	}
	need.That(t, len(c.Message) <= 1000 && strings.Contains(c.Message, "`kubectl patch outboxconsumer NAME --type merge --patch-file FILE`"),
		"%d bytes: %s", len(c.Message), c.Message)
	o.statuses[1].GatedTopics = 5
	if c := find(api.TopicsPausedCondition); !strings.Contains(c.Message, `"order.refunded") and others.`) {
		t.Errorf("%s: want that there are more", c.Message)
	}
	o.statuses[0].PausedTopics = []status.PausedTopic{{Topic: "invoices", Link: status.Link{State: status.Refusing, Message: "no"}}}
	if c := find(api.TopicsPausedCondition); c.Reason != api.ReasonTopicsPaused || !strings.Contains(c.Message, `"invoices"`) || !strings.Contains(c.Message, "Some others wait for a verified consumer") {
		t.Errorf("%+v, want the topic whose destination fails", c)
	}
}

// Types are added to those that are known, once a day each, and go when no event has come for 30 days.
// CONTRACT: C-82
func TestSeenTypesAreForgottenAfter30Days(t *testing.T) {
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	at := func(days int) time.Time { return noon.Add(time.Duration(days) * 24 * time.Hour) }
	reported := func(eventType string, day int) status.Status {
		return status.Status{EventTypes: []status.EventType{{Type: eventType, LastSeen: status.At(at(day))}}}
	}
	text := func(all []status.EventType) (lines []string) {
		for _, seen := range all {
			lines = append(lines, seen.Type+" "+seen.LastSeen.Time().Format("01-02 15:04"))
		}
		return lines
	}
	seen := seenTypes(nil, []status.Status{reported("b", 0), reported("a", -1), reported("b", -1), reported("", 0), {}}, noon)
	if want := []string{"a 11-19 00:00", "b 11-20 00:00"}; !slices.Equal(text(seen), want) {
		t.Errorf("seen %v, want %v", text(seen), want)
	}
	if again := seenTypes(seen, nil, at(2)); !slices.Equal(text(again), text(seen)) {
		t.Errorf("without a status %v, want what was: %v", text(again), text(seen))
	}
	if later := seenTypes(seen, []status.Status{reported("b", 1)}, at(30)); !slices.Equal(text(later), []string{"b 11-21 00:00"}) {
		t.Errorf("a month later %v, want b alone", text(later))
	}
	for i := range 2 * status.EventTypesListed {
		seen = seenTypes(seen, []status.Status{reported(fmt.Sprintf("%03d", i), 0)}, noon)
	}
	if kept := text(seen); len(kept) != status.EventTypesListed || !slices.Contains(kept, "a 11-19 00:00") {
		t.Errorf("%d are kept: %v, want %d with those that were known", len(kept), kept, status.EventTypesListed)
	}
}

// What pods report reaches the status, and the condition in the same pass.
// CONTRACT: C-82
func TestTypesReachTheStatus(t *testing.T) {
	o := well()
	o.now = time.Now()
	o.statuses[0].EventTypes = []status.EventType{{Type: "order.placed", LastSeen: status.At(o.now)}}
	o.consumers = []*api.OutboxConsumer{{ObjectMeta: metav1.ObjectMeta{Name: "audit"}, Spec: api.OutboxConsumerSpec{EventTypes: []string{"payment.*"}}}}
	var s api.OutboxDispatcherStatus
	setStatus(&s, o)
	need.That(t, len(s.EventTypes) == 1 && s.EventTypes[0].Type == "order.placed", "event types %v", s.EventTypes)
	need.That(t, s.RespondingReplicas == 2 && s.Pods == "2/2", "%d pods respond, %s are ready", s.RespondingReplicas, s.Pods)
	for _, c := range s.Conditions {
		need.That(t, c.Type != api.TypesUnregisteredCondition || c.Reason == api.ReasonTypesUnregistered, "%+v", c)
	}
}

// An edit wakes the peers only when they look at what it changes: of a thousand dispatchers of one database each
// would wake all others.
func TestEditsWakePeersThatTheyConcern(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*api.OutboxDispatcher)
		want   bool
	}{
		"replicas":    {func(o *api.OutboxDispatcher) { o.Spec.Replicas = ptr.To[int32](7) }, false},
		"no replicas": {func(o *api.OutboxDispatcher) { o.Spec.Replicas = ptr.To[int32](0) }, true},
		"a pause":     {func(o *api.OutboxDispatcher) { o.Spec.State = spec.Paused }, true},
		"batchSize":   {func(o *api.OutboxDispatcher) { o.Spec.Delivery.BatchSize = 7 }, false},
		"the status":  {func(o *api.OutboxDispatcher) { o.Status.Pods = "1/1" }, false},
		"topics":      {func(o *api.OutboxDispatcher) { o.Spec.Topics = []string{"orders"} }, true},
		"namespace":   {func(o *api.OutboxDispatcher) { o.Spec.Namespace = "shop" }, true},
		"outboxRef":   {func(o *api.OutboxDispatcher) { o.Spec.OutboxRef, o.Spec.Database = &spec.OutboxRef{Name: "shop"}, nil }, true},
		"schema":      {func(o *api.OutboxDispatcher) { o.Spec.Database.Schema = "other" }, true},
		"its removal": {func(o *api.OutboxDispatcher) { o.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, true},
	} {
		before := &api.OutboxDispatcher{Spec: spec.Dispatcher{Database: &spec.DispatcherDatabase{}}}
		after := before.DeepCopy()
		c.change(after)
		need.Want(t, c.want, "%s: %v", concernsPeers(event.UpdateEvent{ObjectOld: before, ObjectNew: after}), name)
	}
	one, other := &api.OutboxDispatcher{}, &api.OutboxDispatcher{}
	one.Spec.OutboxRef, other.Spec.OutboxRef = &spec.OutboxRef{Name: "one"}, &spec.OutboxRef{Name: "other"}
	need.That(t, concernsPeers(event.UpdateEvent{ObjectOld: one, ObjectNew: other}), "another outboxRef: false")
}

// A turn is for pods that roll and for migrations: a standby needs none, a user who starts one does not wait, and pods of the
// newest template give theirs back. CONTRACT: C-102
func TestATurnIsForPodsThatRoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Reconciler{Pace: pace.New(fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build(), 1)}
		wanted := appsv1ac.Deployment("", "").WithAnnotations(map[string]string{desired.AnnotationTemplate: "v2"})
		migrates, starts := false, false
		expect := func(why, name, template string, replicas int32, want bool) {
			t.Helper()
			obd := &api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: spec.Dispatcher{Replicas: &replicas}}
			if starts {
				obd.Spec.Replicas = new(int32(1))
			}
			current := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{desired.AnnotationTemplate: template}}, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
			waits, err := r.queue(t.Context(), obd, current, wanted, migrates)
			need.That(t, err == nil && waits == want, "%s: waits %v, want %v (%v)", why, waits, want, err)
		}
		expect("the first", "a", "v1", 1, false)
		expect("the second", "b", "v1", 1, true)
		expect("a standby", "standby", "v1", 0, false)
		migrates = true
		expect("a standby that migrates", "standby", "v1", 0, true)
		starts = true
		expect("a standby that starts, and migrates", "standby", "v1", 0, false)
		migrates, starts = false, false
		expect("the first, with the newest template", "a", "v2", 1, false)
		time.Sleep(time.Minute / 2) // less than a turn that is not taken lasts
		expect("the second, after the first", "b", "v1", 1, false)
	})
}
