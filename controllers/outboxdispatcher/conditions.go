package outboxdispatcher

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/observe"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// conditions are computed here, all of them and nowhere else. Their messages say the cause and the
// remedy, and hold nothing that changes while the cause stays.
func conditions(o observed) []metav1.Condition {
	references, schema := referencesResolved(o), schemaReady(o)
	source, sink, topics := sourceReachable(o), sinkReachable(o), topicsPaused(o)
	hangs := hanging(o)
	workload := workloadAvailable(o, hangs)
	if d := o.deployment; d != nil && d.Annotations[desired.AnnotationOthers] != "" {
		others := d.Annotations[desired.AnnotationOthers]
		workload.Message = problem.Sentence(workload.Message + " In the Deployment " + others + desired.RemedyOfOthers(others))
	}
	all := []metav1.Condition{ready(o, causes(o, references, source, schema, sink, topics, workload)),
		references, schema, source, sink, topics, workload, deadLetters(o), vacuumHeldBack(o), dataHealthy(o), topicsShared(o), typesUnregistered(o)}
	if o.obd.Spec.Pods.Scaling != nil {
		all = append(all, scalingLimited(o))
	}
	if c := progress(o, workload, hangs); c.Type != "" {
		all = append(all, c)
	}
	return all
}

func condition(kind string, current metav1.ConditionStatus, reason, message string) metav1.Condition {
	if message == "" {
		message = "The dispatchers do not say why; see their logs."
	}
	return kstatus.Condition(kind, current, reason, message)
}

// referencesResolved is True when a pod has started, because its files and variables existed. The kubelet reports those
// that are gone since.
func referencesResolved(o observed) metav1.Condition {
	const kind = api.ReferencesResolvedCondition
	started := func(pod corev1.Pod) bool { return pod.Status.Phase != corev1.PodPending }
	switch {
	case o.problem != nil && o.problem.Condition == kind:
		return condition(kind, metav1.ConditionFalse, o.problem.Reason, o.problem.Message)
	case o.missing != nil:
		return condition(kind, metav1.ConditionFalse, o.missing.Reason, o.missing.Message)
	case o.gone != nil:
		return condition(kind, metav1.ConditionFalse, o.gone.Reason, o.gone.Message)
	case slices.ContainsFunc(o.pods, started), slices.ContainsFunc(o.migration.Pods, started):
		return condition(kind, metav1.ConditionTrue, api.ReasonResolved, "Every Secret, ConfigMap and key that the spec names was there when a pod started, and the kubelet has missed none since.")
	}
	return condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, "No pod has started yet, and the kubelet misses nothing so far.")
}

// schemaReady takes the state that pods report, with the Job's state for what is being done. Until a pod has reported it
// takes the Job's state alone.
func schemaReady(o observed) metav1.Condition {
	reason, message := worstSchema(o.statuses)
	switch {
	case reason == api.ReasonUpToDate, reason == api.ReasonTooNew, reason == api.ReasonDiffers, reason == api.ReasonSequencesBehind: // which no migration changes
	case o.migration.Open():
		reason, message = o.migration.Cause(), o.migration.Sentence()
	case reason == "" && o.migration.State == migrate.Succeeded:
		reason = api.ReasonUpToDate
	}
	switch reason {
	case "":
		return condition(api.SchemaReadyCondition, metav1.ConditionUnknown, api.ReasonNotObserved, notObserved(o))
	case api.ReasonUpToDate:
		return condition(api.SchemaReadyCondition, metav1.ConditionTrue, reason, "The outbox schema is up to date.")
	}
	return condition(api.SchemaReadyCondition, metav1.ConditionFalse, reason, message)
}

