package outboxdispatcher_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// validated is dispatcher with a schema in a ConfigMap.
func (c *cluster) validated() *api.OutboxDispatcher {
	obd := c.dispatcher()
	obd.Spec.Validation = []api.Validation{{Schema: &api.PayloadSchema{ConfigMap: &api.ConfigMapKey{Name: "schemas", Key: "order.json"}}}}
	return obd
}

func (c *cluster) configMap(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "schemas", Namespace: c.namespace}, Data: data}
}

// CONTRACT: C-72, C-101, C-102
func TestSchemaConfigMap(t *testing.T) {
	c := start(t, tick)
	obd := c.validated()
	c.create(c.secret("orders-db", "dsn", "postgres://db/shop"), obd)
	c.expect(status.InProgressStatus,
		want{api.SecretsResolvedCondition, metav1.ConditionFalse, api.ReasonConfigMapNotFound, `ConfigMap "schemas", which spec.validation[0].schema.configMap names, does not exist in namespace`},
		want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonConfigMapNotFound, "create it, and this goes on by itself"})

	schemas := c.configMap(map[string]string{"other.json": "{}"})
	c.create(schemas)
	c.expect(status.InProgressStatus,
		want{api.SecretsResolvedCondition, metav1.ConditionFalse, api.ReasonConfigMapKeyNotFound, `has no key "order.json"; add the key, or name the right one`})

	text := func(text string) {
		edit(c, schemas, func(m *corev1.ConfigMap) { m.Data = map[string]string{"order.json": text} })
	}
	text(`{"required": ["id"]}`)
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus, want{api.SecretsResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, "ConfigMap"})
	c.Expect(c.loadConfig().Validation[0].Schema.Inline).To(Equal(`{"required": ["id"]}`))
	first := c.deployment()

	// What is wrong reaches no pod.
	text(`{"required": "id"}`)
	c.expect(status.FailedStatus,
		want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidPipeline, "Spec.validation[0].schema.configMap: it is no JSON Schema: "},
		want{api.StalledCondition, metav1.ConditionTrue, api.ReasonInvalidPipeline, "The pods that run are left as they are."},
		want{api.SourceReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""})
	c.Expect(c.deployment().Generation).To(Equal(first.Generation))
	c.Expect(c.loadConfig().Validation[0].Schema.Inline).To(Equal(`{"required": ["id"]}`))

	// What is right rolls them, without a change of the OutboxDispatcher.
	text(`{"required": ["id", "total"]}`)
	c.Eventually(func() string { return c.loadConfig().Validation[0].Schema.Inline }).Should(Equal(`{"required": ["id", "total"]}`))
	c.Eventually(func() int64 { return c.deployment().Generation }).Should(BeNumerically(">", first.Generation))
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)

	// A key that nobody names does not.
	rolled := c.deployment().Generation
	edit(c, schemas, func(m *corev1.ConfigMap) { m.Data["other.json"] = "{}" })
	c.passes(3)
	c.Expect(c.deployment().Generation).To(Equal(rolled))

	c.Expect(c.admin.Delete(c.ctx, schemas)).To(Succeed())
	c.expect(status.InProgressStatus, want{api.SecretsResolvedCondition, metav1.ConditionFalse, api.ReasonConfigMapNotFound, ""})
	c.Expect(c.deployment().Generation).To(Equal(rolled), "the pods that run are left alone")
	c.Expect(c.requests.forbidden()).To(BeEmpty())
}

func TestSchemaConfigMapIsWatched(t *testing.T) {
	c := start(t, rare) // nothing but the watch can notice it
	c.create(c.secret("orders-db", "dsn", "postgres://db/shop"), c.validated())
	c.expect(status.InProgressStatus, want{api.SecretsResolvedCondition, metav1.ConditionFalse, api.ReasonConfigMapNotFound, ""})
	schemas := c.configMap(map[string]string{"order.json": "{}"})
	c.create(schemas)
	c.expect(status.InProgressStatus, want{api.SecretsResolvedCondition, metav1.ConditionTrue, api.ReasonResolved, ""})
	c.Expect(c.loadConfig().Validation[0].Schema.Inline).To(Equal("{}"))
	edit(c, schemas, func(m *corev1.ConfigMap) { m.Data["order.json"] = `{"type": "object"}` })
	c.Eventually(func() string { return c.loadConfig().Validation[0].Schema.Inline }).Should(Equal(`{"type": "object"}`))
}

// CONTRACT: C-101
func TestInvalidExpressions(t *testing.T) {
	c := start(t, tick)
	obd := c.dispatcher()
	obd.Spec.Transform = []api.Transformation{{Payload: `without(payload, ["card"])`}}
	c.create(c.secret("orders-db", "dsn", "postgres://db/shop"), obd)
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)
	before := c.deployment().Generation

	edit(c, obd, func(o *api.OutboxDispatcher) {
		o.Spec.Transform[0].Payload = `without(paylaod, ["card"])`
		o.Spec.Validation = []api.Validation{{Rules: []api.Rule{{Rule: "event.typo == ''", Message: "m"}}}}
	})
	c.expect(status.FailedStatus,
		want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidPipeline,
			"Spec.validation[0].rules[0].rule: line 1, column 6: undefined field 'typo'; spec.transform[0].payload: line 1, column 9: undeclared reference to 'paylaod'. The pods"},
		want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonInvalidPipeline, ""})
	c.expectEvent(corev1.EventTypeWarning, api.ReasonInvalidPipeline, "undefined field 'typo'")
	c.Expect(c.deployment().Generation).To(Equal(before))
	c.Expect(c.loadConfig().Validation).To(BeEmpty())

	edit(c, obd, func(o *api.OutboxDispatcher) {
		o.Spec.Transform[0].Payload, o.Spec.Validation = `without(payload, ["card", "pin"])`, nil
	})
	c.Eventually(func() string { return c.loadConfig().Transform[0].Payload }).Should(ContainSubstring("pin"))
	c.Eventually(func() int64 { return c.deployment().Generation }).Should(BeNumerically(">", before))
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)
}
