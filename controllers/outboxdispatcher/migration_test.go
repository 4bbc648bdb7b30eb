package outboxdispatcher

import (
	"strconv"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

func TestPlanMigration(t *testing.T) {
	now := time.Now()
	job := func(hash string, attempt int, ended batchv1.JobConditionType, ago time.Duration) batchv1.Job {
		j := batchv1.Job{ObjectMeta: metav1.ObjectMeta{
			Name:        hash + strconv.Itoa(attempt),
			Labels:      map[string]string{desired.LabelMigration: hash},
			Annotations: map[string]string{desired.AnnotationAttempt: strconv.Itoa(attempt)},
		}}
		if ended != "" {
			j.Status.Conditions = []batchv1.JobCondition{{Type: ended, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-ago))}}
		}
		return j
	}
	for name, c := range map[string]struct {
		jobs    []batchv1.Job
		hash    string
		state   migrationState
		attempt int
		remove  string
		tells   string
		retry   time.Duration
	}{
		"none wanted":          {hash: ""},
		"none wanted any more": {jobs: []batchv1.Job{job("a", 1, "", 0)}, hash: "", remove: "a1"},
		"first":                {hash: "a", state: migrationRunning, attempt: 1},
		"running":              {jobs: []batchv1.Job{job("a", 1, "", 0)}, hash: "a", state: migrationRunning, tells: "a1"},
		"done":                 {jobs: []batchv1.Job{job("a", 1, batchv1.JobComplete, time.Hour)}, hash: "a", state: migrationSucceeded, tells: "a1"},
		"failed just now":      {jobs: []batchv1.Job{job("a", 1, batchv1.JobFailed, 4*time.Second)}, hash: "a", state: migrationFailed, tells: "a1", retry: 6 * time.Second},
		"failed long ago":      {jobs: []batchv1.Job{job("a", 1, batchv1.JobFailed, 10*time.Second)}, hash: "a", state: migrationFailed, attempt: 2, tells: "a1"},
		"the third waits longer": {jobs: []batchv1.Job{job("a", 3, batchv1.JobFailed, 10*time.Second), job("a", 2, batchv1.JobFailed, time.Minute)}, hash: "a",
			state: migrationFailed, remove: "a2", tells: "a3", retry: 30 * time.Second},
		"runs again": {jobs: []batchv1.Job{job("a", 3, "", 0), job("a", 2, batchv1.JobFailed, time.Minute), job("a", 1, batchv1.JobFailed, time.Hour)}, hash: "a",
			state: migrationFailed, remove: "a1", tells: "a2"},
		"done at last":       {jobs: []batchv1.Job{job("a", 2, batchv1.JobComplete, 0), job("a", 1, batchv1.JobFailed, 0)}, hash: "a", state: migrationSucceeded, remove: "a1", tells: "a2"},
		"another is wanted":  {jobs: []batchv1.Job{job("a", 2, batchv1.JobFailed, 0)}, hash: "b", state: migrationRunning, attempt: 1, remove: "a2"},
		"another was wanted": {jobs: []batchv1.Job{job("a", 1, batchv1.JobComplete, 0), job("b", 1, "", 0)}, hash: "b", state: migrationRunning, remove: "a1", tells: "b1"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := planMigration(c.jobs, c.hash, now)
			var removed []string
			for _, j := range plan.remove {
				removed = append(removed, j.Name)
			}
			if plan.state != c.state || plan.attempt != c.attempt || strings.Join(removed, " ") != c.remove || plan.tells != c.tells || plan.retry != c.retry {
				t.Errorf("plan %+v, removes %v; want %+v", plan, removed, c)
			}
		})
	}
}

func TestRetryDelay(t *testing.T) {
	for attempt, want := range map[int]time.Duration{1: 10 * time.Second, 2: 20 * time.Second, 5: 160 * time.Second, 6: 5 * time.Minute, 1000: 5 * time.Minute} {
		if got := retryDelay(attempt); got != want {
			t.Errorf("after attempt %d: %s, want %s", attempt, got, want)
		}
	}
}

func TestWhatPodsLeaveBehind(t *testing.T) {
	container := func(state corev1.ContainerState) []corev1.Pod {
		return []corev1.Pod{{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "dispatcher", Image: "image:1", State: state}}}}}
	}
	waiting := func(reason, message string) []corev1.Pod {
		return container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}})
	}
	ended := func(code int32, message string) []corev1.Pod {
		return container(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", Message: message}})
	}
	for want, got := range map[string]string{
		`The image "image:1" cannot be pulled; check its name and the pull secrets.`:                podTrouble(waiting("ImagePullBackOff", "Back-off 5m0s")),
		`The container "dispatcher" ends again and again; see ` + "`kubectl logs` with --previous.": podTrouble(waiting("CrashLoopBackOff", "back-off 10s")),
		`The container "dispatcher" cannot be started: no such key.`:                                podTrouble(waiting("CreateContainerConfigError", "no such key")),
		"No node takes a pod: 0/1 nodes are available": podTrouble([]corev1.Pod{{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available"}}}}}),
		"correct the password":              lastWords(ended(1, "log line\ncorrect the password\n")),
		"it ended with exit code 2 (Error)": lastWords(ended(2, "")),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := podTrouble(waiting("ContainerCreating", "")) + lastWords(ended(0, "done")) + podTrouble(nil) + lastWords(nil); got != "" {
		t.Errorf("got %q, want nothing: no pod is in trouble", got)
	}
}

func TestSentence(t *testing.T) {
	for text, want := range map[string]string{
		"http://a answered 500":   "http://a answered 500.", // a URL is written as it is
		"":                        "",
		"it failed":               "It failed.",
		"Done. ":                  "Done.",
		strings.Repeat("é", 1000): "É" + strings.Repeat("é", 499) + "…",
	} {
		if got := sentence(text); got != want {
			t.Errorf("sentence(%q) = %q, want %q", text, got, want)
		}
	}
}
