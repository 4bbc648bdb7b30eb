package scale

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

var (
	sizes    = flag.String("sizes", "50", "numbers of OutboxDispatchers, separated by commas")
	out      = flag.String("out", "", "file for the plot, from this directory; none when empty")
	strict   = flag.Bool("strict", false, "times count too: 90 s for all, 2 s for an edit, 5 s for a stop next to hostile tenants")
	hostiles = flag.Int("hostile", 100, "how many objects of each kind a hostile tenant makes, if they can be made in two minutes")
)

// Targets.
const (
	maxMemory  = 192 // MiB, the budget, of which config/README.md says what for
	manyMemory = 150 // MiB, of a manager with 1,000
	allWithin  = 90 * time.Second
	editWithin = 2 * time.Second
	stopWithin = 5 * time.Second
)

// Bounds of what a hostile tenant makes of a kind: etcd keeps 2 GiB, and with more the API server writes nothing for anybody.
const (
	hostileFor = 2 * time.Minute
	maxStored  = 512 << 20 // bytes of JSON
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	envtest.Main(m)
}

// world is a namespace with its manager, nodes and pods.
type world struct {
	t         *testing.T
	cfg       *rest.Config
	admin     client.Client // reads from the API server
	cached    client.Reader // what the test watches
	namespace string
	serves    []string
	operator  *operator
}

// newWorld starts everything for size OutboxDispatchers; how returns the behaviour of each pod. The operator serves other
// namespaces too.
func newWorld(t *testing.T, namespace string, size int, how func(int) behaviour, others ...string) *world {
	t.Helper()
	cfg := envtest.Start(t)
	cfg.QPS = -1
	scheme := runtime.NewScheme()
	need.OK(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme)))
	admin, err := client.New(cfg, client.Options{Scheme: scheme})
	need.OK(t, err)
	w := &world{t: t, cfg: cfg, admin: admin, namespace: namespace}
	w.serves = append(others, namespace)
	for _, name := range w.serves {
		w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: namespace}, StringData: map[string]string{"dsn": "postgres://db/shop"}})
	watched, err := cache.New(cfg, cache.Options{Scheme: scheme, DefaultNamespaces: map[string]cache.Config{namespace: {}}})
	need.OK(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() { _ = watched.Start(ctx) }()
	w.cached = watched
	for i := range size {
		startPod(t, i, namespace+"/"+name(i), how(i))
	}
	startNodes(t, ctx, admin, watched, func(deployment string) string { return addressOf(number(deployment)) })
	t.Cleanup(cancel) // the nodes end before they are waited for
	w.operator = startOperator(t, cfg, w.serves...)
	return w
}

func name(i int) string { return fmt.Sprintf("d-%04d", i) }

// number of the OutboxDispatcher whose Deployment has the name.
func number(deployment string) int {
	n, err := strconv.Atoi(strings.Split(deployment, "-")[1])
	if err != nil {
		panic(err)
	}
	return n
}

func (w *world) create(o client.Object) {
	w.t.Helper()
	need.OK(w.t, w.admin.Create(w.t.Context(), o))
}

// dispatchers creates the OutboxDispatchers.
func (w *world) dispatchers(size int, change func(int, *v1alpha1.OutboxDispatcher)) {
	w.t.Helper()
	w.many(size, time.Hour, func(i int) client.Object {
		obd := &v1alpha1.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Name: name(i), Namespace: w.namespace},
			Spec: spec.Dispatcher{Namespace: "shop", Topics: []string{name(i)}, Sink: spec.Sink{Log: &spec.LogSink{}},
				Database: &spec.DispatcherDatabase{SecretRef: spec.SecretRef{Name: "db"}}}}
		if change != nil {
			change(i, obd)
		}
		return obd
	})
}

// wait returns after d, or when the test ends.
func (w *world) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.t.Context().Done():
	}
}

// until polls the cache until ok is true, and returns how long that took.
func (w *world) until(what string, limit time.Duration, ok func() (bool, string)) time.Duration {
	w.t.Helper()
	began := time.Now()
	for {
		done, seen := ok()
		if done {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			w.t.Fatalf("waited %s for %s: %s", limit, what, seen)
		}
		w.wait(20 * time.Millisecond)
	}
}

