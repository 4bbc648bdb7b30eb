package outboxdispatcher

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/observe"
	"github.com/outbox-operator/outbox-operator/dispatcher/report"
)

// conditions are computed here, all of them and nowhere else. Their messages say the cause and the
// remedy, and hold nothing that changes while the cause stays.
func conditions(o observed) []metav1.Condition {
	secrets, schema, workload := secretsResolved(o), schemaReady(o), workloadAvailable(o)
	source := linkReachable(o, api.SourceReachableCondition, "The database is reached.", func(s report.Status) report.Link { return s.Source })
	sink := sinkReachable(o)

	// The cause comes before what follows from it: without the database no pod is ready.
	causes := []metav1.Condition{secrets, source, schema, sink, workload}
	if o.problem != nil && o.problem.condition == api.WorkloadAvailableCondition {
		causes = []metav1.Condition{workload, secrets, source, schema, sink}
	}
	all := []metav1.Condition{ready(o, causes), secrets, schema, source, sink, workload, deadLetters(o), vacuumHeldBack(o)}
	if kstatus := progress(o, workload); kstatus.Type != "" {
		all = append(all, kstatus)
	}
	return all
}

func condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	if message == "" {
		message = "The dispatchers do not say why; see their logs."
	}
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: sentence(message)}
}

func ready(o observed, causes []metav1.Condition) metav1.Condition {
	scaledToZero := desired.Replicas(o.obd) == 0
	for _, status := range []metav1.ConditionStatus{metav1.ConditionFalse, metav1.ConditionUnknown} {
		if scaledToZero && status == metav1.ConditionUnknown {
			return condition(api.ReadyCondition, metav1.ConditionTrue, api.ReasonScaledToZero, "No dispatcher runs, because spec.replicas is 0.")
		}
		for _, c := range causes {
			if c.Status == status {
				return condition(api.ReadyCondition, status, c.Reason, c.Message)
			}
		}
	}
	if o.obd.Spec.State == api.StatePaused {
		message := "Nothing is claimed until spec.state is Running."
		if !rolledOut(o) {
			message = "Pods from before may claim until they have stopped; then nothing is claimed until spec.state is Running."
		}
		return condition(api.ReadyCondition, metav1.ConditionTrue, api.ReasonPaused, message)
	}
	return condition(api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, "Events are delivered as they come.")
}

// progress is Stalled, Reconciling, or nothing when all that the spec asks for is in place.
func progress(o observed, workload metav1.Condition) metav1.Condition {
	switch {
	case o.problem != nil && o.problem.stalled:
		return condition(api.StalledCondition, metav1.ConditionTrue, o.problem.reason, o.problem.message)
	case o.problem != nil:
		return condition(api.ReconcilingCondition, metav1.ConditionTrue, o.problem.reason, o.problem.message)
	case o.migration.state == migrationFailed:
		return condition(api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonMigrationFailed, migrationFailure(o))
	case o.migration.state == migrationRunning:
		return condition(api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonMigrating, migrating(o))
	case workload.Reason == api.ReasonProgressing || !rolledOut(o):
		return condition(api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonProgressing, "The Deployment is rolling out.")
	}
	return metav1.Condition{}
}

func secretsResolved(o observed) metav1.Condition {
	if o.problem != nil && o.problem.condition == api.SecretsResolvedCondition {
		return condition(api.SecretsResolvedCondition, metav1.ConditionFalse, o.problem.reason, o.problem.message)
	}
	return condition(api.SecretsResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, "Every Secret, ConfigMap and key that the spec names is there.")
}

