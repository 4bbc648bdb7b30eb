package outboxdispatcher

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Bounds of a message, which leave room for the remedy: how many paused topics it names, and the bytes of each name.
const (
	namedTopics = 5
	topicBytes  = 40
)

// pausedTopics are the topics that some pod pauses, by name, each with the cause that one pod reports:
// always the same, in whatever order the pods are listed.
func pausedTopics(statuses []status.Status) []status.PausedTopic {
	return byTopic(statuses, func(a status.Status) []status.PausedTopic { return a.PausedTopics },
		func(t status.PausedTopic) (topic, why string) { return t.Topic, t.Message })
}

// gatedTopics are the topics that some pod pauses for the type of their next event, by name, each with one type.
func gatedTopics(statuses []status.Status) []status.GatedTopic {
	return byTopic(statuses, func(a status.Status) []status.GatedTopic { return a.Gated },
		func(t status.GatedTopic) (topic, why string) { return t.Topic, t.EventType })
}

// byTopic is what pods report of topics, by name. Of a topic that several pods report it is the first by the reason.
func byTopic[T any](statuses []status.Status, reported func(status.Status) []T, key func(T) (topic, why string)) []T {
	var all []T
	for _, a := range statuses {
		all = append(all, reported(a)...)
	}
	slices.SortFunc(all, func(a, b T) int {
		topic, why := key(a)
		other, otherWhy := key(b)
		return cmp.Or(strings.Compare(topic, other), strings.Compare(why, otherWhy))
	})
	return slices.CompactFunc(all, func(a, b T) bool {
		topic, _ := key(a)
		other, _ := key(b)
		return topic == other
	})
}

// notVerified names topics that wait for a verified consumer of a type. A pod names only the first.
func notVerified(gated []status.GatedTopic, statuses []status.Status) string {
	var names []string
	for _, g := range gated[:min(len(gated), namedTopics)] {
		what := "no type, so for a consumer of *"
		if g.EventType != "" {
			what = "type " + problem.Clip(strconv.Quote(g.EventType), topicBytes)
		}
		names = append(names, fmt.Sprintf("%s (%s)", problem.Clip(strconv.Quote(g.Topic), topicBytes), what))
	}
	which := strings.Join(names, ", ")
	if slices.ContainsFunc(statuses, func(a status.Status) bool { return a.GatedTopics > len(names) }) || len(gated) > len(names) {
		which += " and others"
	}
	return fmt.Sprintf("The next event of these topics has a type without a verified OutboxConsumer that this dispatcher feeds, and spec.delivery.consumerPolicy requires one: %s. "+
		"Make its evidence with `dispatcher verify-consumer --evidence FILE`, and register it with `kubectl patch outboxconsumer NAME --type merge --patch-file FILE`; "+
		"`kubectl get outboxconsumers` says what each lacks. The topics then continue by themselves.", which)
}

// describePaused describes paused topics: what that means, some of their names, the cause of one, and the remedy.
func describePaused(what string, paused []status.PausedTopic) string {
	var names []string
	for _, h := range paused[:min(len(paused), namedTopics)] {
		names = append(names, problem.Clip(strconv.Quote(h.Topic), topicBytes))
	}
	which := strings.Join(names, ", ")
	if len(paused) > namedTopics {
		which += " and others"
	}
	return fmt.Sprintf("%s: %s. For %s: %s Fix what receives them; they are tried again by themselves.",
		what, which, names[0], problem.Sentence(paused[0].Message))
}

// deadLettersNote describes dead events, and the largest group of them.
func deadLettersNote(blocked bool, groups []status.DeadGroup) string {
	note := "Events were given up and wait for a person: the Dead column counts them, status.deadGroups and the table outbox_dead_letters say why."
	if len(groups) > 0 {
		g := groups[0]
		note += fmt.Sprintf(" The largest group is %s of topic %s: %s. %s", g.Group, problem.Clip(strconv.Quote(g.Topic), topicBytes),
			strings.Join(strings.Fields(g.Reason+" "+g.Class+" "+g.Code+" "+g.Place), " "), dispatcher.Recovery(dispatcher.DeadReason(spec.ContractReason(g.Reason)), g.Class))
	}
	if blocked {
		note += " Later events of their keys wait behind them (spec.delivery.onDead is Block): the Blocked column of -o wide counts those keys, /status of a pod lists them."
	}
	return note
}

