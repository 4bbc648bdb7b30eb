package outboxdispatcher

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// dataHealthy is about rows that no dispatcher works on, as the pod with the newest count reports. Those of other outbox
// namespaces are not this dispatcher's: it names them, and is healthy.
func dataHealthy(o observed) metav1.Condition {
	const kind = api.DataHealthyCondition
	d := o.data()
	if d == nil {
		return condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, notObserved(o))
	}
	unserved := func(t status.OrphanTopic) int64 { return t.Unserved }
	own := func(namespace string) bool { return namespace == o.obd.Spec.Namespace }
	if topics := orphanTopics(d, own, unserved); topics != "" {
		return condition(kind, metav1.ConditionFalse, api.ReasonTopicsUnserved, fmt.Sprintf(
			"Events are due that no dispatcher serves: %s. Make an OutboxDispatcher for them, or correct the namespace or topic that their producer gives enqueue.", topics))
	}
	if topics := orphanTopics(d, own, func(t status.OrphanTopic) int64 { return t.Abandoned }); topics != "" {
		return condition(kind, metav1.ConditionFalse, api.ReasonLeasesAbandoned, fmt.Sprintf(
			"Events are leased to workers that are gone, and no worker takes them over: %s. See whether a dispatcher of the topic runs, is not paused, and does not hold it back (TopicsPaused, SinkReachable).", topics))
	}
	if len(d.Adoptions) > 0 {
		return condition(kind, metav1.ConditionFalse, api.ReasonAdoptedRowsLeft, fmt.Sprintf(
			"Rows of adopted tables are left: %s. See which and why with dispatcher adopt status, and correct them; until then their worker has to run.", adoptedRows(d)))
	}
	if slices.ContainsFunc(o.statuses, func(s status.Status) bool { return s.Journal != nil && s.Journal.Differences > 0 }) {
		return condition(kind, metav1.ConditionFalse, api.ReasonJournalDiffers,
			"The journal and the rows differ: rows were changed past the dispatchers. Run dispatcher verify, which names each.")
	}
	const message = "A dispatcher works on every due event of the outbox namespace."
	if topics := orphanTopics(d, func(namespace string) bool { return !own(namespace) }, unserved); topics != "" {
		return condition(kind, metav1.ConditionTrue, api.ReasonOthersUnserved, message+" No dispatcher serves "+topics+": see dispatcher unserved.")
	}
	return condition(kind, metav1.ConditionTrue, api.ReasonHealthy, message)
}

// orphanTopics names the first topics that have such rows, of the outbox namespaces that are chosen.
func orphanTopics(d *status.Data, of func(namespace string) bool, rows func(status.OrphanTopic) int64) string {
	var names []string
	for _, t := range d.OrphanTopics {
		if of(t.Namespace) && rows(t) > 0 {
			names = append(names, fmt.Sprintf("%s of outbox namespace %s", problem.Clip(strconv.Quote(t.Topic), topicBytes), problem.Clip(strconv.Quote(t.Namespace), topicBytes)))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "topic " + strings.Join(names[:min(len(names), namedTopics)], ", ")
}

// adoptedRows names adoptions, each with the state of its rows.
func adoptedRows(d *status.Data) string {
	var names []string
	for _, a := range d.Adoptions {
		names = append(names, fmt.Sprintf("of %s (%s)", problem.Clip(strconv.Quote(a.Adoption), topicBytes), a.State))
	}
	return strings.Join(names, ", ")
}

// topicsShared names the other dispatchers that deliver topics of this one.
func topicsShared(o observed) metav1.Condition {
	const kind = api.TopicsSharedCondition
	sharing := sharing(o.obd, o.peers, o.statuses)
	if len(sharing) == 0 {
		return condition(kind, metav1.ConditionFalse, api.ReasonNotShared, "No other dispatcher of the outbox delivers topics of this one.")
	}
	return condition(kind, metav1.ConditionTrue, api.ReasonTopicsShared, fmt.Sprintf(
		"%s too, so each event goes to one of them only, to whichever claims it first. Give each topics of its own, or keep one of them; for several destinations of an event use the sink copy.",
		deliver(sharing)))
}

// nameBytes bounds a name in a message.
const nameBytes = 120

// deliver is a subject and its verb for the names, some of many.
func deliver(names []string) string {
	var quoted []string
	for _, name := range names[:min(len(names), namedTopics)] {
		quoted = append(quoted, problem.Clip(strconv.Quote(name), nameBytes))
	}
	switch {
	case len(names) > namedTopics:
		return "The dispatchers " + strings.Join(quoted, ", ") + " and others deliver topics of this one"
	case len(names) > 1:
		return "The dispatchers " + strings.Join(quoted, ", ") + " deliver topics of this one"
	}
	return "The dispatcher " + quoted[0] + " delivers topics of this one"
}
