package outboxdispatcher

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
	"github.com/outbox-operator/outbox-operator/controllers/internal/scaling"
)

// ReplicasMetric is for autoscalers that set spec.replicas: how many pods an OutboxDispatcher needs, by namespace and name.
// It has no value while no pod runs.
const ReplicasMetric = "outbox_replicas_recommended"

var recommendedReplicas = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: ReplicasMetric,
	Help: "How many pods an OutboxDispatcher with spec.pods.scaling needs.",
}, []string{"namespace", "name"})

func init() { metrics.Registry.MustRegister(recommendedReplicas) }

// scalers remember what the status of each OutboxDispatcher does not have. The zero value is ready.
type scalers struct {
	mu  sync.Mutex
	all map[types.NamespacedName]*scaling.Scaler
}

func (s *scalers) forget(obd types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, obd)
	recommendedReplicas.DeleteLabelValues(obd.Namespace, obd.Name)
}

// recall takes the newest recommendation: the object in the cache may have the one before.
func (s *scalers) recall(obd *api.OutboxDispatcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if scaler := s.all[client.ObjectKeyFromObject(obd)]; scaler != nil && obd.Spec.Pods.Scaling != nil && scaler.Replicas > 0 {
		obd.Status.Scaling = scalingStatus(scaler.Decision)
	}
}

// observe adds what the pods say now, and sets the recommendation in the status. It returns the rates of the last seconds,
// when they are known, and the step that it has just decided, nil for none.
func (s *scalers) observe(obd *api.OutboxDispatcher, x scaling.Sample) (rates scaling.Rates, known bool, step *scaling.Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := client.ObjectKeyFromObject(obd)
	scaler := s.all[key]
	if scaler == nil {
		scaler = &scaling.Scaler{Decision: decided(obd)}
		if s.all == nil {
			s.all = map[types.NamespacedName]*scaling.Scaler{}
		}
		s.all[key] = scaler
	}
	spec := obd.Spec.Pods.Scaling
	if spec == nil || x.Replicas == 0 {
		recommendedReplicas.DeleteLabelValues(obd.Namespace, obd.Name)
	}
	if spec == nil {
		obd.Status.Scaling = nil
		scaler.Decision = scaling.Decision{} // another policy begins with the pods that run then
		scaler.History.Add(x)
	} else {
		before := scaler.Step
		d := scaler.Observe(scaling.Policy{Min: spec.Min, Max: spec.Max, CatchUp: spec.CatchUp.D()}, x)
		obd.Status.Scaling = scalingStatus(d)
		if x.Replicas > 0 {
			recommendedReplicas.WithLabelValues(obd.Namespace, obd.Name).Set(float64(d.Replicas))
		}
		if d.Step != before {
			step = d.Step
		}
	}
	if rates, known = scaler.History.Rates(); scaler.History.Old(x.At) {
		known = false
	}
	return rates, known, step
}

// follow lets the number of pods follow what they say, and keeps the time until the backlog is gone.
func (r *Reconciler) follow(ctx context.Context, obd *api.OutboxDispatcher, o *observed) {
	if o.deployment == nil || o.unpolled > 0 {
		r.scalers.recall(obd)
		return
	}
	x := sample(*o, r.Now())
	rates, known, step := r.scalers.observe(obd, x)
	if known && x.Replicas > 0 && obd.Spec.State != spec.Paused {
		o.eta = rates.ETA()
	}
	if step != nil && obd.Spec.Pods.Scaling.Mode == spec.ScalingApply && !kstatus.Disabled(obd) {
		r.Record(ctx, obd, o.deployment, kstatus.Event{Kind: corev1.EventTypeNormal, Reason: api.ReasonScaled, Action: "Scale",
			Note: fmt.Sprintf("The number of pods changes from %d to %d. Due now are %d events, %.3g more become due in a second, and %.3g are delivered.", step.From, step.To, rates.Pending, rates.Arrival, rates.Delivered)})
	}
}

// sample is what the pods say now.
func sample(o observed, now time.Time) scaling.Sample {
	x := scaling.Sample{At: now, Replicas: *o.deployment.Spec.Replicas}
	x.Held = o.obd.Spec.State == spec.Paused || x.Replicas == 0 || o.deployment.Status.UpdatedReplicas != o.deployment.Status.Replicas
	x.Settled = complete(o.deployment, o.obd) && o.deployment.Status.AvailableReplicas >= x.Replicas && 10*len(o.statuses) >= 9*int(x.Replicas)
	if b := o.backlog(); b != nil && 2*len(o.statuses) >= int(x.Replicas) {
		x.Counted, x.Pending, x.Live = b.ObservedAt, b.Pending, b.Pending+b.Processing
	}
	for _, s := range o.statuses {
		x.Delivered += s.DeliveredPerSecond
		x.Held = x.Held || s.State != string(spec.Running)
		x.Limits = append(x.Limits, limitOf(s))
	}
	return x
}

