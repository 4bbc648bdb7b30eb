package outboxdispatcher_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// tick is short, so that tests need not wait; rare is so long that only watches wake the controller.
const (
	tick = 50 * time.Millisecond
	rare = time.Hour
)

var _ = Describe("the workload", Label("workload"), func() {
	// CONTRACT: C-100
	It("waits for the migration, delivers, and is collected with its owner", Label("migration"), func() {
		c := start(tick)
		c.create(c.migrated())

		job := c.job()
		c.expect(kstatus.InProgressStatus,
			want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonMigrating, "migration Job"},
			want{api.ReferencesResolvedCondition, metav1.ConditionUnknown, api.ReasonNotObserved, "No pod has started yet"},
			want{api.SchemaReadyCondition, metav1.ConditionFalse, api.ReasonMigrating, ""},
			want{api.SourceReachableCondition, metav1.ConditionUnknown, api.ReasonNotObserved, "No dispatcher pod runs yet"},
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonProgressing, "schema is migrated"},
			want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonMigrating, ""})
		err := c.admin.Get(c.ctx, client.ObjectKey{Namespace: c.namespace, Name: "orders-dispatcher"}, &appsv1.Deployment{})
		Expect(apierrors.IsNotFound(err)).To(BeTrue(), "no pods before the first migration")

		c.finish(job, time.Now(), "")
		podStatus := c.healthy()
		oldest := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
		podStatus.Backlog.Pending, podStatus.Backlog.Scheduled, podStatus.Backlog.Retrying, podStatus.Backlog.Processing = 12000, 3, 2, 5
		podStatus.Backlog.Estimated, podStatus.Backlog.OldestPending = true, status.At(oldest)
		c.rollOut(podStatus)
		c.expect(kstatus.CurrentStatus,
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""},
			want{api.ReferencesResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, ""},
			want{api.SchemaReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""},
			want{api.SourceReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""},
			want{api.SinkReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""},
			want{api.WorkloadAvailableCondition, metav1.ConditionTrue, api.ReasonAvailable, ""},
			want{api.DeadLettersPresentCondition, metav1.ConditionFalse, api.ReasonNoDeadLetters, ""})

		// CONTRACT: C-96
		obd := c.get()
		s := obd.Status
		Expect([]int64{s.Pending, s.Scheduled, s.Retrying, s.Processing, s.Dead}).To(Equal([]int64{12000, 3, 2, 5, 0}))
		Expect(s.Estimated).To(BeTrue())
		Expect(s.OldestPending.Time()).To(Equal(oldest))
		Expect(s.ObservedTime.UTC()).To(Equal(podStatus.Backlog.ObservedAt))
		Expect([]int32{s.Replicas, s.ReadyReplicas}).To(Equal([]int32{1, 1}))
		Expect(s.Sink).To(Equal("log"))

		// Who ignores what the operator writes, as Argo CD does by the field manager, names one.
		for _, fields := range obd.ManagedFields {
			Expect(fields.Manager == "outbox-operator").To(Equal(fields.Subresource == "status"), "%s %s", fields.Manager, fields.Subresource)
		}
		var events eventsv1.EventList
		Expect(c.admin.List(c.ctx, &events, client.InNamespace(c.namespace))).To(Succeed())
		Expect(events.Items).To(HaveEach(HaveField("ManagedFields", ConsistOf(HaveField("Manager", "outbox-operator")))))

		// At rest an object has six conditions, and none that another version of the operator has left.
		Expect(s.Conditions).To(HaveLen(6))
		editStatus(c, obd, func(o *api.OutboxDispatcher) {
			o.Status.Conditions = append(o.Status.Conditions, metav1.Condition{Type: "Formerly", Status: metav1.ConditionFalse, Reason: "NotAnyMore", LastTransitionTime: metav1.Now()})
		})
		edit(c, obd, func(o *api.OutboxDispatcher) { o.Labels = map[string]string{"team": "a"} })
		Eventually(func() []metav1.Condition { return c.get().Status.Conditions }).Should(HaveLen(6))

		for _, o := range []client.Object{c.deployment(), job,
			c.files(), fetch(c, &corev1.ConfigMap{}, "orders-dispatcher-state"), fetch(c, &corev1.ConfigMap{}, desired.ConfigNames(&job.Spec.Template.Spec)[0]),
			fetch(c, &corev1.ServiceAccount{}, "orders-dispatcher"),
			fetch(c, &networkingv1.NetworkPolicy{}, "orders-dispatcher"),
			fetch(c, &policyv1.PodDisruptionBudget{}, "orders-dispatcher")} {
			Expect(metav1.IsControlledBy(o, obd)).To(BeTrue(), "%T is collected with its owner", o)
			Expect(o.GetFinalizers()).To(BeEmpty())
		}
		Expect(obd.Finalizers).To(BeEmpty())
	})

	// CONTRACT: C-102
	It("rolls when the spec says so, and only then", func() {
		c, obd := delivering(tick)
		template := func() string { return c.deployment().Spec.Template.String() }
		before := template()

		edit(c, obd, func(o *api.OutboxDispatcher) {
			o.Labels, o.Annotations = map[string]string{"team": "a"}, map[string]string{"note": "b"}
		})
		edit(c, obd, replicas(2))
		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.State = spec.Paused })
		Eventually(c.state).Should(Equal("Paused"))
		c.passes(3)
		Expect(template()).To(Equal(before), "labels, replicas and state roll no pod")
		Expect(c.events(api.ReasonRolledOut)).To(BeEmpty())

		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Delivery.BatchSize = 7 })
		Eventually(template).ShouldNot(Equal(before), "changed config rolls the pods")
		Expect(c.configFile()).To(ContainSubstring("batchSize: 7"))
		c.expectEvent(corev1.EventTypeNormal, api.ReasonRolledOut, "its configuration (ConfigMap "+c.files().Name+").")
		c.deployed(2, 2)
		paused := c.healthy()
		paused.State = "Paused"
		c.Pods.Says("pod-0", paused)
		c.expect(kstatus.CurrentStatus)

		edit(c, obd, func(o *api.OutboxDispatcher) {
			o.Spec.Pods.ServiceAccount = &spec.ServiceAccount{Annotations: []spec.Annotation{{Name: "cloud/role", Value: "orders"}}}
			o.Spec.Pods.Template = json.RawMessage(`{"spec":{"nodeSelector":{"disk":"fast"}}}`)
		})
		c.expectEvent(corev1.EventTypeNormal, api.ReasonRolledOut, "its pod template.")
		Expect(fetch(c, &corev1.ServiceAccount{}, "orders-dispatcher").Annotations).To(HaveKeyWithValue("cloud/role", "orders"))
		c.deployed(2, 2)
		c.expect(kstatus.CurrentStatus)
	})

	// What others write into the Deployment stays there, and is in the status with who wrote it.
	It("says what others have set, as long as it is there", func() {
		c, _ := delivering(tick)
		write := func(manager, patch string) {
			GinkgoHelper()
			Expect(c.admin.Patch(c.ctx, c.deployment(), client.RawPatch(types.StrategicMergePatchType, []byte(patch)), client.FieldOwner(manager))).To(Succeed())
		}
		message := func() string {
			return meta.FindStatusCondition(c.get().Status.Conditions, api.WorkloadAvailableCondition).Message
		}
		write("kubectl-rollout", `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"now"}}}}}`)
		write("kubectl-set", `{"spec":{"template":{"spec":{"containers":[{"name":"dispatcher","env":[{"name":"FOO","value":"bar"}]}]}}}}`)
		const words = ` In the Deployment "kubectl-set" has set spec.template.spec.containers[name="dispatcher"].env[name="FOO"].name: the operator leaves it as it is.`
		Eventually(message).Should(ContainSubstring(words))
		c.stop()
		c.stop = c.run(tick)
		edit(c, c.get(), replicas(2))
		Eventually(message).Should(And(ContainSubstring(words), ContainSubstring("starting")))
		write("kubectl-edit", `{"spec":{"template":{"spec":{"containers":[{"name":"dispatcher","env":[{"name":"FOO","$patch":"delete"}]}]}}}}`)
		Eventually(message).ShouldNot(ContainSubstring("has set"))
	})

	// Pods of an earlier template read what they always did, until none is left.
	It("reads files that never change, until no ReplicaSet names them", func() {
		c, obd := delivering(tick)
		first := c.files()
		Expect(*first.Immutable).To(BeTrue())
		d := c.deployment()
		old := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{GenerateName: d.Name + "-", Namespace: c.namespace, Labels: d.Spec.Template.Labels},
			Spec: appsv1.ReplicaSetSpec{Selector: d.Spec.Selector, Template: *d.Spec.Template.DeepCopy()}}
		c.create(old)

		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Delivery.BatchSize = 7 })
		Eventually(func() string { return c.files().Name }).ShouldNot(Equal(first.Name))
		there := func() error { return c.admin.Get(c.ctx, client.ObjectKeyFromObject(first), &corev1.ConfigMap{}) }
		c.passes(3)
		Expect(there()).To(Succeed(), "the rollout has not ended")
		c.deployed(1, 1)
		c.passes(3)
		Expect(there()).To(Succeed(), "a ReplicaSet names it")
		Expect(c.admin.Delete(c.ctx, old)).To(Succeed())
		Eventually(there).Should(MatchError(apierrors.IsNotFound, "not found"))
		Expect(c.files().Name).NotTo(BeEmpty(), "what is in use stays")
		c.expect(kstatus.CurrentStatus)

		// Nothing is left to look for.
		before := c.settle()
		c.passes(3)
		Expect(c.Requests.All()[before:]).To(BeEmpty())
	})

	It("is neither read nor written while nothing changes", func() {
		c, _ := delivering(tick, migrating)
		podStatus := c.healthy()
		before := c.settle()

		for i := range 5 { // the database's time changes, the numbers do not
			podStatus.Backlog.ObservedAt = podStatus.Backlog.ObservedAt.Add(time.Duration(i) * time.Second)
			podStatus.OldestTransaction.Seconds++
			c.Pods.Says("pod-0", podStatus)
			c.passes(2)
		}
		Expect(c.Requests.All()[before:]).To(BeEmpty(), "neither reads nor writes")
		GinkgoWriter.Printf("writes from creation to Ready: %d\n%s", len(c.Requests.Writes("")), c.Requests.Writes(""))

		podStatus.Backlog.Pending = 7
		c.Pods.Says("pod-0", podStatus)
		Eventually(func() int64 { return c.get().Status.Pending }).Should(BeEquivalentTo(7))
		c.settle()
		Expect(c.Requests.All()[before:]).To(HaveLen(1), "a changed number is one write")
		c.expect(kstatus.CurrentStatus)
	})

	// A manager that has just started knows nothing of what was applied, and changes nothing.
	It("is left as it is by a manager that has just started", Label("upgrade"), func() {
		c, _ := delivering(tick, migrating)
		c.settle()
		c.stop()
		versions := func() []string {
			return []string{c.get().ResourceVersion, c.job().ResourceVersion, c.deployment().ResourceVersion,
				c.files().ResourceVersion, fetch(c, &corev1.ConfigMap{}, "orders-dispatcher-state").ResourceVersion}
		}
		before, writes := versions(), len(c.Requests.Writes(""))
		c.run(tick)
		c.settle()
		Expect(versions()).To(Equal(before))
		Expect(c.Requests.Writes("")[writes:]).To(HaveLen(7), "each object is applied once, except the Job")
		c.expect(kstatus.CurrentStatus)
	})

	It("is repaired when others change it", func() {
		c, _ := delivering(tick)

		d := c.deployment()
		for range 2 {
			edit(c, d, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "evil:1" })
			Eventually(func() string { return c.deployment().Spec.Template.Spec.Containers[0].Image }).Should(Equal("outbox-operator:v1"))
		}
		c.expectEvent(corev1.EventTypeNormal, api.ReasonRolledOut, "its image (outbox-operator:v1).")

		edit(c, d, func(d *appsv1.Deployment) { delete(d.Labels, desired.LabelManagedBy) }) // now it is in no cache
		Eventually(func() map[string]string { return c.deployment().Labels }).Should(HaveKeyWithValue(desired.LabelManagedBy, desired.Manager))

		edit(c, d, func(d *appsv1.Deployment) { d.Labels[desired.LabelDispatcher] = "other" })
		Eventually(func() map[string]string { return c.deployment().Labels }).Should(HaveKeyWithValue(desired.LabelDispatcher, "orders"))

		// What other clients add without an owner stays.
		edit(c, d, func(d *appsv1.Deployment) {
			d.Spec.Template.Annotations = map[string]string{"kubectl.kubernetes.io/restartedAt": "now"}
		})
		c.passes(3)
		Expect(c.deployment().Spec.Template.Annotations).To(HaveKey("kubectl.kubernetes.io/restartedAt"))

		edit(c, fetch(c, &corev1.ConfigMap{}, "orders-dispatcher-state"), func(cm *corev1.ConfigMap) { cm.Data["state"] = "" })
		Eventually(c.state).Should(Equal("Running"))
		Expect(c.admin.Delete(c.ctx, c.files())).To(Succeed())
		Expect(c.files().Data).To(HaveKey("config.yaml"))
		Expect(c.admin.Delete(c.ctx, fetch(c, &policyv1.PodDisruptionBudget{}, "orders-dispatcher"))).To(Succeed())
		fetch(c, &policyv1.PodDisruptionBudget{}, "orders-dispatcher")
		c.deployed(1, 1)
		c.expect(kstatus.CurrentStatus)
	})

	// An OutboxDispatcher that is made again while the old one's objects are not collected yet waits.
	It("waits for the objects of a namesake to be collected", func() {
		c, _ := delivering(tick)
		old := []client.Object{c.deployment(), c.files(), fetch(c, &corev1.ConfigMap{}, "orders-dispatcher-state"), fetch(c, &corev1.ServiceAccount{}, "orders-dispatcher"),
			fetch(c, &networkingv1.NetworkPolicy{}, "orders-dispatcher"), fetch(c, &appsv1.ReplicaSet{}, "orders-dispatcher-5d4f8c"), fetch(c, &corev1.Pod{}, "pod-0")}

		Expect(c.admin.Delete(c.ctx, c.get())).To(Succeed())
		c.create(c.dispatcher())
		c.expect(kstatus.InProgressStatus, want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonProgressing, "not collected yet"})
		for _, o := range old {
			Expect(c.admin.Delete(c.ctx, o, client.GracePeriodSeconds(0))).To(Succeed()) // there is no garbage collector here
		}
		Eventually(func() error {
			return client.IgnoreNotFound(c.admin.Delete(c.ctx, pdb(c)))
		}).Should(Succeed())
		Eventually(func() bool { return metav1.IsControlledBy(c.deployment(), c.get()) }).Should(BeTrue())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
	})
})

