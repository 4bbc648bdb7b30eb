package scale

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// What users with the role edit, or outboxdispatchers-edit, in a namespace of their own may make, of each kind that the cache has:
// the largest that the API server takes, and then many small ones. The sum of it takes neither the manager's memory nor the
// others' time, also when the manager begins.
func TestHostileObjectsLeaveMemoryAndOthersAlone(t *testing.T) {
	const size, largeOnes = 4, 8
	well := func(int) behaviour { return wellBehaved }
	w := newWorld(t, "bounded", size, well, "eve")
	w.dispatchers(size, nil)
	w.until("all", 5*time.Minute, func() (bool, string) { return w.reconciled(size, well) })
	control, slowest := w.operator.memory(), time.Duration(0)
	for _, kind := range w.hostile() {
		name := fmt.Sprintf("%T", kind)
		most := w.most(kind)
		before, stops := w.operator.memory(), w.stopAgainAndAgain()
		text, err := json.Marshal(kind)
		need.OK(t, err)
		made := w.many(min(*hostiles, maxStored/len(text)), hostileFor, func(i int) client.Object {
			if i < largeOnes {
				return eve(kind, i, most)
			}
			return eve(kind, i, 0)
		})
		w.edit(0)
		n, write, stop, start := stops()
		slowest = max(slowest, stop)
		t.Logf("%d of %s, %d of them with %d bytes of annotations: manager %.0f MiB, %.0f before; in %s %d stops and starts, the slowest write of them %.1f s, and from there a stop %.1f s and a start %.1f s",
			made, name, largeOnes, most, w.operator.memory(), before, w.namespace, n, write.Seconds(), stop.Seconds(), start.Seconds())
	}
	w.many(max(1_000, *hostiles), hostileFor, func(i int) client.Object {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("eve-", i), Namespace: "eve"}, Reason: "FailedMount", Message: strings.Repeat("x", 1000), LastTimestamp: metav1.Now(),
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "eve", Name: fmt.Sprint("pod-", i), UID: types.UID(fmt.Sprint(i))}}
	})
	edit, during := w.edit(0), w.operator.memory()
	w.operator.stop()
	w.operator = startOperator(t, w.cfg, w.serves...)
	again, memory := w.edit(1), w.operator.memory()
	t.Logf("manager %.0f MiB before, %.0f MiB with the hostile objects and an edit after %.1f s, %.0f MiB from its start and an edit after %.1f s; the slowest stop of %s took %.1f s",
		control, during, edit.Seconds(), memory, again.Seconds(), w.namespace, slowest.Seconds())
	if max(during, memory) > maxMemory {
		t.Errorf("the manager took %.0f MiB, want %d at most", max(during, memory), maxMemory)
	}
	if *strict && slowest > stopWithin {
		t.Errorf("a stop took %s, want %s", slowest, stopWithin)
	}
}

// hostile are valid objects of the kinds that the operator's cache has. A dispatcher has as many and as long topics as its
// definition lets it.
func (w *world) hostile() []client.Object {
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "eve"}},
		Spec: corev1.PodSpec{NodeSelector: map[string]string{"no": "node"}, Containers: []corev1.Container{{Name: "dispatcher", Image: "image"}}}}
	job := *template.DeepCopy()
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	selector := &metav1.LabelSelector{MatchLabels: template.Labels}
	obd := &v1alpha1.OutboxDispatcher{Spec: spec.Dispatcher{Namespace: "shop", Sink: spec.Sink{Log: &spec.LogSink{}}, Database: &spec.DispatcherDatabase{SecretRef: spec.SecretRef{Name: "db"}}}}
	topics, length := w.bounds("outboxdispatchers", "topics")
	for i := range topics {
		obd.Spec.Topics = append(obd.Spec.Topics, fmt.Sprintf("%0*d", length, i))
	}
	return []client.Object{
		&corev1.ConfigMap{}, &corev1.ServiceAccount{}, &corev1.Pod{Spec: template.Spec}, &networkingv1.NetworkPolicy{},
		&policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector}},
		&appsv1.Deployment{Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}},
		&appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}},
		&batchv1.Job{Spec: batchv1.JobSpec{Template: job}},
		w.sample("outbox.yaml", &v1alpha1.Outbox{}), w.sample("consumer.yaml", &v1alpha1.OutboxConsumer{}), w.sample("replay-dry-run.yaml", &v1alpha1.DeadLetterReplay{}), obd,
	}
}

// sample reads an object from config/samples.
func (w *world) sample(file string, o client.Object) client.Object {
	root, err := envtest.Root()
	need.OK(w.t, err)
	text, err := os.ReadFile(filepath.Join(root, "config", "samples", file))
	need.OK(w.t, err)
	need.OK(w.t, yaml.Unmarshal(text, o))
	return o
}

