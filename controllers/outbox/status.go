package outbox

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// observed is what one pass has seen. The status follows from it and from nothing else.
type observed struct {
	outbox *api.Outbox
	// problem has stopped the migration, nil for none.
	problem *problem.Problem
	// missing is a reference that leads nowhere, nil for none.
	missing   *problem.Problem
	migration migrate.Migration
	// queues means that the migration waits for its turn; holders is the sentence that names those that it waits for.
	queues  bool
	holders string
	// dispatchers are those that refer to the Outbox, by name.
	dispatchers []api.OutboxDispatcher
}

// Bounds of the lists in a status.
const (
	listed       = 64
	listedTopics = 16
)

// setStatus fills the status from what was observed. It returns the conditions with those that are at rest, which Events need.
func setStatus(current *api.OutboxStatus, o observed) []metav1.Condition {
	current.ObservedGeneration = o.outbox.Generation
	current.Migration = string(o.migration.State)
	current.DispatcherCount = ptr.To(int32(len(o.dispatchers)))
	current.Dispatchers = nil
	for _, d := range o.dispatchers[:min(len(o.dispatchers), listed)] {
		topics := slices.Sorted(slices.Values(d.Spec.Topics))
		current.Dispatchers = append(current.Dispatchers, api.OutboxUser{
			Name: d.Name, Namespace: d.Spec.Namespace, Topics: topics[:min(len(topics), listedTopics)],
		})
	}
	version := int64(0)
	for _, d := range o.dispatchers {
		version = max(version, ptr.Deref(d.Status.SchemaVersion, 0))
	}
	if version > 0 { // it stays when no dispatcher has seen one
		current.SchemaVersion = &version
	}
	setRetention(current, o.dispatchers)
	setBacklog(current, o.dispatchers)
	return kstatus.SetConditions(&current.Conditions, o.outbox.Generation, conditions(o))
}

// setRetention takes what the dispatcher says that saw the last run, of those with pods that respond: they all sweep the
// same. It stays when none says it. That may be an earlier run than before, which ended while the database's clock was
// ahead (CONTRACT C-3).
func setRetention(current *api.OutboxStatus, dispatchers []api.OutboxDispatcher) {
	var last *status.RetentionTotals
	for _, d := range dispatchers {
		if r := d.Status.Retention; r != nil && d.Status.RespondingReplicas > 0 && (last == nil || last.LastRun < r.LastRun) {
			last = r
		}
	}
	if last != nil {
		totals := *last
		current.Retention = &totals
	}
}

// setBacklog sums up the counts of dispatchers that have counted.
func setBacklog(current *api.OutboxStatus, dispatchers []api.OutboxDispatcher) {
	sums := map[string]*api.NamespaceBacklog{}
	current.Pending, current.Dead, current.Backlog = nil, nil, nil
	var pending, dead int64
	for _, d := range dispatchers {
		counts := d.Status.Counts
		if counts == nil {
			continue
		}
		sum := sums[d.Spec.Namespace]
		if sum == nil {
			sum = &api.NamespaceBacklog{Namespace: d.Spec.Namespace}
			sums[d.Spec.Namespace] = sum
		}
		sum.Pending, sum.Dead = sum.Pending+counts.Pending, sum.Dead+counts.Dead
		if sum.OldestPending == 0 || counts.OldestPending != 0 && counts.OldestPending < sum.OldestPending {
			sum.OldestPending = counts.OldestPending
		}
		pending, dead = pending+counts.Pending, dead+counts.Dead
		current.Pending, current.Dead = &pending, &dead
	}
	for _, sum := range sums {
		current.Backlog = append(current.Backlog, *sum)
	}
	slices.SortFunc(current.Backlog, func(a, b api.NamespaceBacklog) int { return cmp.Compare(a.Namespace, b.Namespace) })
	current.Backlog = current.Backlog[:min(len(current.Backlog), listed)]
}

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
		return kstatus.Condition(api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonProgressing, "The migration waits for others that the operator's upgrade brings."+o.holders)
	case o.migration.Open():
		return o.migration.Progress(o.missing)
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
	case reported.Status == metav1.ConditionTrue:
		return undone(reported, o.migration)
	case reported.Reason == api.ReasonTooNew, reported.Reason == api.ReasonDiffers, reported.Reason == api.ReasonSequencesBehind:
		return reported
	case o.migration.Open():
		return kstatus.Condition(kind, metav1.ConditionFalse, o.migration.Cause(), o.migration.Sentence())
	case o.migration.State == migrate.Succeeded && reported.Status == metav1.ConditionUnknown:
		return undone(kstatus.Condition(kind, metav1.ConditionTrue, api.ReasonUpToDate, "The migration Job has brought the schema up to date."), o.migration)
	}
	return reported
}

// undone adds what a migration that succeeded left undone: no delivery needs it.
func undone(c metav1.Condition, m migrate.Migration) metav1.Condition {
	if m.State == migrate.Succeeded && m.Detail != "" {
		c.Message = problem.Sentence(c.Message + " " + m.Detail)
	}
	return c
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
