package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/plugin"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/hack/testing/commands"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
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
		Expect(w.run(ctx, "dead", "show", "orders", event, "--payload").out).To(ContainSubstring("price: -1\n"))
		Expect(w.run(ctx, "events", "show", "orders", "order-17").out).To(ContainSubstring("dedupeKey: order-17\n"))
		Expect(w.run(ctx, "dead", "show", "orders", event, "-o", "table").err).To(MatchError("--output is \"table\", and this command has none; choose yaml or json, or see a page in a browser: `kubectl outbox ui`"))
		Expect(w.run(ctx, "dead", "show", "orders").err).To(MatchError("1 arguments, want 2: kubectl outbox dead show NAME ID; see --help"))
		Expect(w.run(ctx, "dead", "list", "other").err).To(MatchError(ContainSubstring("no OutboxDispatcher other in the namespace " + w.namespace)))
	})

	// CONTRACT: C-105
	It("pauses and resumes, and says who else has the field", Label("state"), func(ctx SpecContext) {
		obd := w.dispatcher(ctx)
		state := func() spec.State {
			Expect(w.Get(ctx, client.ObjectKeyFromObject(obd), obd)).To(Succeed())
			return obd.Spec.State
		}
		r := w.run(ctx, "pause", "orders")
		Expect(r.err).NotTo(HaveOccurred())
		Expect(r.out).To(Equal("outboxdispatcher " + w.namespace + "/orders: spec.state set to Paused\n"))
		Expect(r.errOut).To(BeEmpty())
		Expect(state()).To(Equal(spec.Paused))
		Expect(w.run(ctx, "pause", "orders").out).To(ContainSubstring("is already Paused"))
		Expect(w.run(ctx, "resume", "orders").err).NotTo(HaveOccurred())
		Expect(state()).To(Equal(spec.Running))

		manifest := `{"apiVersion": "outbox.dev/v1alpha1", "kind": "OutboxDispatcher", "metadata": {"name": "orders"},
			"spec": {"namespace": "shop", "outboxRef": {"name": "main"}, "sink": {"log": {}}, "state": "Running"}}`
		_, err := envtest.Kubectl(GinkgoTB(), manifest, "--namespace", w.namespace, "apply", "--server-side", "--force-conflicts", "--field-manager=kustomize-controller", "-f", "-")
		Expect(err).NotTo(HaveOccurred())
		r = w.run(ctx, "pause", "orders")
		Expect(r.err).NotTo(HaveOccurred())
		Expect(r.errOut).To(Equal("warning: spec.state is also set by kustomize-controller, which may set it back; change it there too\n"))
		Expect(state()).To(Equal(spec.Paused))
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
		Expect(obd.Spec.State).To(Equal(spec.Running))
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

func TestCommandsAndFlagsAreOnAPage(t *testing.T) {
	commands.Check(t, plugin.New("dev", genericiooptions.IOStreams{}, plugin.Options{}), "../../..", "controllers/cmd/kubectl-outbox/README.md")
}

func TestMisspeltCommandFails(t *testing.T) {
	for _, args := range [][]string{{"dead", "lst", "x"}, {"dead"}, {"statsu", "orders"}, {"events", "shwo", "--output=json"}} {
		cmd := plugin.New("dev", genericiooptions.IOStreams{}, plugin.Options{})
		cmd.SetArgs(args)
		need.That(t, cmd.Execute() != nil, "%v succeeded", args)
	}
}

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
		Eventually(ctx, func() error { return w.Create(ctx, w.replay("forged", "eve"), client.DryRunAll) }).
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
		Eventually(ctx, func() error { return w.run(ctx, "dead", "operations", "orders").err }).Should(Succeed())
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
		w.operator(statusOf(metav1.ConditionTrue, "Finished", 3, 3))
		Expect(run(ctx, ada, "dead", "replay", "orders", "--group", "7f3a9c21", "--reason", "CHG-812").err).NotTo(HaveOccurred())
		dlr := w.created(ctx)
		Expect(dlr.Spec.RequestedBy).To(Equal(ada))
		dlr.Status.Stopped = "by hand"
		Expect(apierrors.IsForbidden(by(ada).Status().Update(ctx, &dlr))).To(BeTrue(), "what became of it is the operator's to say")
		Expect(by(ada).Delete(ctx, &dlr)).To(Succeed())
	})

	It("is done under no other name, not even by an administrator", func(ctx SpecContext) {
		person := by(ada)
		Eventually(ctx, func() error { return person.Create(ctx, w.replay("mine", ada), client.DryRunAll) }).Should(Succeed(), "the role has reached the API server")
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
		Eventually(ctx, func() error { return by(ada).Create(ctx, dlr) }).Should(Succeed())
		dlr.Status = statusOf(metav1.ConditionTrue, "Finished", 3, 3)
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
		Eventually(ctx, func() error { return apply(printed.out) }).Should(Succeed())
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
		Spec: spec.Replay{
			DispatcherRef: &spec.DispatcherRef{Name: "orders"}, Action: spec.ActionReplay, Reason: "CHG-812", RequestedBy: by,
			Selector: spec.DeadLetterSelector{Group: "7f3a9c21"},
		},
	}
}

