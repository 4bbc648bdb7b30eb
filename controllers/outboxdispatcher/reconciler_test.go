package outboxdispatcher_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// tick is short, so that tests need not wait; rare is so long that only watches wake the controller.
const (
	tick = 50 * time.Millisecond
	rare = time.Hour
)

// CONTRACT: C-100
func TestWorkload(t *testing.T) {
	c := start(t, tick)
	c.create(c.secret("orders-db", "dsn", "postgres://db/shop"), c.secret("orders-owner", "dsn", "postgres://owner@db/shop"), c.migrated())

	job := c.job()
	c.expect(status.InProgressStatus,
		want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonMigrating, "migration Job"},
		want{api.SecretsResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, ""},
		want{api.SchemaReadyCondition, metav1.ConditionFalse, api.ReasonMigrating, ""},
		want{api.SourceReachableCondition, metav1.ConditionUnknown, api.ReasonNotObserved, "No dispatcher pod runs yet"},
		want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonProgressing, "schema is migrated"},
		want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonMigrating, ""})
	err := c.admin.Get(c.ctx, client.ObjectKey{Namespace: c.namespace, Name: "orders-dispatcher"}, &appsv1.Deployment{})
	c.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "no pods before the first migration")

	c.finish(job, time.Now(), "")
	answer := c.healthy()
	oldest := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	answer.Backlog.Pending, answer.Backlog.Scheduled, answer.Backlog.Processing = 12000, 3, 5
	answer.Backlog.Estimated, answer.Backlog.OldestPending = true, &oldest
	c.rollOut(answer)
	c.expect(status.CurrentStatus,
		want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""},
		want{api.SchemaReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""},
		want{api.SourceReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""},
		want{api.SinkReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""},
		want{api.WorkloadAvailableCondition, metav1.ConditionTrue, api.ReasonAvailable, ""},
		want{api.DeadLettersPresentCondition, metav1.ConditionFalse, api.ReasonNoDeadLetters, ""})

	// CONTRACT: C-96
	obd := c.get()
	s := obd.Status
	c.Expect([]int64{*s.Pending, *s.Scheduled, *s.Processing, *s.Dead}).To(Equal([]int64{12000, 3, 5, 0}))
	c.Expect(s.Estimated).To(BeTrue())
	c.Expect(s.OldestPending.UTC()).To(Equal(oldest))
	c.Expect(s.ObservedTime.UTC()).To(Equal(answer.Backlog.ObservedAt))
	c.Expect([]int32{s.Replicas, s.ReadyReplicas}).To(Equal([]int32{1, 1}))
	c.Expect(s.Sink).To(Equal("log"))

	for _, o := range []client.Object{c.deployment(), job,
		fetch(c, &corev1.ConfigMap{}, "orders-dispatcher"),
		fetch(c, &corev1.ServiceAccount{}, "orders-dispatcher"),
		fetch(c, &policyv1.PodDisruptionBudget{}, "orders-dispatcher")} {
		c.Expect(metav1.IsControlledBy(o, obd)).To(BeTrue(), "%T is collected with its owner", o)
		c.Expect(o.GetFinalizers()).To(BeEmpty())
	}
	c.Expect(obd.Finalizers).To(BeEmpty())
}

// CONTRACT: C-101
func TestMissingSecretAppears(t *testing.T) {
	c := start(t, rare) // nothing but the watch can notice it
	c.create(c.dispatcher())
	c.expect(status.InProgressStatus,
		want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonSecretNotFound, `Secret "orders-db", which spec.database.secret names, does not exist`},
		want{api.SecretsResolvedCondition, metav1.ConditionFalse, api.ReasonSecretNotFound, "create it"},
		want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonProgressing, ""})

	secret := c.secret("orders-db", "uri", "postgres://db/shop")
	c.create(secret)
	c.expect(status.InProgressStatus,
		want{api.SecretsResolvedCondition, metav1.ConditionFalse, api.ReasonSecretKeyNotFound, `has no key "dsn"; add the key`})

	edit(c, secret, func(s *corev1.Secret) { s.Data["dsn"] = s.Data["uri"] })
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})

	// A workload that runs is left alone when its Secret goes, and still observed.
	before := c.deployment()
	c.Expect(c.admin.Delete(c.ctx, secret)).To(Succeed())
	c.expect(status.InProgressStatus,
		want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonSecretNotFound, ""},
		want{api.SourceReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""},
		want{api.WorkloadAvailableCondition, metav1.ConditionTrue, api.ReasonAvailable, ""})
	c.Expect(c.deployment().ResourceVersion).To(Equal(before.ResourceVersion))
}