// smallest is each kind of sink with what it cannot do without.
var smallest = []string{
	"copy: {topics: [b]}}, topics: [a], message: {format: CloudEvents",
	"http: {url: 'http://a.example'}",
	"kafka: {brokers: ['a:9092']}",
	"kafka: {brokers: ['a:9092']}, auth: {type: OAuthBearer, secretRef: {name: a, key: b}}, tls: {}",
	"log: {}",
	"nats: {servers: ['nats://a:4222']}",
	"postgres: {secretRef: {name: a}}",
	"pubSub: {project: shop-1}",
	"rabbitmq: {addresses: ['a:5672']}, auth: {type: Plain, secretRef: {name: a}}",
	"redis: {addresses: ['a:6379']}",
	"serviceBus: {namespace: a.example}",
	"sns: {topicARN: 'arn:aws:sns:eu-west-1:123456789012:orders'}",
	"sqs: {queueURL: 'https://sqs.eu-west-1.amazonaws.com/123456789012/orders'}",
}

var _ = Describe("a file for pods", Label("samples"), func() {
	files, err := filepath.Glob(filepath.Join("..", "..", "config", "samples", "*.yaml"))

	It("is tried with each kind of sink, and with samples", func() {
		for _, kind := range spec.SinkKinds() {
			name, _, _ := strings.Cut(kind.Tag.Get("json"), ",")
			Expect(smallest).To(ContainElement(HavePrefix(name + ":")))
		}
		Expect(files, err).NotTo(BeEmpty())
	})

	for _, sink := range smallest {
		It("means the same as the smallest resource with "+sink, func(ctx SpecContext) {
			meansTheSame(ctx, "apiVersion: outbox.dev/v1alpha1\nkind: OutboxDispatcher\nmetadata: {name: smallest}\n"+
				"spec: {namespace: shop, database: {secretRef: {name: a}}, sink: {"+sink+"}}\n")
		})
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if !strings.Contains(string(text), "kind: OutboxDispatcher\n") && err == nil {
			continue // the Job of an adoption
		}
		It("means the same as the sample "+filepath.Base(file), func(ctx SpecContext) {
			Expect(err).NotTo(HaveOccurred())
			meansTheSame(ctx, string(text))
		})
	}

	// The binary's defaults are the API's.
	It("has the defaults of the API", func() {
		c := start(tick)
		c.create(c.dispatcher())
		Expect(c.configFile()).To(Equal(`apiVersion: outbox.dev/v1alpha1
kind: OutboxDispatcher
metadata:
  name: orders
  namespace: `+c.namespace+`
spec:
  database:
    secretRef:
      name: orders-db
  namespace: shop
  sink:
    log: {}
`), "the pods set what the API server does")
		Expect(c.command()).To(Equal([]string{"/dispatcher", "run", "-f", "/etc/outbox/config/config.yaml", "--secrets", "/etc/outbox/secrets", "--listen", ":8080", "--state-file", "/etc/outbox/state/state"}))
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
	})
})

