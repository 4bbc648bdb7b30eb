package outboxdispatcher_test

import (
	"encoding/json"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest/specs"
)

var _ = Describe("an Outbox", Label("outbox"), func() {
	// CONTRACT: C-104
	It("is waited for by those that refer to it", Label("references"), func() {
		c := start(rare) // nothing but watches can notice it
		obd, outbox := c.referring("orders"), c.outbox()
		c.create(obd)
		c.expect(kstatus.InProgressStatus,
			want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonOutboxNotFound, `Outbox "shop", which spec.outboxRef names, does not exist in namespace`},
			want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonOutboxNotFound, "create it"})
		Expect(c.deployments()).To(BeEmpty())

		c.create(outbox)
		job := c.job()
		Expect(metav1.GetControllerOf(job).Kind).To(Equal("Outbox"))
		c.expect(kstatus.InProgressStatus, want{api.SchemaReadyCondition, metav1.ConditionFalse, api.ReasonMigrating, "The migration Job of Outbox shop is under way."})
		c.expectOf(outbox, kstatus.InProgressStatus,
			want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonMigrating, "The migration Job is under way."},
			want{api.SourceReachableCondition, metav1.ConditionUnknown, api.ReasonNotObserved, "has a pod that reports it"},
			want{api.ReferencesResolvedCondition, metav1.ConditionUnknown, api.ReasonNotObserved, ""})
		Expect(c.deployments()).To(BeEmpty(), "no pods before the first migration")
		c.finish(job, time.Now(), "")
		Eventually(c.deployments).Should(ConsistOf("orders-dispatcher"))
		Expect(c.configFile()).To(ContainSubstring("kind: Outbox\n"))

		// Without the Outbox the running pods continue.
		c.rollOut(c.healthy())
		before := c.deployment().ResourceVersion
		Expect(c.admin.Delete(c.ctx, outbox)).To(Succeed())
		c.expect(kstatus.InProgressStatus,
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDeliveringDespiteTrouble, "does not exist"},
			want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonOutboxNotFound, "create it"})
		Expect(c.deployment().ResourceVersion).To(Equal(before))
	})

	// CONTRACT: C-104
	It("has one migration for all that refer to it", Label("migration"), func() {
		c := start(tick)
		outbox := c.outbox()
		orders, others := c.referring("orders", "orders"), []*api.OutboxDispatcher{c.referring("returns", "returns"), c.referring("stock", "stock")}
		c.create(outbox, orders, others[0], others[1])
		job := c.job()
		for _, obd := range others {
			c.expectOf(obd, kstatus.InProgressStatus, want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonMigrating, "Outbox shop"})
		}
		c.finish(job, time.Now(), "")
		Eventually(c.deployments).Should(ConsistOf("orders-dispatcher", "returns-dispatcher", "stock-dispatcher"))
		podStatus, oldest := c.healthy(), time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
		podStatus.Backlog.Pending, podStatus.Backlog.Dead, podStatus.Backlog.OldestPending = 7, 2, status.At(oldest)
		c.rollOut(podStatus)
		c.expect(kstatus.CurrentStatus, want{api.TopicsSharedCondition, metav1.ConditionFalse, api.ReasonNotShared, ""})
		c.expectOf(outbox, kstatus.CurrentStatus,
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""},
			want{api.SourceReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""},
			want{api.ReferencesResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, ""},
			want{api.VacuumHeldBackCondition, metav1.ConditionFalse, api.ReasonNotHeldBack, ""},
			want{api.TopicsSharedCondition, metav1.ConditionFalse, api.ReasonNotShared, ""})
		s := outbox.Status
		Expect(c.jobs()).To(HaveLen(1))
		Expect([]any{s.Migration, *s.SchemaVersion, *s.DispatcherCount}).To(Equal([]any{"Succeeded", int64(1), int32(3)}))
		Expect(s.Dispatchers).To(HaveExactElements(
			api.OutboxUser{Name: "orders", Namespace: "shop", Topics: []string{"orders"}},
			api.OutboxUser{Name: "returns", Namespace: "shop", Topics: []string{"returns"}},
			api.OutboxUser{Name: "stock", Namespace: "shop", Topics: []string{"stock"}}))
		Expect([]int64{*s.Pending, *s.Dead}).To(Equal([]int64{7, 2}))
		Expect(s.Backlog).To(HaveLen(1))
		Expect([]any{s.Backlog[0].Namespace, s.Backlog[0].Pending, s.Backlog[0].OldestPending.Time()}).To(Equal([]any{"shop", int64(7), oldest}))
	})

	// What is wrong with the Outbox is in its status, and in those of its users; steady state writes nothing.
	// CONTRACT: C-101, C-104
	It("reports a migration that fails, as do its users", Label("migration"), func() {
		c := start(tick)
		outbox := c.outbox()
		c.create(outbox, c.referring("orders"))
		c.finish(c.job(), time.Now().Add(-time.Minute), "the login owner was refused; correct the password")
		Eventually(c.jobs).Should(HaveLen(2), "it is tried again")
		failed := want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonMigrationFailed, "correct the password. It is tried again"}
		c.expectOf(outbox, kstatus.InProgressStatus, failed)
		c.expect(kstatus.InProgressStatus, failed, want{api.SchemaReadyCondition, metav1.ConditionFalse, api.ReasonMigrationFailed, "The migration of Outbox shop failed"})
		for _, job := range c.jobs() {
			if job.Annotations["outbox.dev/attempt"] == "2" {
				c.finish(&job, time.Now(), "")
			}
		}
		Eventually(c.jobs).Should(HaveLen(1))
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.SourceReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""})

		before := c.settle()
		c.passes(5)
		Expect(c.Requests.All()[before:]).To(BeEmpty(), "neither reads nor writes")

		edit(c, outbox, func(o *api.Outbox) {
			o.Spec.Migration.PodTemplate = json.RawMessage(`{"spec":{"afinity":{}}}`)
		})
		c.expectOf(outbox, kstatus.FailedStatus,
			want{api.StalledCondition, metav1.ConditionTrue, api.ReasonInvalidPodTemplate, "spec.migration.podTemplate cannot be used: "})
		c.expect(kstatus.InProgressStatus, // the running pods continue
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""},
			want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonMigrationFailed, "Outbox shop"})
	})

	// A Job that does not start says why: quota, and files that the kubelet cannot mount.
	// CONTRACT: C-103, C-104
	It("reports why its migration does not start", Label("migration", "references"), func() {
		c := start(tick)
		outbox := c.outbox()
		c.create(outbox)
		job := c.job()
		Expect(*job.Spec.ActiveDeadlineSeconds).To(BeEquivalentTo(1800))
		c.create(&corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "event-", Namespace: c.namespace},
			InvolvedObject: corev1.ObjectReference{Kind: "Job", Name: job.Name, Namespace: c.namespace, UID: job.UID},
			Reason:         "FailedCreate", Type: corev1.EventTypeWarning, LastTimestamp: metav1.Now(),
			Message: `Error creating: pods "shop-migrate-1-abcde" is forbidden: exceeded quota: team`,
		})
		c.expectOf(outbox, kstatus.InProgressStatus,
			want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonUnavailable, "The migration waits: Its pod cannot be created: a pod is forbidden: exceeded quota: team."},
			want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonUnavailable, "exceeded quota"})
		c.ExpectEvent([2]string{"Outbox", "shop"}, corev1.EventTypeWarning, api.ReasonUnavailable, "exceeded quota")
		editStatus(c, job, func(job *batchv1.Job) { job.Status.StartTime = new(metav1.NewTime(time.Now().Add(-11 * time.Minute))) })
		c.expectOf(outbox, kstatus.FailedStatus, // as a rollout that takes as long
			want{api.StalledCondition, metav1.ConditionTrue, api.ReasonUnavailable, "It continues by itself when the cause is gone."})

		pod := c.jobPod(job, corev1.PodStatus{Phase: corev1.PodPending})
		c.mountFails(pod, `MountVolume.SetUp failed for volume "secrets" : secret "orders-owner" not found`, 0)
		c.expectOf(outbox, kstatus.FailedStatus,
			want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonSecretNotFound, ""},
			want{api.StalledCondition, metav1.ConditionTrue, api.ReasonSecretNotFound, ""},
			want{api.ReferencesResolvedCondition, metav1.ConditionFalse, api.ReasonSecretNotFound, `Secret "orders-owner", which spec.migration.secretRef names, does not exist in namespace`},
			want{api.SchemaReadyCondition, metav1.ConditionFalse, api.ReasonProgressDeadlineExceeded, `secret "orders-owner" not found`})
		Expect(c.admin.Delete(c.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		c.finish(job, time.Now(), "")
		c.expectOf(outbox, kstatus.CurrentStatus, // although no dispatcher refers to it
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""},
			want{api.SourceReachableCondition, metav1.ConditionUnknown, api.ReasonNotObserved, "No OutboxDispatcher refers to this Outbox"})
	})

	// CONTRACT: C-101
	It("continues when an object that has the name of its own is gone", Label("status"), func() {
		c := start(tick)
		outbox, defaulted := c.outbox(), c.outbox()
		Expect(c.admin.Create(c.ctx, defaulted, client.DryRunAll)).To(Succeed())
		foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: *desired.OutboxConfigMap(defaulted).Name, Namespace: c.namespace}}
		c.create(foreign, outbox, c.referring("orders"))
		c.expectOf(outbox, kstatus.FailedStatus, want{api.StalledCondition, metav1.ConditionTrue, api.ReasonForeignObject, foreign.Name})
		c.expect(kstatus.InProgressStatus, want{api.SchemaReadyCondition, metav1.ConditionFalse, api.ReasonMigrating, "The migration Job of Outbox shop is not made yet; the conditions of Outbox shop say why."})
		Expect(c.admin.Delete(c.ctx, foreign)).To(Succeed())
		c.finish(c.job(), time.Now(), "")
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""})
	})

})

