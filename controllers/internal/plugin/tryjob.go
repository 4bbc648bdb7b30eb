package plugin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
)

const (
	// removeWithin bounds the removal of the Job, when the command has ended or was interrupted.
	removeWithin = 15 * time.Second
	// exitDiffers is the dispatcher's code of a difference.
	exitDiffers = 3
	// saysWhy begins the line of the log that says why the dispatcher failed. No line of a report does.
	saysWhy = "dispatcher: "
)

// Log reads the log of the dispatcher's container of a pod that has ended.
type Log func(ctx context.Context, cfg *rest.Config, pod *corev1.Pod) (io.ReadCloser, error)

func podLog(ctx context.Context, cfg *rest.Config, pod *corev1.Pod) (io.ReadCloser, error) {
	clientset, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: desired.Container}).Stream(ctx)
}

// tryJob is the Job of a try.
type tryJob struct {
	*plugin
	*target
	attempt     desired.Try
	out, errOut io.Writer
}

// run makes the Job, writes its report, and removes it.
func (j *tryJob) run(ctx context.Context, p desired.Platform) (err error) {
	wanted, err := j.attempt.Job(p)
	if err != nil {
		return &ExitError{exitRefused, err}
	}
	var job batchv1.Job
	if err := j.make(ctx, wanted, &job); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.remove(ctx, &job)) }()
	files, err := j.attempt.ConfigMap(&job)
	if err != nil {
		return &ExitError{exitRefused, err}
	}
	if err := j.make(ctx, files, &corev1.ConfigMap{}); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeoutCause(ctx, j.attempt.Deadline, fmt.Errorf("--timeout is over after %s", j.attempt.Deadline))
	defer cancel()
	pod, ended, err := j.wait(waiting, &job)
	if err != nil {
		return err
	}
	return j.report(ctx, pod, ended)
}

// make creates the object that is described. It is not applied, which would need one right more.
func (j *tryJob) make(ctx context.Context, described any, made client.Object) error {
	text, err := json.Marshal(described)
	if err == nil {
		err = json.Unmarshal(text, made)
	}
	if err == nil {
		err = j.Create(ctx, made, client.FieldOwner(manager))
	}
	if err != nil {
		return refusedTry(fmt.Errorf("create the %T %s/%s: %w", made, j.attempt.Namespace, j.attempt.Name, err))
	}
	return nil
}

// remove deletes the Job with its pod, and the ConfigMap, also when the command was interrupted.
func (j *tryJob) remove(ctx context.Context, job *batchv1.Job) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeWithin)
	defer cancel()
	files := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Name}}
	err := errors.Join(
		client.IgnoreNotFound(j.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))),
		client.IgnoreNotFound(j.Delete(ctx, files)))
	if err != nil {
		fmt.Fprintf(j.errOut, "warning: the Job %s/%s was not removed, and goes by itself some minutes after its end: %v\n", job.Namespace, job.Name, err)
	}
	return nil
}

// wait returns when the dispatcher has ended. Meanwhile it writes what keeps the pod from running, when that changes.
func (j *tryJob) wait(ctx context.Context, job *batchv1.Job) (*corev1.Pod, *corev1.ContainerStateTerminated, error) {
	for last := ""; ; {
		ended, err := j.ended(ctx, job) // before the pods: one that has ended then is seen
		if err != nil && ctx.Err() == nil {
			return nil, nil, err
		}
		all, err := pods.List(ctx, j, job.Namespace, map[string]string{batchv1.JobNameLabel: job.Name})
		if err != nil && ctx.Err() == nil {
			return nil, nil, refusedTry(err)
		}
		for i := range all {
			if ended := end(&all[i]); ended != nil {
				return &all[i], ended, nil
			}
		}
		if ended != "" {
			return nil, nil, fmt.Errorf("the Job %s/%s %s, and left no pod that reports the outcome; try again", job.Namespace, job.Name, ended)
		}
		trouble := j.trouble(ctx, job, all)
		if len(all) == 0 && pods.Refused(trouble) {
			return nil, nil, fmt.Errorf("the Job %s/%s has no pod: %s; fix what it names, such as a ResourceQuota, the ServiceAccount or spec.pods.template, and try again",
				job.Namespace, job.Name, strings.TrimSuffix(trouble, "."))
		}
		if trouble != last && ctx.Err() == nil {
			if last = trouble; trouble != "" {
				fmt.Fprintln(j.errOut, "the pod does not run yet:", trouble)
			}
		}
		select {
		case <-ctx.Done():
			return nil, nil, interrupted(ctx, last)
		case <-time.After(j.Every):
		}
	}
}