// holder says what it is that holds vacuum back, and what ends it.
func holder(t *status.OldestTransaction) (reason, what, remedy string) {
	name := "'" + strings.ReplaceAll(t.Name, "'", "''") + "'" // as in SQL
	switch t.Kind {
	case status.PreparedTransaction:
		return api.ReasonPreparedTransaction, "The prepared transaction " + name,
			fmt.Sprintf("End it in its database: commit prepared %s, or rollback prepared %s.", name, name)
	case status.ReplicationSlot:
		return api.ReasonReplicationSlot, "The replication slot " + name,
			fmt.Sprintf("Let its consumer catch up, or drop the slot: select pg_drop_replication_slot(%s).", name)
	case status.Standby:
		return api.ReasonStandbyFeedback, "A query on the standby " + name + ", which sends hot_standby_feedback,",
			"End that query on the standby, or turn hot_standby_feedback off there."
	}
	pid, _, _ := strings.Cut(strings.TrimPrefix(t.Name, "pid "), " ")
	return api.ReasonOldTransaction, "An open transaction (" + t.Name + ")",
		fmt.Sprintf("Let it end, or end it: select pg_terminate_backend(%s).", pid)
}

const (
	// exitConfig is the exit code of a dispatcher that refuses its configuration.
	exitConfig = 78
	// settled is how long a container runs that has not ended at once again.
	settled = 10 * time.Second
)

// refusal is what pods of the newest template say of a configuration that they do not take, nil for nothing.
// They alone compile expressions and schemas.
func refusal(d *appsv1.Deployment, all []corev1.Pod, now time.Time) *problem.Problem {
	if d == nil {
		return nil
	}
	for i := range all {
		if all[i].DeletionTimestamp != nil || !newest(&all[i], d) {
			continue
		}
		for _, status := range all[i].Status.ContainerStatuses {
			if status.Name != desired.Container || status.State.Running != nil && now.Sub(status.State.Running.StartedAt.Time) > settled {
				continue
			}
			if ended := pods.LastEnd(status); ended != nil && ended.ExitCode == exitConfig {
				return refusedBy(ended.Message)
			}
		}
	}
	return nil
}

// newest reports whether a pod has the files and the image of the Deployment's template.
func newest(pod *corev1.Pod, d *appsv1.Deployment) bool {
	want := &d.Spec.Template.Spec
	return slices.Equal(desired.ConfigNames(&pod.Spec), desired.ConfigNames(want)) && desired.Image(&pod.Spec) == desired.Image(want)
}

// pipelineField is a field of the file that is compiled, where a sentence about it begins.
var pipelineField = regexp.MustCompile(`(^|; )((?:sink\.routes|message\.validation|message\.transform)\[)`)

// unknownField is a field of the file that the pod's image does not know. The operator wrote it.
var unknownField = regexp.MustCompile(`unknown field "([^"]+)"; (?:correct its name, or remove it|did you mean \w+\?)`)

// fileLine is a place in the file, which the operator wrote.
var fileLine = regexp.MustCompile(`(^|; )line \d+, column \d+: `)

// refusedBy makes sentences about the spec of a dispatcher's words about its file.
func refusedBy(words string) *problem.Problem {
	words = strings.Join(strings.Split(strings.TrimSpace(words), "\n"), "; ")
	if file, rest, ok := strings.Cut(words, ": "); ok && strings.HasPrefix(file, "configuration /") {
		words = rest
	}
	words = fileLine.ReplaceAllString(words, "$1")
	reason := api.ReasonInvalidConfiguration
	if pipelineField.MatchString(words) {
		reason = api.ReasonInvalidPipeline
		words = strings.ReplaceAll(pipelineField.ReplaceAllString(words, "${1}spec.${2}"), ".schema.file", ".schema.configMapRef")
	}
	words = unknownField.ReplaceAllString(words, "the image of the dispatcher does not know $1, which this operator writes: it is older; give the operator's --dispatcher-image, and spec.pods.template if it names an image, the operator's own version")
	const left = " Pods from before are left as they are."
	return problem.Stalling(api.WorkloadAvailableCondition, reason, problem.Sentence(problem.Clip(words, problem.MaxMessage-len(left)-5))+left)
}
