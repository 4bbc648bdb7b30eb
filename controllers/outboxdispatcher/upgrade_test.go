package outboxdispatcher_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

var _ = Describe("an upgrade of the operator with a new API", Label("upgrade"), Serial, func() {
	// A version with one more default reads each spec differently, without an edit by a user: pods roll and
	// migrations run for so many objects at a time. A pause is applied at once, and does not roll its pods.
	// CONTRACT: C-102
	It("rolls and migrates so many at a time", func() {
		const rolling = 2
		withDefault := withoutDefault("maxInFlightBytes", "33554432")
		c := start(tick)
		for _, name := range []string{"x", "y", "z"} {
			c.create(&api.Outbox{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.namespace}, Spec: api.OutboxSpec{
				SecretRef: api.SecretRef{Name: name}, Migration: &api.Migration{SecretRef: &api.SecretRef{Name: name + "-owner"}}}})
		}
		var names []string
		for _, name := range []string{"x-0", "x-1", "y-0", "z-0", "own-0", "own-1", "own-2", "x-standby"} {
			obd := c.migrated()
			obd.Name, obd.Spec.Topics = name, []string{name}
			obd.Spec.Database.SecretRef.Name, obd.Spec.Database.MigrationSecretRef.Name = name, name+"-owner"
			if outbox, _, _ := strings.Cut(name, "-"); outbox != "own" {
				obd.Spec.Database, obd.Spec.OutboxRef = nil, &api.OutboxRef{Name: outbox}
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
				edit(c, &api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Name: paused, Namespace: c.namespace}}, func(o *api.OutboxDispatcher) { o.Spec.State = api.StatePaused })
				Eventually(func() string { return fetch(c, &corev1.ConfigMap{}, paused+"-dispatcher-state").Data["state"] }).Should(Equal("Paused"))
				poll = 0
			}
			if poll%10 == 9 {
				c.advance(u, 1)
			}
			g.Expect(u.left).To(BeZero(), "%v wait", u.waiting)
			g.Expect(u.moving).To(BeEmpty())
		}).WithTimeout(2 * time.Minute).Should(Succeed())
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
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	crd.SetName("outboxdispatchers.outbox.dev")
	patch := func(op string, has bool) {
		GinkgoHelper()
		text := fmt.Sprintf(`[{"op":%q,"path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/delivery/properties/%s/default","value":%s}]`, op, field, value)
		Expect(admin.Patch(context.Background(), crd.DeepCopy(), client.RawPatch(types.JSONPatchType, []byte(text)))).To(Succeed())
		Eventually(func(g Gomega) {
			tried := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "outbox.dev/v1alpha1", "kind": "OutboxDispatcher",
				"metadata": map[string]any{"generateName": "try-", "namespace": "default"},
				"spec":     map[string]any{"namespace": "shop", "database": map[string]any{"secretRef": map[string]any{"name": "db"}}, "sink": map[string]any{"log": map[string]any{}}}}}
			g.Expect(admin.Create(context.Background(), tried, &client.CreateOptions{DryRun: []string{metav1.DryRunAll}})).To(Succeed())
			_, found, err := unstructured.NestedFieldNoCopy(tried.Object, "spec", "delivery", field)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(Equal(has))
		}).Should(Succeed())
	}
	patch("remove", false)
	restored := false
	restore = func() {
		if !restored {
			restored = true
			patch("add", true)
		}
	}
	DeferCleanup(restore)
	return restore
}