// worstSchema is the reason and message of the pod that sees the most trouble; empty for none that
// knows.
func worstSchema(statuses []status.Status) (reason, message string) {
	reasons := []string{api.ReasonUpToDate, api.ReasonSequencesBehind, api.ReasonTooOld, api.ReasonTooNew, api.ReasonDiffers, api.ReasonMissing} // the worst last
	worst := -1
	for _, a := range statuses {
		state := a.Schema.State
		if state == "Ready" {
			state = api.ReasonUpToDate
		}
		if i := slices.Index(reasons, state); i > worst || (i == worst && a.Schema.Message < message) {
			worst, message = i, a.Schema.Message
		}
	}
	if worst < 0 {
		return "", ""
	}
	return reasons[worst], message
}

// linkReasons are the reasons that a pod may give for each condition; another one is replaced by
// ConnectionFailed.
var linkReasons = map[string][]string{
	api.SourceReachableCondition: {api.ReasonAuthenticationFailed, api.ReasonPermissionDenied, api.ReasonCertificateInvalid, api.ReasonDatabaseNotFound,
		api.ReasonOutcomesRefused, api.ReasonClaimsRefused, api.ReasonTooFewConnections},
	api.SinkReachableCondition: {api.ReasonAuthenticationFailed, api.ReasonCertificateInvalid, api.ReasonCallsStuck},
}

func sourceReachable(o observed) metav1.Condition {
	return linkReachable(o, api.SourceReachableCondition, "The database is reached.", func(s status.Status) status.Link { return s.Source })
}

func sinkReachable(o observed) metav1.Condition {
	return linkReachable(o, api.SinkReachableCondition, "The destination is reached.", func(s status.Status) status.Link { return s.Sink })
}

// linkReachable takes the pod that sees the most trouble. One that has not tried yet is in none.
func linkReachable(o observed, kind, connected string, link func(status.Status) status.Link) metav1.Condition {
	states := []status.LinkState{status.Unknown, status.Reachable, status.Refusing, status.Unreachable} // the worst last
	worst, at := -1, status.Link{}
	for _, a := range o.statuses {
		l := link(a)
		if i := slices.Index(states, l.State); i > worst || (i == worst && l.Message < at.Message) {
			worst, at = i, l
		}
	}
	switch {
	case worst < 0:
		return condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, notObserved(o))
	case at.State == status.Reachable:
		return condition(kind, metav1.ConditionTrue, api.ReasonConnected, connected)
	case at.State == status.Unknown && kind == api.SinkReachableCondition:
		return condition(kind, metav1.ConditionUnknown, api.ReasonNotTried, "No dispatcher has tried the destination yet.")
	case at.State == status.Unknown:
		return condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, "No dispatcher has tried the database yet.")
	case at.State == status.Refusing && kind == api.SinkReachableCondition:
		return condition(kind, metav1.ConditionFalse, api.ReasonRefusing, at.Message)
	case slices.Contains(linkReasons[kind], at.Reason):
		return condition(kind, metav1.ConditionFalse, at.Reason, at.Message)
	}
	return condition(kind, metav1.ConditionFalse, api.ReasonConnectionFailed, at.Message)
}

// topicsPaused speaks of single topics, which a pod pauses while it reaches the destination as a whole, and first of
// those whose destination fails: the others are paused by the spec.
func topicsPaused(o observed) metav1.Condition {
	const kind = api.TopicsPausedCondition
	paused, gated, others := pausedTopics(o.statuses), gatedTopics(o.statuses), ""
	if len(gated) > 0 {
		others = " Some others wait for a verified consumer: gated in a pod's /status names them."
	}
	switch {
	case len(o.statuses) == 0:
		return condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, notObserved(o))
	case len(paused) == 0 && len(gated) == 0:
		return condition(kind, metav1.ConditionFalse, api.ReasonNoTopicsPaused, "No topic is paused.")
	case len(paused) == 0:
		return condition(kind, metav1.ConditionTrue, api.ReasonConsumersNotVerified, notVerified(gated, o.statuses))
	case allTopicsPaused(o.statuses):
		return condition(kind, metav1.ConditionTrue, api.ReasonAllTopicsPaused, describePaused("No topic that has events is delivered. The destination does not take", paused)+others)
	}
	return condition(kind, metav1.ConditionTrue, api.ReasonTopicsPaused, describePaused("The destination does not take every topic. Paused, while others are delivered", paused)+others)
}

