package outboxdispatcher

import (
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// Delays before a failed migration is tried again by itself.
const (
	firstRetry = 10 * time.Second
	lastRetry  = 5 * time.Minute
)

// migrationState is where the migration stands; empty when the operator does not migrate, or does
// not know.
type migrationState string

const (
	migrationRunning   migrationState = "Running"
	migrationFailed    migrationState = "Failed" // until an attempt succeeds, also while the next one runs
	migrationSucceeded migrationState = "Succeeded"
)

// migration is what a pass knows of the migration.
type migration struct {
	state migrationState
	// detail says why it failed, or why it does not start.
	detail string
	// retry is the time until the next attempt, 0 for none.
	retry time.Duration
}

// sooner is the earlier of the next attempt and the interval.
func (m migration) sooner(interval time.Duration) time.Duration {
	if m.retry > 0 {
		return min(m.retry, interval)
	}
	return interval
}

// migrationPlan is what to do about the migration.
type migrationPlan struct {
	migration
	// attempt is the number of the Job to make, 0 for none.
	attempt int
	// remove are Jobs that nobody needs any more.
	remove []batchv1.Job
	// tells is the name of the Job whose pod says why it failed or does not start.
	tells string
}

// planMigration decides by the Jobs that are there. The hash says which migration is wanted; empty
// means none. A failed one is tried again after a delay that grows with the attempt, which the Job
// carries, so a restart of the operator forgets nothing.
func planMigration(jobs []batchv1.Job, hash string, now time.Time) migrationPlan {
	var current, others []batchv1.Job
	for _, job := range jobs {
		if hash != "" && job.Labels[desired.LabelMigration] == hash {
			current = append(current, job)
		} else {
			others = append(others, job)
		}
	}
	if hash == "" {
		return migrationPlan{remove: others}
	}
	if len(current) == 0 {
		return migrationPlan{migration: migration{state: migrationRunning}, attempt: 1, remove: others}
	}
	slices.SortFunc(current, func(a, b batchv1.Job) int { return attempt(a) - attempt(b) })
	earlier, last := current[:len(current)-1], current[len(current)-1]
	plan := migrationPlan{tells: last.Name}
	failedAt, failed := finished(last, batchv1.JobFailed)
	_, succeeded := finished(last, batchv1.JobComplete)
	switch {
	case succeeded:
		plan.state = migrationSucceeded
	case failed:
		plan.state = migrationFailed
		if wait := failedAt.Add(retryDelay(attempt(last))).Sub(now); wait > 0 {
			plan.retry = wait
		} else {
			plan.attempt = attempt(last) + 1
		}
	case len(earlier) > 0: // it runs again; the attempt before tells why it had to
		plan.state = migrationFailed
		plan.tells = earlier[len(earlier)-1].Name
		earlier = earlier[:len(earlier)-1]
	default:
		plan.state = migrationRunning
	}
	plan.remove = slices.Concat(others, earlier)
	return plan
}

// retryDelay doubles with each attempt that failed.
func retryDelay(attempt int) time.Duration {
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
		return 1 // somebody edited it; the delay starts over
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
