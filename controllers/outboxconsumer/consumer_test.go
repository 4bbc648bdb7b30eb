package outboxconsumer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/manager"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest/specs"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
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
		named.Spec.DispatcherRefs = []spec.DispatcherRef{{Name: "orders"}, {Name: "payments"}}
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
		change(c, database, updateSpec, func() { database.Spec.Retention.Delivered = new(spec.Duration(720 * time.Hour)) })
		expect(c, o, kstatus.FailedStatus, want{api.ReadyCondition, no, api.ReasonRetentionTooShort, ""},
			want{api.RetentionSufficientCondition, no, api.ReasonRetentionTooShort, `dispatcher "orders" keeps delivered rows for 720h`})
		change(c, o, updateSpec, func() { o.Spec.Retention = spec.Duration(720 * time.Hour) })
		expect(c, o, kstatus.CurrentStatus, want{api.RetentionSufficientCondition, yes, api.ReasonRetentionSufficient, ""})
		change(c, database, updateSpec, func() { *database.Spec.Retention.Delivered = 0 })
		change(c, o, updateSpec, func() { o.Spec.Retention = spec.Duration(24 * time.Hour) })
		expect(c, o, kstatus.FailedStatus, want{api.StalledCondition, yes, api.ReasonRetentionTooShort, "RULE-010-011 requires 168h"})
		change(c, o, updateSpec, func() { o.Spec.IdempotencyMechanism, o.Spec.Retention = api.IdempotencyUniqueKey, 0 })
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
		change(c, o, updateSpec, func() { o.Spec.DispatcherRefs = []spec.DispatcherRef{{Name: "orders"}} })
		expect(c, o, kstatus.CurrentStatus, want{api.EventTypesSentCondition, no, api.ReasonTypesNotSent, `"payment.*"`})
	})

	// REQUIREMENT: RULE-010-030
	It("says what its evidence is worth, also when that begins to count and gets too old by itself", func() {
		c := start()
		o := consumer("billing")
		o.Spec.EvidenceMaxAge = spec.Duration(time.Hour)
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
		change(c, o, updateSpec, func() { o.Spec.EvidenceMaxAge = spec.Duration(24 * time.Hour) })
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
			change(c, orders, updateStatus, func() { orders.Status.Counts = &status.Counts{Pending: n} })
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
		shipping.Spec.EventTypes, shipping.Spec.DispatcherRefs = []string{"order.ship*"}, []spec.DispatcherRef{{Name: "others"}}
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

// report is what verify-consumer found at a time: a check for each outcome, and those from the fourth on are optional.
func report(at string, brokenRules []string, outcomes ...string) *status.Consumer {
	GinkgoHelper()
	end, err := time.Parse(time.RFC3339, at)
	Expect(err).NotTo(HaveOccurred())
	r := &status.Consumer{Type: "order.placed", At: end, Finished: true, BrokenRules: brokenRules, NotTried: []string{"RULE-010-012 (crash)"}}
	for i, outcome := range outcomes {
		r.Checks = append(r.Checks, status.ConsumerCheck{Name: fmt.Sprintf("check %d", i), Rule: "RULE-010-002", Outcome: outcome, Optional: i > 2})
	}
	return r
}

func patchOf(r *status.Consumer) []byte {
	GinkgoHelper()
	patch, err := r.EvidencePatch()
	Expect(err).NotTo(HaveOccurred())
	return patch
}

// The evidence of a consumer is written by whoever has the role for it, and by no other user. CONTRACT: C-82
var _ = Describe("evidence", Label("consumer", "rights"), func() {
	var o *api.OutboxConsumer
	BeforeEach(func(ctx SpecContext) {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
		Expect(admin.Create(ctx, namespace)).To(Succeed())
		o = consumer("billing")
		o.Namespace = namespace.Name
		Expect(admin.Create(ctx, o)).To(Succeed())
	})
	register := func(ctx context.Context, c client.Client, patch []byte) error {
		return c.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch), client.FieldValidation(metav1.FieldValidationStrict))
	}

	It("is what the report says, and nothing of the report before", func(ctx SpecContext) {
		Expect(register(ctx, admin, patchOf(report("2026-02-27T09:30:00Z", []string{"RULE-010-002", "RULE-010-012"}, "Passed", "Broken", "NotRun")))).To(Succeed())
		Expect(*o.Spec.Evidence).To(And(HaveField("EventType", "order.placed"), HaveField("Checks", int32(3)), HaveField("Passed", int32(1)),
			HaveField("Uncounted", int32(0)), HaveField("BrokenRules", []string{"RULE-010-002", "RULE-010-012"})))
		Expect(register(ctx, admin, patchOf(report("2026-02-28T09:30:00Z", []string{}, "Passed", "Partly", "Passed", "NotRun")))).To(Succeed())
		Expect(*o.Spec.Evidence).To(And(HaveField("BrokenRules", BeEmpty()), HaveField("Passed", int32(2)), HaveField("Uncounted", int32(1)),
			HaveField("NotTried", []string{"RULE-010-012 (crash)"}), HaveField("LeftOut", []string{"RULE-010-002 (check 3)"}),
			HaveField("VerifiedAt.Time.UTC()", time.Date(2026, 2, 28, 9, 30, 0, 0, time.UTC))))
	})

	It("is refused when it is older than what is registered, or about another type", func(ctx SpecContext) {
		patch := patchOf(report("2026-02-28T09:30:00Z", []string{}, "Passed"))
		Expect(register(ctx, admin, patch)).To(Succeed())
		Expect(register(ctx, admin, patch)).To(Succeed(), "the same once more")
		Expect(register(ctx, admin, patchOf(report("2026-02-27T09:30:00Z", []string{}, "Passed")))).To(MatchError(ContainSubstring("evidence that is newer is registered already")))
		other := report("2026-02-28T10:30:00Z", []string{}, "Passed")
		other.Type = "refund.made"
		Expect(register(ctx, admin, patchOf(other))).To(MatchError(ContainSubstring("about events of a type that eventTypes does not have")))
		other.Type = "payment.made" // by payment.*
		Expect(register(ctx, admin, patchOf(other))).To(Succeed())
		edit := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"eventTypes":["order.placed"]}}`))
		Expect(admin.Patch(ctx, o, edit)).To(Succeed(), "what is registered does not keep the team from editing its types")
	})

	It("is for the role outboxconsumers-verify alone", func(ctx SpecContext) {
		operatortest.Granted(GinkgoTB()) // the roles
		root, err := envtest.Root()
		Expect(err).NotTo(HaveOccurred())
		pipeline, team := "pipeline-"+o.Namespace, "team-"+o.Namespace
		for _, args := range [][]string{
			{"apply", "--server-side", "-k", root + "/config/admission"},
			{"-n", o.Namespace, "create", "rolebinding", "verify", "--clusterrole=outboxconsumers-verify", "--user=" + pipeline},
			{"-n", o.Namespace, "create", "rolebinding", "edit", "--clusterrole=outboxconsumers-edit", "--user=" + team},
		} {
			_, err := envtest.Kubectl(GinkgoTB(), "", args...)
			Expect(err).NotTo(HaveOccurred())
		}
		as := func(user string) client.Client {
			GinkgoHelper()
			cfg := rest.CopyConfig(envtest.Start(GinkgoTB()))
			cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
			c, err := client.New(cfg, client.Options{Scheme: admin.Scheme()})
			Expect(err).NotTo(HaveOccurred())
			return c
		}
		edits, verifies := as(team), as(pipeline)
		patch := func(team string) client.Patch {
			return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"ownerTeam":%q}}`, team))
		}
		evidence := patchOf(report("2026-02-28T09:30:00Z", []string{}, "Passed"))
		Eventually(ctx, func() error { return edits.Patch(ctx, o, patch("team-money")) }).Should(Succeed(), "the role has reached the API server")
		Eventually(ctx, func() error {
			return edits.Patch(ctx, o.DeepCopy(), client.RawPatch(types.MergePatchType, evidence), client.DryRunAll)
		}).Should(MatchError(ContainSubstring("only who has the verb verify on outboxconsumers changes spec.evidence")), "the policy has reached the API server")
		Eventually(ctx, func() error { return register(ctx, verifies, evidence) }).Should(Succeed())
		Expect(o.Spec.Evidence).NotTo(BeNil())
		Expect(verifies.Patch(ctx, o, patch("team-pipeline"))).To(MatchError(ContainSubstring("changes spec.evidence alone")), "what is registered is the team's to say")
		for _, metadata := range []string{
			`{"annotations":{"outbox.dev/reconcile":"Disabled"}}`, `{"labels":{"team":"pipeline"}}`, `{"finalizers":["example.com/never"]}`,
			`{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"gone"}]}`,
		} {
			err := verifies.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":`+metadata+`}`)))
			Expect(err).To(MatchError(ContainSubstring("no label or annotation")), metadata)
		}
		Expect(edits.Patch(ctx, o, patch("team-mail"))).To(Succeed(), "evidence stays while the team edits")
		file := "apiVersion: outbox.dev/v1alpha1\nkind: OutboxConsumer\nmetadata: {name: billing, namespace: " + o.Namespace + "}\n" +
			"spec: {eventTypes: [\"order.*\"], ownerTeam: team-git, idempotencyMechanism: UniqueKey}\n"
		for _, args := range [][]string{{"apply", "-f", "-"}, {"apply", "--server-side", "--force-conflicts", "-f", "-"}} {
			_, err := envtest.Kubectl(GinkgoTB(), file, args...)
			Expect(err).NotTo(HaveOccurred())
			Expect(admin.Get(ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
			Expect(o.Spec.Evidence).NotTo(BeNil(), "a file without evidence leaves it: %v", args)
		}
	})
})

