package outboxdispatcher

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/observe"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// observed is what one pass has seen. The status follows from it and from nothing else.
type observed struct {
	obd *v1alpha1.OutboxDispatcher // its spec, its metadata, and status.scaling
	// eta is the time until the pending rows are delivered, empty when it is not known.
	eta string
	// problem stopped the pass, nil for nothing.
	problem *problem.Problem
	// missing is a reference that leads nowhere and that pods wait for, nil for none.
	missing *problem.Problem
	// gone is one that led somewhere when the pods started, nil for none.
	gone      *problem.Problem
	state     stateOfPods
	migration migrate.Migration
	// deployment is nil when there is none of ours.
	deployment *appsv1.Deployment
	pods       []corev1.Pod
	// statuses were read from the pods that responded, silent counts the pods that do not respond, and unpolled those of
	// which neither is known yet.
	statuses         []status.Status
	silent, unpolled int
	// sets are the ReplicaSets of the pods of the statuses; nil for one of all.
	sets []types.UID
	// queues means that it waits for others to take what an upgrade of the operator changes; holders is the sentence that names them.
	queues  bool
	holders string
	// outbox is the one that it refers to, nil for none.
	outbox *v1alpha1.Outbox
	// peers are the other dispatchers that claim from the same outbox, by name.
	peers []v1alpha1.OutboxDispatcher
	// consumers are those that are registered in the namespace, and types the event types that were seen.
	consumers []*v1alpha1.OutboxConsumer
	types     []status.EventType
	now       time.Time
}

// setStatus fills the status from what was observed. The counts stay when no pod reports them. It returns the conditions with
// those that are at rest, which Events need.
func setStatus(current *v1alpha1.OutboxDispatcherStatus, o observed) []metav1.Condition {
	current.ObservedGeneration = kstatus.Observed(o.obd, current.ObservedGeneration)
	current.Sink = o.obd.Spec.Sink.Kind()
	current.Selector = labels.SelectorFromSet(desired.Selector(o.obd, desired.ComponentDispatcher)).String()
	current.Replicas, current.ReadyReplicas = 0, 0
	if o.deployment != nil {
		current.Replicas, current.ReadyReplicas = o.deployment.Status.Replicas, o.deployment.Status.ReadyReplicas
	}
	current.RespondingReplicas = int32(len(o.statuses))
	current.Pods = fmt.Sprintf("%d/%d", current.ReadyReplicas, desired.Replicas(o.obd))
	setCounts(current, o.backlog(), blocks(o.obd))
	setLate(current, o.backlog(), o.obd)
	current.ETA, current.LimitedBy = o.eta, limitedBy(o.statuses)
	current.Scaling = o.obd.Status.Scaling
	setRetention(current, o.statuses)
	setSchemaVersion(current, o.statuses)
	current.EventTypes = seenTypes(current.EventTypes, o.statuses, o.now)
	o.types = current.EventTypes
	return kstatus.SetConditions(&current.Conditions, current.ObservedGeneration, conditions(o))
}

// staleAfter is when the time of a count is a change by itself: it is refreshed within ten minutes.
const staleAfter = 10*time.Minute - lookAgain

// setCounts takes a count, nil for none, of blocked keys only where keys may block. Its time alone does not count as a change
// for some minutes, so that an idle outbox is seldom written about.
func setCounts(current *v1alpha1.OutboxDispatcherStatus, newest *status.Backlog, blocks bool) {
	if !blocks {
		current.BlockedKeys = nil
	}
	if newest == nil {
		return
	}
	counted, counts := *current, newest.Counts
	counted.Counts, counted.DeadGroups = &counts, deadGroups(newest.DeadGroups)
	if blocks {
		counted.BlockedKeys = &newest.BlockedKeys
	}
	if !equal(*current, counted) || current.ObservedTime == nil || newest.ObservedAt.Sub(current.ObservedTime.Time) >= staleAfter {
		counted.ObservedTime = toSeconds(newest.ObservedAt)
		*current = counted
	}
}

// setLate takes from a count, nil for none, since when the events have been later than the objective. It stays while
// they are. A dispatcher that is stopped is not late.
func setLate(current *v1alpha1.OutboxDispatcherStatus, newest *status.Backlog, obd *v1alpha1.OutboxDispatcher) {
	freshness := obd.Spec.Objective.Freshness.D()
	switch {
	case obd.Spec.State == spec.Paused || desired.Replicas(obd) == 0:
		current.LateSince = 0
	case newest == nil:
	case newest.OldestPending == 0 || newest.ObservedAt.Sub(newest.OldestPending.Time()) <= freshness:
		current.LateSince = 0
	case current.LateSince == 0:
		current.LateSince = status.At(newest.OldestPending.Time().Add(freshness))
	}
}

// setRetention takes the newest run that has ended; it stays when none is reported. A run that removed nothing is a
// change only after some minutes, so that an idle outbox is seldom written about. One that is known and lies after the
// newest count ended while the database's clock was ahead, and gives way to any other (CONTRACT C-3).
func setRetention(current *v1alpha1.OutboxDispatcherStatus, statuses []status.Status) {
	var last status.RetentionTotals
	for _, a := range statuses {
		if a.Retention != nil && a.Retention.LastRun > last.LastRun {
			last = a.Retention.RetentionTotals
		}
	}
	if last.LastRun == 0 {
		return
	}
	last.Delivered, last.Dead, last.Expired = max(0, last.Delivered), max(0, last.Dead), max(0, last.Expired)
	known, count := current.Retention, observe.NewestBacklog(statuses)
	if known == nil || known.LastRun == 0 || count != nil && known.LastRun.Time().Sub(count.ObservedAt) > time.Minute ||
		last.LastRun.Time().Sub(known.LastRun.Time()) >= staleAfter || last.LastRun > known.LastRun &&
		(last.Delivered != known.Delivered || last.Dead != known.Dead || last.Expired != known.Expired) {
		current.Retention = &last
	}
}

// deadGroups are the groups of a count. The API server refuses a group that is listed twice or has no name, which no
// dispatcher reports.
func deadGroups(reported []status.DeadGroupExample) (all []status.DeadGroup) {
	for _, g := range reported[:min(len(reported), status.DeadGroupsListed)] {
		if g.Group != "" && !slices.ContainsFunc(all, func(other status.DeadGroup) bool { return other.Group == g.Group }) {
			g.Reason = spec.DeadReason(g.Reason)
			all = append(all, g.DeadGroup)
		}
	}
	return all
}

// setSchemaVersion takes the highest version that the pods see now, which is a lower one after a restore. It stays when none
// reports one.
func setSchemaVersion(current *v1alpha1.OutboxDispatcherStatus, statuses []status.Status) {
	version := int64(0)
	for _, a := range statuses {
		version = max(version, int64(a.Schema.Version))
	}
	if version > 0 {
		current.SchemaVersion = &version
	}
}

// toSeconds is what an object can hold of a time.
func toSeconds(t time.Time) *metav1.Time {
	seconds := metav1.NewTime(t.Truncate(time.Second))
	return &seconds
}

func equal(a, b v1alpha1.OutboxDispatcherStatus) bool { return equality.Semantic.DeepEqual(a, b) }
