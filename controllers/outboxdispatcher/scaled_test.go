package outboxdispatcher

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/scaling"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// running is two pods that deliver.
func running() observed {
	o := well()
	o.obd.Spec.State, o.deployment.Spec.Replicas = spec.Running, ptr.To[int32](2)
	o.obd.Spec.Pods.Scaling = &spec.Scaling{Mode: spec.ScalingApply, Min: 1, Max: 5}
	o.obd.Status.Scaling = &api.ScalingStatus{Recommended: 2}
	for i := range o.statuses {
		s := &o.statuses[i]
		s.State, s.DeliveredPerSecond, s.LimitedBy = "Running", 40, "Concurrency"
		s.Backlog.Counts = status.Counts{Pending: 300, Processing: 27, Retrying: 7, Scheduled: 50}
	}
	return o
}

// CONTRACT: C-107
func TestSampleAddsUpThePods(t *testing.T) {
	now := time.Unix(100, 0)
	good := scaling.Sample{At: now, Counted: time.Unix(1, 0), Pending: 300, Live: 327, Delivered: 80, Replicas: 2, Settled: true,
		Limits: []scaling.Limit{scaling.Concurrency, scaling.Concurrency}}
	for name, c := range map[string]struct {
		change func(*observed)
		want   func(*scaling.Sample)
	}{
		"two pods":              {func(*observed) {}, func(*scaling.Sample) {}},
		"paused":                {func(o *observed) { o.obd.Spec.State = spec.Paused }, func(x *scaling.Sample) { x.Held = true }},
		"a pod has not resumed": {func(o *observed) { o.statuses[1].State = "Paused" }, func(x *scaling.Sample) { x.Held = true }},
		"a rollout":             {func(o *observed) { o.deployment.Status.Replicas = 3 }, func(x *scaling.Sample) { x.Held, x.Settled = true, false }},
		"a pod is not ready":    {func(o *observed) { o.deployment.Status.AvailableReplicas = 1 }, func(x *scaling.Sample) { x.Settled = false }},
		"one does not respond": {func(o *observed) { o.statuses = o.statuses[:1] }, func(x *scaling.Sample) {
			x.Settled, x.Delivered, x.Limits = false, 40, x.Limits[:1]
		}},
		"most do not respond": {func(o *observed) { o.statuses, *o.deployment.Spec.Replicas = o.statuses[:1], 3 }, func(x *scaling.Sample) {
			*x = scaling.Sample{At: now, Delivered: 40, Replicas: 3, Limits: x.Limits[:1]}
		}},
		"a topic is paused": {func(o *observed) { o.statuses[0].PausedTopicCount = 1 }, func(x *scaling.Sample) { x.Limits = []scaling.Limit{"Destination", scaling.Concurrency} }},
		"a topic is gated":  {func(o *observed) { o.statuses[1].GatedTopics = 1 }, func(x *scaling.Sample) { x.Limits = []scaling.Limit{scaling.Concurrency, "Consumer"} }},
		"no pods":           {func(o *observed) { *o.deployment.Spec.Replicas = 0 }, func(x *scaling.Sample) { x.Held, x.Replicas = true, 0 }},
	} {
		o, want := running(), good
		want.Limits = slices.Clone(good.Limits)
		c.change(&o)
		c.want(&want)
		got := sample(o, now)
		need.WantAll(t, want.Limits, "%s: limits %v, want %v", got.Limits, name)
		got.Limits, want.Limits = nil, nil
		g, w := [...]any{got.Counted, got.Pending, got.Live, got.Delivered, got.Replicas, got.Settled, got.Held}, [...]any{want.Counted, want.Pending, want.Live, want.Delivered, want.Replicas, want.Settled, want.Held}
		need.Want(t, w, "%s: got %v, want %v", g, name)
	}
}

