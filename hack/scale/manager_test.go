package scale

import (
	"bytes"
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

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
)

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
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	binary, kubeconfig := filepath.Join(dir, "manager"), filepath.Join(dir, "kubeconfig")
	build := exec.Command("go", "build", "-o", binary, "./controllers/cmd/manager")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the manager: %v\n%s", err, out)
	}
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: cfg.Host, CertificateAuthorityData: cfg.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"admin": {ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "admin"}},
		CurrentContext: "test",
	}, kubeconfig); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(binary, "--kubeconfig="+kubeconfig, "--dispatcher-image=outbox-operator:test", "--watch-namespaces="+namespace,
		"--metrics-bind-address=0", "--health-probe-bind-address=0")
	cmd.Env = append(os.Environ(), "POD_NAMESPACE=outbox-system")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		o.t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "apiserver_request_total{") && written.MatchString(line) && regexp.MustCompile(`verb="(APPLY|DELETE|DELETECOLLECTION|PATCH|POST|PUT)"`).MatchString(line) {
			n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			if err != nil {
				t.Fatal(err)
			}
			total += int(n)
		}
	}
	return total
}
