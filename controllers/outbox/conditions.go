package outbox

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
)

// watched are the conditions whose changes are recorded as Events. Dispatchers have Events of their own for what only they
// observe.
var watched = []kstatus.Watch{
	{Condition: api.ReferencesResolvedCondition, Action: "ResolveReferences"},
	{Condition: api.SchemaReadyCondition, Action: "Migrate"},
	{Condition: api.TopicsSharedCondition, Action: "CompareTopics"},
	{Condition: api.ReadyCondition, Action: "Observe"},
}

// conditions are computed here, all of them and nowhere else.
func conditions(o observed) []metav1.Condition {
	references, schema := referencesResolved(o), schemaReady(o)
	source := fromDispatchers(o, api.SourceReachableCondition, metav1.ConditionFalse)
	all := []metav1.Condition{ready(o, references, source, schema), references, schema, source,
		fromDispatchers(o, api.VacuumHeldBackCondition, metav1.ConditionTrue),
		fromDispatchers(o, api.DataHealthyCondition, metav1.ConditionFalse), topicsShared(o)}
	if c := progress(o); c.Type != "" {
		all = append(all, c)
	}
	return all
}

// ready is True when dispatchers can work with the outbox: the schema fits, and nothing is known to be wrong; or one
// of them works with it, whatever else is wrong, such as a new pod that cannot log in.
func ready(o observed, references, source, schema metav1.Condition) metav1.Condition {
	for _, c := range []metav1.Condition{references, source, schema} {
		switch {
		case c.Status != metav1.ConditionFalse:
		case slices.ContainsFunc(o.dispatchers, works):
			return kstatus.Condition(api.ReadyCondition, metav1.ConditionTrue, api.ReasonInUseDespiteTrouble, fmt.Sprintf(
				"Dispatchers work with the database, in spite of what %s says (%s): %s", c.Type, c.Reason, c.Message))
		default:
			return kstatus.Condition(api.ReadyCondition, c.Status, c.Reason, c.Message)
		}
	}
	return kstatus.Condition(api.ReadyCondition, schema.Status, schema.Reason, schema.Message)
}

// works reports whether a pod of the dispatcher reaches the database, and fits its schema. All of them do when the two
// conditions are True, and some pod does when Ready is, unless no pod is wanted.
func works(d api.OutboxDispatcher) bool {
	is := func(kind string) bool { return meta.IsStatusConditionTrue(d.Status.Conditions, kind) }
	if is(api.SourceReachableCondition) && is(api.SchemaReadyCondition) {
		return true
	}
	return is(api.ReadyCondition) && meta.FindStatusCondition(d.Status.Conditions, api.ReadyCondition).Reason != api.ReasonScaledToZero
}

// progress is Stalled, Reconciling, or nothing when the spec is in place.
func progress(o observed) metav1.Condition {
	switch {
	case o.problem != nil && o.problem.Stalled:
		return kstatus.Condition(api.StalledCondition, metav1.ConditionTrue, o.problem.Reason, o.problem.Message)
	case o.problem != nil:
		return kstatus.Condition(api.ReconcilingCondition, metav1.ConditionTrue, o.problem.Reason, o.problem.Message)
	case o.queues:
		return kstatus.Condition(api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonProgressing, "The migration waits for others that the operator's upgrade brings.")
	case o.migration.State == migrate.Failed:
		return kstatus.Condition(api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonMigrationFailed, o.migration.Sentence())
	case o.migration.State == migrate.Running:
		return kstatus.Condition(api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonMigrating, o.migration.Sentence())
	}
	return metav1.Condition{}
}

// schemaReady is a problem that keeps the migration from running; else what dispatchers report, when it is True or no
// migration can help; else the state of the migration Job; else what dispatchers report.
func schemaReady(o observed) metav1.Condition {
	const kind = api.SchemaReadyCondition
	reported := fromDispatchers(o, kind, metav1.ConditionFalse)
	switch {
	case o.problem != nil:
		return kstatus.Condition(kind, metav1.ConditionFalse, o.problem.Reason, o.problem.Message)
	case reported.Status == metav1.ConditionTrue, reported.Reason == api.ReasonTooNew, reported.Reason == api.ReasonSequencesBehind:
		return reported
	case o.migration.State == migrate.Failed:
		return kstatus.Condition(kind, metav1.ConditionFalse, api.ReasonMigrationFailed, o.migration.Sentence())
	case o.migration.State == migrate.Running:
		return kstatus.Condition(kind, metav1.ConditionFalse, api.ReasonMigrating, o.migration.Sentence())
	case o.migration.State == migrate.Succeeded && reported.Status == metav1.ConditionUnknown:
		return kstatus.Condition(kind, metav1.ConditionTrue, api.ReasonUpToDate, "The migration Job has brought the schema up to date.")
	}
	return reported
}

// fromDispatchers is the condition of the first dispatcher that sees what is bad; else of one that sees what
// is good; else Unknown.
func fromDispatchers(o observed, kind string, bad metav1.ConditionStatus) metav1.Condition {
	good := metav1.ConditionTrue
	if bad == metav1.ConditionTrue {
		good = metav1.ConditionFalse
	}
	for _, status := range []metav1.ConditionStatus{bad, good} {
		for _, d := range o.dispatchers {
			if c := meta.FindStatusCondition(d.Status.Conditions, kind); c != nil && c.Status == status {
				return kstatus.Condition(kind, c.Status, c.Reason, c.Message)
			}
		}
	}
	message := "No OutboxDispatcher refers to this Outbox, so the database is not observed."
	if len(o.dispatchers) > 0 {
		message = "No OutboxDispatcher that refers to this Outbox has a pod that reports it."
	}
	return kstatus.Condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, message)
}

// referencesResolved believes the pods that mount the Secrets: the operator may not read them.
func referencesResolved(o observed) metav1.Condition {
	const kind = api.ReferencesResolvedCondition
	source := fromDispatchers(o, api.SourceReachableCondition, metav1.ConditionFalse)
	switch {
	case o.missing != nil:
		return kstatus.Condition(kind, metav1.ConditionFalse, o.missing.Reason, o.missing.Message)
	case o.migration.State == migrate.Succeeded, source.Status == metav1.ConditionTrue:
		return kstatus.Condition(kind, metav1.ConditionTrue, api.ReasonResolved, "Every Secret and key that the spec names was there when a pod started.")
	}
	return kstatus.Condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, "No pod has mounted the Secrets yet.")
}

// maxNamed is how many dispatchers a message names.
const maxNamed = 5

// topicsShared reports which of the dispatchers share topics.
func topicsShared(o observed) metav1.Condition {
	const kind = api.TopicsSharedCondition
	var names []string
	for _, d := range o.dispatchers {
		if meta.IsStatusConditionTrue(d.Status.Conditions, kind) {
			names = append(names, strconv.Quote(d.Name))
		}
	}
	if len(names) == 0 {
		return kstatus.Condition(kind, metav1.ConditionFalse, api.ReasonNotShared, "No two dispatchers of this Outbox deliver the same topics.")
	}
	which := strings.Join(names[:min(len(names), maxNamed)], ", ")
	if len(names) > maxNamed {
		which += " and others"
	}
	return kstatus.Condition(kind, metav1.ConditionTrue, api.ReasonTopicsShared,
		"Dispatchers deliver topics that others deliver too, so each event goes to one of them only: "+which+". The condition TopicsShared of each says with whom, and what to do.")
}
