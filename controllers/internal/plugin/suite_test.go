package plugin_test

import (
	"bytes"
	"context"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/plugin"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

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
			server := httptest.NewServer(deadletters.Handler(deadLetters{}))
			return server.URL, server.Close, nil
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
		Spec: v1alpha1.OutboxDispatcherSpec{Namespace: "shop", Topics: []string{"orders"}, OutboxRef: &v1alpha1.OutboxRef{Name: "main"},
			Sink: v1alpha1.Sink{Log: &v1alpha1.LogSink{}}},
	}
	Expect(w.Create(ctx, obd)).To(Succeed())
	dead, at := int64(1500), metav1.NewTime(noon)
	obd.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.SinkReachableCondition, Status: metav1.ConditionFalse, Reason: "ConnectionFailed", Message: "It does not respond; start it.", LastTransitionTime: at},
		{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: "ConnectionFailed", Message: "It does not respond; start it.", LastTransitionTime: at},
		{Type: v1alpha1.SchemaReadyCondition, Status: metav1.ConditionTrue, Reason: "UpToDate", LastTransitionTime: at},
	}
	obd.Status.Dead, obd.Status.ObservedTime, obd.Status.Sink = &dead, &at, "log"
	obd.Status.DeadGroups = []v1alpha1.DeadGroup{{Group: "7f3a9c21", Reason: "PermanentFailure", Count: 3, Since: &at, Last: &at}}
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
	Eventually(ctx, func() error { return w.run(ctx, "status", "orders").err }).WithTimeout(time.Minute).Should(Succeed(), "the rights have reached the API server")
}

// play plays a part of the cluster for a minute, or until the spec ends: it calls act until that has done its part. What
// it returns is closed then.
func (w *world) play(act func(context.Context) bool) <-chan struct{} {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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
