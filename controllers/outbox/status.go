package outbox

import (
	"cmp"
	"slices"

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
	// queues means that the migration waits for its turn.
	queues bool
	// dispatchers are those that refer to the Outbox, by name.
	dispatchers []api.OutboxDispatcher
}

// Bounds of the lists in a status.
const (
	listed       = 64
	listedTopics = 16
)

// setStatus fills the status from what was observed.
func setStatus(current *api.OutboxStatus, o observed) {
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
	kstatus.SetConditions(&current.Conditions, o.outbox.Generation, conditions(o))
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
