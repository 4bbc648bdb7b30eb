package deadletterreplay_test

import (
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

const yes, no = metav1.ConditionTrue, metav1.ConditionFalse

var _ = Describe("a DeadLetterReplay", Label("replay"), func() {
	// CONTRACT: C-42, C-104
	It("runs one Job, and reports its progress while it runs and its outcome at the end", func() {
		c := start()
		o := c.replay()
		c.Create(c.outbox(), o)
		c.expect(kstatus.InProgressStatus, want{api.CompleteCondition, no, api.ReasonProgressing, ""})
		job := c.job()
		Expect(job.Spec.Template.Spec.Containers[0].Command).To(ContainElements("dead", "replay", "--listen"))
		files := fetch(c, &corev1.ConfigMap{}, job.Spec.Template.Spec.Volumes[0].ConfigMap.Name)
		Expect(files.Data["config.yaml"]).To(And(ContainSubstring("uid: "+string(o.UID)), ContainSubstring("group: 7f3a9c21"), ContainSubstring("requestedBy: ada")))
		fetch(c, &networkingv1.NetworkPolicy{}, "chg-812-replay")
		Expect(c.get().Finalizers).To(BeEmpty())

		c.says("first", &status.Replay{ID: uuid.MustParse(string(o.UID)), Waiting: 6, Progress: status.Progress{Matched: 10, Pending: 4, StartedAt: status.At(beganAt)}}, reached)
		first := c.pod(job, "first", runs)
		o = c.expect(kstatus.InProgressStatus, want{api.CompleteCondition, no, api.ReasonRunning, ""}, want{api.ReconcilingCondition, yes, api.ReasonRunning, ""},
			want{api.SourceReachableCondition, yes, api.ReasonConnected, ""}, want{api.SchemaReadyCondition, yes, api.ReasonUpToDate, ""}, want{api.ReferencesResolvedCondition, yes, api.ReasonResolved, ""})
		Expect([]int64{o.Status.Matched, *o.Status.Done, o.Status.Pending, o.Status.Delivered}).To(Equal([]int64{10, 4, 4, 0}))
		Expect(o.Status.ID).To(Equal(string(o.UID)))
		c.expectEvent(corev1.EventTypeNormal, api.ReasonBegan, "10 dead letters began, requested by ada: CHG-812")

		By("its canary fails or waits, which is said at once")
		c.says("first", &status.Replay{ID: uuid.MustParse(string(o.UID)), Waiting: 6, LastError: "422 no such customer", WaitingFor: []status.Wait{{Reason: status.WaitsForTopic, Count: 3, Event: string(o.UID), Detail: "its destination is Refusing: 422"}}, Progress: status.Progress{Matched: 10, Pending: 3, Failing: 1, StartedAt: status.At(beganAt)}}, reached)
		o = c.expect(kstatus.InProgressStatus, want{api.CompleteCondition, no, api.ReasonWaiting, "The newest failure: 422 no such customer. 3 wait, since the dispatcher has paused their topic: its destination is Refusing: 422."})
		Expect(o.Status.Failing).To(Equal(int64(1)))

		By("it stops by itself, which is said at once too")
		c.says("first", &status.Replay{ID: uuid.MustParse(string(o.UID)), LastError: "422 no such customer", Progress: status.Progress{Matched: 10, Failing: 4, StartedAt: status.At(beganAt), Skipped: []status.Skipped{{Reason: "stopped", Count: 6}}, Stopped: "4 of the newest 4 outcomes are failures"}}, reached)
		o = c.expect(kstatus.InProgressStatus, want{api.CompleteCondition, no, api.ReasonAborted, "It was stopped before its end: 4 of the newest 4 outcomes are failures. The newest failure: 422 no such customer. What it has put back is tried until it is delivered or dead."})
		c.says("first", &status.Replay{ID: uuid.MustParse(string(o.UID)), Waiting: 6, Progress: status.Progress{Matched: 10, Pending: 4, StartedAt: status.At(beganAt), EndsAt: status.At(beganAt.Add(72 * time.Second))}}, reached)
		o = c.expect(kstatus.InProgressStatus, want{api.CompleteCondition, no, api.ReasonRunning, ""})
		Expect(o.Status.EndsAt.Time()).To(Equal(beganAt.Add(72 * time.Second).Round(10 * time.Second)))

		By("the pod is killed, and the next one continues")
		c.setPod(first, ended(137, "killed"))
		c.says("second", &status.Replay{ID: uuid.MustParse(string(o.UID)), Waiting: 3, Progress: status.Progress{Matched: 10, Pending: 3, Delivered: 4, StartedAt: status.At(beganAt)}}, reached)
		second := c.pod(job, "second", runs)
		Eventually(func() int64 { return *c.get().Status.Done }).Should(Equal(int64(7)))

		By("the database is unreachable, which is reported; the counts stay")
		c.says("second", nil, status.Link{State: status.Unreachable, Reason: "ConnectionFailed", Message: "The database is unreachable."})
		o = c.expect(kstatus.InProgressStatus, want{api.CompleteCondition, no, api.ReasonConnectionFailed, "is unreachable"}, want{api.SourceReachableCondition, no, api.ReasonConnectionFailed, ""})
		Expect(*o.Status.Done).To(Equal(int64(7)))

		By("nothing changes, and nothing is written")
		requests := c.Pods.Polled()
		Eventually(c.Pods.Polled).Should(BeNumerically(">", requests+5), "the passes for what was said before are over")
		writes, requests := len(c.wrote()), c.Pods.Polled()
		Eventually(c.Pods.Polled).Should(BeNumerically(">", requests+5))
		Expect(c.wrote()[writes:]).To(BeEmpty())

		By("it comes to its end")
		c.setPod(second, ended(0, progress(status.Replay{ID: uuid.MustParse(string(o.UID)), Progress: status.Progress{Matched: 10, Delivered: 8, DeadAgain: 1, Skipped: []status.Skipped{{Reason: "claimed", Count: 1}}, StartedAt: status.At(beganAt), FinishedAt: status.At(beganAt.Add(time.Minute))}})))
		o = c.expect(kstatus.CurrentStatus, want{api.CompleteCondition, yes, api.ReasonFinished, "of 10 8 are delivered, 1 are dead again, 1 are skipped (claimed)"},
			want{api.SourceReachableCondition, yes, api.ReasonConnected, ""})
		Expect([]int64{*o.Status.Done, o.Status.Delivered, o.Status.DeadAgain, o.Status.Pending}).To(Equal([]int64{9, 8, 1, 0}))
		Expect(o.Status.FinishedAt.Time()).To(Equal(beganAt.Add(time.Minute).Truncate(time.Second)))
		c.expectEvent(corev1.EventTypeNormal, api.ReasonFinished, "8 are delivered")
	})

	// CONTRACT: C-42
	It("that stops by abortAt is failed, and says how many stay open", func() {
		c := start()
		c.Create(c.outbox(), c.replay())
		job := c.job()
		c.pod(job, "pod", ended(0, progress(status.Replay{Progress: status.Progress{Matched: 8, DeadAgain: 2, Skipped: []status.Skipped{{Reason: "stopped", Count: 6}}, StartedAt: status.At(beganAt), FinishedAt: status.At(beganAt), Stopped: "2 of 2 events are dead again, which is 50 % or more"}})))
		o := c.expect(kstatus.FailedStatus, want{api.CompleteCondition, no, api.ReasonAborted, "2 are dead again, 6 are skipped (stopped)"}, want{api.StalledCondition, yes, api.ReasonAborted, "50 %"}, want{api.FailedCondition, yes, api.ReasonAborted, "50 %"})
		Expect(o.Status.Stopped).To(ContainSubstring("2 of 2 events are dead again"))
		c.expectEvent(corev1.EventTypeWarning, api.ReasonAborted, "6 are skipped")

		By("its end is final, also while the operator leaves it alone")
		edit(c, o, func() { metav1.SetMetaDataAnnotation(&o.ObjectMeta, api.AnnotationReconcile, api.ReconcileDisabled) })
		Consistently(func() *metav1.Condition {
			return meta.FindStatusCondition(c.get().Status.Conditions, api.StalledCondition)
		}, time.Second).Should(HaveField("Reason", api.ReasonAborted))
	})

	It("whose files are refused, or whose Job failed, says so and waits for a person", func() {
		c := start()
		c.Create(c.outbox(), c.replay())
		job := c.job()
		c.pod(job, "pod", ended(78, "request /etc/outbox/config/config.yaml: canary is wrong"))
		c.fails(job, batchv1.JobReasonPodFailurePolicy)
		c.expect(kstatus.FailedStatus, want{api.CompleteCondition, no, api.ReasonRefused, "canary is wrong"}, want{api.StalledCondition, yes, api.ReasonRefused, ""}, want{api.FailedCondition, yes, api.ReasonRefused, ""})
		c.expectEvent(corev1.EventTypeWarning, api.ReasonRefused, "canary is wrong")

		By("its Job is gone, and none is made again")
		Expect(admin.Delete(c.ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		o := c.get()
		edit(c, o, func() { metav1.SetMetaDataAnnotation(&o.ObjectMeta, api.AnnotationReconcile, api.ReconcileDisabled) })
		Eventually(func() *metav1.Condition {
			return meta.FindStatusCondition(c.get().Status.Conditions, api.ReconcilingCondition)
		}).Should(HaveField("Status", no))
		edit(c, o, func() { delete(o.Annotations, api.AnnotationReconcile) })
		o = c.expect(kstatus.FailedStatus, want{api.CompleteCondition, no, api.ReasonRefused, "canary is wrong"}, want{api.StalledCondition, yes, api.ReasonRefused, ""}, want{api.FailedCondition, yes, api.ReasonRefused, ""})
		Expect(meta.FindStatusCondition(o.Status.Conditions, api.ReconcilingCondition)).To(BeNil(), "this is of a pass since then")
		Expect(apierrors.IsNotFound(admin.Get(c.ctx, client.ObjectKeyFromObject(job), job))).To(BeTrue())
	})

	It("repeats its Job a few times when no pod reports the outcome, and then says so", func() {
		c := start()
		o := c.replay()
		o.Annotations = map[string]string{desired.AnnotationAttempt: "3"}
		c.Create(c.outbox(), o)
		first := c.job()
		c.completes(first, time.Now().Add(-41*time.Second)) // 40 are the delay after the third
		Eventually(func() types.UID { return c.job().UID }).ShouldNot(Equal(first.UID))
		Eventually(func() string { return c.get().Annotations[desired.AnnotationAttempt] }).Should(Equal("4"))

		By("the next one is made later")
		second := c.job()
		c.pod(second, "unreadable", ended(0, ""))
		c.completes(second, time.Now())
		c.expect(kstatus.InProgressStatus, want{api.CompleteCondition, no, api.ReasonProgressing, "because its pod left no termination message that can be read"})
		Expect(c.job().UID).To(Equal(second.UID))
		Expect(admin.Delete(c.ctx, second, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		Eventually(func() types.UID { return c.job().UID }).ShouldNot(Equal(second.UID))
		edit(c, o, func() { o.Annotations[desired.AnnotationAttempt] = "5" })

		By("the fifth is the last one, however long ago it ended")
		last := c.job()
		c.completes(last, time.Now().Add(-time.Hour))
		c.expect(kstatus.FailedStatus, want{api.CompleteCondition, no, api.ReasonJobFailed, "succeeded 5 times without an outcome, the last time because its pod is gone"},
			want{api.FailedCondition, yes, api.ReasonJobFailed, ""}, want{api.StalledCondition, yes, api.ReasonJobFailed, "`dispatcher dead operations --operation " + string(o.UID) + "` has the outcome"})
		c.expectEvent(corev1.EventTypeWarning, api.ReasonJobFailed, "without an outcome")
		Expect(c.job().UID).To(Equal(last.UID))

		By("an outcome that is reported later counts")
		c.pod(last, "late", ended(0, progress(status.Replay{Progress: status.Progress{Matched: 1, Delivered: 1, StartedAt: status.At(beganAt), FinishedAt: status.At(beganAt)}})))
		o = c.expect(kstatus.CurrentStatus, want{api.CompleteCondition, yes, api.ReasonFinished, "1 are delivered"})
		Expect(meta.FindStatusCondition(o.Status.Conditions, api.FailedCondition)).To(BeNil())
	})

	It("that is a dry run whose Jobs report no outcome says so, and names no row that has it", func() {
		c := start()
		o := c.replay()
		o.Spec.DryRun, o.Annotations = true, map[string]string{desired.AnnotationAttempt: "5"}
		c.Create(c.outbox(), o)
		c.completes(c.job(), time.Now())
		o = c.expect(kstatus.FailedStatus, want{api.FailedCondition, yes, api.ReasonJobFailed, "succeeded 5 times without an outcome, the last time because its pod is gone. Nothing was changed."})
		Expect(meta.FindStatusCondition(o.Status.Conditions, api.FailedCondition).Message).NotTo(ContainSubstring("dead operations"))
	})

	It("that is a dry run changes nothing, holds nothing, and says what it would do", func() {
		c := start()
		o := c.replay()
		o.Spec.DryRun = true
		c.Create(c.outbox(), o)
		c.pod(c.job(), "pod", ended(0, progress(status.Replay{Waiting: 4, Progress: status.Progress{Matched: 5, Skipped: []status.Skipped{{Reason: "not_dead", Count: 1}}}})))
		o = c.expect(kstatus.CurrentStatus, want{api.CompleteCondition, yes, api.ReasonFinished, "Nothing was changed: Replay would take 4 of 5 dead letters"})
		Expect([]any{o.Status.Matched, o.Status.ID, o.Status.Delivered, o.Annotations}).To(Equal([]any{int64(5), "", int64(0), map[string]string(nil)}), "and is not marked as one that has begun")
		Expect(o.Status.Skipped).To(Equal([]status.Skipped{{Reason: "not_dead", Count: 1}}))
	})

	// CONTRACT: C-42
	It("waits for the Job of a namesake to be collected, and is Current at its end", func() {
		c := start()
		c.Create(c.outbox(), c.replay())
		old := c.job()
		Expect(admin.Delete(c.ctx, c.get())).To(Succeed())
		c.Create(c.replay())
		c.expect(kstatus.InProgressStatus, want{api.CompleteCondition, metav1.ConditionUnknown, api.ReasonProgressing, "not collected yet"})
		for _, o := range []client.Object{old, fetch(c, &corev1.ConfigMap{}, old.Spec.Template.Spec.Volumes[0].ConfigMap.Name), fetch(c, &networkingv1.NetworkPolicy{}, old.Name)} {
			Expect(admin.Delete(c.ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed()) // there is no garbage collector here
		}
		Eventually(func() bool { return metav1.IsControlledBy(c.job(), c.get()) }).Should(BeTrue())
		c.pod(c.job(), "pod", ended(0, progress(status.Replay{Progress: status.Progress{Matched: 1, Delivered: 1, StartedAt: status.At(beganAt), FinishedAt: status.At(beganAt)}})))
		o := c.expect(kstatus.CurrentStatus, want{api.CompleteCondition, yes, api.ReasonFinished, ""})

		By("a Ready that an older operator has left goes")
		meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{Type: api.ReadyCondition, Status: metav1.ConditionUnknown, Reason: api.ReasonProgressing})
		Expect(admin.Status().Update(c.ctx, o)).To(Succeed())
		edit(c, o, func() { metav1.SetMetaDataAnnotation(&o.ObjectMeta, "example.com/team", "billing") })
		Eventually(func() *metav1.Condition {
			return meta.FindStatusCondition(c.get().Status.Conditions, api.ReadyCondition)
		}).Should(BeNil())
	})

	It("goes when its time is over", func() {
		c := start()
		o := c.replay()
		o.Spec.TTLAfterFinished = new(spec.Duration(5 * time.Second)) // a condition's time has whole seconds
		c.Create(c.outbox(), o)
		c.pod(c.job(), "pod", ended(0, progress(status.Replay{Progress: status.Progress{Matched: 1, Delivered: 1, StartedAt: status.At(beganAt), FinishedAt: status.At(beganAt)}}))) // months ago on the database's clock
		at := meta.FindStatusCondition(c.expect(kstatus.CurrentStatus).Status.Conditions, api.CompleteCondition).LastTransitionTime
		Eventually(func() bool { return apierrors.IsNotFound(admin.Get(c.ctx, client.ObjectKeyFromObject(o), o)) }).Should(BeTrue())
		Expect(time.Since(at.Time)).To(BeNumerically(">=", 5*time.Second), "on the operator's clock")
	})

	// CONTRACT: C-101
	It("says what it waits for, with the remedy, and continues by itself", func() {
		c := start()
		o := c.replay()
		o.Spec.OutboxRef, o.Spec.Namespace, o.Spec.DispatcherRef = nil, "", &spec.DispatcherRef{Name: "warehouse"}
		o.Spec.Selector.Topics = []string{"orders"}
		c.Create(o)
		c.expect(kstatus.InProgressStatus, want{api.CompleteCondition, no, api.ReasonDispatcherNotFound, "warehouse"}, want{api.ReferencesResolvedCondition, no, api.ReasonDispatcherNotFound, ""})
		c.expectEvent(corev1.EventTypeWarning, api.ReasonDispatcherNotFound, "create it")
		dispatcher := &api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Name: "warehouse", Namespace: c.namespace},
			Spec: spec.Dispatcher{Namespace: "shop", Topics: []string{"bills"}, OutboxRef: &spec.OutboxRef{Name: "orders"}, Sink: spec.Sink{Log: &spec.LogSink{}}}}
		c.Create(dispatcher)
		o = c.expect(kstatus.FailedStatus, want{api.CompleteCondition, no, api.ReasonTopicNotDelivered, `"orders"`})
		Expect(meta.FindStatusCondition(o.Status.Conditions, api.FailedCondition)).To(BeNil(), "it has not ended")
		dispatcher.Spec.Topics = []string{"bills", "orders"}
		edit(c, dispatcher, func() { dispatcher.Spec.Topics = []string{"bills", "orders"} })
		c.expect(kstatus.InProgressStatus, want{api.CompleteCondition, no, api.ReasonOutboxNotFound, "orders"})
		outbox := c.outbox()
		outbox.Spec.ReplayLogin = nil
		c.Create(outbox)
		c.expect(kstatus.InProgressStatus, want{api.CompleteCondition, no, api.ReasonReplayLoginMissing, "Outbox orders: spec.replayLogin is not set"})
		edit(c, outbox, func() { outbox.Spec.ReplayLogin = c.outbox().Spec.ReplayLogin })
		job := c.job()
		Expect(fetch(c, &corev1.ConfigMap{}, job.Spec.Template.Spec.Volumes[0].ConfigMap.Name).Data).To(And(
			HaveKeyWithValue("config.yaml", And(ContainSubstring("namespace: shop"), ContainSubstring("- orders"), Not(ContainSubstring("bills"))))))

		pod := c.pod(job, "pod", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: "dispatcher", Image: "x",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}})
		c.Create(&corev1.Event{ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-", Namespace: c.namespace}, Type: corev1.EventTypeWarning, Reason: "FailedMount",
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: c.namespace, Name: pod.Name, UID: pod.UID}, LastTimestamp: metav1.Now(),
			Message: `MountVolume.SetUp failed for volume "secrets" : references non-existent secret key: dsn`})
		c.expect(kstatus.InProgressStatus, want{api.ReferencesResolvedCondition, no, api.ReasonSecretKeyNotFound, `"orders-replay", which Outbox orders: spec.replayLogin.secretRef names`})
	})
})