// What the API server sets by default, of a sample or of the smallest resource, is not in the pods' file: they set it too.
//
// CONTRACT: C-100
func meansTheSame(ctx context.Context, text string) {
	GinkgoHelper()
	for _, written := range dispatchersIn(text) {
		accepted := written.DeepCopy()
		Expect(admin.Create(ctx, accepted, client.DryRunAll)).To(Succeed())
		Expect(rendered(accepted)).To(Equal(rendered(written)), "the defaults of the resource, and those of the file")
	}
}

// dispatchersIn returns the dispatchers of a file, in the namespace default.
func dispatchersIn(text string) (all []*api.OutboxDispatcher) {
	GinkgoHelper()
	for decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096); ; {
		obd := &api.OutboxDispatcher{}
		err := decoder.Decode(obd)
		if errors.Is(err, io.EOF) {
			break
		}
		Expect(err).NotTo(HaveOccurred())
		if obd.Kind == "OutboxDispatcher" {
			obd.Namespace = metav1.NamespaceDefault
			all = append(all, obd)
		}
	}
	Expect(len(all) > 0 || strings.Contains(text, "\nkind: Outbox\n") || strings.Contains(text, "\nkind: DeadLetterReplay\n") ||
		strings.Contains(text, "\nkind: OutboxConsumer\n") || strings.Contains(text, "\nkind: Job\n")).To(BeTrue(), "no OutboxDispatcher")
	return all
}

