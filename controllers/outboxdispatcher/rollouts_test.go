package outboxdispatcher_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// newPod makes a pod of the Deployment as it is now, in a ReplicaSet of its own. It statuses so, nil for not at all.
func (c *cluster) newPod(name string, current corev1.PodStatus, podStatus *status.Status) *corev1.Pod {
	GinkgoHelper()
	d := c.deployment()
	pod := &corev1.Pod{ObjectMeta: *d.Spec.Template.ObjectMeta.DeepCopy(), Spec: *d.Spec.Template.Spec.DeepCopy()}
	pod.Name, pod.Namespace, pod.OwnerReferences = name, c.namespace, c.owner(d, "newer")
	if podStatus != nil {
		c.Pods.Says(name, *podStatus)
	}
	c.start(pod, current)
	return pod
}

// runs is the status of a pod that statuses.
var runs = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}}}

var _ = Describe("an upgrade of the operator with a new API", Label("upgrade"), Serial, func() {
	// As when secretRef had another name, which the API server has dropped. CONTRACT: C-101, C-105
	It("leaves alone what lacks a required field, names that, and can stop it", func() {
		c, obd := delivering(tick)
		generation := c.deployment().Generation
		const required = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/database/required"
		restore := patchDefinition("outboxdispatchers", `{"op":"remove","path":"`+required+`"}`, `{"op":"add","path":"`+required+`","value":["secretRef"]}`, func(g Gomega, restored bool) {
			without := c.dispatcher()
			without.Name, without.Spec.Database.SecretRef = "without", spec.SecretRef{}
			g.Expect(c.admin.Create(c.ctx, without, client.DryRunAll) != nil).To(Equal(restored))
		})
		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Database.SecretRef = spec.SecretRef{} })
		restore()
		const message = "spec.database.secretRef is missing; set it."
		c.expect(kstatus.FailedStatus,
			want{api.StalledCondition, metav1.ConditionTrue, api.ReasonInvalidSpec, message},
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidSpec, message},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDeliveringDespiteTrouble, message})
		c.expectEvent(corev1.EventTypeWarning, api.ReasonInvalidSpec, message)
		Expect(c.deployment().Generation).To(Equal(generation))
		stop := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":0}}`))
		Expect(c.admin.Patch(c.ctx, obd, stop)).To(Succeed())
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeZero())
		edit(c, obd, func(o *api.OutboxDispatcher) {
			o.Spec.Database.SecretRef.Name = "orders-db"
			replicas(1)(o)
		})
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(1))
		c.deployed(1, 1)
		c.expect(kstatus.CurrentStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
	})

	// The rule of api/v1alpha1/README.md: the old name stays next to the new one. A write of the status, by which the API server
	// drops what a definition does not know, loses nothing, and neither does a rollback.
	It("loses no field that has another name, while the old one stays", func() {
		topics := []string{"orders"}
		c, obd := delivering(tick, func(o *api.OutboxDispatcher) { o.Spec.Topics = topics })
		const renamed = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/topicNames"
		knows := func(g Gomega, restored bool) {
			tried := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "outbox.dev/v1alpha1", "kind": "OutboxDispatcher",
				"metadata": map[string]any{"name": "renamed", "namespace": c.namespace},
				"spec":     map[string]any{"namespace": "shop", "topicNames": []any{"orders"}, "database": map[string]any{"secretRef": map[string]any{"name": "db"}}, "sink": map[string]any{"log": map[string]any{}}}}}
			g.Expect(c.admin.Create(c.ctx, tried, client.DryRunAll)).To(Succeed())
			_, found, err := unstructured.NestedFieldNoCopy(tried.Object, "spec", "topicNames")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(Equal(!restored))
		}
		has := func(generation int64) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				g.Expect(c.admin.Get(c.ctx, client.ObjectKeyFromObject(obd), obd)).To(Succeed())
				g.Expect(obd.Status.ObservedGeneration).To(Equal(generation))
			}).Should(Succeed())
			Expect(obd.Spec.Topics).To(Equal(topics))
			Expect(meta.FindStatusCondition(obd.Status.Conditions, api.StalledCondition)).To(BeNil())
		}
		restore := patchDefinition("outboxdispatchers", `{"op":"add","path":"`+renamed+`","value":{"type":"array","items":{"type":"string"}}}`, `{"op":"remove","path":"`+renamed+`"}`, knows)
		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Delivery.BatchSize++ })
		has(obd.Generation)
		restore()
		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Delivery.BatchSize++ })
		has(obd.Generation)
	})

	DescribeTable("names the required field that is missing of", func(plural, path, required string, o client.Object, message string) {
		c := start(tick)
		o.SetName("incomplete")
		o.SetNamespace(c.namespace)
		path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec" + path + "/required"
		restore := patchDefinition(plural, `{"op":"remove","path":"`+path+`"}`, `{"op":"add","path":"`+path+`","value":`+required+`}`, func(g Gomega, restored bool) {
			g.Expect(c.admin.Create(c.ctx, o.DeepCopyObject().(client.Object), client.DryRunAll) != nil).To(Equal(restored))
		})
		c.create(o)
		restore()
		c.expectOf(o, kstatus.FailedStatus, want{api.StalledCondition, metav1.ConditionTrue, api.ReasonInvalidSpec, message})
		if plural == "outboxes" { // and so does a dispatcher of it
			obd := c.referring("orders")
			obd.Spec.OutboxRef.Name = o.GetName()
			c.create(obd)
			c.expect(kstatus.FailedStatus, want{api.StalledCondition, metav1.ConditionTrue, api.ReasonInvalidSpec, "Outbox incomplete: " + message})
		}
	},
		Entry("an Outbox", "outboxes", "/properties/journal", `["mode"]`,
			&api.Outbox{Spec: spec.Outbox{SecretRef: spec.SecretRef{Name: "orders-db"}, Migration: &spec.Migration{}, Journal: &spec.Journal{}}}, "spec.journal.mode is missing"),
		Entry("an OutboxConsumer", "outboxconsumers", "", `["eventTypes","idempotencyMechanism","ownerTeam"]`,
			&api.OutboxConsumer{Spec: api.OutboxConsumerSpec{EventTypes: []string{"order.placed"}, IdempotencyMechanism: api.IdempotencyUniqueKey}}, "spec.ownerTeam is missing"),
		Entry("a DeadLetterReplay", "deadletterreplays", "", `["action","reason","requestedBy","selector"]`, &api.DeadLetterReplay{Spec: spec.Replay{
			DispatcherRef: &spec.DispatcherRef{Name: "orders"}, Action: spec.ActionReplay, RequestedBy: "ada", Selector: spec.DeadLetterSelector{Group: "7f3a9c21"}}}, "spec.reason is missing"),
	)

	// A version with one more default reads each spec differently, without an edit by a user: pods roll and
	// migrations run for so many objects at a time. A pause is applied at once, and does not roll its pods.
	// CONTRACT: C-102
	It("rolls and migrates so many at a time", func() {
		const rolling = 2
		withDefault := withoutDefault("maxInFlightBytes", "33554432")
		c := start(tick)
		for _, name := range []string{"x", "y", "z"} {
			c.create(&api.Outbox{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.namespace}, Spec: spec.Outbox{
				SecretRef: spec.SecretRef{Name: name}, Migration: &spec.Migration{SecretRef: &spec.SecretRef{Name: name + "-owner"}}}})
		}
		var names []string
		for _, name := range []string{"x-0", "x-1", "y-0", "z-0", "own-0", "own-1", "own-2", "x-standby"} {
			obd := c.migrated()
			obd.Name, obd.Spec.Topics = name, []string{name}
			obd.Spec.Database.SecretRef.Name, obd.Spec.Database.MigrationSecretRef.Name = name, name+"-owner"
			if outbox, _, _ := strings.Cut(name, "-"); outbox != "own" {
				obd.Spec.Database, obd.Spec.OutboxRef = nil, &spec.OutboxRef{Name: outbox}
			}
			if name == "x-standby" {
				replicas(0)(obd)
			}
			c.create(obd)
			names = append(names, name)
		}
		Eventually(func(g Gomega) {
			u := c.upgrade("outbox-operator:v1")
			c.advance(u, len(u.moving))
			g.Expect(u.left).To(BeZero())
			g.Expect(u.deployments).To(Equal(len(names)))
			g.Expect(u.moving).To(BeEmpty())
		}).Should(Succeed())
		c.stop()
		readBefore := c.specsRead()
		withDefault()

		c.image, c.rolling = "outbox-operator:v2", rolling
		c.stop = c.run(tick)
		most, poll, paused := 0, 0, ""
		Eventually(func(g Gomega) {
			u := c.upgrade("outbox-operator:v2")
			most = max(most, len(u.moving))
			poll++
			if last := len(u.waiting) - 1; paused == "" && last >= 0 && len(u.moving) == rolling && c.specsRead()[u.waiting[last]] != readBefore[u.waiting[last]] {
				paused = u.waiting[last]
				edit(c, &api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Name: paused, Namespace: c.namespace}}, func(o *api.OutboxDispatcher) { o.Spec.State = spec.Paused })
				Eventually(func() string { return fetch(c, &corev1.ConfigMap{}, paused+"-dispatcher-state").Data["state"] }).Should(Equal("Paused"))
				poll = 0
			}
			if poll%10 == 9 {
				c.advance(u, 1)
			}
			g.Expect(u.left).To(BeZero(), "%v wait", u.waiting)
			g.Expect(u.moving).To(BeEmpty())
		}).Should(Succeed())
		Expect(most).To(Equal(rolling))
		Expect(paused).NotTo(BeEmpty(), "the new version has read no spec of those that wait")
	})
})

