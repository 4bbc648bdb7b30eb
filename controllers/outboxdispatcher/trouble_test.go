package outboxdispatcher_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

var _ = Describe("a workload in trouble", Label("workload", "status"), func() {
	// All that are in the way are named at once. CONTRACT: C-101
	It("adopts no object of others", Label("security"), func() {
		c := start(tick)
		theirs := []client.Object{
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "orders-dispatcher-state", Namespace: c.namespace}, Data: map[string]string{"state": "theirs"}},
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "orders-dispatcher", Namespace: c.namespace,
				Labels: map[string]string{"outbox.dev/managed-by": "outbox-operator", "outbox.dev/dispatcher": "others", "outbox.dev/component": "dispatcher"}}},
			&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "orders-dispatcher", Namespace: c.namespace,
				Labels:          map[string]string{"outbox.dev/managed-by": "outbox-operator", "outbox.dev/dispatcher": "orders", "outbox.dev/component": "dispatcher"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "others", UID: "4711", Controller: new(true)}}}},
		}
		c.create(append(theirs, c.dispatcher())...)
		c.expect(kstatus.FailedStatus,
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonForeignObject,
				`ConfigMap "orders-dispatcher-state", NetworkPolicy "orders-dispatcher", ServiceAccount "orders-dispatcher" exist and do not belong to this OutboxDispatcher; delete them`},
			want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonForeignObject, ""},
			want{api.StalledCondition, metav1.ConditionTrue, api.ReasonForeignObject, ""})
		Expect(c.state()).To(Equal("theirs"))

		Expect(c.admin.Delete(c.ctx, theirs[0])).To(Succeed())
		Expect(c.admin.Delete(c.ctx, theirs[2])).To(Succeed())
		c.expect(kstatus.FailedStatus, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonForeignObject,
			`ServiceAccount "orders-dispatcher" exists and does not belong to this OutboxDispatcher; delete it`})
		Expect(c.admin.Delete(c.ctx, theirs[1])).To(Succeed())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		Expect(c.requests.forbidden()).To(BeEmpty())
	})

	// As after `kubectl delete --cascade=orphan`, when the object is created again: nothing rolls. CONTRACT: C-101
	It("adopts what was made for an object of its name and was orphaned", func() {
		c := start(tick)
		c.create(c.migrated())
		c.succeed()
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		var files corev1.ConfigMapList
		Expect(c.admin.List(c.ctx, &files, client.InNamespace(c.namespace), client.HasLabels{"outbox.dev/dispatcher"})).To(Succeed())
		made := []client.Object{c.deployment(), fetch(c, &corev1.ServiceAccount{}, "orders-dispatcher"),
			fetch(c, &networkingv1.NetworkPolicy{}, "orders-dispatcher"), fetch(c, pdb(c), "orders-dispatcher"), c.job()}
		for i := range files.Items {
			made = append(made, &files.Items[i])
		}
		generation := c.deployment().Generation
		c.stop()
		Expect(c.admin.Delete(c.ctx, c.get())).To(Succeed()) // there is no garbage collector
		for _, o := range made {
			edit(c, o, func(o client.Object) { o.SetOwnerReferences(nil) })
		}
		foreign := &policyv1.PodDisruptionBudget{}
		edit(c, fetch(c, foreign, "orders-dispatcher"), func(o *policyv1.PodDisruptionBudget) { o.Labels = nil })

		// A stranger's object does not keep what is ours from being stopped.
		obd := c.migrated()
		replicas(0)(obd)
		c.create(obd)
		c.run(tick)
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeZero())
		c.expect(kstatus.FailedStatus, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonForeignObject, `PodDisruptionBudget "orders-dispatcher" exists`})
		Expect(c.admin.Delete(c.ctx, foreign)).To(Succeed())
		edit(c, obd, replicas(1))
		Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(1))
		c.deployed(1, 1)
		c.expect(kstatus.CurrentStatus)
		for _, o := range made {
			Expect(c.admin.Get(c.ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
			Expect(metav1.IsControlledBy(o, obd)).To(BeTrue(), "%T", o)
		}
		Expect(c.deployment().Generation).To(Equal(generation+2), "it was scaled twice")
		Expect(c.jobs()).To(HaveLen(1), "it is migrated")
		Expect(c.requests.forbidden()).To(BeEmpty())
	})

	// CONTRACT: C-101
	It("is left alone when its template is invalid", func() {
		c := start(tick)
		obd := c.dispatcher()
		c.create(obd)
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		before := c.deployment().Generation

		template := func(raw string) {
			edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Pods.Template = &runtime.RawExtension{Raw: []byte(raw)} })
		}
		template(`{"spec":{"afinity":{}}}`)
		c.expect(kstatus.FailedStatus,
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidPodTemplate, "afinity"},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDeliveringDespiteTrouble, "afinity"},
			want{api.SourceReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""})
		template(`{"spec":{"containers":[{"name":"sidecar"}]}}`) // well-formed, but a container needs an image
		c.expect(kstatus.FailedStatus,
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonApplyRefused, "spec.template.spec.containers"})
		Expect(c.deployment().Generation).To(Equal(before), "the pods that run are left alone")

		template(`{"spec":{"nodeSelector":{"disk":"fast"}}}`)
		Eventually(func() map[string]string { return c.deployment().Spec.Template.Spec.NodeSelector }).Should(HaveKeyWithValue("disk", "fast"))
		c.deployed(1, 1)
		c.expect(kstatus.CurrentStatus)
	})

	It("reports why its pods do not start", func() {
		c := start(tick)
		c.create(c.dispatcher())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)

		editStatus(c, fetch(c, &corev1.Pod{}, "pod-0"), func(pod *corev1.Pod) {
			pod.Status.Phase = corev1.PodPending
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "dispatcher", Image: "outbox-operator:v1",
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}
		})
		c.deployed(1, 0)
		c.expect(kstatus.InProgressStatus,
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonImagePullFailed, `"outbox-operator:v1" cannot be pulled; check its name`},
			want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonImagePullFailed, ""},
			want{api.SourceReachableCondition, metav1.ConditionUnknown, api.ReasonNotObserved, "No dispatcher pod runs yet"})
	})

	// A quota or an admission policy that refuses a new pod is reported at once, next to pods that deliver.
	It("reports at once that a new pod is refused", func() {
		c := start(tick)
		c.create(c.dispatcher())
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		edit(c, c.get(), func(o *api.OutboxDispatcher) { o.Spec.Delivery.BatchSize = 7 })
		Eventually(c.configFile).Should(ContainSubstring("batchSize: 7"))
		refuse := func(pod string) {
			editStatus(c, c.deployment(), func(d *appsv1.Deployment) {
				d.Status.ObservedGeneration, d.Status.UpdatedReplicas = d.Generation, 0
				d.Status.Conditions = []appsv1.DeploymentCondition{
					{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "ReplicaSetUpdated"},
					{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate",
						Message: `pods "` + pod + `" is forbidden: exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1`},
				}
			})
		}
		refuse("orders-dispatcher-a-b")
		const message = "Pods cannot be created: a pod is forbidden: exceeded quota: team"
		c.expect(kstatus.InProgressStatus,
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonUnavailable, message},
			want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonProgressing, message},
			want{api.SourceReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""})
		c.settle()
		version := c.get().ResourceVersion
		refuse("orders-dispatcher-a-c") // the next try
		c.passes(3)
		Expect(c.get().ResourceVersion).To(Equal(version), "nothing is written about another name")
	})
})