// bounds are the most entries of a list in a definition, and the longest entry.
func (w *world) bounds(resource, field string) (entries, length int) {
	definition := &apiextensionsv1.CustomResourceDefinition{}
	need.OK(w.t, w.admin.Get(w.t.Context(), client.ObjectKey{Name: resource + ".outbox.dev"}, definition))
	list := definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties[field]
	return int(*list.MaxItems), int(*list.Items.Schema.MaxLength)
}

// eve is an object of a hostile tenant, with the operator's labels and so many bytes of annotations.
func eve(kind client.Object, i, bytes int) client.Object {
	o := kind.DeepCopyObject().(client.Object)
	o.SetName(fmt.Sprint("eve-", i))
	o.SetNamespace("eve")
	o.SetLabels(map[string]string{"outbox.dev/managed-by": "outbox-operator", "outbox.dev/dispatcher": name(i), "outbox.dev/component": "dispatcher"})
	o.SetAnnotations(map[string]string{"example.com/large": strings.Repeat("x", bytes)})
	return o
}

// most is how many bytes of annotations the API server takes of an object.
func (w *world) most(kind client.Object) int {
	return sort.Search(1<<22, func(n int) bool { return w.admin.Create(w.t.Context(), eve(kind, 0, n+1), client.DryRunAll) != nil })
}

// stopAgainAndAgain stops and starts the last dispatcher until the func that it returns is called, which returns how often, the
// longest time that the API server took for the user's write, and the longest from there until the Deployment has the replicas.
func (w *world) stopAgainAndAgain() func() (n int, write, stop, start time.Duration) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	var n int
	var write time.Duration
	var applied [2]time.Duration // by the number of replicas
	go func() {
		defer close(done)
		for ; ctx.Err() == nil; n++ {
			wrote, took := w.scale(ctx, 3, int32(n%2))
			write, applied[n%2] = max(write, wrote), max(applied[n%2], took)
			w.wait(100 * time.Millisecond)
		}
	}()
	w.t.Cleanup(cancel)
	return func() (int, time.Duration, time.Duration, time.Duration) {
		cancel()
		<-done
		return n, write, applied[0], applied[1]
	}
}

// scale sets the replicas of one, and returns how long the API server took for that, and how long it took from there until its
// Deployment has them.
func (w *world) scale(ctx context.Context, i int, replicas int32) (write, applied time.Duration) {
	began, obd, d := time.Now(), &v1alpha1.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name(i)}}, &appsv1.Deployment{}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	if err := w.admin.Patch(ctx, obd, patch); err != nil && ctx.Err() == nil {
		w.t.Errorf("scale %s: %v", obd.Name, err)
	}
	write = time.Since(began)
	for ctx.Err() == nil && (d.Spec.Replicas == nil || *d.Spec.Replicas != replicas) {
		w.wait(20 * time.Millisecond)
		_ = w.cached.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: name(i) + "-dispatcher"}, d)
	}
	return write, time.Since(began) - write
}

// many creates so many objects, eight at a time, or as many as it can in a time, and returns how many.
func (w *world) many(n int, within time.Duration, object func(int) client.Object) int {
	w.t.Helper()
	began, made := time.Now(), atomic.Int64{}
	var group sync.WaitGroup
	for part := range 8 {
		group.Go(func() {
			for i := part; i < n && time.Since(began) < within; i += 8 {
				if err := w.admin.Create(w.t.Context(), object(i)); err != nil {
					w.t.Errorf("create object %d: %v", i, err)
					return
				}
				made.Add(1)
			}
		})
	}
	group.Wait()
	if w.t.Failed() {
		w.t.Fatalf("%d of %d objects are made", made.Load(), n)
	}
	return int(made.Load())
}

// operator is the manager as a process.
type operator struct {
	t   *testing.T
	cmd *exec.Cmd
	// stop ends it, once.
	stop func()
}

// startOperator builds the manager and runs it for some namespaces, as an administrator. It makes NetworkPolicies, as in a
// cluster.
func startOperator(t *testing.T, cfg *rest.Config, namespaces ...string) *operator {
	t.Helper()
	root, err := envtest.Root()
	need.OK(t, err)
	dir := t.TempDir()
	binary, kubeconfig := filepath.Join(dir, "manager"), filepath.Join(dir, "kubeconfig")
	build := exec.Command("go", "build", "-o", binary, "./controllers/cmd/manager")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the manager: %v\n%s", err, out)
	}
	need.OK(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: cfg.Host, CertificateAuthorityData: cfg.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"admin": {ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "admin"}},
		CurrentContext: "test",
	}, kubeconfig))
	var log bytes.Buffer
	cmd := exec.Command(binary, "--kubeconfig="+kubeconfig, "--dispatcher-image=outbox-operator:test", "--watch-namespaces="+strings.Join(namespaces, ","),
		"--metrics-bind-address=0", "--health-probe-bind-address=0")
	cmd.Env = append(os.Environ(), "POD_NAMESPACE=outbox-system")
	cmd.Stdout, cmd.Stderr = &log, &log
	need.OK(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop := sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil || t.Failed() {
			text := log.String()
			t.Errorf("the manager ended: %v\n%s", err, text[max(0, len(text)-4000):])
		}
	})
	t.Cleanup(stop)
	return &operator{t, cmd, stop}
}