// allTopicsPaused reports whether no pod delivers a topic that has events.
func allTopicsPaused(statuses []status.Status) bool {
	return len(statuses) > 0 && !slices.ContainsFunc(statuses, func(s status.Status) bool { return !s.AllTopicsPaused })
}

// podsRun reports whether the dispatcher of a pod runs: a pod of which it ends again and again is Running too.
func podsRun(o observed) bool {
	ended := func(c corev1.ContainerStatus) bool {
		return c.Name == desired.Container && (c.State.Waiting != nil || c.State.Terminated != nil)
	}
	return slices.ContainsFunc(o.pods, func(p corev1.Pod) bool {
		return observe.Running(&p) && !slices.ContainsFunc(p.Status.ContainerStatuses, ended)
	})
}

// notObserved says why no pod has reported.
func notObserved(o observed) string {
	if len(o.statuses) > 0 {
		return "No dispatcher has heard it from the database yet; see SourceReachable."
	}
	if podsRun(o) {
		if o.silent == 0 {
			return "No dispatcher pod has responded to the operator yet."
		}
		return "No dispatcher pod responds to the operator; see whether the pods are well, and whether a NetworkPolicy or a mesh lets the operator reach their port 8080."
	}
	if desired.Replicas(o.obd) == 0 {
		return "No dispatcher pod runs, because spec.replicas is 0."
	}
	return "No dispatcher pod runs yet."
}

// workloadAvailable compares the Deployment with the spec. hangs is why new pods do not become ready
// while others deliver.
func workloadAvailable(o observed, hangs trouble) metav1.Condition {
	const kind = api.WorkloadAvailableCondition
	d, replicas := o.deployment, desired.Replicas(o.obd)
	switch {
	case o.problem != nil && o.problem.Condition == kind:
		return condition(kind, metav1.ConditionFalse, o.problem.Reason, o.problem.Message)
	case d == nil:
		return condition(kind, metav1.ConditionFalse, api.ReasonProgressing, "The Deployment is made as soon as the schema is migrated.")
	case replicas == 0:
		return condition(kind, metav1.ConditionTrue, api.ReasonScaledToZero, "spec.replicas is 0.")
	}
	rollout, refused := deploymentCondition(d, appsv1.DeploymentProgressing), podsRefused(d)
	reason, text := pods.Trouble(o.pods)
	switch {
	case refused != "":
		return condition(kind, metav1.ConditionFalse, api.ReasonUnavailable, refused)
	case hangs.message != "" && d.Status.AvailableReplicas > 0:
		return condition(kind, metav1.ConditionFalse, api.ReasonPartlyAvailable, hangs.message)
	case rollout.Status == corev1.ConditionFalse:
		return condition(kind, metav1.ConditionFalse, cmp.Or(reason, api.ReasonUnavailable), "New pods do not become ready. "+text)
	case d.Status.AvailableReplicas >= replicas && o.silent > 0 && len(o.statuses) > 0:
		return condition(kind, metav1.ConditionFalse, api.ReasonPartlyAvailable, "Some dispatcher pods do not respond to the operator, while others do; see whether they are well, and whether a NetworkPolicy lets the operator reach their port 8080.")
	case d.Status.AvailableReplicas >= replicas:
		return condition(kind, metav1.ConditionTrue, api.ReasonAvailable, "spec.replicas dispatcher pods are ready.")
	case stepping(o) && d.Status.AvailableReplicas > 0 && text == "":
		return condition(kind, metav1.ConditionTrue, api.ReasonAvailable, "Dispatcher pods are ready, and those of the last step of spec.pods.scaling are starting.")
	case rolledOut(d) && d.Status.AvailableReplicas > 0:
		return condition(kind, metav1.ConditionFalse, api.ReasonPartlyAvailable, "Fewer dispatcher pods than spec.replicas are ready. "+text)
	case rolledOut(d):
		return condition(kind, metav1.ConditionFalse, cmp.Or(reason, api.ReasonUnavailable), "No dispatcher pod is ready. "+text)
	case d.Status.AvailableReplicas > 0:
		return condition(kind, metav1.ConditionFalse, api.ReasonProgressing, "Dispatcher pods are starting. "+text)
	}
	return condition(kind, metav1.ConditionFalse, cmp.Or(reason, api.ReasonProgressing), "Dispatcher pods are starting. "+text)
}

