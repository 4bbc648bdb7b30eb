package manager_test

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/manager"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

// A backup has what users wrote, and neither status nor UIDs. The operator of the restored objects knows nothing of before.
// CONTRACT: C-42, C-82, C-102
var _ = Describe("every object that is restored from its YAML", Label("restore"), func() {
	It("is as before: same pods, same migration, its evidence, and no replay again", func(ctx SpecContext) {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
		Expect(admin.Create(ctx, namespace)).To(Succeed())
		c := client.NewNamespacedClient(admin, namespace.Name)
		operator := func() (stop func()) {
			_, stop = operate(ctx, operatortest.Operator(GinkgoTB(), unseen), manager.Options{WatchNamespaces: []string{namespace.Name}, OperatorNamespace: "outbox-system"})
			return stop
		}
		stop := operator()
		for _, o := range everyKind() {
			Expect(c.Create(ctx, o)).To(Succeed())
		}
		before := made(ctx, c)
		replayed := &batchv1.Job{}
		Eventually(c.Get).WithArguments(ctx, client.ObjectKey{Name: "replay-replay"}, replayed).Should(Succeed())
		backup := withoutStatus(namespace.Name)
		stop()
		for _, o := range append(everyKind(), &appsv1.Deployment{}, &batchv1.Job{}, &corev1.ConfigMap{}, &corev1.ServiceAccount{}, &networkingv1.NetworkPolicy{}, &policyv1.PodDisruptionBudget{}) {
			Expect(admin.DeleteAllOf(ctx, o, client.InNamespace(namespace.Name), client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		}
		operator()
		for i := range backup.Items {
			Expect(admin.Create(ctx, &backup.Items[i])).To(Succeed())
		}

		after := made(ctx, c)
		for kind, check := range map[string]func(Gomega){
			"OutboxDispatcher": func(g Gomega) { g.Expect(after.templates).To(Equal(before.templates)) },
			"Outbox":           func(g Gomega) { g.Expect(after.jobs).To(Equal(before.jobs)) },
			"OutboxConsumer":   func(g Gomega) { g.Expect(after.types).To(Equal("order.placed")) },
			"DeadLetterReplay": func(g Gomega) {
				o := &api.DeadLetterReplay{}
				g.Expect(c.Get(ctx, client.ObjectKey{Name: "replay"}, o)).To(Succeed())
				g.Expect(meta.FindStatusCondition(o.Status.Conditions, api.StalledCondition)).To(HaveValue(HaveField("Reason", api.ReasonRestored)))
				g.Expect(c.Get(ctx, client.ObjectKeyFromObject(replayed), &batchv1.Job{})).NotTo(Succeed(), "its Job")
			},
		} {
			Eventually(check).Should(Succeed(), kind)
		}
	})
})

// everyKind is an object of each kind, and a dispatcher of a database of its own.
func everyKind() []client.Object {
	secret := func(name string) *spec.SecretRef { return &spec.SecretRef{Name: name} }
	outbox := &api.Outbox{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	outbox.Spec = spec.Outbox{SecretRef: *secret("db"), Migration: &spec.Migration{SecretRef: secret("owner")}, ReplayLogin: &spec.ReplayLogin{SecretRef: secret("replay")}}
	orders := &api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Name: "orders"}}
	orders.Spec = spec.Dispatcher{Namespace: "shop", Topics: []string{"orders"}, Sink: spec.Sink{Log: &spec.LogSink{}}, OutboxRef: &spec.OutboxRef{Name: "shop"},
		Delivery: spec.Delivery{ConsumerPolicy: spec.ConsumersVerified}}
	own := &api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Name: "own"}}
	own.Spec = spec.Dispatcher{Namespace: "shop", Sink: spec.Sink{Log: &spec.LogSink{}}, Database: &spec.DispatcherDatabase{SecretRef: *secret("db"), MigrationSecretRef: secret("owner")}}
	consumer := &api.OutboxConsumer{ObjectMeta: metav1.ObjectMeta{Name: "billing"}}
	consumer.Spec = api.OutboxConsumerSpec{EventTypes: []string{"order.placed"}, OwnerTeam: "team-billing", IdempotencyMechanism: api.IdempotencyUniqueKey,
		Evidence: &api.ConsumerEvidence{VerifiedAt: metav1.Now(), EventType: "order.placed", Checks: 19, Passed: 19}}
	replay := &api.DeadLetterReplay{ObjectMeta: metav1.ObjectMeta{Name: "replay"}}
	replay.Spec = spec.Replay{OutboxRef: &spec.OutboxRef{Name: "shop"}, Namespace: "shop", Action: spec.ActionReplay, Reason: "CHG-812", RequestedBy: "admin",
		Selector: spec.DeadLetterSelector{All: true}}
	return []client.Object{outbox, orders, own, consumer, replay}
}

// objects are what the operator makes of them: the migration Jobs and the pods' templates by name, and the event types with a
// verified consumer.
type objects struct {
	jobs, templates map[string]string
	types           string
}

// made waits until the operator has made all, and plays the Job controller.
func made(ctx context.Context, c client.Client) (all objects) {
	GinkgoHelper()
	migrations := client.MatchingLabels{desired.LabelComponent: desired.ComponentMigration}
	Eventually(func(g Gomega) {
		all = objects{map[string]string{}, map[string]string{}, ""}
		var jobs batchv1.JobList
		g.Expect(c.List(ctx, &jobs, migrations)).To(Succeed())
		for i := range jobs.Items {
			succeed(ctx, c, &jobs.Items[i])
			all.jobs[jobs.Items[i].Name] = jobs.Items[i].Spec.Template.Spec.String()
		}
		for _, name := range []string{"orders", "own"} {
			deployment, obd := &appsv1.Deployment{}, &api.OutboxDispatcher{}
			g.Expect(c.Get(ctx, client.ObjectKey{Name: name + "-dispatcher"}, deployment)).To(Succeed())
			all.templates[name] = deployment.Spec.Template.String()
			g.Expect(c.Get(ctx, client.ObjectKey{Name: name}, obd)).To(Succeed())
			g.Expect(meta.FindStatusCondition(obd.Status.Conditions, api.SchemaReadyCondition)).To(HaveValue(HaveField("Reason", api.ReasonUpToDate)))
		}
		files := &corev1.ConfigMap{}
		g.Expect(c.Get(ctx, client.ObjectKey{Name: "orders-dispatcher-consumers"}, files)).To(Succeed())
		all.types = files.Data["types"]
		g.Expect(all.types).NotTo(BeEmpty())
	}).Should(Succeed())
	return all
}

// withoutStatus is what `kubectl get -o yaml` says of all objects, without what a backup leaves out.
func withoutStatus(namespace string) (all unstructured.UnstructuredList) {
	GinkgoHelper()
	text, err := envtest.Kubectl(GinkgoTB(), "", "get", "outboxdispatchers,outboxes,deadletterreplays,outboxconsumers", "-n", namespace, "-o", "yaml")
	Expect(err).NotTo(HaveOccurred())
	json, err := yaml.YAMLToJSON([]byte(text))
	Expect(err).NotTo(HaveOccurred())
	Expect(all.UnmarshalJSON(json)).To(Succeed())
	Expect(all.Items).To(HaveLen(len(everyKind())))
	for i := range all.Items {
		o := all.Items[i].Object
		delete(o, "status")
		for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "generation"} {
			unstructured.RemoveNestedField(o, "metadata", field)
		}
	}
	return all
}
