package plugin_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

// changed is the manifest of a pull request.
const changed = `apiVersion: outbox.dev/v1alpha1
kind: OutboxDispatcher
metadata: {name: orders}
spec:
  namespace: shop
  topics: [orders]
  outboxRef: {name: main}
  sink: {http: {url: http://orders/events}, auth: {type: Token, secretRef: {name: new-token}}}
  validation:
  - rules: [{rule: payload.price > 0.0, message: the price is above 0}]
`

var _ = Describe("kubectl outbox try", Label("try"), func() {
	var w *world
	BeforeEach(func(ctx SpecContext) {
		w = newWorld(ctx)
		w.dispatcher(ctx)
		w.in, w.log = changed, report+"dispatcher: 11 of 31 events come out otherwise\n"
	})
	http := func(obd *v1alpha1.OutboxDispatcher) {
		obd.Spec.Sink = v1alpha1.Sink{HTTP: &v1alpha1.HTTPSink{URL: "http://orders/events"}, Auth: &v1alpha1.Auth{Type: v1alpha1.AuthToken, SecretRef: &v1alpha1.SecretRef{Name: "old-token"}}}
		obd.Spec.Message.Validation = []v1alpha1.Validation{{Schema: &v1alpha1.PayloadSchema{ConfigMapRef: &v1alpha1.ConfigMapRef{Name: "schemas-v1", Key: "order.json"}}}}
	}

	It("runs dispatcher try with the manifest against what runs, and has its exit code", func(ctx SpecContext) {
		w.runs(ctx, http)
		m := w.kubelet(ends(3))
		r := w.run(ctx, "try", "-f", "-", "--last", "31", "--since", "24h", "--topic", "orders", "-o", "json")
		Expect(code(r.err)).To(Equal(3))
		Expect(r.err).To(MatchError("11 of 31 events come out otherwise"))
		Expect(r.out).To(Equal(report), "what is piped is the report alone")
		Expect(w.leftovers(ctx)).To(BeEmpty())

		<-m.done
		spec := m.job.Spec.Template.Spec
		Expect(spec.Containers[0].Command).To(Equal(strings.Fields(
			"/dispatcher try -f /etc/outbox/config/config.yaml --against running.yaml --last 31 --output json --since 24h0m0s --topic orders")))
		Expect(spec.Containers[0].WorkingDir).To(Equal("/etc/outbox/running"))
		Expect(spec.Containers[0].Image).To(Equal("dispatcher:v1"))
		Expect(spec.ServiceAccountName).To(Equal("orders-dispatcher"))
		Expect(spec.ImagePullSecrets).To(ConsistOf(corev1.LocalObjectReference{Name: "pull"}))
		Expect(spec.RestartPolicy).To(Equal(corev1.RestartPolicyNever))
		Expect(*m.job.Spec.BackoffLimit).To(BeZero())
		Expect(*m.job.Spec.ActiveDeadlineSeconds).To(Equal(int64(330)))
		Expect(*m.job.Spec.TTLSecondsAfterFinished).To(Equal(int32(300)))
		Expect(m.job.Labels[desired.LabelManagedBy]).To(Equal("kubectl-outbox"), "the operator does not see it")
		Expect(m.files.OwnerReferences).To(HaveLen(1))
		Expect(m.files.OwnerReferences[0].UID).To(Equal(m.job.UID))

		now, before := loaded(m.files.Data["config.yaml"]), loaded(m.files.Data["running.yaml"])
		Expect(now.Message.Validation[0].Rules[0].Message).To(Equal("the price is above 0"))
		Expect(now.Message.Validation[0].Schema).To(BeNil(), "what the manifest has no more is gone, whoever applied it")
		Expect(now.Sink.Auth.SecretFile).To(Equal("/etc/outbox/secrets/sink/token"))
		Expect(before.Sink.Auth.SecretFile).To(Equal("/etc/outbox/running/etc/outbox/secrets/sink/token"), "another Secret is another file")
		Expect(before.Message.Validation[0].Schema.File).To(Equal("/etc/outbox/running/etc/outbox/schemas/0.json"))
		Expect(before.Database.DSNFile).To(Equal(now.Database.DSNFile), "rows come from one database")
		Expect(sources(spec.Volumes, "running")).To(ConsistOf(
			m.job.Name+":running.yaml -> running.yaml", "schemas-v1:order.json -> etc/outbox/schemas/0.json", "old-token:token -> etc/outbox/secrets/sink/token"))
		Expect(sources(spec.Volumes, "secrets")).To(ConsistOf("db:dsn -> database/dsn", "new-token:token -> sink/token"))
		var obd v1alpha1.OutboxDispatcher
		Expect(w.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "orders"}, &obd)).To(Succeed())
		Expect(obd.Spec.Message.Validation[0].Schema).NotTo(BeNil(), "nothing of it changed")
	})

	It("tries schemas that are in the same file", func(ctx SpecContext) {
		w.runs(ctx, http)
		m := w.kubelet(ends(0))
		w.in = changed + "  - schema: {configMapRef: {name: schemas-v2, key: order.json}}\n" +
			"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: schemas-v2}\ndata: {order.json: '{\"type\":\"object\"}'}\n" +
			"---\n" + strings.Replace(changed, "name: orders", "name: bills", 1)
		w.log = report
		Expect(w.run(ctx, "try", "-f", "-").err).To(MatchError("the manifest has the OutboxDispatchers bills, orders; name one of them that is there once"))
		r := w.run(ctx, "try", "orders", "-f", "-")
		Expect(r.err).NotTo(HaveOccurred())
		Expect(r.out).To(Equal(report))
		<-m.done
		Expect(loaded(m.files.Data["config.yaml"]).Message.Validation[1].Schema.File).To(Equal("/etc/outbox/schemas/1.json"))
		Expect(m.files.Data["schema-1.json"]).To(Equal(`{"type":"object"}`))
		Expect(sources(m.job.Spec.Template.Spec.Volumes, "schemas")).To(ConsistOf(m.job.Name + ":schema-1.json -> 1.json"))
		w.in = strings.Replace(w.in, "data: {order.json", "data: {orders.json", 1)
		r = w.run(ctx, "try", "orders", "-f", "-")
		Expect(code(r.err)).To(Equal(78))
		Expect(r.err).To(MatchError(ContainSubstring(`spec.message.validation[1].schema.configMapRef names the key "order.json", and the ConfigMap schemas-v2 of the file has none`)))
		Expect(w.leftovers(ctx)).To(BeEmpty())
	})

	It("gives what runs a file of its own only where the manifest has another one", func(ctx SpecContext) {
		w.runs(ctx, http)
		kept := strings.Replace(changed, "  - rules:", "  - schema: {configMapRef: {name: schemas-v1, key: order.json}}\n  - rules:", 1)
		edited := kept + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: schemas-v1}\ndata: {order.json: '{\"type\":\"object\"}'}\n"
		for in, own := range map[string][]string{kept: nil, edited: {"schemas-v1:order.json -> etc/outbox/schemas/0.json"}} {
			w.in, w.log = in, report
			m := w.kubelet(ends(0))
			Expect(w.run(ctx, "try", "-f", "-").err).NotTo(HaveOccurred())
			<-m.done
			Expect(sources(m.job.Spec.Template.Spec.Volumes, "running")).To(ConsistOf(append(own,
				m.job.Name+":running.yaml -> running.yaml", "old-token:token -> etc/outbox/secrets/sink/token")), in)
			file := "/etc/outbox/schemas/0.json"
			if own != nil {
				file = "/etc/outbox/running" + file
			}
			Expect(loaded(m.files.Data["running.yaml"]).Message.Validation[0].Schema.File).To(Equal(file), in)
		}
	})

	It("is refused by the API server as an apply would be, and makes no Job", func(ctx SpecContext) {
		w.runs(ctx, http)
		for words, want := range map[string]string{
			"  routs: []\n":                        `unknown field "spec.routs"`,
			"  delivery: {onDead: Block}\n":        "set ordering to Key, or remove onDead",
			"  pods: {template: {spec: {x: 1}}}\n": `unknown field "spec.x"`,
		} {
			w.in = changed + words
			for _, args := range [][]string{{"-f", "-"}, {"-f", "-", "--against", "status", "--image", "dispatcher:v1"}} {
				r := w.run(ctx, append([]string{"try", "--timeout", "1s"}, args...)...)
				Expect(r.err).To(MatchError(ContainSubstring(want)))
				Expect(code(r.err)).To(Equal(78), words)
				w.in = strings.Replace(w.in, "name: orders", "name: bills", 1) // one that is not there yet
			}
		}
		w.in = strings.Replace(changed, "name: main", "name: gone", 1)
		Expect(w.run(ctx, "try", "-f", "-").err).To(MatchError(ContainSubstring("no Outbox gone, which spec.outboxRef of the manifest names")))
		w.in = strings.Replace(changed, "{name: orders}", "{name: orders, namespace: elsewhere}", 1)
		Expect(w.run(ctx, "try", "-f", "-").err).To(MatchError(ContainSubstring("the manifest is for the namespace elsewhere, and --namespace is " + w.namespace)))
		w.in = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
		Expect(w.run(ctx, "try", "-f", "-").err).To(MatchError("the manifest has no OutboxDispatcher of outbox.dev; name the file that has it with -f"))
		Expect(w.run(ctx, "try", "-f", "/nowhere.yaml").err).To(MatchError(ContainSubstring("name a file of Kubernetes objects with -f")))
		Expect(w.run(ctx, "try", "-f", "-", "--against", "git").err).To(MatchError(ContainSubstring("choose running or status")))
		Expect(w.leftovers(ctx)).To(BeEmpty())
	})

	It("compares a new dispatcher with the rows' status", func(ctx SpecContext) {
		w.runs(ctx, http)
		w.in, w.log = strings.Replace(changed, "{name: orders}", "{name: bills}", 1), report
		Expect(w.run(ctx, "try", "-f", "-").err).To(MatchError(ContainSubstring("no OutboxDispatcher " + w.namespace + "/bills runs here, to compare with and to take the image from; " +
			"correct --namespace, or compare with the rows' status: --against status --image IMAGE")))
		m := w.kubelet(ends(0))
		Expect(w.run(ctx, "try", "-f", "-", "--against", "status", "--image", "dispatcher:v2").err).NotTo(HaveOccurred())
		<-m.done
		spec := m.job.Spec.Template.Spec
		Expect(spec.Containers[0].Command).NotTo(ContainElement("--against"))
		Expect(spec.Containers[0].Image).To(Equal("dispatcher:v2"))
		Expect(spec.ServiceAccountName).To(Equal("default"))
		Expect(m.files.Data).NotTo(HaveKey("running.yaml"))
		var d appsv1.Deployment
		key := client.ObjectKey{Namespace: w.namespace, Name: "orders-dispatcher"}
		Expect(w.Get(ctx, key, &d)).To(Succeed())
		d.OwnerReferences = nil
		Expect(w.Update(ctx, &d)).To(Succeed())
		w.in = changed
		Expect(w.run(ctx, "try", "-f", "-", "--timeout", "1s").err).To(MatchError(ContainSubstring("/orders runs here")), "a Deployment of another owner does not count")
	})

	It("says why the dispatcher failed", func(ctx SpecContext) {
		w.runs(ctx, http)
		w.kubelet(ends(78))
		w.log = "dispatcher: configuration /etc/outbox/config/config.yaml: it is wrong\n"
		r := w.run(ctx, "try", "-f", "-")
		Expect(code(r.err)).To(Equal(78))
		Expect(r.out).To(BeEmpty())
	})

	DescribeTable("fails with code 1", func(ctx SpecContext, status corev1.PodStatus, want string) {
		w.runs(ctx, http)
		w.kubelet(status)
		w.log = ""
		r := w.run(ctx, "try", "-f", "-")
		Expect(code(r.err)).To(Equal(1))
		Expect(r.err).To(MatchError(ContainSubstring(want)))
	},
		Entry("when the container is killed", dispatches(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}), "ended with exit code 137: OOMKilled"),
		Entry("when the pod is evicted", corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on memory."}, "ended with exit code 1: Evicted The node was low on memory."),
	)

	It("says how the pod ended when its log is gone", func(ctx SpecContext) {
		w.runs(ctx, http)
		w.kubelet(corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on memory."})
		w.unlogged = errors.New("container not found")
		Expect(w.run(ctx, "try", "-f", "-").err).To(MatchError(And(ContainSubstring("container not found"),
			ContainSubstring("ended with exit code 1: Evicted The node was low on memory."))))
		Expect(w.leftovers(ctx)).To(BeEmpty())
	})

	DescribeTable("reports what keeps the pod from running, and removes it when the command is interrupted", func(ctx SpecContext, status corev1.PodStatus, event *corev1.Event, want string) {
		w.runs(ctx, http)
		w.kubelet(status)
		if event != nil {
			w.says(*event)
		}
		short, cancel := context.WithCancel(ctx)
		DeferCleanup(cancel)
		output := &watched{until: want, then: cancel}
		r := w.runBoth(short, &strings.Builder{}, output, "try", "-f", "-", "--timeout", "1h")
		Expect(r.err).To(MatchError("the command was interrupted, and so was the Job"))
		Expect(output.String()).To(Equal("the pod does not run yet: " + want + "\n"))
		Expect(w.leftovers(ctx)).To(BeEmpty())
	},
		Entry("an image", SpecTimeout(2*time.Minute), dispatches(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}), nil,
			`The image "dispatcher:v1" cannot be pulled; check its name and the pull secrets.`),
		Entry("a Secret", SpecTimeout(2*time.Minute), dispatches(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}),
			&corev1.Event{Reason: "FailedMount", Message: `secret "new-token" not found`}, `Its pod waits for files: secret "new-token" not found`),
	)

	It("ends with --timeout when there is no pod, and removes the Job", func(ctx SpecContext) {
		w.runs(ctx, http)
		Expect(w.run(ctx, "try", "-f", "-", "--timeout", "1s").err).To(MatchError("--timeout is over after 1s; allow more, or try fewer rows with --last"))
		Expect(w.leftovers(ctx)).To(BeEmpty())
	})

	It("is for who has the rights that the page lists", Label("rights"), SpecTimeout(3*time.Minute), func(ctx SpecContext) {
		w.runs(ctx, http)
		user := "tess-" + w.namespace
		admin := w.config
		w.as(ctx, user)
		Expect(w.run(ctx, "try", "-f", "-").err).To(MatchError(ContainSubstring("request the roles outboxdispatchers-edit, outboxes-view and edit in this namespace")))
		root, err := envtest.Root()
		Expect(err).NotTo(HaveOccurred())
		page, err := os.ReadFile(filepath.Join(root, "controllers/cmd/kubectl-outbox/README.md"))
		Expect(err).NotTo(HaveOccurred())
		role := regexp.MustCompile("(?s)```yaml\n(apiVersion: rbac.*?)```").FindSubmatch(page)
		Expect(role).NotTo(BeNil())
		_, err = envtest.Kubectl(GinkgoTB(), string(role[1]), "-n", w.namespace, "apply", "-f", "-")
		Expect(err).NotTo(HaveOccurred())
		for _, args := range [][]string{{"delete", "rolebinding", "view", "pods"}, {"create", "rolebinding", "try", "--role=outbox-try", "--user=" + user}} {
			_, err := envtest.Kubectl(GinkgoTB(), "", append([]string{"-n", w.namespace}, args...)...)
			Expect(err).NotTo(HaveOccurred())
		}
		w.log = report
		w.kubelet(dispatches(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}))
		w.says(corev1.Event{Reason: "FailedMount", Message: "no such Secret"})
		Eventually(ctx, func() error {
			short, cancel := context.WithCancel(ctx)
			defer cancel()
			return w.runBoth(short, &strings.Builder{}, &watched{until: "no such Secret", then: cancel}, "try", "-f", "-").err
		}).WithTimeout(time.Minute).Should(MatchError(ContainSubstring("interrupted")), "the rights have reached the API server, to list Events too")
		w.config = admin
		Expect(w.leftovers(ctx)).To(BeEmpty())
	})

	It("completes", func(ctx SpecContext) {
		Expect(w.run(ctx, "__complete", "try", "-f", "orders.yaml", "").out).To(HavePrefix("orders\n"))
		Expect(w.run(ctx, "__complete", "try", "--against", "").out).To(HavePrefix("running\nstatus\n"))
		Expect(w.run(ctx, "__complete", "try", "-f", "").out).To(HavePrefix("yaml\n"))
	})
})
