package outboxconsumer_test

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

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
