package plugin_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

// Who may see, who may replay, and that no user does it under another name: on a real API server, with the roles and
// the policy that are shipped. CONTRACT: C-42
var _ = Describe("who may replay", Label("rights", "replay"), func() {
	var w *world
	var ada, vera string

	BeforeEach(func(ctx SpecContext) {
		w = newWorld(ctx)
		w.dispatcher(ctx)
		ada, vera = "ada-"+w.namespace, "vera-"+w.namespace
		root, err := envtest.Root()
		Expect(err).NotTo(HaveOccurred())
		for _, args := range [][]string{
			{"apply", "--server-side", "-k", root + "/config/admission"}, {"apply", "-f", root + "/config/rbac/users.yaml"},
			{"-n", w.namespace, "create", "rolebinding", "replay", "--clusterrole=deadletterreplays-replay", "--user=" + ada},
			{"-n", w.namespace, "create", "rolebinding", "ada", "--clusterrole=outboxdispatchers-view", "--user=" + ada},
			// Kubernetes' own role view is not aggregated here: these two are what it has of ours.
			{"-n", w.namespace, "create", "rolebinding", "vera", "--clusterrole=outboxdispatchers-view", "--user=" + vera},
			{"-n", w.namespace, "create", "rolebinding", "vera-replays", "--clusterrole=deadletterreplays-view", "--user=" + vera},
		} {
			_, err := envtest.Kubectl(GinkgoTB(), "", args...)
			Expect(err).NotTo(HaveOccurred())
		}
		Eventually(ctx, func() error { return w.Create(ctx, w.replay("forged", "eve"), client.DryRunAll) }).WithTimeout(time.Minute).
			Should(MatchError(ContainSubstring("is not the user who creates the object")), "the policy has reached the API server")
	})
	// by is a client that the API server takes for a user.
	by := func(user string) client.Client {
		GinkgoHelper()
		cfg := rest.CopyConfig(w.config)
		cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
		c, err := client.New(cfg, client.Options{Scheme: w.Scheme()})
		Expect(err).NotTo(HaveOccurred())
		return c
	}
	// run runs kubectl outbox as a user, when the rights of the role have reached the API server.
	run := func(ctx context.Context, user string, args ...string) ran {
		GinkgoHelper()
		admin := w.config
		defer func() { w.config = admin }()
		w.config = rest.CopyConfig(admin)
		w.config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
		Eventually(ctx, func() error { return w.run(ctx, "dead", "operations", "orders").err }).WithTimeout(time.Minute).Should(Succeed())
		return w.run(ctx, args...)
	}

	It("is not who may view: he lists, and creates, changes and deletes nothing", func(ctx SpecContext) {
		dlr := w.replay("chg-812", "admin")
		Expect(w.Create(ctx, dlr)).To(Succeed())
		Expect(run(ctx, vera, "dead", "operations", "orders").out).To(ContainSubstring("chg-812"))
		r := run(ctx, vera, "dead", "replay", "orders", "--group", "7f3a9c21", "--reason", "CHG-812")
		Expect(r.err).To(MatchError(ContainSubstring("; request the role deadletterreplays-replay in this namespace")))
		Expect(run(ctx, vera, "dead", "stop", "orders", "chg-812").err).To(MatchError(ContainSubstring("; request the role deadletterreplays-replay in this namespace")))
		viewer := by(vera)
		Expect(apierrors.IsForbidden(viewer.Delete(ctx, dlr))).To(BeTrue(), "to delete is to stop")
		Expect(apierrors.IsForbidden(viewer.DeleteAllOf(ctx, dlr, client.InNamespace(w.namespace)))).To(BeTrue())
		Expect(apierrors.IsForbidden(viewer.Patch(ctx, dlr, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))))).To(BeTrue())
		Expect(w.created(ctx).Name).To(Equal("chg-812"))
	})

	It("is who has the role, under his own name, and may stop it", func(ctx SpecContext) {
		w.operator(status(metav1.ConditionTrue, "Finished", 3, 3))
		Expect(run(ctx, ada, "dead", "replay", "orders", "--group", "7f3a9c21", "--reason", "CHG-812").err).NotTo(HaveOccurred())
		dlr := w.created(ctx)
		Expect(dlr.Spec.RequestedBy).To(Equal(ada))
		dlr.Status.Stopped = "by hand"
		Expect(apierrors.IsForbidden(by(ada).Status().Update(ctx, &dlr))).To(BeTrue(), "what became of it is the operator's to say")
		Expect(by(ada).Delete(ctx, &dlr)).To(Succeed())
	})

	It("is done under no other name, not even by an administrator", func(ctx SpecContext) {
		person := by(ada)
		Eventually(ctx, func() error { return person.Create(ctx, w.replay("mine", ada), client.DryRunAll) }).WithTimeout(time.Minute).Should(Succeed(), "the role has reached the API server")
		for user, c := range map[string]client.Client{ada: person, "admin": w.Client} {
			err := c.Create(ctx, w.replay("forged", vera))
			Expect(err).To(MatchError(ContainSubstring(`set spec.requestedBy to "` + user + `", or use kubectl outbox dead replay, which does`)))
			Expect(apierrors.IsForbidden(err)).To(BeTrue())
		}
		// Written afterwards, by a patch, and by server-side apply.
		dlr := w.replay("mine", ada)
		Expect(person.Create(ctx, dlr)).To(Succeed())
		for user, c := range map[string]client.Client{ada: person, "admin": w.Client} {
			forged := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"requestedBy":"`+vera+`"}}`))
			Expect(c.Patch(ctx, dlr.DeepCopy(), forged)).To(MatchError(ContainSubstring("spec cannot be changed")), user)
			applied := w.replay("applied", vera)
			Expect(c.Patch(ctx, applied, client.Apply, client.FieldOwner("forger"), client.ForceOwnership)).To(MatchError(ContainSubstring("is not the user who creates the object")), user) //nolint:staticcheck // the other way wants generated configurations
		}
		Expect(w.created(ctx).Spec.RequestedBy).To(Equal(ada))
	})

	It("does not keep the operator from status, finalizers and labels", func(ctx SpecContext) {
		dlr := w.replay("mine", ada)
		Eventually(ctx, func() error { return by(ada).Create(ctx, dlr) }).WithTimeout(time.Minute).Should(Succeed())
		dlr.Status = status(metav1.ConditionTrue, "Finished", 3, 3)
		Expect(w.Status().Update(ctx, dlr)).To(Succeed())
		for _, metadata := range []string{`{"finalizers":["outbox.dev/stop"]}`, `{"finalizers":null,"labels":{"a":"b"}}`} {
			Expect(w.Patch(ctx, dlr, client.RawPatch(types.MergePatchType, []byte(`{"metadata":`+metadata+`}`)))).To(Succeed())
		}
	})

	It("is the account of a GitOps tool, when the object names it", func(ctx SpecContext) {
		account := "system:serviceaccount:" + w.namespace + ":kustomize-controller"
		_, err := envtest.Kubectl(GinkgoTB(), "", "-n", w.namespace, "create", "rolebinding", "gitops", "--clusterrole=deadletterreplays-replay",
			"--serviceaccount="+w.namespace+":kustomize-controller")
		Expect(err).NotTo(HaveOccurred())
		printed := w.run(ctx, "dead", "replay", "orders", "--group", "7f3a9c21", "--reason", "CHG-812, requested by ada", "--print", "--name", "chg-812", "--requested-by", account)
		Expect(printed.err).NotTo(HaveOccurred())
		apply := func(manifest string) error {
			_, err := envtest.Kubectl(GinkgoTB(), manifest, "--as", account, "apply", "--server-side", "-f", "-")
			return err
		}
		Eventually(ctx, func() error { return apply(printed.out) }).WithTimeout(time.Minute).Should(Succeed())
		Expect(apply(printed.out)).To(Succeed(), "the next reconciliation applies it again")
		mine := w.run(ctx, "dead", "replay", "orders", "--group", "7f3a9c21", "--reason", "CHG-812", "--print", "--name", "chg-813")
		Expect(apply(mine.out)).To(MatchError(ContainSubstring(`set spec.requestedBy to "` + account + `"`)))
	})
})

// replay is an object that a user writes.
func (w *world) replay(name, by string) *v1alpha1.DeadLetterReplay {
	return &v1alpha1.DeadLetterReplay{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "DeadLetterReplay"},
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: v1alpha1.DeadLetterReplaySpec{
			DispatcherRef: &v1alpha1.DispatcherRef{Name: "orders"}, Action: v1alpha1.ActionReplay, Reason: "CHG-812", RequestedBy: by,
			Selector: v1alpha1.DeadLetterSelector{Group: "7f3a9c21"},
		},
	}
}