// rendered is the file of the pods, with a plain Outbox where one is named.
func rendered(obd *api.OutboxDispatcher) string {
	return desired.ConfigMap(obd, &api.Outbox{Spec: spec.Outbox{SecretRef: spec.SecretRef{Name: "a"}}}).Data["config.yaml"]
}

var _ = Describe("labels of an object", Label("workload"), func() {
	It("are inherited by what is made for it, when the operator is to", func() {
		c := start(tick, func(c *cluster) { c.inherited = []string{"team", "cost-center", "app.kubernetes.io/name"} })
		obd := c.migrated()
		obd.Labels = map[string]string{"team": "shop", "cost-center": "4711", "app.kubernetes.io/name": "orders", "other": "x"}
		obd.Spec.Pods.Template = json.RawMessage(`{"metadata":{"labels":{"cost-center":"42"}}}`)
		c.create(obd)
		job := c.job()
		Expect(job.Labels).To(HaveKeyWithValue("team", "shop"))
		Expect(job.Spec.Template.Labels).To(And(HaveKeyWithValue("team", "shop"), HaveKeyWithValue("app.kubernetes.io/name", "outbox-migration")))
		c.succeed()
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		d := c.deployment()
		Expect(d.Labels).To(And(HaveKeyWithValue("team", "shop"), HaveKeyWithValue("cost-center", "4711"), HaveKeyWithValue("app.kubernetes.io/name", "outbox-dispatcher"), Not(HaveKey("other"))))
		Expect(d.Spec.Template.Labels).To(And(HaveKeyWithValue("team", "shop"), HaveKeyWithValue("cost-center", "42"), Not(HaveKey("other"))))
		for _, labels := range []map[string]string{c.files().Labels, fetch(c, &corev1.ServiceAccount{}, "orders-dispatcher").Labels, fetch(c, pdb(c), "orders-dispatcher").Labels} {
			Expect(labels).To(HaveKeyWithValue("team", "shop"))
		}
		c.settle()
		before := len(c.Requests.Writes(""))
		c.passes(3)
		Expect(c.Requests.Writes("")[before:]).To(BeEmpty())

		edit(c, obd, func(o *api.OutboxDispatcher) { delete(o.Labels, "team") })
		Eventually(func() map[string]string { return c.deployment().Spec.Template.Labels }).ShouldNot(HaveKey("team"))
		Eventually(func() map[string]string { return c.files().Labels }).ShouldNot(HaveKey("team"))
		Expect(c.jobs()).To(HaveLen(1), "another label does not migrate again")
	})
})
