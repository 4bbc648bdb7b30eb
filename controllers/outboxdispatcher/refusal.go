package outboxdispatcher

import (
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

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
	reason := v1alpha1.ReasonInvalidConfiguration
	if pipelineField.MatchString(words) {
		reason = v1alpha1.ReasonInvalidPipeline
		words = strings.ReplaceAll(pipelineField.ReplaceAllString(words, "${1}spec.${2}"), ".schema.file", ".schema.configMapRef")
	}
	words = unknownField.ReplaceAllString(words, "the image of the dispatcher does not know $1, which this operator writes: it is older; give the operator's --dispatcher-image, and spec.pods.template if it names an image, the operator's own version")
	const left = " Pods from before are left as they are."
	return problem.Stalling(v1alpha1.WorkloadAvailableCondition, reason, problem.Sentence(problem.Clip(words, problem.MaxMessage-len(left)-5))+left)
}