func TestMain(m *testing.M) { envtest.Main(m) }

// The specs share an API server; each has a namespace and a manager of its own.
func TestOnTheAPIServer(t *testing.T) {
	specs.Run(t, "OutboxConsumers on an API server")
}

// admin may do everything, and reads from the API server.
var admin client.Client

var _ = BeforeSuite(func() { admin = operatortest.Admin(GinkgoTB()) })

// cluster is a namespace with a manager.
type cluster struct {
	*specs.Cluster
	ctx       context.Context
	namespace string
}

func start() *cluster {
	GinkgoHelper()
	own := specs.NewCluster(admin)
	own.Manage(manager.Options{ObserveInterval: time.Hour}) // passes come by watches alone
	return &cluster{Cluster: own, ctx: own.Ctx, namespace: own.Namespace}
}

// wrote are the writes about a consumer so far.
func (c *cluster) wrote(name string) []string {
	return c.Requests.Writes("/outboxconsumers/" + name + "/")
}

func (c *cluster) create(objects ...client.Object) {
	GinkgoHelper()
	for _, o := range objects {
		o.SetNamespace(c.namespace)
	}
	c.Create(objects...)
}

// change changes an object, or its status, until that meets no other change.
func change[T client.Object](c *cluster, o T, update func(context.Context, T) error, set func()) {
	GinkgoHelper()
	Eventually(func() error {
		if err := admin.Get(c.ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		set()
		return update(c.ctx, o)
	}).Should(Succeed())
}

func updateSpec[T client.Object](ctx context.Context, o T) error { return admin.Update(ctx, o) }
func updateStatus[T client.Object](ctx context.Context, o T) error {
	return admin.Status().Update(ctx, o)
}

// outbox is a plain Outbox.
func outbox() *api.Outbox {
	return &api.Outbox{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: spec.Outbox{SecretRef: spec.SecretRef{Name: "db"}}}
}

// dispatcher is a plain OutboxDispatcher of that Outbox.
func dispatcher(name string) *api.OutboxDispatcher {
	return &api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec.Dispatcher{
		Namespace: "shop", Topics: []string{name}, OutboxRef: &spec.OutboxRef{Name: "shop"}, Sink: spec.Sink{Log: &spec.LogSink{}}}}
}