// CONTRACT: C-102
func TestRollsOnSecretsAndConfigOnly(t *testing.T) {
	c := start(t, tick)
	db := c.secret("orders-db", "dsn", "postgres://db/shop", "unused", "1")
	obd := c.dispatcher()
	c.create(db, obd)
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)
	template := func() string { return c.deployment().Spec.Template.String() }
	before := template()

	edit(c, obd, func(o *api.OutboxDispatcher) {
		o.Labels, o.Annotations = map[string]string{"team": "a"}, map[string]string{"note": "b"}
	})
	edit(c, db, func(s *corev1.Secret) { s.Data["unused"], s.Labels = []byte("2"), map[string]string{"team": "a"} })
	edit(c, obd, replicas(1))
	c.passes(3)
	c.Expect(template()).To(Equal(before), "labels, an unused key and replicas roll no pod")

	edit(c, db, func(s *corev1.Secret) { s.Data["dsn"] = []byte("postgres://db2/shop") })
	c.Eventually(template).ShouldNot(Equal(before), "a rotated Secret rolls the pods")
	before = template()
	edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.BatchSize = 7 })
	c.Eventually(template).ShouldNot(Equal(before), "changed config rolls the pods")
	c.Expect(fetch(c, &corev1.ConfigMap{}, "orders-dispatcher").Data["config.yaml"]).To(ContainSubstring("batchSize: 7"))
	c.deployed(1, 1)
	c.expect(status.CurrentStatus)
}

func TestSteadyStateWritesNothing(t *testing.T) {
	c := start(t, tick)
	c.create(c.secret("orders-db", "dsn", "postgres://db/shop"), c.secret("orders-owner", "dsn", "postgres://owner@db/shop"), c.migrated())
	c.finish(c.job(), time.Now(), "")
	answer := c.healthy()
	c.rollOut(answer)
	c.expect(status.CurrentStatus)
	c.passes(2)

	before := c.requests.all()
	for i := range 5 { // the database's clock goes on, the numbers do not
		answer.Backlog.ObservedAt = answer.Backlog.ObservedAt.Add(time.Duration(i) * time.Second)
		answer.OldestTransaction.Seconds++
		c.pods.says("pod-0", answer)
		c.passes(2)
	}
	c.Expect(c.requests.all()[len(before):]).To(BeEmpty(), "neither reads nor writes")
	t.Logf("writes from creation to Ready: %d\n%s", len(c.requests.writes()), c.requests.writes())

	answer.Backlog.Pending = 7
	c.pods.says("pod-0", answer)
	c.Eventually(func() int64 { return *c.get().Status.Pending }).Should(BeEquivalentTo(7))
	c.passes(3)
	c.Expect(c.requests.all()[len(before):]).To(HaveLen(1), "a changed number is one write")
	c.expect(status.CurrentStatus)
}

// A manager that has just started knows nothing of what was applied, and changes nothing.
func TestRestartChangesNothing(t *testing.T) {
	c := start(t, tick)
	c.create(c.secret("orders-db", "dsn", "postgres://db/shop"), c.secret("orders-owner", "dsn", "postgres://owner@db/shop"), c.migrated())
	c.finish(c.job(), time.Now(), "")
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)
	c.stop()
	versions := func() []string {
		return []string{c.get().ResourceVersion, c.job().ResourceVersion, c.deployment().ResourceVersion,
			fetch(c, &corev1.ConfigMap{}, "orders-dispatcher").ResourceVersion}
	}
	before, writes := versions(), len(c.requests.writes())
	c.run(tick)
	c.passes(3)
	c.Expect(versions()).To(Equal(before))
	c.Expect(c.requests.writes()[writes:]).To(HaveLen(4), "each object is applied once, except the Job")
	c.expect(status.CurrentStatus)
}

func TestDriftIsRepaired(t *testing.T) {
	c := start(t, tick)
	c.create(c.secret("orders-db", "dsn", "postgres://db/shop"), c.dispatcher())
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)

	d := c.deployment()
	edit(c, d, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "evil:1" })
	c.Eventually(func() string { return c.deployment().Spec.Template.Spec.Containers[0].Image }).Should(Equal("outbox-operator:v1"))

	edit(c, d, func(d *appsv1.Deployment) { delete(d.Labels, desired.LabelManagedBy) }) // now it is in no cache
	c.Eventually(func() map[string]string { return c.deployment().Labels }).Should(HaveKeyWithValue(desired.LabelManagedBy, desired.Manager))

	edit(c, d, func(d *appsv1.Deployment) { d.Labels[desired.LabelInstance] = "other" })
	c.Eventually(func() map[string]string { return c.deployment().Labels }).Should(HaveKeyWithValue(desired.LabelInstance, "orders"))

	// What others add and nobody owns stays theirs.
	edit(c, d, func(d *appsv1.Deployment) { d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] = "now" })
	c.passes(3)
	c.Expect(c.deployment().Spec.Template.Annotations).To(HaveKey("kubectl.kubernetes.io/restartedAt"))

	edit(c, fetch(c, &corev1.ConfigMap{}, "orders-dispatcher"), func(cm *corev1.ConfigMap) { cm.Data["config.yaml"] = "" })
	c.Eventually(func() string { return fetch(c, &corev1.ConfigMap{}, "orders-dispatcher").Data["config.yaml"] }).Should(ContainSubstring("orders"))
	c.Expect(c.admin.Delete(c.ctx, fetch(c, &policyv1.PodDisruptionBudget{}, "orders-dispatcher"))).To(Succeed())
	fetch(c, &policyv1.PodDisruptionBudget{}, "orders-dispatcher")
	c.deployed(1, 1)
	c.expect(status.CurrentStatus)
}