// reconciled reports whether each OutboxDispatcher's status is up to date: its pod delivers, or does not respond.
func (w *world) reconciled(size int, how func(int) behaviour) (bool, string) {
	var all v1alpha1.OutboxDispatcherList
	if err := w.cached.List(w.t.Context(), &all); err != nil {
		return false, err.Error()
	}
	done, other := 0, ""
	for i := range all.Items {
		obd := &all.Items[i]
		ready, workload := meta.FindStatusCondition(obd.Status.Conditions, "Ready"), meta.FindStatusCondition(obd.Status.Conditions, "WorkloadAvailable")
		if ready == nil || workload == nil || obd.Status.ObservedGeneration != obd.Generation {
			continue
		}
		// One whose pod does not respond becomes unavailable after a minute, before the last is made on a slow machine.
		if well := how(number(obd.Name)) == wellBehaved; well && workload.Status == metav1.ConditionTrue && ready.Reason == "Delivering" && obd.Status.RespondingReplicas == 1 || !well {
			done++
		} else {
			other = fmt.Sprintf(", and %s has the Ready %s: %s", obd.Name, ready.Reason, ready.Message)
		}
	}
	return done == size, fmt.Sprintf("%d of %d%s", done, size, other)
}

// atRest reports whether none reconciles: a pod that does not respond is known as that after a minute.
func (w *world) atRest() (bool, string) {
	var all v1alpha1.OutboxDispatcherList
	if err := w.cached.List(w.t.Context(), &all); err != nil {
		return false, err.Error()
	}
	i := slices.IndexFunc(all.Items, func(o v1alpha1.OutboxDispatcher) bool {
		return meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ReconcilingCondition)
	})
	return i < 0, fmt.Sprintf("one reconciles, at place %d", i)
}

// edit changes the spec of one and returns how long it takes until its Deployment has another template.
func (w *world) edit(i int) time.Duration {
	w.t.Helper()
	ctx, key := w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name(i)}
	deployment := client.ObjectKey{Namespace: w.namespace, Name: name(i) + "-dispatcher"}
	template := func() string {
		var d appsv1.Deployment
		if err := w.cached.Get(ctx, deployment, &d); err != nil {
			return err.Error()
		}
		return d.Spec.Template.String()
	}
	before := template()
	obd := &v1alpha1.OutboxDispatcher{}
	need.OK(w.t, w.admin.Get(ctx, key, obd))
	old := obd.DeepCopy()
	obd.Spec.Delivery.BatchSize++
	need.OK(w.t, w.admin.Patch(ctx, obd, client.MergeFrom(old)))
	return w.until("an edit of "+name(i), time.Minute, func() (bool, string) { return template() != before, "the template is the old one" })
}

// idle waits for an interval without writes, and then counts the writes of two intervals.
func (w *world) idle() int {
	w.t.Helper()
	const interval = 10 * time.Second
	for range 20 {
		before := writes(w.t, w.cfg)
		w.wait(interval)
		if writes(w.t, w.cfg) == before {
			w.wait(2 * interval)
			return writes(w.t, w.cfg) - before
		}
	}
	w.t.Fatal("writes never stopped for 10 s")
	return 0
}

// tenthSilent makes a tenth of the pods accept connections and never respond.
func tenthSilent(i int) behaviour {
	if i%10 == 9 {
		return silent
	}
	return wellBehaved
}

type result struct {
	size      int
	all       time.Duration
	edits     []time.Duration
	memory    float64
	cpuForAll float64 // seconds, of all processes, until all are reconciled
	cpuAtRest float64 // of the manager, cores
	idle      int
}

func TestManyDispatchersMeetTheTargets(t *testing.T) {
	var results []result
	for text := range strings.SplitSeq(*sizes, ",") {
		size, err := strconv.Atoi(text)
		need.OK(t, err)
		t.Run(text, func(t *testing.T) {
			results = append(results, measure(t, size))
		})
	}
	t.Log("\n" + table(results))
	if *out == "" || t.Failed() {
		return
	}
	need.OK(t, os.WriteFile(*out, []byte(plot(results)), 0o600))
}