// unpulled is the status of a pod whose image cannot be pulled.
var unpulled = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
	Name: desired.Container, Image: "outbox-operator:v2", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}}

// outbox is a plain Outbox with a migration Job.
func (c *cluster) outbox() *api.Outbox {
	return &api.Outbox{
		ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: c.namespace},
		Spec: spec.Outbox{
			SecretRef: spec.SecretRef{Name: "orders-db"},
			Migration: &spec.Migration{SecretRef: &spec.SecretRef{Name: "orders-owner"}},
		},
	}
}

// referring is a dispatcher of that name for those topics, which refers to the Outbox.
func (c *cluster) referring(name string, topics ...string) *api.OutboxDispatcher {
	obd := c.dispatcher()
	obd.Name, obd.Spec.Topics = name, topics
	obd.Spec.Database, obd.Spec.OutboxRef = nil, &spec.OutboxRef{Name: "shop"}
	return obd
}

// sharing is a dispatcher of that name for those topics, with a database of its own like that of the others.
func (c *cluster) sharing(name string, topics ...string) *api.OutboxDispatcher {
	obd := c.migrated()
	obd.Name, obd.Spec.Topics = name, topics
	return obd
}

// expectOf waits until an object's conditions are as wanted and kstatus comes to the conclusion.
func (c *cluster) expectOf(o client.Object, conclusion kstatus.Status, wants ...want) {
	GinkgoHelper()
	specs.Expect(c.Cluster, o, conclusion, wants...)
}