// CONTRACT: C-107
func TestScalingLimitedNamesTheBound(t *testing.T) {
	for _, c := range []struct {
		reason, by, want string
		status           metav1.ConditionStatus
		words            string
	}{
		{"Sufficient", "", api.ReasonNotLimited, metav1.ConditionFalse, "Nothing keeps"},
		{"Waiting", "", api.ReasonNotLimited, metav1.ConditionFalse, "Nothing keeps"},
		{"Held", "", api.ReasonNotLimited, metav1.ConditionFalse, "Nothing keeps"},
		{"NotObserved", "", api.ReasonNotObserved, metav1.ConditionUnknown, "the number of pods stays"},
		{"AtMaximum", "", api.ReasonAtMaximum, metav1.ConditionTrue, "spec.pods.scaling.max"},
		{"NoGain", "", api.ReasonNoGain, metav1.ConditionTrue, "less than a tenth"},
		{"LimitedByRate", "", api.ReasonLimitedByRate, metav1.ConditionTrue, "rate limit"},
		{"LimitedByDatabase", "", api.ReasonLimitedByDatabase, metav1.ConditionTrue, "database"},
		{"LimitedByOrder", "", api.ReasonLimitedByOrder, metav1.ConditionTrue, "keys"},
		{"LimitedByConsumer", "", api.ReasonLimitedByConsumer, metav1.ConditionTrue, "evidence"},
		{"Sufficient", "kubectl", api.ReasonReplicasNotUsed, metav1.ConditionTrue, `"kubectl" sets spec.replicas`},
		{"AtMaximum", "kubectl", api.ReasonAtMaximum, metav1.ConditionTrue, "spec.pods.scaling.max"},
		{"NotObserved", "kubectl", api.ReasonNotObserved, metav1.ConditionUnknown, "the number of pods stays"},
	} {
		o := running()
		o.obd.Status.Scaling.Reason = c.reason
		if c.by != "" {
			o.obd.Annotations = map[string]string{desired.AnnotationScaledBy: c.by}
		}
		got := scalingLimited(o)
		need.That(t, got.Status == c.status && got.Reason == c.want && strings.Contains(got.Message, c.words), "%s: got %s %s: %s", c.reason, got.Status, got.Reason, got.Message)
		o.obd.Spec.Pods.Scaling = nil
		for _, other := range conditions(o) {
			need.That(t, other.Type != api.ScalingLimitedCondition, "%s: without scaling there is %s", c.reason, other.Type)
		}
	}
}

// Without a Deployment nothing is recommended, and what says so keeps its time: a status that stays is not written.
func TestScalingLimitedStaysWithoutADeployment(t *testing.T) {
	o := running()
	noDeployment(&o)
	o.obd.Status.Scaling = nil
	var s api.OutboxDispatcherStatus
	setStatus(&s, o)
	for i := range s.Conditions {
		s.Conditions[i].LastTransitionTime = metav1.Unix(1, 0)
	}
	before := spec.Copy(s)
	setStatus(&s, o)
	need.That(t, equal(before, s), "the status was %+v, and is %+v", before, s)
}

// The pods of a step may start for two minutes, unless something keeps them from it.
func TestPodsOfAStepStart(t *testing.T) {
	o := running()
	o.obd.Status.Scaling, o.now = &api.ScalingStatus{Recommended: 4, LastStep: &api.ScalingStep{Time: metav1.Unix(100, 0), From: 2, To: 4}}, time.Unix(190, 0)
	o.deployment.Status.Replicas, o.deployment.Status.UpdatedReplicas = 4, 4
	look := func() metav1.Condition { return workloadAvailable(o, trouble{}) }
	if c := look(); c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "are starting") {
		t.Errorf("after 90 seconds: %s %s", c.Status, c.Message)
	}
	o.now = time.Unix(221, 0)
	if c := look(); c.Reason != api.ReasonPartlyAvailable {
		t.Errorf("after two minutes: %s %s", c.Reason, c.Message)
	}
	o.now = time.Unix(190, 0)
	o.deployment.Status.Conditions = append(o.deployment.Status.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentReplicaFailure, Status: "True", Message: "exceeded quota"})
	if c := look(); c.Reason != api.ReasonUnavailable {
		t.Errorf("with a quota: %s %s", c.Reason, c.Message)
	}
}

func TestRatesHaveTwoDigits(t *testing.T) {
	for n, want := range map[float64]string{0.0123: "0.012", 0.5: "0.50", 1: "1.0", 9.94: "9.9", 12.4: "12", 99.6: "100", 1234: "1200", 142000: "140000"} {
		need.Want(t, want, "%v: %q, want %q", twoDigits(n), n)
	}
}

func TestLimitedByNamesTheLimitOfMostPods(t *testing.T) {
	of := func(words ...string) (all []status.Status) {
		for _, w := range words {
			all = append(all, status.Status{LimitedBy: w})
		}
		return all
	}
	for want, words := range map[string][]string{"": {"", ""}, "Rate": {"", "Rate", "Rate", "Idle"}, "Concurrency": {"Idle", "Concurrency"}} {
		need.Want(t, want, "%v: %q, want %q", limitedBy(of(words...)), words)
	}
}