func measure(t *testing.T, size int) (r result) {
	w := newWorld(t, fmt.Sprintf("scale-%d", size), size, tenthSilent)
	t.Cleanup(func() { t.Logf("the manager took %.0f MiB at most", w.operator.memory()) }) // also when a target is missed
	r.size = size
	began, used := time.Now(), cpuOfAll()
	w.dispatchers(size, nil)
	w.until("all", 10*time.Minute, func() (bool, string) { return w.reconciled(size, tenthSilent) })
	r.all, r.cpuForAll = time.Since(began), cpuOfAll()-used
	var policies networkingv1.NetworkPolicyList
	if err := w.admin.List(t.Context(), &policies, client.InNamespace(w.namespace)); err != nil || len(policies.Items) != size {
		t.Errorf("%d NetworkPolicies, want %d (%v)", len(policies.Items), size, err)
	}
	w.until("at rest", 10*time.Minute, w.atRest)
	r.idle = w.idle()
	atRest, _ := cpu(w.operator.cmd.Process.Pid)
	since := time.Now()
	for i := range 10 {
		r.edits = append(r.edits, w.edit(i*size/10))
		w.wait(time.Second) // observation continues meanwhile
	}
	slices.Sort(r.edits)
	now, _ := cpu(w.operator.cmd.Process.Pid)
	r.cpuAtRest = (now - atRest) / time.Since(since).Seconds()
	r.memory = w.operator.memory()
	if r.memory > manyMemory {
		t.Errorf("the manager took %.0f MiB, want %d at most", r.memory, manyMemory)
	}
	need.Want(t, 0, "%d writes while nothing changed", r.idle)
	if slowest := r.edits[len(r.edits)-1]; *strict && (r.all > allWithin || slowest > editWithin) {
		t.Errorf("all after %s, want %s; the slowest edit after %s, want %s", r.all, allWithin, slowest, editWithin)
	}
	return r
}

// Pods that lie, flood and drip take neither the manager's memory nor the others' time.
func TestHostilePodsLeaveMemoryAndOthersAlone(t *testing.T) {
	const size = 40
	how := func(i int) behaviour {
		return []behaviour{wellBehaved, huge, slow, topics, silent, wellBehaved, wellBehaved, wellBehaved}[i%8]
	}
	w := newWorld(t, "hostile", size, how)
	w.dispatchers(size, func(i int, obd *v1alpha1.OutboxDispatcher) {
		if i%8 == 5 { // the pod is well behaved, the spec is not: such a pattern takes 500 MiB for each 7 KiB when it is compiled
			pattern := strings.Repeat("("+strings.Repeat("a", 300)+"){1000}", 200)
			for range 3 { // below the bound of a spec
				obd.Spec.Message.Validation = append(obd.Spec.Message.Validation, spec.Validation{Schema: &spec.PayloadSchema{Inline: fmt.Sprintf(`{"type":"string","pattern":%q}`, pattern)}})
			}
		}
	})
	took := w.until("all", 5*time.Minute, func() (bool, string) { return w.reconciled(size, how) })
	edit := w.edit(0)
	memory := w.operator.memory()
	t.Logf("%d OutboxDispatchers, half of them with hostile pods and some with 180 KiB of patterns: all after %.1f s, an edit after %.1f s, manager %.0f MiB", size, took.Seconds(), edit.Seconds(), memory)
	if memory > maxMemory {
		t.Errorf("the manager took %.0f MiB, want %d at most", memory, maxMemory)
	}
}

// behaviour is how a stand-in of a dispatcher responds to a request for its status.
type behaviour int

const (
	wellBehaved behaviour = iota
	silent                // accepts the connection and never responds
	huge                  // responds with 16 MiB
	slow                  // responds with a byte a second
	topics                // responds with as many topics as fit
)

// addressOf is the loopback address of the pod with the number; its port is 8080.
func addressOf(number int) string { return fmt.Sprintf("127.9.%d.%d", number/250, number%250+1) }