// memory is the most that the process had in memory, in MiB.
func (o *operator) memory() float64 {
	o.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", o.cmd.Process.Pid))
	need.OK(o.t, err)
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(text)
	if found == nil {
		o.t.Fatalf("/proc/%d/status has no VmHWM", o.cmd.Process.Pid)
	}
	kib, _ := strconv.ParseFloat(string(found[1]), 64)
	return kib / 1024
}

// cpu is the processor time that a process has taken, in seconds, and its parent.
func cpu(pid int) (seconds float64, parent int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0 // it has ended
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	parent, _ = strconv.Atoi(fields[1])
	return (user + system) / 100, parent // ticks a second on Linux
}

// cpuOfAll is the processor time of the test and of what it started: the API server, etcd, the manager.
func cpuOfAll() (total float64) {
	pids, _ := filepath.Glob("/proc/[0-9]*")
	for _, path := range pids {
		pid, _ := strconv.Atoi(filepath.Base(path))
		if seconds, parent := cpu(pid); pid == os.Getpid() || parent == os.Getpid() {
			total += seconds
		}
	}
	return total
}

// written are the resources that clients of the API server write.
var written = regexp.MustCompile(`resource="(outboxdispatchers|deployments|replicasets|pods|configmaps|serviceaccounts|poddisruptionbudgets|networkpolicies|jobs|events|secrets)"`)

// writes counts the writes that the API server has processed, by its own metrics.
func writes(t *testing.T, cfg *rest.Config) (total int) {
	t.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	need.OK(t, err)
	text, err := c.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	need.OK(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "apiserver_request_total{") && written.MatchString(line) && regexp.MustCompile(`verb="(APPLY|DELETE|DELETECOLLECTION|PATCH|POST|PUT)"`).MatchString(line) {
			n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			need.OK(t, err)
			total += int(n)
		}
	}
	return total
}

// nodes plays the Deployment controller, the ReplicaSet controller, the scheduler and the kubelets: a pod for
// each Deployment, which runs at once, at the address of a stand-in of a dispatcher.
type nodes struct {
	t       *testing.T
	ctx     context.Context
	client  client.Client
	address func(deployment string) string
	work    chan *appsv1.Deployment
}

func startNodes(t *testing.T, ctx context.Context, c client.Client, watched cache.Cache, address func(string) string) {
	t.Helper()
	n := &nodes{t: t, ctx: ctx, client: c, address: address, work: make(chan *appsv1.Deployment, 100_000)}
	informer, err := watched.GetInformer(ctx, &appsv1.Deployment{})
	need.OK(t, err)
	push := func(o any) {
		if d := o.(*appsv1.Deployment); d.Status.ObservedGeneration != d.Generation {
			n.work <- d
		}
	}
	need.OK(t, need.Err(informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: push, UpdateFunc: func(_, o any) { push(o) }})))
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case d := <-n.work:
					if err := n.rollOut(d); err != nil && ctx.Err() == nil {
						t.Errorf("play the nodes for %s: %v", d.Name, err)
					}
				}
			}
		})
	}
	t.Cleanup(group.Wait)
}

// rollOut makes the ReplicaSet and the pod, if they are not there, and says that all is rolled out.
func (n *nodes) rollOut(d *appsv1.Deployment) error {
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: d.Name + "-1", Namespace: d.Namespace, Labels: d.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
		Spec: appsv1.ReplicaSetSpec{Selector: d.Spec.Selector, Template: d.Spec.Template},
	}
	switch err := n.client.Create(n.ctx, set); {
	case err == nil:
		if err := n.run(d, set); err != nil {
			return err
		}
	case !apierrors.IsAlreadyExists(err):
		return err
	}
	now := d.DeepCopy()
	now.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
		Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"}}}
	return client.IgnoreNotFound(n.client.Status().Patch(n.ctx, now, client.MergeFrom(d)))
}

func (n *nodes) run(d *appsv1.Deployment, set *appsv1.ReplicaSet) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: set.Name + "-0", Namespace: d.Namespace, Labels: d.Spec.Template.Labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}},
		Spec: *d.Spec.Template.Spec.DeepCopy()}
	pod.Spec.ServiceAccountName = "" // no controller makes tokens here
	if err := n.client.Create(n.ctx, pod); err != nil {
		return fmt.Errorf("create the pod: %w", err)
	}
	address := n.address(d.Name)
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return n.client.Status().Update(n.ctx, pod)
}
