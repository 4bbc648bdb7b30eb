package migrate

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
		jobs     []batchv1.Job
		hash     string
		every    time.Duration
		state    State
		attempt  int
		remove   string
		explains string
		retry    time.Duration
	}{
		"none wanted":          {hash: ""},
		"none wanted any more": {jobs: []batchv1.Job{job("a", 1, "", 0)}, hash: "", remove: "a1"},
		"first":                {hash: "a", state: Running, attempt: 1},
		"running":              {jobs: []batchv1.Job{job("a", 1, "", 0)}, hash: "a", state: Running, explains: "a1"},
		"done":                 {jobs: []batchv1.Job{job("a", 1, batchv1.JobComplete, time.Hour)}, hash: "a", state: Succeeded, explains: "a1"},
		"failed just now":      {jobs: []batchv1.Job{job("a", 1, batchv1.JobFailed, 4*time.Second)}, hash: "a", state: Failed, explains: "a1", retry: 6 * time.Second},
		"failed long ago":      {jobs: []batchv1.Job{job("a", 1, batchv1.JobFailed, 10*time.Second)}, hash: "a", state: Failed, attempt: 2, explains: "a1"},
		"the third waits longer": {jobs: []batchv1.Job{job("a", 3, batchv1.JobFailed, 10*time.Second), job("a", 2, batchv1.JobFailed, time.Minute)}, hash: "a",
			state: Failed, remove: "a2", explains: "a3", retry: 30 * time.Second},
		"runs again": {jobs: []batchv1.Job{job("a", 3, "", 0), job("a", 2, batchv1.JobFailed, time.Minute), job("a", 1, batchv1.JobFailed, time.Hour)}, hash: "a",
			state: Failed, remove: "a1", explains: "a2"},
		"done, and not due again": {jobs: []batchv1.Job{job("a", 1, batchv1.JobComplete, 4*time.Second)}, hash: "a", every: 10 * time.Second, state: Succeeded, explains: "a1", retry: 6 * time.Second},
		"done, and due again":     {jobs: []batchv1.Job{job("a", 1, batchv1.JobComplete, 10*time.Second)}, hash: "a", every: 10 * time.Second, state: Succeeded, attempt: 2, explains: "a1"},
		"done, and runs again": {jobs: []batchv1.Job{job("a", 2, "", 0), job("a", 1, batchv1.JobComplete, time.Minute)}, hash: "a", every: 10 * time.Second,
			state: Succeeded, explains: "a1"},
		"done at last":       {jobs: []batchv1.Job{job("a", 2, batchv1.JobComplete, 0), job("a", 1, batchv1.JobFailed, 0)}, hash: "a", state: Succeeded, remove: "a1", explains: "a2"},
		"another is wanted":  {jobs: []batchv1.Job{job("a", 2, batchv1.JobFailed, 0)}, hash: "b", state: Running, attempt: 1, remove: "a2"},
		"another was wanted": {jobs: []batchv1.Job{job("a", 1, batchv1.JobComplete, 0), job("b", 1, "", 0)}, hash: "b", state: Running, remove: "a1", explains: "b1"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := planFor(c.jobs, c.hash, c.every, now)
			var removed []string
			for _, j := range plan.remove {
				removed = append(removed, j.Name)
			}
			explains := ""
			if plan.explains != nil {
				explains = plan.explains.Name
			}
			if plan.State != c.state || plan.attempt != c.attempt || strings.Join(removed, " ") != c.remove || explains != c.explains || plan.Retry != c.retry {
				t.Errorf("plan %+v, removes %v; want %+v", plan, removed, c)
			}
		})
	}
}

func TestRetryDelay(t *testing.T) {
	for attempt, want := range map[int]time.Duration{1: 10 * time.Second, 2: 20 * time.Second, 5: 160 * time.Second, 6: 5 * time.Minute, 1000: 5 * time.Minute} {
		if got := RetryDelay(attempt); got != want {
			t.Errorf("after attempt %d: %s, want %s", attempt, got, want)
		}
	}
}