// startPod responds for the OutboxDispatcher name (namespace/name) at the number's address.
func startPod(t *testing.T, number int, name string, how behaviour) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(addressOf(number), "8080"))
	need.OK(t, err)
	if how == silent { // the kernel accepts connections, and the test reads none
		t.Cleanup(func() { _ = listener.Close() })
		return
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		respond(w, r, name, how)
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

func respond(w http.ResponseWriter, r *http.Request, name string, how behaviour) {
	switch how {
	case huge:
		_, _ = w.Write([]byte(`{"topics":[`))
		for range 16 {
			_, _ = w.Write(bytes.Repeat([]byte(`"",`), 1<<20/3))
		}
	case slow:
		for range 3600 {
			if _, err := w.Write([]byte(" ")); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			select {
			case <-time.After(time.Second):
			case <-r.Context().Done():
				return
			}
		}
	case topics:
		fmt.Fprintf(w, `{"name":%q,"pausedTopics":[{}%s]}`, name, strings.Repeat(",{}", 21_000))
	default:
		_ = json.NewEncoder(w).Encode(status.Status{
			Name: name, State: "Running", Source: status.Link{State: status.Reachable}, Sink: status.Link{State: status.Reachable},
			Schema: status.Schema{State: "Ready", Version: 1, Required: 1}, OldestTransaction: &status.OldestTransaction{},
			// None are pending: after two minutes the status would say when they are delivered, which is a write of its own.
			Backlog: &status.Backlog{ObservedAt: time.Now(), Counts: status.Counts{Scheduled: 7, Dead: 20}, DeadGroups: deadGroups},
		})
	}
}

// deadGroups are as many as a pod reports.
var deadGroups = func() (all []status.DeadGroupExample) {
	for i := range 20 {
		all = append(all, status.DeadGroupExample{DeadGroup: status.DeadGroup{
			Group: fmt.Sprintf("%08x", i), Topic: fmt.Sprintf("orders-%d", i), Reason: "permanent_failure", Class: "http", Code: "422",
			Place: "/items/*/price", Count: 1, Since: 1, Last: 2,
		}})
	}
	return all
}()

func table(results []result) string {
	var b strings.Builder
	b.WriteString("| OutboxDispatchers | all reconciled | processor time for that, in all | an edit, median | an edit, slowest of 10 | manager's memory, at most | manager's processor at rest | writes in 30 idle seconds |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %d | %.1f s | %.0f s | %.2f s | %.2f s | %.0f MiB | %.0f %% of a core | %d |\n",
			r.size, r.all.Seconds(), r.cpuForAll, r.edits[len(r.edits)/2].Seconds(), r.edits[len(r.edits)-1].Seconds(), r.memory, 100*r.cpuAtRest, r.idle)
	}
	return b.String()
}

// plot draws processor time and memory over the number of OutboxDispatchers, which has a logarithmic axis.
func plot(results []result) string {
	var b strings.Builder
	b.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 260" font-family="sans-serif" font-size="12">` + "\n<rect width=\"640\" height=\"260\" fill=\"white\"/>\n")
	panel := func(left float64, title, unit, colour string, limit float64, value func(result) float64) {
		top := limit
		for _, r := range results {
			top = max(top, value(r))
		}
		low, high := math.Log10(float64(results[0].size)), math.Log10(float64(results[len(results)-1].size))
		x := func(size int) float64 { return left + 10 + 230*(math.Log10(float64(size))-low)/max(high-low, 1e-9) }
		y := func(v float64) float64 { return 220 - 170*v/top }
		fmt.Fprintf(&b, "<text x=\"%.0f\" y=\"24\" font-weight=\"bold\">%s</text>\n", left, title)
		fmt.Fprintf(&b, "<path d=\"M%.0f 40V220H%.0f\" fill=\"none\" stroke=\"#888\"/>\n", left, left+255)
		fmt.Fprintf(&b, "<path d=\"M%.0f %.1fH%.0f\" stroke=\"#c33\" stroke-dasharray=\"4 4\"/><text x=\"%.0f\" y=\"%.1f\" fill=\"#c33\">target: %.0f %s</text>\n", left, y(limit), left+255, left+4, y(limit)-4, limit, unit)
		var points []string
		for _, r := range results {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(r.size), y(value(r))))
			fmt.Fprintf(&b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.0f %s</text><text x=\"%.1f\" y=\"238\" text-anchor=\"middle\">%d</text>\n",
				x(r.size), y(value(r)), colour, x(r.size), y(value(r))-10, value(r), unit, x(r.size), r.size)
		}
		fmt.Fprintf(&b, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", strings.Join(points, " "), colour)
		fmt.Fprintf(&b, "<text x=\"%.0f\" y=\"254\">OutboxDispatchers</text>\n", left+75)
	}
	// Processor time: the same on a machine that others use too. The target is that of two cores.
	panel(40, "Processor time until all are reconciled", "s", "#2563eb", 2*allWithin.Seconds(), func(r result) float64 { return r.cpuForAll })
	panel(365, "Memory of the manager, at most", "MiB", "#15803d", manyMemory, func(r result) float64 { return r.memory })
	b.WriteString("</svg>\n")
	return b.String()
}