// upgrade is how far an upgrade is: the dispatchers and Outboxes that roll or migrate, and those that wait.
type upgrade struct {
	moving, waiting   []string
	left, deployments int
	jobs              []batchv1.Job
	rollouts          []appsv1.Deployment
}

func (c *cluster) upgrade(image string) (u upgrade) {
	GinkgoHelper()
	var deployments appsv1.DeploymentList
	var jobs batchv1.JobList
	Expect(c.admin.List(c.ctx, &deployments, client.InNamespace(c.namespace))).To(Succeed())
	Expect(c.admin.List(c.ctx, &jobs, client.InNamespace(c.namespace))).To(Succeed())
	for _, j := range jobs.Items {
		if j.Spec.Template.Spec.Containers[0].Image == image && j.Status.CompletionTime == nil {
			u.jobs, u.moving = append(u.jobs, j), append(u.moving, metav1.GetControllerOf(&j).Name)
		}
	}
	u.deployments = len(deployments.Items)
	for _, d := range deployments.Items {
		owner := metav1.GetControllerOf(&d).Name
		switch {
		case d.Spec.Template.Spec.Containers[0].Image != image:
			u.left++
			u.waiting = append(u.waiting, owner)
			if d.Status.ObservedGeneration > 0 && d.Status.ObservedGeneration < d.Generation { // of an annotation
				editStatus(c, &d, func(d *appsv1.Deployment) { d.Status.ObservedGeneration = d.Generation })
			}
		case d.Status.ObservedGeneration < d.Generation && *d.Spec.Replicas > 0:
			u.rollouts, u.moving = append(u.rollouts, d), append(u.moving, owner)
		}
	}
	slices.Sort(u.moving)
	u.moving = slices.Compact(u.moving)
	u.waiting = slices.DeleteFunc(u.waiting, func(name string) bool { return slices.Contains(u.moving, name) || name == "x-standby" })
	return u
}