// ended says how the Job ended, empty while it has not.
func (j *tryJob) ended(ctx context.Context, job *batchv1.Job) (string, error) {
	var now batchv1.Job
	err := j.Get(ctx, client.ObjectKeyFromObject(job), &now)
	if apierrors.IsNotFound(err) || err == nil && now.UID != job.UID {
		return "was deleted by another client", nil
	}
	if err != nil {
		return "", refusedTry(fmt.Errorf("read the Job %s/%s: %w", job.Namespace, job.Name, err))
	}
	for _, c := range now.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobFailed || c.Type == batchv1.JobComplete) {
			return strings.TrimSpace(fmt.Sprintf("has ended (%s %s: %s)", c.Type, c.Reason, c.Message)), nil
		}
	}
	return "", nil
}

// interrupted is the end before the dispatcher's.
func interrupted(ctx context.Context, trouble string) error {
	err := context.Cause(ctx)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return errors.New("the command was interrupted, and so was the Job")
	case trouble != "":
		return fmt.Errorf("%w, and the pod did not run: %s", err, trouble)
	}
	return fmt.Errorf("%w; allow more, or try fewer rows with --last", err)
}

// trouble is what keeps the Job's pod from running, empty for nothing. Who may not list Events hears less.
func (j *tryJob) trouble(ctx context.Context, job *batchv1.Job, all []corev1.Pod) string {
	if _, words := pods.Trouble(all); words != "" {
		return words
	}
	words, err := pods.Blocked(ctx, j, pods.Live{Reader: j}, job, all)
	if err != nil {
		return ""
	}
	return words
}

// end is how the dispatcher of the pod ended, nil while it has not. A pod that was evicted has an end without it.
func end(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == desired.Container && status.State.Terminated != nil {
			return status.State.Terminated
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		return &corev1.ContainerStateTerminated{ExitCode: 1, Reason: pod.Status.Reason, Message: pod.Status.Message}
	}
	return nil
}

// report writes what the dispatcher wrote, and ends as it did. The log has the dispatcher's standard error too, of
// which the last line is the error.
func (j *tryJob) report(ctx context.Context, pod *corev1.Pod, ended *corev1.ContainerStateTerminated) error {
	how := strings.TrimSpace(fmt.Sprintf("the pod %s ended with exit code %d: %s %s", pod.Name, ended.ExitCode, ended.Reason, ended.Message))
	log, err := j.Log(ctx, j.config, pod)
	if err != nil {
		return refusedTry(fmt.Errorf("read the log in the namespace %s: %w; %s", pod.Namespace, err, how))
	}
	defer log.Close()
	why := ""
	for lines := bufio.NewReader(log); err == nil; {
		var line string
		line, err = lines.ReadString('\n')
		if words, ok := strings.CutPrefix(line, saysWhy); ok {
			why = strings.TrimSpace(words)
		} else if _, failed := io.WriteString(j.out, line); failed != nil {
			return fmt.Errorf("write the report: %w; check what reads it", failed)
		}
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the log of the pod %s/%s: %w; try again", pod.Namespace, pod.Name, err)
	}
	if ended.ExitCode == 0 {
		return nil
	}
	if why == "" {
		why = how
	}
	code := 1
	if ended.ExitCode == exitDiffers || ended.ExitCode == exitRefused {
		code = int(ended.ExitCode)
	}
	return &ExitError{code, errors.New(why)}
}