// limitOf is what limits a pod. A topic that is paused counts among the due rows, and no other pod would deliver it.
func limitOf(s status.Status) scaling.Limit {
	switch {
	case s.PausedTopicCount > 0:
		return "Destination"
	case s.GatedTopics > 0:
		return "Consumer"
	}
	return scaling.Limit(s.LimitedBy)
}

// limitedBy is what limits most pods, in the order of the words where several do. Empty when none knows.
func limitedBy(statuses []status.Status) (most string) {
	count := map[string]int{}
	for _, s := range statuses {
		if s.LimitedBy == "" {
			continue
		}
		count[s.LimitedBy]++
	}
	for word, n := range count {
		if n > count[most] || n == count[most] && word < most {
			most = word
		}
	}
	return most
}

// decided is the decision in the status.
func decided(obd *api.OutboxDispatcher) (d scaling.Decision) {
	s := obd.Status.Scaling
	if s == nil {
		return d
	}
	d.Replicas, d.Reason = s.Recommended, scaling.Reason(s.Reason)
	d.PerPod, _ = strconv.ParseFloat(s.PerPod, 64)
	if s.LastStep != nil {
		d.Step = &scaling.Step{At: s.LastStep.Time.Time, From: s.LastStep.From, To: s.LastStep.To}
	}
	return d
}

func scalingStatus(d scaling.Decision) *api.ScalingStatus {
	s := &api.ScalingStatus{Recommended: d.Replicas, Reason: string(d.Reason)}
	if d.PerPod > 0 {
		s.PerPod = twoDigits(d.PerPod)
	}
	if d.Step != nil {
		s.LastStep = &api.ScalingStep{Time: *toSeconds(d.Step.At), From: d.Step.From, To: d.Step.To}
	}
	return s
}

// twoDigits are the first two digits of a number, so that it seldom changes.
func twoDigits(n float64) string {
	unit := math.Pow(10, math.Floor(math.Log10(n))-1)
	return strconv.FormatFloat(math.Round(n/unit)*unit, 'f', max(0, -int(math.Floor(math.Log10(unit)))), 64)
}

// stepTime is how long the pods of a step may take to be ready.
const stepTime = 2 * time.Minute

// stepping reports whether pods may be starting for no other reason than that the operator has decided to have more.
func stepping(o observed) bool {
	now, d := o.obd.Status.Scaling, o.deployment
	return o.obd.Spec.Pods.Scaling != nil && o.obd.Spec.Pods.Scaling.Mode == spec.ScalingApply && now != nil && now.LastStep != nil &&
		o.now.Sub(now.LastStep.Time.Time) < stepTime && d.Status.UpdatedReplicas == d.Status.Replicas &&
		deploymentCondition(d, appsv1.DeploymentProgressing).Reason == newReplicaSetAvailable
}

// limitRemedies say what to do where more pods would not help.
var limitRemedies = map[string]string{
	api.ReasonLimitedByDestination: "more pods would deliver no more: the destination takes no more, or a topic of it is paused. Raise what it takes",
	api.ReasonLimitedByRate:        "more pods would deliver no more: the rate limit of the spec is used up. Raise it, if the destination bears it",
	api.ReasonLimitedByDatabase:    "more pods would deliver no more: the pods wait for the database. See its load",
	api.ReasonLimitedByOrder:       "more pods would deliver no more: the due events wait for earlier ones of their keys. Use more keys",
	api.ReasonLimitedByConsumer:    "more pods would deliver no more: topics wait for a verified consumer. Register its evidence",
	api.ReasonAtMaximum:            "spec.pods.scaling.max allows no more. Raise it",
	api.ReasonNoGain:               "the last step up delivered less than a tenth more, so another is not made. Find out what limits the delivery: the destination, the database or the node. It is tried again after an hour, and when the pods deliver a quarter more",
}

// scalingLimited says why no more pods run, where the backlog needs more.
func scalingLimited(o observed) metav1.Condition {
	const kind = api.ScalingLimitedCondition
	now := o.obd.Status.Scaling
	if now == nil || scaling.Reason(now.Reason) == scaling.NotObserved {
		return condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, "What the pods deliver and what is due is not known yet, or not any more, so the number of pods stays.")
	}
	if remedy := limitRemedies[now.Reason]; scaling.Reason(now.Reason).Limiting() {
		return condition(kind, metav1.ConditionTrue, now.Reason, "The pods cannot deliver the backlog within spec.pods.scaling.catchUp, and "+cmp.Or(remedy, "more pods would deliver no more"))
	}
	if by := o.obd.Annotations[desired.AnnotationScaledBy]; by != "" && o.obd.Spec.Pods.Scaling.Mode == spec.ScalingApply {
		return condition(kind, metav1.ConditionTrue, api.ReasonReplicasNotUsed, fmt.Sprintf(
			"%s sets spec.replicas by the scale subresource, which is not used while spec.pods.scaling.mode is Apply, unless it is 0. Remove the autoscaler, or set mode to Recommend; when it is gone already, set spec.replicas to another number once, as with kubectl patch.", problem.Clip(strconv.Quote(by), nameBytes)))
	}
	return condition(kind, metav1.ConditionFalse, api.ReasonNotLimited, "Nothing keeps the number of pods from following the backlog.")
}
