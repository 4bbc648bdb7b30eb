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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
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

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// What a user with the role edit in a namespace of his own may make, with the operator's label: the sum of it takes
// neither the manager's memory nor the others' time, also when the manager begins.
func TestHostileObjectsLeaveMemoryAndOthersAlone(t *testing.T) {
	const size, configMaps, events, pods, templates = 4, 300, 40_000, 140, 8
	w := newWorld(t, "bounded", size, func(int) behaviour { return wellBehaved })
	w.dispatchers(size, nil)
	well := func(int) behaviour { return wellBehaved }
	w.until("all", 5*time.Minute, func() (bool, string) { return w.reconciled(size, well) })
	control := w.operator.memory()

	labels := map[string]string{"outbox.dev/managed-by": "outbox-operator", "outbox.dev/dispatcher": name(0), "outbox.dev/component": "dispatcher"}
	meta := func(kind string, i int) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: fmt.Sprintf("eve-%s-%d", kind, i), Namespace: w.namespace, Labels: labels}
	}
	megabyte := strings.Repeat("x", 1_000_000)
	w.many(configMaps, func(i int) client.Object {
		return &corev1.ConfigMap{ObjectMeta: meta("file", i), Data: map[string]string{"file": megabyte}}
	})
	w.many(pods, func(i int) client.Object {
		return &corev1.Pod{ObjectMeta: meta("pod", i), Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"no": "node"},
			Containers:   []corev1.Container{{Name: "dispatcher", Image: "image", Env: []corev1.EnvVar{{Name: "A", Value: megabyte}}}},
		}}
	})
	w.many(events, func(i int) client.Object {
		return &corev1.Event{ObjectMeta: meta("event", i), Reason: "FailedMount", Message: megabyte[:1000], LastTimestamp: metav1.Now(),
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: w.namespace, Name: fmt.Sprint("pod-", i), UID: types.UID(fmt.Sprint(i))}}
	})
	var volumes strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&volumes, `,{"name":"v%d"}`, i)
	}
	w.many(templates, func(i int) client.Object {
		return &v1alpha1.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("eve-%d", i), Namespace: w.namespace}, Spec: spec.Dispatcher{
			Namespace: "shop", Topics: []string{name(i)}, Sink: spec.Sink{Log: &spec.LogSink{}}, Database: &spec.DispatcherDatabase{SecretRef: spec.SecretRef{Name: "db"}},
			Pods: spec.Pods{Template: json.RawMessage(`{"spec":{"volumes":[` + volumes.String()[1:] + `]}}`)},
		}}
	})
	edit := w.edit(0)
	during := w.operator.memory()
	w.operator.stop()
	w.operator = startOperator(t, w.cfg, w.namespace)
	again := w.edit(1)
	memory := w.operator.memory()
	t.Logf("manager %.0f MiB before, %.0f MiB with the hostile objects and an edit after %.1f s, %.0f MiB from its start and an edit after %.1f s", control, during, edit.Seconds(), memory, again.Seconds())
	if max(during, memory) > maxMemory {
		t.Errorf("the manager took %.0f MiB, want %d at most", max(during, memory), maxMemory)
	}
}

// many creates so many objects, eight at a time.
func (w *world) many(n int, object func(int) client.Object) {
	w.t.Helper()
	var group sync.WaitGroup
	for part := range 8 {
		group.Go(func() {
			for i := part; i < n; i += 8 {
				if err := w.admin.Create(w.t.Context(), object(i)); err != nil {
					w.t.Errorf("create object %d: %v", i, err)
					return
				}
			}
		})
	}
	group.Wait()
}

// operator is the manager as a process.
type operator struct {
	t   *testing.T
	cmd *exec.Cmd
	// stop ends it, once.
	stop func()
}

// startOperator builds the manager and runs it for one namespace, as an administrator. It makes NetworkPolicies, as in a
// cluster.
func startOperator(t *testing.T, cfg *rest.Config, namespace string) *operator {
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
	cmd := exec.Command(binary, "--kubeconfig="+kubeconfig, "--dispatcher-image=outbox-operator:test", "--watch-namespaces="+namespace,
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
