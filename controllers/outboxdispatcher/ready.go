package outboxdispatcher

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/observe"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
)

// cause is a condition that Ready may follow from.
type cause struct {
	metav1.Condition
	// stops means that no event flows while it is not True.
	stops bool
}

// causes are the conditions that Ready follows from, each before what follows from it: without the database no
// pod is ready. Ready is about events that flow. So while some pod works with the database, only the destination stops
// them. These are not causes: fewer pods than spec.replicas, a paused topic among others, and the destination of a
// paused dispatcher.
func causes(o observed, references, source, schema, sink, topics, workload metav1.Condition) (all []cause) {
	flowing := flowing(o)
	stops := !slices.ContainsFunc(o.statuses, works)
	// Running pods keep what they have read, so what is gone since is behind a login that is refused, and no other trouble.
	kept := o.missing == nil && o.gone != nil && source.Reason != api.ReasonAuthenticationFailed
	all = append(all, cause{references, stops && !kept})
	for _, c := range []metav1.Condition{source, schema} {
		all = append(all, cause{c, stops})
	}
	if o.obd.Spec.State != spec.Paused {
		all = append(all, cause{sink, !flowing})
		if allTopicsPaused(o.statuses) {
			topics.Status = metav1.ConditionFalse // as Ready counts
			all = append(all, cause{topics, !flowing})
		}
	}
	switch some := o.deployment != nil && o.deployment.Status.AvailableReplicas > 0; {
	case o.problem != nil && o.problem.Condition == api.WorkloadAvailableCondition:
		return slices.Insert(all, 0, cause{workload, stops})
	case workload.Reason == api.ReasonPartlyAvailable && complete(o.deployment, o.obd) && o.migration.Reason == "",
		workload.Reason == api.ReasonProgressing && (some || !stops): // as at each start
		return all
	}
	return append(all, cause{workload, stops})
}

// works reports whether a pod reaches the database, which lets events be claimed, and fits its schema.
func works(s status.Status) bool {
	claims := s.Source.State == status.Refusing && s.Source.Reason == status.ClaimsRefused && !s.Source.Stopped // of some rows
	return (s.Source.State == status.Reachable || claims) && s.Schema.State == "Ready"
}

// stopped reports whether the database lets a pod claim nothing.
func stopped(s status.Status) bool { return s.Source.Stopped }

// flowing reports whether events flow from the database to the destination by the pods of some revision. Of the
// pods of one revision the one that sees the destination in the most trouble is believed: they have the same
// destination, and one that had nothing to deliver has not met the trouble yet. Pods of two revisions may have
// two destinations.
func flowing(o observed) bool {
	for _, statuses := range o.revisions() {
		one := o
		one.statuses = statuses
		if slices.ContainsFunc(statuses, works) && sinkReachable(one).Status == metav1.ConditionTrue && !allTopicsPaused(statuses) {
			return true
		}
	}
	return false
}

// revisions are the statuses by the ReplicaSet of the pods.
func (o observed) revisions() map[types.UID][]status.Status {
	all := map[types.UID][]status.Status{}
	for i, a := range o.statuses {
		var set types.UID
		if i < len(o.sets) {
			set = o.sets[i]
		}
		all[set] = append(all[set], a)
	}
	return all
}

// newest is what the pods of the newest revision say: of the ReplicaSet whose oldest pod is the youngest. A pod of an
// older one that was evicted and made again is young too, but not the others of its ReplicaSet. It is what all pods say where two
// revisions began in one second, the precision of Kubernetes.
func (o observed) newest() observed {
	since := map[types.UID]metav1.Time{}
	for i := range o.pods {
		if owner := metav1.GetControllerOf(&o.pods[i]); owner != nil {
			if began, ok := since[owner.UID]; !ok || o.pods[i].CreationTimestamp.Before(&began) {
				since[owner.UID] = o.pods[i].CreationTimestamp
			}
		}
	}
	sets := slices.SortedFunc(maps.Keys(since), func(a, b types.UID) int { return since[b].Compare(since[a].Time) })
	if len(sets) > 1 && since[sets[0]].After(since[sets[1]].Time) {
		o.statuses = o.revisions()[sets[0]]
	}
	return o
}

// backlog is the newest count of the newest revision, and until that has counted of all pods, nil for none: an edit may let
// the pods of two revisions count other rows.
func (o observed) backlog() *status.Backlog {
	return cmp.Or(observe.NewestBacklog(o.newest().statuses), observe.NewestBacklog(o.statuses))
}

// data is the newest data section, of the same pods as the backlog.
func (o observed) data() *status.Data {
	return cmp.Or(observe.NewestData(o.newest().statuses), observe.NewestData(o.statuses))
}

func ready(o observed, causes []cause) metav1.Condition {
	const kind = api.ReadyCondition
	scaledToZero := desired.Replicas(o.obd) == 0
	for _, current := range []metav1.ConditionStatus{metav1.ConditionFalse, metav1.ConditionUnknown} {
		if scaledToZero && current == metav1.ConditionUnknown {
			return condition(kind, metav1.ConditionTrue, api.ReasonScaledToZero, "No dispatcher runs, because spec.replicas is 0.")
		}
		for _, c := range causes {
			if c.Status == current && c.stops {
				return condition(kind, current, c.Reason, c.Message)
			}
		}
	}
	if o.state.resumes {
		return condition(kind, metav1.ConditionFalse, api.ReasonResuming, "Nothing is claimed yet, because spec.state was Paused. "+resumingNote)
	}
	switch {
	case pausing(o):
		return condition(kind, metav1.ConditionTrue, api.ReasonPausing, pausingNote)
	case o.obd.Spec.State == spec.Paused:
		return condition(kind, metav1.ConditionTrue, api.ReasonPaused, "Nothing is claimed until spec.state is Running.")
	}
	for _, c := range causes {
		if c.Status == metav1.ConditionFalse {
			return condition(kind, metav1.ConditionTrue, api.ReasonDeliveringDespiteTrouble, fmt.Sprintf("Events are delivered, in spite of what %s says (%s): %s", c.Type, c.Reason, c.Message))
		}
	}
	return condition(kind, metav1.ConditionTrue, api.ReasonDelivering, "Events are delivered as they come.")
}

