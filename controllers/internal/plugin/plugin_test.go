package plugin_test

import (
	"encoding/json"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/plugin"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

var _ = Describe("kubectl outbox", func() {
	var w *world
	BeforeEach(func(ctx SpecContext) { w = newWorld(ctx) })

	It("reports how a dispatcher is, and what to do", Label("status"), func(ctx SpecContext) {
		w.dispatcher(ctx)
		r := w.run(ctx, "status", "orders")
		Expect(r.err).NotTo(HaveOccurred())
		Expect(r.out).To(And(
			ContainSubstring("Ready:   False, ConnectionFailed: It does not respond; start it.\n"), ContainSubstring("Events:  namespace shop, topics orders\n"),
			ContainSubstring("Pods (1 of 1 ready)\n"), ContainSubstring("Backlog (counted 60m ago)\n"), ContainSubstring("7f3a9c21   1500"),
			ContainSubstring("- SinkReachable is False (ConnectionFailed): It does not respond; start it.\n"),
			ContainSubstring("- Group 7f3a9c21, 1500 dead: Correct the price.\n    kubectl outbox dead show orders "+event+" --namespace "+w.namespace+"\n    kubectl outbox dead replay orders --group 7f3a9c21 "),
		))
		Expect(w.forwarded).To(Equal([]string{"orders-b"}), "the ready pod is read, once")

		var report plugin.Report
		r = w.run(ctx, "status", "orders", "--output", "json")
		Expect(json.Unmarshal([]byte(r.out), &report)).To(Succeed())
		Expect(report.Groups).To(HaveLen(1))
		Expect(w.run(ctx, "status", "orders", "--output", "xml").err).To(MatchError(ContainSubstring("choose table, json or yaml")))
	})

	It("reports without pods", Label("status"), func(ctx SpecContext) {
		w.dispatcher(ctx)
		Expect(w.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(w.namespace), client.GracePeriodSeconds(0))).To(Succeed())
		r := w.run(ctx, "status", "orders")
		Expect(r.err).NotTo(HaveOccurred())
		Expect(r.out).To(And(ContainSubstring("Pods (0 of 1 ready)\n  none\n"), ContainSubstring("1500 events are dead, and no pod could be read for one of each group: no pod of "), ContainSubstring("7f3a9c21   3 ")))
		Expect(w.run(ctx, "dead", "list", "orders").err).To(MatchError(ContainSubstring("see `kubectl outbox status orders --namespace " + w.namespace + "`, or use `dispatcher dead` with a database login")))
	})

	It("reads dead letters and events from a pod", Label("dead"), func(ctx SpecContext) {
		w.dispatcher(ctx)
		Expect(w.run(ctx, "dead", "groups", "orders").out).To(ContainSubstring("7f3a9c21   1500"))
		Expect(w.run(ctx, "dead", "list", "orders", "-o", "json").out).To(ContainSubstring(`"event": "` + event + `"`))
		Expect(w.run(ctx, "dead", "show", "orders", event).out).NotTo(ContainSubstring("price"))
		Expect(w.run(ctx, "dead", "show", "orders", event, "--payload").out).To(ContainSubstring(`"price": -1`))
		Expect(w.run(ctx, "events", "show", "orders", "order-17").out).To(ContainSubstring("Dedupe key:  order-17\n"))
		Expect(w.run(ctx, "dead", "show", "orders").err).To(MatchError("1 arguments, want 2: kubectl outbox dead show NAME ID; see --help"))
		Expect(w.run(ctx, "dead", "list", "other").err).To(MatchError(ContainSubstring("no OutboxDispatcher other in the namespace " + w.namespace)))
	})

	// CONTRACT: C-105
	It("pauses and resumes, and says who else has the field", Label("state"), func(ctx SpecContext) {
		obd := w.dispatcher(ctx)
		state := func() v1alpha1.DispatcherState {
			Expect(w.Get(ctx, client.ObjectKeyFromObject(obd), obd)).To(Succeed())
			return obd.Spec.State
		}
		r := w.run(ctx, "pause", "orders")
		Expect(r.err).NotTo(HaveOccurred())
		Expect(r.out).To(Equal("outboxdispatcher " + w.namespace + "/orders: spec.state set to Paused\n"))
		Expect(r.errOut).To(BeEmpty())
		Expect(state()).To(Equal(v1alpha1.StatePaused))
		Expect(w.run(ctx, "pause", "orders").out).To(ContainSubstring("is already Paused"))
		Expect(w.run(ctx, "resume", "orders").err).NotTo(HaveOccurred())
		Expect(state()).To(Equal(v1alpha1.StateRunning))

		manifest := `{"apiVersion": "outbox.dev/v1alpha1", "kind": "OutboxDispatcher", "metadata": {"name": "orders"},
			"spec": {"namespace": "shop", "outboxRef": {"name": "main"}, "sink": {"log": {}}, "state": "Running"}}`
		_, err := envtest.Kubectl(GinkgoTB(), manifest, "--namespace", w.namespace, "apply", "--server-side", "--force-conflicts", "--field-manager=kustomize-controller", "-f", "-")
		Expect(err).NotTo(HaveOccurred())
		r = w.run(ctx, "pause", "orders")
		Expect(r.err).NotTo(HaveOccurred())
		Expect(r.errOut).To(Equal("warning: spec.state is also set by kustomize-controller, which may set it back; change it there too\n"))
		Expect(state()).To(Equal(v1alpha1.StatePaused))
	})

	It("lets who may see see, and do nothing more", Label("rights"), func(ctx SpecContext) {
		obd := w.dispatcher(ctx)
		w.as(ctx, "viewer-"+w.namespace)
		w.real = true
		r := w.run(ctx, "status", "orders")
		Expect(r.err).NotTo(HaveOccurred())
		Expect(strings.Join(strings.Fields(r.out), " ")).To(ContainSubstring("request the right to create pods/portforward in this namespace"))
		Expect(w.run(ctx, "dead", "list", "orders").err).To(MatchError(ContainSubstring("request the right to create pods/portforward")))
		Expect(w.run(ctx, "pause", "orders").err).To(MatchError(ContainSubstring("forbidden")))
		Expect(w.Get(ctx, client.ObjectKeyFromObject(obd), obd)).To(Succeed())
		Expect(obd.Spec.State).To(Equal(v1alpha1.StateRunning))
	})

	It("says when a pod cannot be reached", Label("rights"), func(ctx SpecContext) {
		w.dispatcher(ctx)
		w.real = true
		Expect(w.run(ctx, "dead", "groups", "orders").err).To(MatchError(ContainSubstring("forward to the pod " + w.namespace + "/orders-b: ")))
	})

	It("completes names, formats and flags", Label("completion"), func(ctx SpecContext) {
		w.dispatcher(ctx)
		for _, words := range [][]string{{"status", ""}, {"pause", ""}, {"dead", "show", ""}, {"events", "show", "o"}} {
			r := w.run(ctx, append([]string{"__complete"}, words...)...)
			Expect(strings.Split(r.out, "\n")[0]).To(Equal("orders"), "after %v", words)
		}
		Expect(w.run(ctx, "__complete", "status", "--output", "").out).To(ContainSubstring("json\n"))
		Expect(w.run(ctx, "__complete", "dead", "groups", "orders", "--dead-reason", "").out).To(ContainSubstring("poison_message\n"))
		Expect(w.run(ctx, "completion", "bash").out).To(ContainSubstring("kubectl-outbox"))
	})
})