func (c *cluster) deployments() (names []string) {
	GinkgoHelper()
	var all appsv1.DeploymentList
	Expect(c.admin.List(c.ctx, &all, client.InNamespace(c.namespace))).To(Succeed())
	for _, d := range all.Items {
		names = append(names, d.Name)
	}
	return names
}

var _ = Describe("a failed migration", Label("migration"), func() {
	// A failed migration is tried again by itself, and at once when the spec names another login.
	It("is tried again at once when the spec names another login, and removes nothing", func() {
		c := start(tick)
		obd := c.migrated()
		login := func(name string) {
			edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Database.MigrationSecretRef.Name = name })
		}
		later := time.Now().Add(time.Hour) // it does not come to the next try by itself
		c.create(obd)
		c.finish(c.job(), later, "{\"time\":\"...\"}\nthe login owner was refused; correct the password")
		c.expect(kstatus.InProgressStatus,
			want{api.SchemaReadyCondition, metav1.ConditionFalse, api.ReasonMigrationFailed, "The migration failed: the login owner was refused; correct the password. It is tried again"},
			want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonMigrationFailed, ""},
			want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonMigrationFailed, ""},
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonProgressing, ""})
		c.expectEvent(corev1.EventTypeWarning, api.ReasonMigrationFailed, "correct the password")
		first := c.job().Name

		login("right-owner")
		Eventually(func() string { return c.job().Name }).ShouldNot(Equal(first), "another login, another Job, and the old one is gone")
		c.finish(c.job(), time.Now(), "")
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus, want{api.SchemaReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""})

		// A later migration that fails removes nothing, and delays no rollout.
		second := c.job().Name
		login("wrong-owner")
		Eventually(func() string { return c.job().Name }).ShouldNot(Equal(second))
		edit(c, c.get(), func(o *api.OutboxDispatcher) { o.Spec.Delivery.BatchSize = 7 })
		c.finish(c.job(), later, "wrong again")
		c.expect(kstatus.InProgressStatus,
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""},
			want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonMigrationFailed, "wrong again"})
		Eventually(func() string { return c.configFile() }).Should(ContainSubstring("batchSize: 7"))
		old := c.healthy()
		old.Schema = status.Schema{State: "TooOld", Message: "version 1 of 2"}
		c.Pods.Says("pod-0", old)
		c.expect(kstatus.InProgressStatus, want{api.SchemaReadyCondition, metav1.ConditionFalse, api.ReasonMigrationFailed, "wrong again"})
	})

	// What keeps its pod from starting, or has ended it, is the reason, and not where the migration stands. CONTRACT: C-101
	DescribeTable("is named by its cause, and continues:", func(pod corev1.PodStatus, reason, words string) {
		c := start(tick)
		c.create(c.migrated())
		job := c.job()
		made := c.jobPod(job, pod)
		if pod.Phase == corev1.PodFailed {
			c.finish(job, time.Now().Add(time.Hour), words)
		}
		c.expect(kstatus.InProgressStatus,
			want{api.ReadyCondition, metav1.ConditionFalse, reason, words},
			want{api.SchemaReadyCondition, metav1.ConditionFalse, reason, words},
			want{api.ReconcilingCondition, metav1.ConditionTrue, reason, words})
		c.expectEvent(corev1.EventTypeWarning, reason, words)
		if pod.Phase == corev1.PodFailed { // it is tried again as any
			return
		}
		Expect(c.admin.Delete(c.ctx, made, client.GracePeriodSeconds(0))).To(Succeed())
		c.finish(job, time.Now(), "")
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
	},
		Entry("its image", unpulled, api.ReasonImagePullFailed, "cannot be pulled"),
		Entry("no node", corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available"}}},
			api.ReasonUnschedulable, "The migration waits: No node takes a pod: 0/1 nodes are available"),
		Entry("its memory limit", corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{Name: desired.Container, Image: "outbox-operator:v1",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}}}}, api.ReasonOOMKilled, "raise the limit"),
	)

})