// pausing reports whether a pod has not heard yet that it is to claim no more.
func pausing(o observed) bool {
	return o.obd.Spec.State == spec.Paused &&
		slices.ContainsFunc(o.statuses, func(a status.Status) bool { return a.State == string(spec.Running) })
}

const resumingNote = "The pods claim again when all of them run the newest spec, and after two minutes in any case."

const pausingNote = "Pods stop claiming within 90 seconds; then nothing is claimed until spec.state is Running."

// trouble is why new pods do not become ready, empty for nothing.
type trouble struct{ reason, message string }

// hanging is what keeps the new pods of a rollout from becoming ready: the migration before it, what they see of the database
// and of the destination, else what the kubelet says of pods.
func hanging(o observed) trouble {
	if m := o.migration; m.State == migrate.Running && m.Reason != "" && o.deployment != nil {
		return trouble{m.Reason, "New pods wait for the migration, and replace none that run. " + m.Sentence()}
	}
	if o.deployment == nil || complete(o.deployment, o.obd) {
		return trouble{}
	}
	what := "New pods do not become ready. "
	if o.deployment.Status.AvailableReplicas > 0 {
		what = "New pods do not become ready, and replace none that run. "
	}
	fresh := o.newest()
	seen := []metav1.Condition{sourceReachable(fresh), schemaReady(fresh)}
	if o.obd.Spec.State != spec.Paused { // a paused pod is ready without it
		seen = append(seen, sinkReachable(fresh))
	}
	for _, c := range seen {
		some := c.Reason == api.ReasonOutcomesRefused || c.Reason == api.ReasonClaimsRefused && !slices.ContainsFunc(fresh.statuses, stopped) // others flow
		if c.Status == metav1.ConditionFalse && !some {
			return trouble{c.Reason, what + c.Message}
		}
	}
	if reason, text := pods.Trouble(o.pods); text != "" {
		return trouble{reason, what + text}
	}
	return trouble{}
}

// progress is Stalled, Reconciling (False for hands off), or nothing when the spec is in place.
func progress(o observed, workload metav1.Condition, hangs trouble) metav1.Condition {
	reconciling := func(reason, message string) metav1.Condition {
		return condition(api.ReconcilingCondition, metav1.ConditionTrue, reason, message)
	}
	rolling := func(reason, message string) metav1.Condition {
		if !late(o.deployment) {
			return reconciling(reason, message)
		}
		if reason == api.ReasonProgressing {
			reason = api.ReasonProgressDeadlineExceeded
		}
		return condition(api.StalledCondition, metav1.ConditionTrue, reason, message+" The rollout has exceeded its progressDeadlineSeconds; it continues by itself when the cause is gone.")
	}
	switch {
	case kstatus.Disabled(o.obd):
		return kstatus.HandsOff()
	case o.problem != nil && o.problem.Stalled:
		return condition(api.StalledCondition, metav1.ConditionTrue, o.problem.Reason, o.problem.Message)
	case o.problem != nil:
		return reconciling(o.problem.Reason, o.problem.Message)
	case o.migration.Open():
		return o.migration.Progress(o.missing)
	case o.missing != nil:
		return rolling(o.missing.Reason, o.missing.Message)
	case o.queues:
		return reconciling(api.ReasonProgressing, "It waits for other dispatchers to take what the operator's upgrade changes; its pods stay as they are."+o.holders)
	case !complete(o.deployment, o.obd):
		return rolling(cmp.Or(hangs.reason, api.ReasonProgressing), cmp.Or(podsRefused(o.deployment), hangs.message, "The Deployment is rolling out."))
	case workload.Status == metav1.ConditionFalse && workload.Reason != api.ReasonPartlyAvailable && !rolledOut(o.deployment):
		return rolling(workload.Reason, workload.Message)
	case len(o.statuses) == 0 && o.silent == 0 && podsRun(o): // they have just started
		return reconciling(api.ReasonProgressing, notObserved(o))
	case o.state.resumes:
		return reconciling(api.ReasonProgressing, resumingNote)
	case o.state.late != "":
		return reconciling(api.ReasonProgressing, o.state.late)
	case pausing(o):
		return reconciling(api.ReasonProgressing, pausingNote)
	}
	return metav1.Condition{}
}

// late reports whether the rollout of the newest template has made no progress for the Deployment's deadline.
func late(d *appsv1.Deployment) bool {
	return d != nil && d.Generation == d.Status.ObservedGeneration &&
		deploymentCondition(d, appsv1.DeploymentProgressing).Reason == progressDeadlineExceeded
}

// underWay reports whether there is a change or a problem, of which not all can be watched.
func underWay(o observed) bool {
	all := conditions(o)
	return meta.IsStatusConditionTrue(all, api.ReconcilingCondition) || meta.IsStatusConditionTrue(all, api.StalledCondition)
}