// specsRead is how the operator read the spec of each dispatcher last. An edit before a new version has read it counts as one
// of what pods are made of, and does not wait.
func (c *cluster) specsRead() map[string]string {
	GinkgoHelper()
	var deployments appsv1.DeploymentList
	Expect(c.admin.List(c.ctx, &deployments, client.InNamespace(c.namespace))).To(Succeed())
	specs := map[string]string{}
	for _, d := range deployments.Items {
		specs[metav1.GetControllerOf(&d).Name] = d.Annotations[desired.AnnotationSpec]
	}
	return specs
}

// advance ends so many of the Jobs and rollouts.
func (c *cluster) advance(u upgrade, n int) {
	GinkgoHelper()
	for i := range u.jobs[:min(n, len(u.jobs))] {
		c.finish(&u.jobs[i], time.Now(), "")
		n--
	}
	for i := range u.rollouts[:min(n, len(u.rollouts))] {
		editStatus(c, &u.rollouts[i], func(d *appsv1.Deployment) {
			d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
				Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"}}}
		})
	}
}

// withoutDefault takes the default of a field out of the CRD of OutboxDispatchers, as a version without the field has it,
// until restore is called.
func withoutDefault(field, value string) (restore func()) {
	GinkgoHelper()
	path := "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/delivery/properties/" + field + "/default"
	return patchDefinition("outboxdispatchers", `{"op":"remove","path":"`+path+`"}`, `{"op":"add","path":"`+path+`","value":`+value+`}`, func(g Gomega, restored bool) {
		tried := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "outbox.dev/v1alpha1", "kind": "OutboxDispatcher",
			"metadata": map[string]any{"generateName": "try-", "namespace": "default"},
			"spec":     map[string]any{"namespace": "shop", "database": map[string]any{"secretRef": map[string]any{"name": "db"}}, "sink": map[string]any{"log": map[string]any{}}}}}
		g.Expect(admin.Create(context.Background(), tried, client.DryRunAll)).To(Succeed())
		_, found, err := unstructured.NestedFieldNoCopy(tried.Object, "spec", "delivery", field)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(Equal(restored))
	})
}

// patchDefinition changes the CRD of a kind until restore is called, or the spec ends. It waits until served finds
// that the API server has taken the change.
func patchDefinition(plural, change, back string, served func(g Gomega, restored bool)) (restore func()) {
	GinkgoHelper()
	patch := func(operation string, restored bool) {
		GinkgoHelper()
		crd := &unstructured.Unstructured{}
		crd.SetAPIVersion("apiextensions.k8s.io/v1")
		crd.SetKind("CustomResourceDefinition")
		crd.SetName(plural + ".outbox.dev")
		Expect(admin.Patch(context.Background(), crd, client.RawPatch(types.JSONPatchType, []byte("["+operation+"]")))).To(Succeed())
		Eventually(func(g Gomega) { served(g, restored) }).Should(Succeed())
	}
	patch(change, false)
	restore = sync.OnceFunc(func() { patch(back, true) })
	DeferCleanup(func() { restore() })
	return restore
}