var _ = Describe("a missing reference", Label("references"), func() {
	// What is missing is reported in the kubelet's words, until it exists. CONTRACT: C-101, C-103
	It("is reported in the words of the kubelet, until it exists", func() {
		c := start(tick)
		obd, outbox := c.referring("orders"), c.outbox()
		obd.Spec.Message.Validation = []spec.Validation{{Schema: &spec.PayloadSchema{ConfigMapRef: &spec.ConfigMapRef{Name: "schemas", Key: "order.json"}}}}
		outbox.Spec.Migration, outbox.Spec.TLS = nil, &spec.DatabaseTLS{CAConfigMapRef: &spec.ConfigMapRef{Name: "roots"}}
		c.create(obd, outbox)
		pod := c.pod("pod-a", corev1.PodStatus{Phase: corev1.PodPending})
		c.deployed(1, 0)
		c.expect(kstatus.InProgressStatus, want{api.ReferencesResolvedCondition, metav1.ConditionUnknown, api.ReasonNotObserved, ""})

		for _, said := range []struct{ words, reason, message string }{
			{`MountVolume.SetUp failed for volume "secrets" : secret "orders-db" not found`, api.ReasonSecretNotFound,
				`Secret "orders-db", which Outbox shop: spec.secretRef names, does not exist in namespace`},
			{`MountVolume.SetUp failed for volume "secrets" : references non-existent secret key: dsn`, api.ReasonSecretKeyNotFound,
				`Secret "orders-db", which Outbox shop: spec.secretRef names, has no key "dsn"; add the key`},
			{`MountVolume.SetUp failed for volume "secrets" : configmap "roots" not found`, api.ReasonConfigMapNotFound,
				`ConfigMap "roots", which Outbox shop: spec.tls.caConfigMapRef names, does not exist`},
			{`MountVolume.SetUp failed for volume "secrets" : references non-existent config key: ca.crt`, api.ReasonConfigMapKeyNotFound,
				`ConfigMap "roots", which Outbox shop: spec.tls.caConfigMapRef names, has no key "ca.crt"`},
			{`MountVolume.SetUp failed for volume "schemas" : configmap "schemas" not found`, api.ReasonConfigMapNotFound,
				`ConfigMap "schemas", which spec.message.validation[0].schema.configMapRef names, does not exist`},
			{`MountVolume.SetUp failed for volume "schemas" : references non-existent config key: order.json`, api.ReasonConfigMapKeyNotFound,
				`has no key "order.json"`},
		} {
			Expect(c.admin.DeleteAllOf(c.ctx, &corev1.Event{}, client.InNamespace(c.namespace), client.MatchingFields{"reason": "FailedMount"})).To(Succeed())
			c.mountFails(pod, said.words, 0)
			c.expect(kstatus.InProgressStatus,
				want{api.ReferencesResolvedCondition, metav1.ConditionFalse, said.reason, said.message},
				want{api.ReadyCondition, metav1.ConditionFalse, said.reason, said.message},
				want{api.ReconcilingCondition, metav1.ConditionTrue, said.reason, said.message})
		}
		c.expectEvent(corev1.EventTypeWarning, api.ReasonSecretNotFound, "create it")

		// The kubelet tries again by itself.
		Expect(c.admin.Delete(c.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, ""})
		for _, request := range c.Requests.All() {
			Expect(request).NotTo(ContainSubstring("/secrets"))
		}
	})

})

