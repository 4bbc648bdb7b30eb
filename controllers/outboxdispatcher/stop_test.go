package outboxdispatcher_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// Whatever is wrong, scale and pause are applied. CONTRACT: C-105
func TestToStopWorksAlways(t *testing.T) {
	for name, trouble := range map[string]struct {
		migrates bool
		spoil    func(*api.OutboxDispatcher)
		told     want
	}{
		"a reference is missing": {false, func(o *api.OutboxDispatcher) { o.Spec.Database.Secret.Name = "missing" },
			want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonSecretNotFound, ""}},
		"the template is invalid": {false, func(o *api.OutboxDispatcher) {
			o.Spec.PodTemplate = &runtime.RawExtension{Raw: []byte(`{"spec":{"afinity":{}}}`)}
		},
			want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonInvalidPodTemplate, ""}},
		"the template is refused": {false, func(o *api.OutboxDispatcher) {
			o.Spec.PodTemplate = &runtime.RawExtension{Raw: []byte(`{"spec":{"containers":[{"name":"sidecar"}]}}`)}
		}, want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonApplyRefused, ""}},
		"the migration hangs": {true, func(o *api.OutboxDispatcher) { o.Spec.Database.Schema = "other" },
			want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonMigrating, ""}},
		"the configuration is bad": {false, func(o *api.OutboxDispatcher) {
			o.Spec.Transform = []api.Transformation{{Payload: "without(paylaod)"}}
		}, want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonInvalidPipeline, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, tick)
			obd := c.dispatcher()
			if trouble.migrates {
				obd = c.migrated()
			}
			replicas(2)(obd)
			c.create(obd)
			if trouble.migrates {
				c.succeed()
			}
			c.rollOut(c.healthy(), c.healthy())
			c.expect(status.CurrentStatus)
			before := c.deployment().Generation

			edit(c, obd, trouble.spoil)
			switch trouble.told.reason {
			case api.ReasonSecretNotFound:
				c.Eventually(func() int64 { return c.deployment().Generation }).Should(BeNumerically(">", before))
				c.mountFails(c.pod("new", corev1.PodStatus{Phase: corev1.PodPending}), `secret "missing" not found`)
			case api.ReasonInvalidPipeline:
				c.Eventually(func() int64 { return c.deployment().Generation }).Should(BeNumerically(">", before))
				c.pod("new", ended(desired.Container, 78, "transform[0].payload: line 1, column 9: undeclared reference to 'paylaod'"))
			}
			c.Eventually(func() []metav1.Condition { return c.get().Status.Conditions }).Should(ContainElement(And(
				HaveField("Type", trouble.told.kind), HaveField("Status", trouble.told.status), HaveField("Reason", trouble.told.reason))))

			edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.State = api.StatePaused })
			c.Eventually(c.state).Should(Equal("Paused"))
			for _, pod := range []string{"pod-0", "pod-1"} {
				c.Eventually(func() map[string]string { return fetch(c, &corev1.Pod{}, pod).Annotations }).Should(HaveKeyWithValue("outbox.dev/state", "Paused"))
			}
			edit(c, obd, replicas(0))
			c.Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(0))
			c.Expect(c.requests.forbidden()).To(BeEmpty())
		})
	}
}

// Who pauses because of a mistake, and corrects it, does not go on with it; and what was stopped starts
// with what the spec says then.
func TestToResumeWaitsForTheRollout(t *testing.T) {
	c := start(t, tick)
	obd := c.dispatcher()
	c.create(obd)
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)
	edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.State = api.StatePaused })
	c.Eventually(c.state).Should(Equal("Paused"))

	edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.State, o.Spec.BatchSize = api.StateRunning, 7 })
	c.expect(status.InProgressStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonPaused, "until the rollout has ended"})
	c.Expect(c.state()).To(Equal("Paused"), "the pods are of the template from before")
	c.deployed(1, 1)
	c.Eventually(c.state).Should(Equal("Running"))
	c.Eventually(func() map[string]string { return fetch(c, &corev1.Pod{}, "pod-0").Annotations }).Should(HaveKeyWithValue("outbox.dev/state", "Running"))
	c.expect(status.CurrentStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})

	edit(c, obd, replicas(0))
	c.Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(0))
	edit(c, obd, func(o *api.OutboxDispatcher) {
		replicas(3)(o)
		o.Spec.PodTemplate = &runtime.RawExtension{Raw: []byte(`{"spec":{"afinity":{}}}`)}
	})
	c.Eventually(func() []metav1.Condition { return c.get().Status.Conditions }).Should(ContainElement(HaveField("Reason", api.ReasonInvalidPodTemplate)))
	c.Expect(*c.deployment().Spec.Replicas).To(BeEquivalentTo(0), "nothing starts with the template from before")
}
