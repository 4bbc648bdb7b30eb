// Package migrate runs the Job that migrates an outbox schema, for any kind that has one.
package migrate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// Delays before a failed migration is tried again by itself, and how long a Job may wait for its pod: as long as a rollout.
const (
	firstRetry   = 10 * time.Second
	lastRetry    = 5 * time.Minute
	startsWithin = 10 * time.Minute
)

// State is where the migration stands; empty when the operator does not migrate, or does
// not know.
type State string

// Values of [State].
const (
	Running   State = "Running"
	Failed    State = "Failed" // until an attempt succeeds, also while the next one runs
	Succeeded State = "Succeeded"
)

// Migration is what a pass knows of the migration.
type Migration struct {
	State State
	// Unmade means that there is no Job yet, although one is wanted. The state is Running then.
	Unmade bool
	// Reason is the cause in one word, where its pod says one: why it does not start, or how it ended. Detail says why it
	// failed, why it does not start, or what it left undone as it succeeded.
	Reason, Detail string
	// Late means that its pod has not started in the time of a rollout.
	Late bool
	// Retry is the time until the next attempt, 0 for none.
	Retry time.Duration
	// Pods of the object's own Job, of the one that failed last or that runs.
	Pods []corev1.Pod
	// Of is the kind and the name of another object that runs the Job, empty for the object's own.
	Of string
	// Selector selects the Jobs' pods.
	Selector string
}

// Sooner is the earlier of the next attempt and the interval.
func (m Migration) Sooner(interval time.Duration) time.Duration {
	if m.Retry > 0 {
		return min(m.Retry, interval)
	}
	return interval
}

// plan is what to do about the migration.
type plan struct {
	Migration
	// attempt is the number of the Job to make, 0 for none.
	attempt int
	// remove are Jobs that are not needed any more.
	remove []batchv1.Job
	// explains is the Job whose pod says why it failed or does not start, nil for none.
	explains *batchv1.Job
}

// planFor decides by the Jobs that are there. The hash says which migration is wanted; empty
// means none. A failed one is tried again after a delay that grows with the attempt, which the Job
// carries, so a restart of the operator forgets nothing.
func planFor(jobs []batchv1.Job, hash string, now time.Time) plan {
	var current, others []batchv1.Job
	for _, job := range jobs {
		if hash != "" && job.Labels[desired.LabelMigration] == hash {
			current = append(current, job)
		} else {
			others = append(others, job)
		}
	}
	if hash == "" {
		return plan{remove: others}
	}
	if len(current) == 0 {
		return plan{Migration: Migration{State: Running}, attempt: 1, remove: others}
	}
	slices.SortFunc(current, func(a, b batchv1.Job) int { return attempt(a) - attempt(b) })
	earlier, last := current[:len(current)-1], current[len(current)-1]
	p := plan{explains: &last}
	failedAt, failed := finished(last, batchv1.JobFailed)
	_, succeeded := finished(last, batchv1.JobComplete)
	switch {
	case succeeded:
		p.State = Succeeded
	case failed:
		p.State = Failed
		if wait := failedAt.Add(RetryDelay(attempt(last))).Sub(now); wait > 0 {
			p.Retry = wait
		} else {
			p.attempt = attempt(last) + 1
		}
	case len(earlier) > 0: // it runs again; the attempt before says why, unless it hung
		p.State = Failed
		if before := &earlier[len(earlier)-1]; failure(before) != batchv1.JobReasonDeadlineExceeded {
			p.explains = before
		} else {
			p.Late = true
		}
		earlier = earlier[:len(earlier)-1]
	default:
		p.State = Running
	}
	p.remove = slices.Concat(others, earlier)
	return p
}

// RetryDelay is the time after an attempt of that number, from 1, until the next: 10 seconds, twice as long each time, up
// to 5 minutes.
func RetryDelay(attempt int) time.Duration {
	delay := firstRetry
	for range attempt - 1 {
		if delay *= 2; delay >= lastRetry {
			return lastRetry
		}
	}
	return delay
}

// attempt is the Job's number, from 1.
func attempt(job batchv1.Job) int {
	n, err := strconv.Atoi(job.Annotations[desired.AnnotationAttempt])
	if err != nil || n < 1 {
		return 1 // the annotation was edited; the delay starts over
	}
	return n
}

// finished is when the Job got the condition, and whether it has.
func finished(job batchv1.Job, condition batchv1.JobConditionType) (time.Time, bool) {
	for _, c := range job.Status.Conditions {
		if c.Type == condition && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time, true
		}
	}
	return time.Time{}, false
}

// failure is the reason of a Job that failed, empty for one that has not.
func failure(job *batchv1.Job) string {
	for _, c := range job.Status.Conditions {
		if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue {
			return c.Reason
		}
	}
	return ""
}

// Sentence says where a migration that has not succeeded stands, what keeps it, and what to do.
func (m Migration) Sentence() string {
	of := ""
	if m.Of != "" {
		of = " of " + m.Of
	}
	if m.Unmade {
		return fmt.Sprintf("The migration Job%s is not made yet; the conditions%s say why.", of, of)
	}
	switch {
	case m.State == Failed:
	case m.Detail != "":
		return problem.Sentence("The migration" + of + " waits: " + m.Detail)
	default:
		return "The migration Job" + of + " is under way."
	}
	text := "The migration" + of + " failed"
	if m.Detail != "" {
		text += ": " + strings.TrimSuffix(m.Detail, ".")
	}
	return text + ". It is tried again by itself, and at once when the spec changes; see `kubectl logs -l " + m.Selector + "`."
}

// Open reports whether it is wanted, and has not succeeded.
func (m Migration) Open() bool { return m.State == Running || m.State == Failed }

// Cause is the reason of conditions that wait for it: what its pod says, else where it stands.
func (m Migration) Cause() string {
	switch {
	case m.Reason != "":
		return m.Reason
	case m.State == Failed:
		return v1alpha1.ReasonMigrationFailed
	case m.Late:
		return v1alpha1.ReasonProgressDeadlineExceeded
	}
	return v1alpha1.ReasonMigrating
}

// Progress is Stalled when it is late, else Reconciling. missing is a reference that its pod waits for, nil for none.
func (m Migration) Progress(missing *problem.Problem) metav1.Condition {
	reason, text := m.Cause(), m.Sentence()
	if missing != nil && m.State == Running {
		reason, text = missing.Reason, missing.Message
	}
	if m.Late {
		return kstatus.Condition(v1alpha1.StalledCondition, metav1.ConditionTrue, reason, text+" It continues by itself when the cause is gone.")
	}
	return kstatus.Condition(v1alpha1.ReconcilingCondition, metav1.ConditionTrue, reason, text)
}