// consumer is a plain OutboxConsumer of all dispatchers.
func consumer(name string) *api.OutboxConsumer {
	return &api.OutboxConsumer{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: api.OutboxConsumerSpec{
		EventTypes: []string{"order.placed", "payment.*"}, OwnerTeam: "team-billing",
		IdempotencyMechanism: api.IdempotencyProcessedEvents, Retention: spec.Duration(168 * time.Hour)}}
}

// sent makes the pods of a dispatcher report events of these types.
func (c *cluster) sent(d *api.OutboxDispatcher, types ...string) {
	GinkgoHelper()
	change(c, d, updateStatus, func() {
		d.Status.EventTypes = nil
		for _, name := range types {
			d.Status.EventTypes = append(d.Status.EventTypes, status.EventType{Type: name, LastSeen: status.At(time.Now().UTC().Truncate(24 * time.Hour))})
		}
	})
}

// verified plays a pipeline that has registered a report.
func (c *cluster) verified(o *api.OutboxConsumer, evidence api.ConsumerEvidence) {
	GinkgoHelper()
	evidence.EventType, evidence.Checks = "order.placed", 19
	change(c, o, updateSpec, func() { o.Spec.Evidence = &evidence })
}

// want is a condition: its type, status and reason, and a part of its message.
type want specs.Condition

// expect waits until the conditions are as wanted and kstatus comes to the conclusion.
func expect[T client.Object](c *cluster, o T, conclusion kstatus.Status, wants ...want) T {
	GinkgoHelper()
	return specs.Expect(c.Cluster, o, conclusion, wants...)
}
