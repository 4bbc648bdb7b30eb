package outboxdispatcher

import (
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// topicsShared names the other dispatchers that deliver topics of this one.
func topicsShared(o observed) metav1.Condition {
	const kind = api.TopicsSharedCondition
	sharing := sharing(o.obd, o.peers, o.statuses)
	if len(sharing) == 0 {
		return condition(kind, metav1.ConditionFalse, api.ReasonNotShared, "No other dispatcher of the outbox delivers topics of this one.")
	}
	return condition(kind, metav1.ConditionTrue, api.ReasonTopicsShared, fmt.Sprintf(
		"%s too, so each event goes to one of them only, to whichever claims it first. Give each topics of its own, or keep one of them: an event has one dispatcher.",
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