// edit changes an object, and retries after a conflict.
func edit(c *cluster, o client.Object, change func()) {
	GinkgoHelper()
	Eventually(func() error {
		if err := admin.Get(c.ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		change()
		return admin.Update(c.ctx, o)
	}).Should(Succeed())
}

var _ = Describe("a DeadLetterReplay that is deleted", Label("replay", "stop"), func() {
	// CONTRACT: C-42
	It("goes at once, with its Job, and nothing else is made", func() {
		c := start()
		o := c.replay()
		c.Create(c.outbox(), o)
		job := c.job()
		Expect(metav1.IsControlledBy(job, c.get())).To(BeTrue(), "the garbage collector removes it with the object")
		Expect(*job.Spec.TTLSecondsAfterFinished).To(Equal(int32(3600)))
		Expect(admin.Delete(c.ctx, o)).To(Succeed())
		Eventually(func() bool { return apierrors.IsNotFound(admin.Get(c.ctx, client.ObjectKeyFromObject(o), o)) }).Should(BeTrue())
		var jobs batchv1.JobList
		Consistently(func() []batchv1.Job {
			Expect(admin.List(c.ctx, &jobs, client.InNamespace(c.namespace))).To(Succeed())
			return jobs.Items
		}, "1s").Should(HaveLen(1), "that of the object, which no garbage collector removes here")
	})
})
