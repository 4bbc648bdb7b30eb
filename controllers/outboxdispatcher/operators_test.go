package outboxdispatcher_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest/specs"
)

// operates runs the manager of an operator in that namespace, which gives dispatchers the image, after the changes.
func (c *cluster) operates(operator, image string, changes ...func(*cluster)) *cluster {
	GinkgoHelper()
	own := *c.Cluster
	own.Requests = &specs.Requests{}
	o := &cluster{Cluster: &own, ctx: c.ctx, admin: c.admin, namespace: c.namespace, operator: operator, image: image}
	for _, change := range changes {
		change(o)
	}
	o.stop = o.run(tick)
	return o
}

// leads gives the operator a Lease.
func leads(c *cluster) { c.leads = true }

// changes are the writes so far other than Events and the operator's Lease.
func (c *cluster) changes() []string {
	return slices.DeleteFunc(c.Requests.Writes(""), func(request string) bool {
		return strings.Contains(request, "/events") || strings.Contains(request, "/leases")
	})
}

func (c *cluster) image1() string { return desired.Image(&c.deployment().Spec.Template.Spec) }

var _ = Describe("two operators of a namespace", Label("operators"), func() {
	// The Deployment of an object has one operator, and so has its status. CONTRACT: C-106
	It("leave each object to one of them, until it is handed over", func() {
		c := start(tick)
		c.stop()
		first := c.operates("outbox-system", "outbox-operator:v1")
		outbox := c.outbox()
		outbox.Spec.Migration = nil
		c.create(outbox, c.referring("orders"), consumer(c, "billing"))
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		Expect(c.get().Status.Operator).To(Equal("outbox-system"))
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""})
		first.settle()
		generation, version, requests := c.deployment().Generation, c.get().ResourceVersion, len(first.Requests.All())

		second := c.operates("team-a", "outbox-operator:v2")
		c.expectEvent(corev1.EventTypeWarning, api.ReasonManagedByAnotherOperator, `The operator of namespace "outbox-system" manages this object`)
		first.passes(10)
		Expect([]any{c.deployment().Generation, c.get().ResourceVersion}).To(Equal([]any{generation, version}))
		Expect(second.changes()).To(BeEmpty())
		Expect(first.Requests.All()[requests:]).To(BeEmpty())

		edit(c, c.get(), func(o *api.OutboxDispatcher) { o.Spec.Delivery.BatchSize = 7 })
		Eventually(c.configFile).Should(ContainSubstring("batchSize: 7"))
		c.deployed(1, 1)
		c.expect(kstatus.CurrentStatus)
		Expect(c.deployment().Generation).To(Equal(generation + 1))
		Expect(second.changes()).To(BeEmpty())

		By("the first starts again under its name, and holds what it held")
		first.stop()
		first = c.operates("outbox-system", "outbox-operator:v1")
		edit(c, c.get(), replicas(2))
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(2))
		Expect(second.changes()).To(BeEmpty())

		By("the first goes, and its object is handed over")
		first.stop()
		handOver := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"operator":null}}`))
		for _, o := range []client.Object{c.get(), fetch(c, &api.Outbox{}, "shop"), fetch(c, &api.OutboxConsumer{}, "billing")} {
			Expect(c.admin.Status().Patch(c.ctx, o, handOver)).To(Succeed())
		}
		Eventually(c.image1).Should(Equal("outbox-operator:v2"))
		Expect(c.get().Status.Operator).To(Equal("team-a"))
		first = c.operates("outbox-system", "outbox-operator:v1")
		second.passes(10)
		Expect(first.changes()).To(BeEmpty())
		Expect(c.image1()).To(Equal("outbox-operator:v2"))
	})

	// An operator waits for the migration of its own image, which the other one does not run. CONTRACT: C-104, C-106
	It("say of a dispatcher that the other has its Outbox", Label("outbox"), func() {
		c := start(tick)
		c.stop()
		other := c.operates("team-a", "outbox-operator:v2")
		outbox := c.outbox()
		c.create(outbox)
		first := c.job().Name
		c.succeed()
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""})
		other.stop()

		c.operates("outbox-system", "outbox-operator:v1")
		c.create(c.referring("orders"))
		c.expect(kstatus.InProgressStatus,
			want{api.ReferencesResolvedCondition, metav1.ConditionFalse, api.ReasonManagedByAnotherOperator, `The operator of namespace "team-a" manages Outbox "shop", and that of namespace "outbox-system" this dispatcher`},
			want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonManagedByAnotherOperator, "Hand one of the two over"})
		Expect(c.admin.Status().Patch(c.ctx, outbox, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"operator":null}}`)))).To(Succeed())
		Eventually(func() string { return c.job().Name }).ShouldNot(Equal(first))
		c.succeed()
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus, want{api.ReferencesResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, ""})
	})

	// As after `helm uninstall`, and `helm install` in another namespace. CONTRACT: C-106
	It("leave its objects to the other that is there, and take over those of one that is gone", func() {
		c := start(tick)
		c.stop()
		first := c.operates(c.namespace, "outbox-operator:v1")
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "outbox-operator.outbox.dev", Namespace: c.namespace}}
		lease.Spec.HolderIdentity, lease.Spec.RenewTime = new("manager"), new(metav1.NowMicro())
		c.create(lease)
		outbox := c.outbox()
		outbox.Spec.Migration = nil
		c.create(outbox, c.referring("orders"), consumer(c, "billing"))
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		c.expectOf(outbox, kstatus.CurrentStatus)

		second := c.operates("outbox-system", "outbox-operator:v2", leads, func(c *cluster) { c.released = time.Second })
		c.expectEvent(corev1.EventTypeWarning, api.ReasonManagedByAnotherOperator, "It takes the object over when the first is gone")
		edit(c, c.get(), func(o *api.OutboxDispatcher) { o.Spec.State = spec.Paused })
		Eventually(c.state).Should(Equal("Paused"))
		first.passes(5)
		Expect(second.changes()).To(BeEmpty(), "both are there")

		first.stop()
		lease.Spec.HolderIdentity = new("") // as a manager does that ends
		Expect(c.admin.Update(c.ctx, lease)).To(Succeed())
		edit(c, c.get(), replicas(2))
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(2))
		second.stop()

		By("objects of a backup with their status have a holder without a Lease")
		restored := consumer(c, "restored")
		c.create(restored)
		restored.Status.Operator = "elsewhere"
		Expect(c.admin.Status().Update(c.ctx, restored)).To(Succeed())
		c.operates("outbox-system", "outbox-operator:v2", leads)
		Eventually(func() string { return fetch(c, restored, "restored").Status.Operator }).Should(Equal("outbox-system"))
		Eventually(func() string { return c.get().Status.Operator }).Should(Equal("outbox-system"))
	})

	It("that see a new object at once become one holder of it", func() {
		c := start(tick)
		c.stop()
		for _, name := range []string{"outbox-system", "team-a"} {
			c.operates(name, "outbox-operator:"+name)
		}
		c.create(c.dispatcher())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		c.passes(10)
		Expect(c.deployment().Generation).To(BeEquivalentTo(1))
		Expect(c.image1()).To(Equal("outbox-operator:" + c.get().Status.Operator))
	})
})