// rolledOut reports whether the rollout of the newest template has ended, with pods that were ready.
func rolledOut(d *appsv1.Deployment) bool {
	return d != nil && deploymentCondition(d, appsv1.DeploymentProgressing).Reason == newReplicaSetAvailable && d.Generation == d.Status.ObservedGeneration
}

// Reasons that the Deployment controller gives when a rollout is done, and when its deadline is exceeded.
const (
	newReplicaSetAvailable   = "NewReplicaSetAvailable"
	progressDeadlineExceeded = "ProgressDeadlineExceeded"
)

// podsRefused is what keeps pods from being made: a quota, or an admission policy. Empty for nothing.
func podsRefused(d *appsv1.Deployment) string {
	if d == nil {
		return ""
	}
	failure := deploymentCondition(d, appsv1.DeploymentReplicaFailure)
	if failure.Status != corev1.ConditionTrue {
		return ""
	}
	return problem.Sentence("pods cannot be created: " + podName.ReplaceAllString(failure.Message, "a pod is "))
}

// podName is what each try has another of.
var podName = regexp.MustCompile(`^pods "[^"]*" is `)

func deploymentCondition(d *appsv1.Deployment, kind appsv1.DeploymentConditionType) appsv1.DeploymentCondition {
	for _, c := range d.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return appsv1.DeploymentCondition{}
}

// complete reports whether the Deployment is there, and all its pods are of the newest template.
func complete(d *appsv1.Deployment, obd *api.OutboxDispatcher) bool {
	return d != nil && d.Status.ObservedGeneration >= d.Generation &&
		d.Status.UpdatedReplicas == desired.Replicas(obd) && d.Status.Replicas == d.Status.UpdatedReplicas
}

func deadLetters(o observed) metav1.Condition {
	const kind = api.DeadLettersPresentCondition
	switch b := o.backlog(); {
	case b == nil:
		return condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, notObserved(o))
	case b.Dead > 0:
		return condition(kind, metav1.ConditionTrue, api.ReasonDeadLetters, deadLettersNote(b.BlockedKeys > 0 && blocks(o.obd), deadGroups(b.DeadGroups)))
	}
	return condition(kind, metav1.ConditionFalse, api.ReasonNoDeadLetters, "No event was given up.")
}

// blocks reports whether a key waits behind its dead event.
func blocks(obd *api.OutboxDispatcher) bool { return obd.Spec.Delivery.OnDead == spec.OnDeadBlock }

// vacuumHeldBack speaks of the oldest transaction that a pod has seen.
func vacuumHeldBack(o observed) metav1.Condition {
	const kind = api.VacuumHeldBackCondition
	var oldest *status.OldestTransaction
	for _, a := range o.statuses {
		if t := a.OldestTransaction; t != nil && (oldest == nil || t.Seconds > oldest.Seconds) {
			oldest = t
		}
	}
	switch {
	case oldest == nil:
		return condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, notObserved(o))
	case oldest.Seconds <= observe.OldTransaction.Seconds():
		return condition(kind, metav1.ConditionFalse, api.ReasonNotHeldBack, "Nothing keeps vacuum from removing rows for long.")
	}
	reason, what, remedy := holder(oldest)
	return condition(kind, metav1.ConditionTrue, reason, fmt.Sprintf(
		"%s has kept vacuum from removing rows for more than 15 minutes, so the outbox grows and gets slower. %s", what, remedy))
}