func TestMain(m *testing.M) { envtest.Main(m) }

func TestPluginCommandsOnAnAPIServer(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "kubectl outbox")
}

const event = "0190a5c8-5d1e-7000-8000-000000000001"

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// deadLetters is what the pods serve.
type deadLetters struct{ deadletters.Source }

func (deadLetters) Groups(context.Context, deadletters.Filter) (deadletters.Groups, error) {
	return deadletters.Groups{Groups: []deadletters.Group{group(0)}}, nil
}

func (deadLetters) List(context.Context, deadletters.ListRequest) (deadletters.Page, error) {
	return deadletters.Page{DeadLetters: []deadletters.DeadLetter{{ID: 42, Event: event, Topic: "orders"}}}, nil
}

func (deadLetters) Show(_ context.Context, id string, payload bool) (deadletters.DeadLetter, error) {
	l := deadletters.DeadLetter{ID: 42, Event: id, Topic: "orders"}
	if payload {
		l.Payload = []byte(`{"price":-1}`)
	}
	return l, nil
}

func (deadLetters) Event(_ context.Context, id string, _ bool) (deadletters.History, error) {
	return deadletters.History{Event: &deadletters.Event{ID: event, DedupeKey: id, Status: "dead"}}, nil
}

func group(n int) deadletters.Group {
	return deadletters.Group{
		Group: "7f3a9c21", Topic: "orders", Reason: dispatcher.ReasonMaxRetriesExceeded, Cause: dispatcher.Cause{Class: "http", Code: "422"},
		Count: int64(1500 - n), Since: noon.Add(-2 * time.Hour), Last: noon, DeadLetter: 42, Event: event, Error: "the consumer responded 422", Advice: "Correct the price.",
	}
}

// world is a namespace, and kubectl outbox there.
type world struct {
	client.Client
	namespace string
	// forwarded are the pods that were read.
	forwarded []string
	// server is the last of them. It breaks each request off while broken.
	server *httptest.Server
	broken atomic.Bool
	// ignored are flags of the console, of which the configuration makes nothing.
	ignored []string
	// in is standard input.
	in string
	// unreachable is why no pod can be read. nil: it can.
	unreachable error
	// config is the user's, and real forwards through the API server's port-forward.
	config *rest.Config
	real   bool
}

func newWorld(ctx context.Context) *world {
	scheme := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	w := &world{config: envtest.Start(GinkgoTB())}
	w.config.QPS = -1 // the commands look a thousand times more often than a person's, and a limit would end their waits early
	var err error
	w.Client, err = client.New(w.config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "plugin-"}}
	Expect(w.Create(ctx, ns)).To(Succeed())
	w.namespace = ns.Name
	return w
}

// ran is what a command left behind.
type ran struct {
	out, errOut string
	err         error
}

// run runs kubectl outbox in the namespace.
func (w *world) run(ctx context.Context, args ...string) ran {
	var out bytes.Buffer
	r := w.runTo(ctx, &out, args...)
	r.out = out.String()
	return r
}

// runTo is run with another standard output.
func (w *world) runTo(ctx context.Context, out io.Writer, args ...string) ran {
	var errOut bytes.Buffer
	r := w.runBoth(ctx, out, &errOut, args...)
	r.errOut = errOut.String()
	return r
}

