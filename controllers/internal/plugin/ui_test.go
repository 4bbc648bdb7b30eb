package plugin_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/testing/browser"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

// ui starts the console and opens its link. It ends with the spec.
func (w *world) ui(args ...string) (b *browser.Browser, page browser.Page) {
	ctx, cancel := context.WithCancel(context.Background())
	read, write := io.Pipe()
	var running sync.WaitGroup
	running.Go(func() {
		defer GinkgoRecover()
		Expect(w.runTo(ctx, write, append(append([]string{"ui"}, w.ignored...), args...)...).err).NotTo(HaveOccurred())
	})
	DeferCleanup(func() { cancel(); running.Wait() })
	return browser.Open(GinkgoTB(), read)
}

var _ = Describe("kubectl outbox ui", Label("ui"), func() {
	var w *world
	var orders string
	BeforeEach(func(ctx SpecContext) {
		w = newWorld(ctx)
		w.dispatcher(ctx)
		orders = "/d/" + w.namespace + "/orders"
	})

	It("makes what the command makes, once", func(ctx SpecContext) {
		b, page := w.ui("orders")
		Expect(page.Text).To(And(ContainSubstring("SinkReachable is False"), ContainSubstring("See group 7f3a9c21"), ContainSubstring("kubectl outbox pause orders --namespace "+w.namespace)))
		page = b.Get(orders + "/dead?group=7f3a9c21")
		Expect(w.forwarded).To(Equal([]string{"orders-b"}), "the forward to the pod stays open")
		w.server.Close()
		again := b.Get(orders + "/groups")
		Expect(again.Text).To(ContainSubstring("<h1>1,500 dead</h1>"))
		Expect(w.forwarded).To(HaveLen(2), "the forward had ended, and there is another one")
		w.broken.Store(true)
		Expect(b.Get(orders + "/groups").Code).To(Equal(http.StatusBadGateway))
		half := b.Get(orders + "/dead?group=7f3a9c21")
		Expect(half.Code).To(Equal(http.StatusBadGateway))
		Expect(half.Text).To(And(ContainSubstring("read the dispatcher&#39;s response: unexpected EOF"), ContainSubstring("Try again"), Not(ContainSubstring("<button name"))))
		w.broken.Store(false)
		Expect(b.Get(orders + "/groups").Code).To(Equal(http.StatusOK))
		Expect(w.forwarded).To(HaveLen(3), "a forward through which a read failed is not used again")
		line := "--group 7f3a9c21 --until 2026-03-01T12:00:01Z --canary 10 --rate 100 --reason WHY --dry-run --namespace " + w.namespace
		Expect(page.Text).To(ContainSubstring("kubectl outbox dead replay orders " + line))

		progress := b.Submit(page, "replay", "reason", "CHG-812")
		Expect(progress.Text).To(And(ContainSubstring("waits for the operator"), ContainSubstring("Stop it"), ContainSubstring(`http-equiv="refresh"`)))
		b.Submit(page, "replay", "reason", "CHG-812")
		made := w.created(ctx)
		Expect(progress.Path).To(Equal(orders + "/replays/" + made.Name))
		var same v1alpha1.DeadLetterReplay
		printed := w.run(ctx, "dead", "replay", "orders", "--group", "7f3a9c21", "--until", "2026-03-01T12:00:01Z", "--canary", "10", "--rate", "100", "--reason", "CHG-812", "--print", "--ttl-after-finished", "168h")
		Expect(yaml.Unmarshal([]byte(printed.out), &same)).To(Succeed())
		Expect(made.Spec).To(Equal(same.Spec))

		made.Status = statusOf(metav1.ConditionFalse, "Waiting", 1500, 10)
		made.Status.Failing = 3
		Expect(w.Status().Update(ctx, &made)).To(Succeed())
		progress = b.Get(orders + "/replays/" + made.Name)
		Expect(progress.Text).To(And(ContainSubstring("</span> Waiting"), ContainSubstring("As it is.")))
		page = b.Submit(progress, "stop")
		Expect(page.Text).To(ContainSubstring("was replayed or discarded here"))
	})

	It("says that there is no network", func() {
		w.config = rest.CopyConfig(w.config)
		w.config.Host = "https://127.0.0.1:1"
		b, page := w.ui("orders")
		for _, page := range []browser.Page{page, b.Get("/"), b.Get(orders + "/dead?group=7f3a9c21")} {
			Expect(page.Code).To(Equal(http.StatusBadGateway))
			Expect(page.Text).To(And(ContainSubstring("connection refused"), ContainSubstring("Try again"), Not(ContainSubstring("<button name"))))
		}
	})

	It("pauses, and names the cluster and the namespaces", func(ctx SpecContext) {
		w.ignored = []string{"--as", "vera; date", "--as-group", "a", "--as-group", "b", "--server", "https://x", "--token", "s3cr3t"}
		b, page := w.ui("--namespace", "") // of all namespaces
		Expect(page.Text).To(And(ContainSubstring(w.namespace+"/orders"), ContainSubstring(w.config.Host), ContainSubstring("1,500")))
		page = b.Get(orders)
		Expect(page.Text).To(And(ContainSubstring("kubectl outbox pause orders --namespace "+w.namespace+" --as &#39;vera; date&#39; --as-group a --as-group b --server https://x</code>"), Not(ContainSubstring("s3cr3t"))))
		page = b.Submit(page, "Paused")
		Expect(page.Text).To(ContainSubstring("Resume delivery"))
		var obd v1alpha1.OutboxDispatcher
		Expect(w.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "orders"}, &obd)).To(Succeed())
		Expect(obd.Spec.State).To(Equal(spec.Paused))
	})

	It("offers what a dry run counted, or nothing", func(ctx SpecContext) {
		b, _ := w.ui("orders")
		for name, change := range map[string]func(*spec.Replay){
			"same": func(*spec.Replay) {}, "limited": func(s *spec.Replay) { s.Limit = 5 }, "topics": func(s *spec.Replay) { s.Selector.Topics = []string{"a", "b"} }, "open": func(s *spec.Replay) { s.Selector.Until = 0 },
		} {
			dlr := w.replay(name, "admin")
			dlr.Spec.DryRun, dlr.Spec.Selector.Until = true, status.At(noon)
			change(&dlr.Spec)
			Expect(w.Create(ctx, dlr)).To(Succeed())
			dlr.Status = statusOf(metav1.ConditionTrue, "Finished", 3, 0)
			Expect(w.Status().Update(ctx, dlr)).To(Succeed())
			Expect(strings.Contains(b.Get(orders+"/replays/"+name).Text, "Now do it")).To(Equal(name == "same"), name)
		}
	})

	It("shows who may list two of 50 namespaces theirs of 200 dispatchers, in a page", Label("rights"), func(ctx SpecContext) {
		w.as(ctx, "viewer-"+w.namespace)
		w.config.QPS = 0 // as a person has it
		scope := make([]string, 50)
		var all sync.WaitGroup
		for i := range scope {
			all.Go(func() {
				defer GinkgoRecover()
				ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "fleet-"}}
				Expect(w.Create(ctx, ns)).To(Succeed())
				scope[i] = ns.Name
				for n := range 4 {
					Expect(w.Create(ctx, &v1alpha1.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: fmt.Sprint("d", n)}, Spec: spec.Dispatcher{
						Namespace: "shop", OutboxRef: &spec.OutboxRef{Name: "main"}, Sink: spec.Sink{Log: &spec.LogSink{}}}})).To(Succeed())
				}
			})
		}
		all.Wait()
		for _, namespace := range scope[:2] {
			_, err := envtest.Kubectl(GinkgoTB(), "", "-n", namespace, "create", "rolebinding", "view", "--clusterrole=outboxdispatchers-view", "--user=viewer-"+w.namespace)
			Expect(err).NotTo(HaveOccurred())
		}
		b, _ := w.ui("--namespaces", strings.Join(scope, ","))
		Eventually(func(g Gomega) {
			begin := time.Now()
			fleet := b.Get("/")
			GinkgoTB().Logf("the first page of 8 of 200 dispatchers took %v", time.Since(begin))
			g.Expect(fleet.Text).To(And(ContainSubstring(scope[1]+"/d3"), ContainSubstring("8 of 8 dispatchers are not observed"), ContainSubstring(scope[4]+" and 45 more namespaces; request the role outboxdispatchers-view there")))
		}).Should(Succeed())
	})

	It("lets a viewer look, and do nothing", Label("rights"), func(ctx SpecContext) {
		admin, page := w.ui("orders")
		form := admin.Get(orders + "/dead?group=7f3a9c21")
		w.as(ctx, "viewer-"+w.namespace)
		w.config = rest.CopyConfig(w.config)
		b, fleet := w.ui("--namespaces", w.namespace+",other")
		Expect(fleet.Text).To(And(ContainSubstring("as viewer-"+w.namespace), ContainSubstring(w.namespace+"/orders"), ContainSubstring("request the role outboxdispatchers-view there")))
		own := b.Get(orders + "/dead?group=7f3a9c21")
		Expect(own.Text).To(And(ContainSubstring("request the role deadletterreplays-replay"), Not(ContainSubstring("<button name"))))
		for button, page := range map[string]browser.Page{"replay": form, "Paused": page} {
			refused := b.Submit(page, button, "reason", "CHG-812")
			Expect(refused.Code).To(Equal(http.StatusBadGateway))
			Expect(refused.Text).To(And(ContainSubstring("This was not done"), ContainSubstring("forbidden")))
		}
		var list v1alpha1.DeadLetterReplayList
		Expect(w.List(ctx, &list, client.InNamespace(w.namespace))).To(Succeed())
		Expect(list.Items).To(BeEmpty())
	})
})