// disabled lets the operator keep its hands off the object.
func disabled[T client.Object](o T) T {
	o.SetAnnotations(map[string]string{api.AnnotationReconcile: api.ReconcileDisabled})
	return o
}

var _ = Describe("an object with the annotation outbox.dev/reconcile: Disabled", Label("handsoff"), func() {
	handsOff := want{api.ReconcilingCondition, metav1.ConditionFalse, api.ReasonReconcileDisabled, "changes nothing that it has made"}

	// What a person does to the Deployment stays, and so does what was applied last. CONTRACT: C-106
	It("is left alone, while the status says what its pods report", func() {
		c, obd := delivering(tick)
		annotate := func(value string) {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, api.AnnotationReconcile, value)
			Expect(c.admin.Patch(c.ctx, obd, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
		}
		annotate(`"Disabled"`)
		c.expect(kstatus.CurrentStatus, handsOff, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
		c.expectEvent(corev1.EventTypeNormal, api.ReasonReconcileDisabled, "Remove the annotation")

		edit(c, c.deployment(), func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(5)) })
		edit(c, obd, func(o *api.OutboxDispatcher) {
			o.Spec.State, o.Spec.Delivery.BatchSize, o.Spec.Replicas = spec.Paused, 7, new(int32(0))
		})
		down := c.healthy()
		down.Source = status.Link{State: status.Unreachable, Reason: "ConnectionRefused", Message: "nothing listens; start the server"}
		c.Pods.Says("pod-0", down)
		Eventually(func(g Gomega) {
			g.Expect(meta.FindStatusCondition(c.get().Status.Conditions, api.ReadyCondition).Reason).To(Equal(api.ReasonConnectionFailed))
		}).Should(Succeed())
		c.passes(5)
		Expect(c.get().Status.ObservedGeneration).To(BeNumerically("<", c.get().Generation), "tools see that an edit waits")
		Expect(*c.deployment().Spec.Replicas).To(BeEquivalentTo(5))
		Expect(c.state()).To(Equal("Running"))
		Expect(c.configFile()).NotTo(ContainSubstring("batchSize"))

		annotate("null")
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(0))
		Eventually(c.state).Should(Equal("Paused"))
		Eventually(c.configFile).Should(ContainSubstring("batchSize: 7"))
		Eventually(func() *metav1.Condition {
			return meta.FindStatusCondition(c.get().Status.Conditions, api.ReconcilingCondition)
		}).
			ShouldNot(HaveField("Status", metav1.ConditionFalse))
	})

	It("makes nothing, of any kind", func() {
		c := start(tick)
		outbox := c.outbox()
		outbox.Spec.ReplayLogin = &spec.ReplayLogin{SecretRef: &spec.SecretRef{Name: "replay"}}
		replay := &api.DeadLetterReplay{ObjectMeta: metav1.ObjectMeta{Name: "chg-812", Namespace: c.namespace}, Spec: spec.Replay{
			OutboxRef: &spec.OutboxRef{Name: "shop"}, Namespace: "shop", Action: spec.ActionReplay, Reason: "CHG-812", RequestedBy: "ada",
			Selector: spec.DeadLetterSelector{Group: "7f3a9c21"}}}
		all := []client.Object{disabled(c.migrated()), disabled(outbox), disabled(replay), disabled(consumer(c, "billing"))}
		c.create(all...)
		for _, o := range all {
			Eventually(func(g Gomega) {
				g.Expect(c.admin.Get(c.ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
				g.Expect(conditionsOf(o)).To(ContainElement(And(HaveField("Type", api.ReconcilingCondition), HaveField("Status", metav1.ConditionFalse))), "%T", o)
			}).Should(Succeed())
		}
		Expect(c.changes()).To(HaveEach(HaveSuffix("/status")))
		edit(c, replay, func(o *api.DeadLetterReplay) { o.Annotations = nil })
		edit(c, outbox, func(o *api.Outbox) { o.Annotations = map[string]string{api.AnnotationReconcile: "disabled"} }) // as Flux writes it
		Eventually(c.jobs).Should(HaveLen(1))
		edit(c, outbox, func(o *api.Outbox) { o.Annotations = nil })
		Eventually(c.jobs).Should(HaveLen(2))
		Expect(c.jobs()).To(HaveEach(HaveField("Name", Or(HavePrefix("chg-812"), HavePrefix("shop")))))
	})
})

// consumer is a plain OutboxConsumer.
func consumer(c *cluster, name string) *api.OutboxConsumer {
	return &api.OutboxConsumer{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.namespace}, Spec: api.OutboxConsumerSpec{
		EventTypes: []string{"order.*"}, OwnerTeam: "billing", IdempotencyMechanism: api.IdempotencyUniqueKey}}
}

func conditionsOf(o client.Object) []metav1.Condition {
	switch o := o.(type) {
	case *api.Outbox:
		return o.Status.Conditions
	case *api.DeadLetterReplay:
		return o.Status.Conditions
	case *api.OutboxConsumer:
		return o.Status.Conditions
	}
	return o.(*api.OutboxDispatcher).Status.Conditions
}