// runBoth is run with both outputs.
func (w *world) runBoth(ctx context.Context, out, errOut io.Writer, args ...string) ran {
	o := plugin.Options{Config: w.config, Now: func() time.Time { return noon.Add(time.Hour) }, Every: time.Millisecond}
	if !w.real {
		o.Forward = func(_ context.Context, _ *rest.Config, pod *corev1.Pod, port int) (string, func(), error) {
			if w.unreachable != nil {
				return "", nil, w.unreachable
			}
			Expect(port).To(Equal(desired.Port))
			w.forwarded = append(w.forwarded, pod.Name)
			handler := deadletters.Handler(deadLetters{})
			w.server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
				if w.broken.Load() {
					if r.URL.Path == deadletters.ListPath { // half of the response is there
						_ = http.NewResponseController(out).Flush()
					}
					panic(http.ErrAbortHandler)
				}
				handler.ServeHTTP(out, r)
			}))
			return w.server.URL, w.server.Close, nil
		}
	}
	cmd := plugin.New("v1", genericiooptions.IOStreams{In: strings.NewReader(w.in), Out: out, ErrOut: errOut}, o)
	cmd.SetArgs(append([]string{"--namespace", w.namespace}, args...))
	return ran{err: cmd.ExecuteContext(ctx)}
}

// dispatcher makes an OutboxDispatcher as the operator leaves it, with two pods: one is ready.
func (w *world) dispatcher(ctx context.Context) *v1alpha1.OutboxDispatcher {
	obd := &v1alpha1.OutboxDispatcher{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "orders"},
		Spec: spec.Dispatcher{Namespace: "shop", Topics: []string{"orders"}, OutboxRef: &spec.OutboxRef{Name: "main"},
			Sink: spec.Sink{Log: &spec.LogSink{}}},
	}
	Expect(w.Create(ctx, obd)).To(Succeed())
	at := metav1.NewTime(noon)
	obd.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.SinkReachableCondition, Status: metav1.ConditionFalse, Reason: "ConnectionFailed", Message: "It does not respond; start it.", LastTransitionTime: at},
		{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: "ConnectionFailed", Message: "It does not respond; start it.", LastTransitionTime: at},
		{Type: v1alpha1.SchemaReadyCondition, Status: metav1.ConditionTrue, Reason: "UpToDate", LastTransitionTime: at},
	}
	obd.Status.Counts, obd.Status.ObservedTime, obd.Status.Sink = &status.Counts{Dead: 1500}, &at, "log"
	obd.Status.DeadGroups = []status.DeadGroup{{Group: "7f3a9c21", Reason: "PermanentFailure", Count: 3, Since: status.At(noon), Last: status.At(noon)}}
	Expect(w.Status().Update(ctx, obd)).To(Succeed())
	for _, name := range []string{"orders-a", "orders-b"} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: desired.Selector(obd, desired.ComponentDispatcher)},
			Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: desired.Container, Image: "dispatcher:v1"}}},
		}
		Expect(w.Create(ctx, pod)).To(Succeed())
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.7", PodIPs: []corev1.PodIP{{IP: "10.0.0.7"}}}
		if name == "orders-b" {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		Expect(w.Status().Update(ctx, pod)).To(Succeed())
	}
	return obd
}

// as makes a user with the right to see, and no other, the one of the next commands.
func (w *world) as(ctx context.Context, user string) {
	root, err := envtest.Root()
	Expect(err).NotTo(HaveOccurred())
	_, err = envtest.Kubectl(GinkgoTB(), "", "apply", "-f", root+"/config/rbac/users.yaml")
	Expect(err).NotTo(HaveOccurred())
	for _, args := range [][]string{
		{"create", "role", "pods", "--verb=get,list", "--resource=pods"},
		{"create", "rolebinding", "pods", "--role=pods", "--user=" + user},
		{"create", "rolebinding", "view", "--clusterrole=outboxdispatchers-view", "--user=" + user},
	} {
		_, err := envtest.Kubectl(GinkgoTB(), "", append([]string{"--namespace", w.namespace}, args...)...)
		Expect(err).NotTo(HaveOccurred())
	}
	w.config = rest.CopyConfig(w.config)
	w.config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	Eventually(ctx, func() error { return w.run(ctx, "status", "orders").err }).Should(Succeed(), "the rights have reached the API server")
}

// play plays a part of the cluster for a minute, or until the spec ends: it calls act until that has done its part. What
// it returns is closed then.
func (w *world) play(act func(context.Context) bool) <-chan struct{} {
	ctx, cancel := context.WithTimeout(context.Background(), need.Wait)
	done := make(chan struct{})
	DeferCleanup(func() { cancel(); <-done })
	go func() {
		defer GinkgoRecover()
		defer close(done)
		for ctx.Err() == nil && !act(ctx) {
		}
	}()
	return done
}
