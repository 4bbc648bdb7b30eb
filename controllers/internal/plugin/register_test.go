package plugin_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

// verifyReport is what verify-consumer writes, of three checks with these outcomes.
func verifyReport(at, broken string, outcomes ...string) string {
	var checks []string
	for i, outcome := range outcomes {
		checks = append(checks, fmt.Sprintf(`{"name": "check %d", "rule": "RULE-010-002", "outcome": %q, "optional": %v}`, i, outcome, i > 2))
	}
	return fmt.Sprintf(`{"url": "http://billing", "contentMode": "Binary", "type": "order.placed", "at": %q, "finished": true, "brokenRules": [%s],
		"notTried": ["RULE-010-012 (crash)"], "checks": [%s]}`,
		at, broken, strings.Join(checks, ", "))
}

// The evidence of a consumer is written by whoever has the role for it, and by no other user. CONTRACT: C-82
var _ = Describe("register", Label("register", "rights"), func() {
	var w *world
	BeforeEach(func(ctx SpecContext) {
		w = newWorld(ctx)
		Expect(w.Create(ctx, &v1alpha1.OutboxConsumer{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "billing"},
			Spec:       v1alpha1.OutboxConsumerSpec{EventTypes: []string{"order.*"}, OwnerTeam: "team-billing", IdempotencyMechanism: v1alpha1.IdempotencyUniqueKey},
		})).To(Succeed())
	})
	evidence := func(ctx context.Context) *v1alpha1.ConsumerEvidence {
		GinkgoHelper()
		var o v1alpha1.OutboxConsumer
		Expect(w.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "billing"}, &o)).To(Succeed())
		return o.Spec.Evidence
	}
	register := func(ctx context.Context, report string) ran {
		w.in = report
		return w.run(ctx, "register", "billing", "--report", "-")
	}

	It("writes digest, time and result, and leaves nothing of the report before", func(ctx SpecContext) {
		broken := verifyReport("2026-02-27T09:30:00Z", `"RULE-010-002", "RULE-010-012"`, "Passed", "Broken", "NotRun")
		r := register(ctx, broken)
		Expect(r.err).NotTo(HaveOccurred())
		Expect(r.out).To(Equal("outboxconsumer " + w.namespace + "/billing: 1 of 3 checks passed at 2026-02-27T09:30:00Z, broken: RULE-010-002, RULE-010-012\n"))
		Expect(*evidence(ctx)).To(And(HaveField("Digest", fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(broken)))), HaveField("EventType", "order.placed"),
			HaveField("Checks", int32(3)), HaveField("Passed", int32(1)), HaveField("Uncounted", int32(0)), HaveField("BrokenRules", []string{"RULE-010-002", "RULE-010-012"})))
		file := filepath.Join(GinkgoT().TempDir(), "report.json")
		Expect(os.WriteFile(file, []byte(verifyReport("2026-02-28T09:30:00Z", "", "Passed", "Partly", "Passed", "NotRun")), 0o600)).To(Succeed())
		Expect(w.run(ctx, "register", "billing", "--report", file).err).NotTo(HaveOccurred())
		Expect(*evidence(ctx)).To(And(HaveField("BrokenRules", BeEmpty()), HaveField("Passed", int32(2)), HaveField("Uncounted", int32(1)),
			HaveField("NotTried", []string{"RULE-010-012 (crash)"}), HaveField("LeftOut", []string{"RULE-010-002 (check 3)"}),
			HaveField("VerifiedAt.Time.UTC()", time.Date(2026, 2, 28, 9, 30, 0, 0, time.UTC))))
	})

	It("refuses what is not evidence, and says why", func(ctx SpecContext) {
		good := verifyReport("2026-02-28T09:30:00Z", "", "Passed")
		Expect(register(ctx, good).err).NotTo(HaveOccurred())
		for report, why := range map[string]string{
			"": "it has no checks, type or time",
			`{"url": "http://billing", "unknown": 1}`:                         "it is not a report of `dispatcher verify-consumer --output json`",
			strings.Replace(good, `"finished": true`, `"finished": false`, 1): "its checks were not finished",
			strings.Replace(good, "order.placed", "refund.made", 1):           "spec.eventTypes of the OutboxConsumer " + w.namespace + "/billing does not have",
			verifyReport("2026-02-27T09:30:00Z", "", "Passed"):                "one of 2026-02-28T09:30:00Z is registered already",
			verifyReport("2026-03-01T13:06:00Z", "", "Passed"):                "which is yet to come",
			verifyReport("2026-02-28T10:30:00Z", "", "Broken"):                "no rule that is broken",
		} {
			Expect(register(ctx, report).err).To(MatchError(ContainSubstring(why)), report)
		}
		w.in = good
		Expect(w.run(ctx, "register", "mail", "--report", "-").err).To(MatchError(ContainSubstring("no OutboxConsumer mail in the namespace " + w.namespace)))
		Expect(w.run(ctx, "register", "billing").err).To(MatchError(ContainSubstring("no --report")))
		Expect(evidence(ctx).VerifiedAt.UTC().Format(time.RFC3339)).To(Equal("2026-02-28T09:30:00Z"))
	})

	It("is for the role outboxconsumers-verify alone", func(ctx SpecContext) {
		root, err := envtest.Root()
		Expect(err).NotTo(HaveOccurred())
		pipeline, team := "pipeline-"+w.namespace, "team-"+w.namespace
		for _, args := range [][]string{
			{"apply", "--server-side", "-k", root + "/config/admission"}, {"apply", "-f", root + "/config/rbac/users.yaml"},
			{"-n", w.namespace, "create", "rolebinding", "verify", "--clusterrole=outboxconsumers-verify", "--user=" + pipeline},
			{"-n", w.namespace, "create", "rolebinding", "edit", "--clusterrole=outboxconsumers-edit", "--user=" + team},
		} {
			_, err := envtest.Kubectl(GinkgoTB(), "", args...)
			Expect(err).NotTo(HaveOccurred())
		}
		admin := w.config
		as := func(user string) *rest.Config {
			cfg := rest.CopyConfig(admin)
			cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
			return cfg
		}
		report := verifyReport("2026-02-28T09:30:00Z", "", "Passed")
		edits, err := client.New(as(team), client.Options{Scheme: w.Scheme()})
		Expect(err).NotTo(HaveOccurred())
		consumer := &v1alpha1.OutboxConsumer{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "billing"}}
		patch := func(team string) client.Patch {
			return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"ownerTeam":%q}}`, team))
		}
		Eventually(ctx, func() error { return edits.Patch(ctx, consumer, patch("team-money")) }).WithTimeout(time.Minute).Should(Succeed(), "the role has reached the API server")
		forged := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"evidence":{"verifiedAt":"2026-02-28T09:30:00Z","digest":"sha256:%064d","eventType":"order.placed","checks":1,"passed":1}}}`, 0))
		Eventually(ctx, func() error { return edits.Patch(ctx, consumer, forged, client.DryRunAll) }).WithTimeout(time.Minute).
			Should(MatchError(ContainSubstring("only who has the verb verify on outboxconsumers changes spec.evidence")), "the policy has reached the API server")
		w.config = as(team)
		Expect(register(ctx, report).err).To(MatchError(ContainSubstring("; request the role outboxconsumers-verify in this namespace")))
		w.config = as(pipeline)
		Eventually(ctx, func() error { return register(ctx, report).err }).WithTimeout(time.Minute).Should(Succeed())
		Expect(evidence(ctx)).NotTo(BeNil())
		verifies, err := client.New(w.config, client.Options{Scheme: w.Scheme()})
		Expect(err).NotTo(HaveOccurred())
		Expect(verifies.Patch(ctx, consumer, patch("team-pipeline"))).To(MatchError(ContainSubstring("changes spec.evidence alone")), "what is registered is the team's to say")
		Expect(edits.Patch(ctx, consumer, patch("team-mail"))).To(Succeed(), "evidence stays while the team edits")
		file := "apiVersion: outbox.dev/v1alpha1\nkind: OutboxConsumer\nmetadata: {name: billing, namespace: " + w.namespace + "}\n" +
			"spec: {eventTypes: [\"order.*\"], ownerTeam: team-git, idempotencyMechanism: UniqueKey}\n"
		for _, args := range [][]string{{"apply", "-f", "-"}, {"apply", "--server-side", "--force-conflicts", "-f", "-"}} {
			_, err := envtest.Kubectl(GinkgoTB(), file, args...)
			Expect(err).NotTo(HaveOccurred())
			Expect(evidence(ctx)).NotTo(BeNil(), "a file without evidence leaves it: %v", args)
		}
		Expect(evidence(ctx)).NotTo(BeNil())
	})
})
