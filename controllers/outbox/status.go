package outbox

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// observed is what one pass has seen. The status follows from it and from nothing else.
type observed struct {
	outbox *api.Outbox
	// problem kept the migration from going on, nil for nothing.
	problem *problem.Problem
	// missing is a reference that leads nowhere, nil for none.
	missing   *problem.Problem
	migration migrate.Migration
	// adoption is the Job that adopts, and adopted what it has left at its end, nil when that is not known.
	adoption migrate.Migration
	adopted  *report.Adoptions
	// dispatchers are those that refer to the Outbox, by name.
	dispatchers []api.OutboxDispatcher
}

// Bounds of the lists in a status.
const (
	listed       = 64
	listedTopics = 16
)

// setStatus fills the status from what was observed.
func setStatus(status *api.OutboxStatus, o observed) {
	status.ObservedGeneration = o.outbox.Generation
	status.Migration = string(o.migration.State)
	status.DispatcherCount = int32(len(o.dispatchers))
	status.Dispatchers = nil
	for _, d := range o.dispatchers[:min(len(o.dispatchers), listed)] {
		topics := slices.Sorted(slices.Values(d.Spec.Topics))
		status.Dispatchers = append(status.Dispatchers, api.OutboxUser{
			Name: d.Name, Namespace: d.Spec.Namespace, Topics: topics[:min(len(topics), listedTopics)],
		})
	}
	for _, d := range o.dispatchers {
		if v := d.Status.SchemaVersion; v != nil && (status.SchemaVersion == nil || *v > *status.SchemaVersion) {
			status.SchemaVersion = v
		}
	}
	setRetention(status, o.dispatchers)
	setAdoptions(status, o)
	setBacklog(status, o.dispatchers)
	if len(status.Adoptions) == 0 {
		meta.RemoveStatusCondition(&status.Conditions, api.AdoptedCondition)
	}
	kstatus.SetConditions(&status.Conditions, o.outbox.Generation, conditions(o))
}

// setRetention takes what the dispatcher says that saw the last run: they all sweep the same.
func setRetention(status *api.OutboxStatus, dispatchers []api.OutboxDispatcher) {
	for _, d := range dispatchers {
		if r := d.Status.Retention; r != nil && (status.Retention == nil || status.Retention.LastRun.Before(r.LastRun)) {
			status.Retention = r.DeepCopy()
		}
	}
}

// setBacklog sums up the counts of dispatchers that have counted.
func setBacklog(status *api.OutboxStatus, dispatchers []api.OutboxDispatcher) {
	sums := map[string]*api.NamespaceBacklog{}
	status.Pending, status.Dead, status.Backlog = nil, nil, nil
	var pending, dead int64
	for _, d := range dispatchers {
		if d.Status.Pending == nil || d.Status.Dead == nil {
			continue
		}
		sum := sums[d.Spec.Namespace]
		if sum == nil {
			sum = &api.NamespaceBacklog{Namespace: d.Spec.Namespace}
			sums[d.Spec.Namespace] = sum
		}
		sum.Pending, sum.Dead = sum.Pending+*d.Status.Pending, sum.Dead+*d.Status.Dead
		sum.OldestPending = older(sum.OldestPending, d.Status.OldestPending)
		pending, dead = pending+*d.Status.Pending, dead+*d.Status.Dead
		status.Pending, status.Dead = &pending, &dead
	}
	for _, sum := range sums {
		status.Backlog = append(status.Backlog, *sum)
	}
	slices.SortFunc(status.Backlog, func(a, b api.NamespaceBacklog) int { return cmp.Compare(a.Namespace, b.Namespace) })
	status.Backlog = status.Backlog[:min(len(status.Backlog), listed)]
}

// older is the earlier of two times, of which one or both may not be.
func older(a, b *metav1.Time) *metav1.Time {
	if a == nil || b != nil && b.Before(a) {
		return b
	}
	return a
}
