package outboxconsumer_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

const yes, no, unknown = metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown

// CONTRACT: C-82
var _ = Describe("an OutboxConsumer", Label("consumer"), func() {
	// REQUIREMENT: RULE-010-040
	It("is ready when it fits what feeds it, before any event and evidence", func() {
		c := start()
		c.create(outbox(), dispatcher("orders"), consumer("billing"))
		o := expect(c, consumerOf(c, "billing"), kstatus.CurrentStatus, want{api.ReadyCondition, yes, api.ReasonRegistered, ""},
			want{api.ReferencesResolvedCondition, yes, api.ReasonResolved, ""}, want{api.RetentionSufficientCondition, yes, api.ReasonRetentionSufficient, "A dead letter that is replayed after that time"},
			want{api.EventTypesSentCondition, unknown, api.ReasonNotObserved, ""}, want{api.VerifiedCondition, no, api.ReasonEvidenceMissing, "kubectl patch outboxconsumer billing"})
		Expect(o.Status.ConsumerID).To(Equal("billing"))
	})

	It("waits for the dispatchers that it names, and for some dispatcher when it names none", func() {
		c := start()
		named := consumer("named")
		named.Spec.DispatcherRefs = []api.DispatcherRef{{Name: "orders"}, {Name: "payments"}}
		c.create(outbox(), named, consumer("any"))
		notFound := want{api.ReferencesResolvedCondition, no, api.ReasonDispatcherNotFound, ""}
		expect(c, named, kstatus.InProgressStatus, notFound, want{api.ReconcilingCondition, yes, api.ReasonDispatcherNotFound, `OutboxDispatcher "orders"`})
		expect(c, consumerOf(c, "any"), kstatus.InProgressStatus, notFound, want{api.ReadyCondition, no, api.ReasonDispatcherNotFound, "has no OutboxDispatcher"})
		c.create(dispatcher("orders"))
		expect(c, consumerOf(c, "any"), kstatus.CurrentStatus, want{api.ReadyCondition, yes, api.ReasonRegistered, ""})
		expect(c, named, kstatus.InProgressStatus, want{api.ReconcilingCondition, yes, api.ReasonDispatcherNotFound, `OutboxDispatcher "payments"`})
		c.create(dispatcher("payments"))
		expect(c, named, kstatus.CurrentStatus, want{api.ReadyCondition, yes, api.ReasonRegistered, ""})
	})

	It("keeps what it has handled for long enough, compared with the Outbox and with the rule", func() {
		c := start()
		o, database := consumer("billing"), outbox()
		c.create(database, dispatcher("orders"), o)
		expect(c, o, kstatus.CurrentStatus, want{api.RetentionSufficientCondition, yes, api.ReasonRetentionSufficient, ""})
		change(c, database, updateSpec, func() { database.Spec.Retention.Delivered = &metav1.Duration{Duration: 720 * time.Hour} })
		expect(c, o, kstatus.FailedStatus, want{api.ReadyCondition, no, api.ReasonRetentionTooShort, ""},
			want{api.RetentionSufficientCondition, no, api.ReasonRetentionTooShort, `dispatcher "orders" keeps delivered rows for 720h`})
		change(c, o, updateSpec, func() { o.Spec.Retention.Duration = 720 * time.Hour })
		expect(c, o, kstatus.CurrentStatus, want{api.RetentionSufficientCondition, yes, api.ReasonRetentionSufficient, ""})
		change(c, database, updateSpec, func() { database.Spec.Retention.Delivered.Duration = 0 })
		change(c, o, updateSpec, func() { o.Spec.Retention.Duration = 24 * time.Hour })
		expect(c, o, kstatus.FailedStatus, want{api.StalledCondition, yes, api.ReasonRetentionTooShort, "RULE-010-011 requires 168h"})
		change(c, o, updateSpec, func() { o.Spec.IdempotencyMechanism, o.Spec.Retention = api.IdempotencyUniqueKey, nil })
		expect(c, o, kstatus.CurrentStatus, want{api.RetentionSufficientCondition, yes, api.ReasonRetentionSufficient, "forgets no event"})
	})

	It("says which of its types no dispatcher sends", func() {
		c := start()
		o, orders, payments := consumer("billing"), dispatcher("orders"), dispatcher("payments")
		c.create(outbox(), orders, payments, o)
		c.sent(orders, "order.placed", "order.cancelled")
		expect(c, o, kstatus.CurrentStatus, want{api.EventTypesSentCondition, no, api.ReasonTypesNotSent, `"payment.*"`})
		c.sent(payments, "payment.settled")
		expect(c, o, kstatus.CurrentStatus, want{api.EventTypesSentCondition, yes, api.ReasonTypesSent, ""})
		change(c, o, updateSpec, func() { o.Spec.DispatcherRefs = []api.DispatcherRef{{Name: "orders"}} })
		expect(c, o, kstatus.CurrentStatus, want{api.EventTypesSentCondition, no, api.ReasonTypesNotSent, `"payment.*"`})
	})

	// REQUIREMENT: RULE-010-030
	It("says what its evidence is worth, also when that begins to count and gets too old by itself", func() {
		c := start()
		o := consumer("billing")
		o.Spec.EvidenceMaxAge = metav1.Duration{Duration: time.Hour}
		c.create(outbox(), dispatcher("orders"), o)
		now := time.Now().Truncate(time.Second)
		is := func(reason, message string) {
			GinkgoHelper()
			status := map[bool]metav1.ConditionStatus{true: yes, false: no}[reason == api.ReasonVerified]
			expect(c, o, "Current", want{api.VerifiedCondition, status, reason, message}, want{api.ReadyCondition, yes, api.ReasonRegistered, ""})
		}
		is(api.ReasonEvidenceMissing, "verify-consumer")
		c.verified(o, api.ConsumerEvidence{VerifiedAt: metav1.NewTime(now), Passed: 11, BrokenRules: []string{"RULE-010-002", "RULE-010-012"}})
		is(api.ReasonRulesBroken, "RULE-010-002, RULE-010-012")
		Expect(o.Status.Verified).To(Equal("11/19 " + now.UTC().Format(time.DateOnly)))
		c.verified(o, api.ConsumerEvidence{VerifiedAt: metav1.NewTime(now), Passed: 2, Uncounted: 6})
		is(api.ReasonEffectsNotCounted, "--probe")
		c.verified(o, api.ConsumerEvidence{VerifiedAt: metav1.NewTime(now)})
		is(api.ReasonEffectsNotCounted, "--probe")
		Expect(o.Status.Verified).To(HavePrefix("0/19 "), "nothing passed, and nothing was uncounted")
		c.verified(o, api.ConsumerEvidence{VerifiedAt: metav1.NewTime(now), Passed: 8, NotTried: []string{"RULE-010-031 (effect before the check)"}})
		is(api.ReasonRulesNotTried, "without meaning: RULE-010-031 (effect before the check).")
		c.verified(o, api.ConsumerEvidence{VerifiedAt: metav1.NewTime(now), Passed: 18, LeftOut: []string{"RULE-010-003 (the fence)"}})
		is(api.ReasonVerified, "18 of 19 passed, and these were left out: RULE-010-003 (the fence).")
		c.verified(o, api.ConsumerEvidence{VerifiedAt: metav1.NewTime(now.Add(time.Hour)), Passed: 19})
		is(api.ReasonEvidenceMissing, "which is yet to come")
		removed := func() { o.Spec.Evidence = nil } // or older evidence is refused
		change(c, o, updateSpec, removed)
		c.verified(o, api.ConsumerEvidence{VerifiedAt: metav1.NewTime(now.Add(2*time.Second - time.Hour)), Passed: 19})
		is(api.ReasonEvidenceTooOld, "spec.evidenceMaxAge, 1h")
		change(c, o, updateSpec, func() { o.Spec.EvidenceMaxAge.Duration = 24 * time.Hour })
		is(api.ReasonVerified, "")
		change(c, o, updateSpec, removed)
		is(api.ReasonEvidenceMissing, "No report")
		c.verified(o, api.ConsumerEvidence{VerifiedAt: metav1.NewTime(time.Now().Add(5*time.Minute + 3*time.Second)), Passed: 19}) // by a clock that is ahead
		is(api.ReasonVerified, "all 19 passed")
	})

	It("has an id of its own", func() {
		c := start()
		first, second := consumer("billing"), consumer("other")
		second.Spec.ConsumerID = "billing"
		first.Finalizers = []string{"example.com/held"}
		c.create(outbox(), dispatcher("orders"), first)
		expect(c, first, kstatus.CurrentStatus)
		c.create(second)
		expect(c, second, kstatus.FailedStatus, want{api.ReadyCondition, no, api.ReasonConsumerIDTaken, `OutboxConsumer "billing" has the id "billing"`},
			want{api.StalledCondition, yes, api.ReasonConsumerIDTaken, ""})
		expect(c, first, kstatus.CurrentStatus)
		Expect(admin.Delete(c.ctx, first)).To(Succeed()) // it is about to go, and frees its id
		expect(c, second, kstatus.CurrentStatus, want{api.ReadyCondition, yes, api.ReasonRegistered, ""})
		Expect(admin.Patch(c.ctx, first, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	})

	It("is written about when something changed, and not when a dispatcher counts", func() {
		c := start()
		o, other, orders := consumer("billing"), consumer("other"), dispatcher("orders")
		c.create(outbox(), orders, o, other)
		c.sent(orders, "order.placed", "payment.settled")
		for _, one := range []*api.OutboxConsumer{o, other} {
			expect(c, one, kstatus.CurrentStatus, want{api.EventTypesSentCondition, yes, api.ReasonTypesSent, ""})
		}
		before := c.wrote("billing")
		Expect(len(before)).To(BeNumerically("<=", 3), "%v", before)
		for n := range int64(5) {
			change(c, orders, updateStatus, func() { orders.Status.Pending = ptr.To(n) })
		}
		change(c, other, updateSpec, func() { other.Spec.EventTypes = []string{"not.sent"} }) // a pass that comes after
		expect(c, other, kstatus.CurrentStatus, want{api.EventTypesSentCondition, no, api.ReasonTypesNotSent, ""})
		Expect(c.wrote("billing")).To(Equal(before))
	})
})

// CONTRACT: C-82
var _ = Describe("an OutboxDispatcher", Label("consumer"), func() {
	It("says which event types no consumer registers that it feeds", func() {
		c := start()
		orders := dispatcher("orders")
		c.create(outbox(), orders)
		is := func(status metav1.ConditionStatus, reason, message string) {
			GinkgoHelper()
			expect(c, orders, "InProgress", want{api.TypesUnregisteredCondition, status, reason, message})
		}
		is(no, api.ReasonNotUsed, "")
		o := consumer("billing")
		c.create(o)
		is(unknown, api.ReasonNotObserved, "")
		c.sent(orders, "order.placed", "order.shipped", "payment.settled")
		change(c, o, updateSpec, func() { o.Spec.OwnerTeam = "team-money" }) // the status of a dispatcher is not watched
		is(yes, api.ReasonTypesUnregistered, `no OutboxConsumer registers: "order.shipped". Register`)
		shipping := consumer("shipping")
		shipping.Spec.EventTypes, shipping.Spec.DispatcherRefs = []string{"order.ship*"}, []api.DispatcherRef{{Name: "others"}}
		c.create(shipping)
		change(c, shipping, updateSpec, func() { shipping.Spec.DispatcherRefs[0].Name = "orders" })
		is(no, api.ReasonTypesRegistered, "")
		Expect(admin.Delete(c.ctx, shipping)).To(Succeed())
		is(yes, api.ReasonTypesUnregistered, "")
	})
})

// consumerOf is the consumer of that name, not read yet.
func consumerOf(c *cluster, name string) *api.OutboxConsumer {
	return &api.OutboxConsumer{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: name}}
}
