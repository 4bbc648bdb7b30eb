package plugin_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

var _ = Describe("kubectl outbox try, when its Job has no pod", Label("try"), func() {
	var w *world
	BeforeEach(func(ctx SpecContext) {
		w = newWorld(ctx)
		w.dispatcher(ctx)
		w.in = changed
		w.runs(ctx, func(*v1alpha1.OutboxDispatcher) {})
	})

	DescribeTable("ends at once when the API server refuses the pod, with its words and a remedy", func(ctx SpecContext, forbid func(context.Context, *world), want string) {
		forbid(ctx, w)
		w.jobController(func(ctx context.Context, job *batchv1.Job) error {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, GenerateName: job.Name + "-"}, Spec: job.Spec.Template.Spec}
			err := w.Create(ctx, pod)
			Expect(err).To(HaveOccurred())
			return w.Create(ctx, failedCreate(job, "Error creating: "+err.Error()))
		})
		r := w.run(ctx, "try", "-f", "-", "--timeout", "1h")
		Expect(r.err).To(MatchError(And(ContainSubstring("has no pod: Its pod cannot be created: "), ContainSubstring(want),
			ContainSubstring("; fix what it names, such as a ResourceQuota, the ServiceAccount or spec.pods.template, and try again"))))
		Expect(w.leftovers(ctx)).To(BeEmpty())
	},
		Entry("a quota", SpecTimeout(time.Minute), func(ctx context.Context, w *world) {
			none := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
			quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: none}}
			Expect(w.Create(ctx, quota)).To(Succeed())
			quota.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none}
			Expect(w.Status().Update(ctx, quota)).To(Succeed())
		}, "exceeded quota: none"),
		Entry("a policy", SpecTimeout(time.Minute), func(ctx context.Context, w *world) {
			w.in = changed + "  pods: {template: {spec: {hostNetwork: true}}}\n"
			Expect(w.Patch(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}},
				client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)))).To(Succeed())
		}, "violates PodSecurity"),
	)

	It("keeps waiting when the failure may pass", SpecTimeout(2*time.Minute), func(ctx SpecContext) {
		w.jobController(func(ctx context.Context, job *batchv1.Job) error {
			return w.Create(ctx, failedCreate(job, `Error creating: Internal error occurred: failed calling webhook "policy.example.com": connection refused`))
		})
		short, cancel := context.WithCancel(ctx)
		DeferCleanup(cancel)
		output := &watched{until: "connection refused", then: cancel}
		Expect(w.runBoth(short, output, output, "try", "-f", "-", "--timeout", "1h").err).To(MatchError("the command was interrupted, and so was the Job"))
	})

	DescribeTable("ends at once when the Job has ended and its pod is gone", func(ctx SpecContext, end func(context.Context, *world, *batchv1.Job) error, want string) {
		w.jobController(func(ctx context.Context, job *batchv1.Job) error { return end(ctx, w, job) })
		r := w.run(ctx, "try", "-f", "-", "--timeout", "1h")
		Expect(r.err).To(MatchError(And(ContainSubstring(want), ContainSubstring(", and left no pod that reports the outcome; try again"))))
		Expect(w.leftovers(ctx)).To(BeEmpty())
	},
		Entry("failed", SpecTimeout(time.Minute), func(ctx context.Context, w *world, job *batchv1.Job) error {
			now := metav1.Now()
			job.Status.StartTime = &now
			for _, kind := range []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobFailed} {
				job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now,
					Reason: batchv1.JobReasonBackoffLimitExceeded, Message: "Job has reached the specified backoff limit"})
			}
			return w.Status().Update(ctx, job)
		}, "has ended (Failed BackoffLimitExceeded: Job has reached the specified backoff limit)"),
		Entry("deleted", SpecTimeout(time.Minute), func(ctx context.Context, w *world, job *batchv1.Job) error {
			return w.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))
		}, "was deleted by another client"),
	)
})

// jobController plays the Job controller once, when the Job of a try and its files are there.
func (w *world) jobController(play func(context.Context, *batchv1.Job) error) {
	w.play(func(ctx context.Context) bool {
		var jobs batchv1.JobList
		if w.List(ctx, &jobs, client.InNamespace(w.namespace)) != nil || len(jobs.Items) == 0 ||
			w.Get(ctx, client.ObjectKeyFromObject(&jobs.Items[0]), &corev1.ConfigMap{}) != nil {
			return false
		}
		Expect(play(ctx, &jobs.Items[0])).To(Succeed())
		return true
	})
}

// failedCreate is the Job controller's Event about a pod that it could not make.
func failedCreate(job *batchv1.Job, message string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: job.Namespace, GenerateName: "try-"},
		InvolvedObject: corev1.ObjectReference{Kind: "Job", Namespace: job.Namespace, Name: job.Name, UID: job.UID},
		Reason:         "FailedCreate", Message: message, LastTimestamp: metav1.NewTime(noon), Type: corev1.EventTypeWarning,
	}
}