// schemaReady believes the pods first; the Job tells what is done about it, and stands in for pods
// that have told nothing yet.
func schemaReady(o observed) metav1.Condition {
	reason, message := worstSchema(o.answers)
	switch {
	case reason == api.ReasonUpToDate, reason == api.ReasonTooNew: // which no migration mends
	case o.migration.state == migrationFailed:
		reason, message = api.ReasonMigrationFailed, migrationFailure(o)
	case o.migration.state == migrationRunning:
		reason, message = api.ReasonMigrating, migrating(o)
	case reason == "" && o.migration.state == migrationSucceeded:
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
func worstSchema(answers []report.Status) (reason, message string) {
	reasons := []string{api.ReasonUpToDate, api.ReasonTooOld, api.ReasonTooNew, api.ReasonMissing} // the worst last
	worst := -1
	for _, a := range answers {
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

func migrating(o observed) string { return "The migration Job runs. " + o.migration.detail }

func migrationFailure(o observed) string {
	text := "The migration failed"
	if o.migration.detail != "" {
		text += ": " + strings.TrimSuffix(o.migration.detail, ".")
	}
	return text + ". It is tried again by itself, and at once when the spec or a Secret changes; see `kubectl logs -l app.kubernetes.io/name=" +
		desired.NameMigration + ",app.kubernetes.io/instance=" + o.obd.Name + "`."
}

// linkReasons are the reasons that a pod may give for each condition; another one is told as
// ConnectionFailed.
var linkReasons = map[string][]string{
	api.SourceReachableCondition: {api.ReasonAuthenticationFailed, api.ReasonPermissionDenied, api.ReasonCertificateInvalid, api.ReasonDatabaseNotFound},
	api.SinkReachableCondition:   {api.ReasonAuthenticationFailed, api.ReasonCertificateInvalid},
}

// linkReachable takes the pod that sees the most trouble. One that has not tried yet is in none.
func linkReachable(o observed, kind, connected string, link func(report.Status) report.Link) metav1.Condition {
	states := []report.LinkState{report.Unknown, report.Reachable, report.Refusing, report.Unreachable} // the worst last
	worst, at := -1, report.Link{}
	for _, a := range o.answers {
		l := link(a)
		if i := slices.Index(states, l.State); i > worst || (i == worst && l.Message < at.Message) {
			worst, at = i, l
		}
	}
	switch {
	case worst < 0:
		return condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, notObserved(o))
	case at.State == report.Reachable:
		return condition(kind, metav1.ConditionTrue, api.ReasonConnected, connected)
	case at.State == report.Unknown && kind == api.SinkReachableCondition:
		return condition(kind, metav1.ConditionUnknown, api.ReasonNotTried, "No dispatcher has tried the destination yet.")
	case at.State == report.Unknown:
		return condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, "No dispatcher has tried the database yet.")
	case at.State == report.Refusing:
		return condition(kind, metav1.ConditionFalse, api.ReasonRefusing, at.Message)
	case slices.Contains(linkReasons[kind], at.Reason):
		return condition(kind, metav1.ConditionFalse, at.Reason, at.Message)
	}
	return condition(kind, metav1.ConditionFalse, api.ReasonConnectionFailed, at.Message)
}

// sinkReachable looks at single topics only while the destination as a whole is reached.
func sinkReachable(o observed) metav1.Condition {
	sink := linkReachable(o, api.SinkReachableCondition, "The destination is reached.", func(s report.Status) report.Link { return s.Sink })
	if held := heldTopics(o.answers); sink.Status == metav1.ConditionTrue && len(held) > 0 {
		return condition(sink.Type, metav1.ConditionFalse, api.ReasonTopicsHeld, heldBack(held))
	}
	return sink
}

// notObserved says why no pod told what it sees.
func notObserved(o observed) string {
	if len(o.answers) > 0 {
		return "No dispatcher has heard it from the database yet; see SourceReachable."
	}
	if len(observe.Running(o.pods)) > 0 {
		return "No dispatcher pod answers the operator; see whether the pods are well, and whether a NetworkPolicy lets the operator reach their port 8080."
	}
	if desired.Replicas(o.obd) == 0 {
		return "No dispatcher pod runs, because spec.replicas is 0."
	}
	return "No dispatcher pod runs yet."
}

func workloadAvailable(o observed) metav1.Condition {
	const kind = api.WorkloadAvailableCondition
	d, replicas := o.deployment, desired.Replicas(o.obd)
	switch {
	case o.problem != nil && o.problem.condition == kind:
		return condition(kind, metav1.ConditionFalse, o.problem.reason, o.problem.message)
	case d == nil:
		return condition(kind, metav1.ConditionFalse, api.ReasonProgressing, "The Deployment is made as soon as the Secrets are there and the schema is migrated.")
	case replicas == 0:
		return condition(kind, metav1.ConditionTrue, api.ReasonScaledToZero, "spec.replicas is 0.")
	}
	rollout, failure := deploymentCondition(d, appsv1.DeploymentProgressing), deploymentCondition(d, appsv1.DeploymentReplicaFailure)
	switch {
	case rollout.Status == corev1.ConditionFalse:
		return condition(kind, metav1.ConditionFalse, api.ReasonUnavailable, "New pods do not become ready. "+podTrouble(o.pods))
	case d.Status.AvailableReplicas >= replicas:
		return condition(kind, metav1.ConditionTrue, api.ReasonAvailable, "As many dispatcher pods are ready as spec.replicas asks for.")
	case failure.Status == corev1.ConditionTrue:
		return condition(kind, metav1.ConditionFalse, api.ReasonUnavailable, "Pods cannot be created: "+failure.Message)
	case rollout.Reason == newReplicaSetAvailable && d.Generation == d.Status.ObservedGeneration:
		return condition(kind, metav1.ConditionFalse, api.ReasonUnavailable, "Fewer dispatcher pods are ready than spec.replicas asks for. "+podTrouble(o.pods))
	}
	return condition(kind, metav1.ConditionFalse, api.ReasonProgressing, "Dispatcher pods are starting. "+podTrouble(o.pods))
}

// newReplicaSetAvailable is the reason that the Deployment controller gives when a rollout is done.
const newReplicaSetAvailable = "NewReplicaSetAvailable"

func deploymentCondition(d *appsv1.Deployment, kind appsv1.DeploymentConditionType) appsv1.DeploymentCondition {
	for _, c := range d.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return appsv1.DeploymentCondition{}
}

// rolledOut reports whether all pods are of the newest template.
func rolledOut(o observed) bool {
	d := o.deployment
	return d != nil && d.Status.ObservedGeneration >= d.Generation &&
		d.Status.UpdatedReplicas == desired.Replicas(o.obd) && d.Status.Replicas == d.Status.UpdatedReplicas
}

func deadLetters(o observed) metav1.Condition {
	const kind = api.DeadLettersPresentCondition
	switch b := newestBacklog(o.answers); {
	case b == nil:
		return condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, notObserved(o))
	case b.Dead > 0:
		return condition(kind, metav1.ConditionTrue, api.ReasonDeadLetters, deadLettersNote(b.BlockedKeys > 0 && blocks(o.obd)))
	}
	return condition(kind, metav1.ConditionFalse, api.ReasonNoDeadLetters, "No event was given up.")
}

// blocks reports whether a key waits behind its dead event.
func blocks(obd *api.OutboxDispatcher) bool { return obd.Spec.OnDead == api.OnDeadBlock }

// oldTransaction is the age from which what holds vacuum back is worth a condition.
const oldTransaction = 15 * time.Minute

// vacuumHeldBack speaks of the oldest transaction that a pod has seen.
func vacuumHeldBack(o observed) metav1.Condition {
	const kind = api.VacuumHeldBackCondition
	var oldest *report.OldestTransaction
	for _, a := range o.answers {
		if t := a.OldestTransaction; t != nil && (oldest == nil || t.Seconds > oldest.Seconds) {
			oldest = t
		}
	}
	switch {
	case oldest == nil:
		return condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, notObserved(o))
	case oldest.Seconds <= oldTransaction.Seconds():
		return condition(kind, metav1.ConditionFalse, api.ReasonNotHeldBack, "Nothing keeps vacuum from removing rows for long.")
	}
	reason, what, remedy := holder(oldest)
	return condition(kind, metav1.ConditionTrue, reason, fmt.Sprintf(
		"%s has kept vacuum from removing rows for more than 15 minutes, so the outbox grows and gets slower. %s", what, remedy))
}