var _ = Describe("dispatchers of one database", Label("sharing"), func() {
	// The migration takes a lock in the database, so two Jobs run one after the other. CONTRACT: C-104
	It("have a migration Job each, without an Outbox", Label("migration"), func() {
		c := start(rare) // nothing but watches can notice it
		c.create(c.sharing("orders", "orders"), c.sharing("returns", "returns"))
		of := func(job batchv1.Job) string { return metav1.GetControllerOf(&job).Name }
		Eventually(c.jobs).Should(ConsistOf(WithTransform(of, Equal("orders")), WithTransform(of, Equal("returns"))))
		for _, job := range c.jobs() {
			if of(job) == "returns" {
				c.finish(&job, time.Now(), "")
			}
		}
		Eventually(c.deployments).Should(ConsistOf("returns-dispatcher"), "neither waits for the other's")
	})

	// CONTRACT: C-104
	DescribeTable("name each other for topics that both deliver", func(made func(*cluster) (a, b *api.OutboxDispatcher)) {
		c := start(rare) // nothing but watches can notice it
		outbox := c.outbox()
		a, b := made(c)
		elsewhere := b.DeepCopy()
		elsewhere.Name, elsewhere.Spec.Namespace = "elsewhere", "another"
		c.create(outbox, a, elsewhere)
		alone := want{api.TopicsSharedCondition, metav1.ConditionFalse, api.ReasonNotShared, ""}
		c.expectOf(a, kstatus.InProgressStatus, alone)
		c.create(b)
		c.expectOf(a, kstatus.InProgressStatus, want{api.TopicsSharedCondition, metav1.ConditionTrue, api.ReasonTopicsShared, `The dispatcher "webhooks" delivers topics of this one too`})
		c.expectOf(b, kstatus.InProgressStatus, want{api.TopicsSharedCondition, metav1.ConditionTrue, api.ReasonTopicsShared, `The dispatcher "orders" delivers topics of this one too`})
		c.expectOf(elsewhere, kstatus.InProgressStatus, alone)
		c.expectEvent(corev1.EventTypeWarning, api.ReasonTopicsShared, "Give each topics of its own")
		if a.Spec.OutboxRef != nil {
			c.expectOf(outbox, kstatus.InProgressStatus, want{api.TopicsSharedCondition, metav1.ConditionTrue, api.ReasonTopicsShared, `"orders", "webhooks"`})
		}
		edit(c, b, func(o *api.OutboxDispatcher) { o.Spec.Topics = []string{"others"} })
		c.expectOf(a, kstatus.InProgressStatus, alone)
		c.expectOf(b, kstatus.InProgressStatus, alone)
		c.expectEvent(corev1.EventTypeNormal, api.ReasonNotShared, "")
		edit(c, b, func(o *api.OutboxDispatcher) { o.Spec.Topics = nil })
		shared := want{api.TopicsSharedCondition, metav1.ConditionTrue, api.ReasonTopicsShared, ""}
		c.expectOf(a, kstatus.InProgressStatus, shared)
		edit(c, b, func(o *api.OutboxDispatcher) { o.Spec.State = spec.Paused }) // a standby claims nothing
		c.expectOf(a, kstatus.InProgressStatus, alone)
		c.expectOf(b, kstatus.InProgressStatus, alone)
		edit(c, b, func(o *api.OutboxDispatcher) { o.Spec.State, o.Spec.Replicas = "", ptr.To(int32(0)) })
		c.expectOf(a, kstatus.InProgressStatus, alone)
		edit(c, b, func(o *api.OutboxDispatcher) { o.Spec.Replicas = nil })
		c.expectOf(a, kstatus.InProgressStatus, shared)

		// Events flow all the same.
		for _, job := range c.jobs() {
			c.finish(&job, time.Now(), "")
		}
		c.rollOut(c.healthy())
		c.expectOf(a, kstatus.CurrentStatus,
			want{api.TopicsSharedCondition, metav1.ConditionTrue, api.ReasonTopicsShared, ""},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
		Expect(c.admin.Delete(c.ctx, b)).To(Succeed())
		c.expectOf(a, kstatus.CurrentStatus, alone)
	},
		Entry("of an Outbox", func(c *cluster) (a, b *api.OutboxDispatcher) {
			return c.referring("orders", "orders", "returns"), c.referring("webhooks", "returns")
		}),
		Entry("of one database", func(c *cluster) (a, b *api.OutboxDispatcher) {
			return c.sharing("orders", "orders"), c.sharing("webhooks")
		}),
	)

	// Dispatchers elsewhere that claim the same topics are known from the database, as pods report.
	// CONTRACT: C-104
	It("name those elsewhere, which pods know from the database", func() {
		c, _ := delivering(tick)
		c.expect(kstatus.CurrentStatus, want{api.TopicsSharedCondition, metav1.ConditionFalse, api.ReasonNotShared, ""})
		podStatus := c.healthy()
		podStatus.Sharing = []string{c.namespace + "/webhooks", "other/orders"}
		c.Pods.Says("pod-0", podStatus)
		c.expect(kstatus.CurrentStatus,
			want{api.TopicsSharedCondition, metav1.ConditionTrue, api.ReasonTopicsShared, `The dispatchers "other/orders", "webhooks" deliver topics of this one too`},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
		c.Pods.Says("pod-0", c.healthy())
		c.expect(kstatus.CurrentStatus, want{api.TopicsSharedCondition, metav1.ConditionFalse, api.ReasonNotShared, ""})
	})
})
