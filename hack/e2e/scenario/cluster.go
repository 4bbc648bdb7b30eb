package scenario

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// Cluster is a Kubernetes cluster as its user sees it: through kubectl.
type Cluster struct {
	// Kubectl is the program, Kubeconfig the file it uses.
	Kubectl, Kubeconfig string
	// HostIP is the address under which pods reach this machine; HostListen is where a server on this
	// machine listens for them.
	HostIP, HostListen string

	scripts, cache, name string
	held                 io.Closer // the lock of the name
	// nodeExec are the words that run a command on kind's node. Empty: the node's processes are this machine's.
	nodeExec []string
}

// Run runs kubectl and returns what it prints on standard output. An error has kubectl's output.
func (c *Cluster) Run(ctx context.Context, args ...string) (string, error) {
	return c.run(ctx, "", args...)
}

// Apply applies manifests. It returns an error when kubectl fails.
func (c *Cluster) Apply(ctx context.Context, manifests string) error {
	_, err := c.run(ctx, manifests, "apply", "-f", "-")
	return err
}

func (c *Cluster) run(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.Kubectl, args...)
	// The cluster is on this machine: no proxy leads to it.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "KUBECACHEDIR="+c.cache, "NO_PROXY=*", "no_proxy=*")
	cmd.Stdin = strings.NewReader(stdin)
	return output(cmd)
}

// OnNode runs a command where the processes of pods are, and returns what it prints on standard output: on this machine, or
// on kind's node. An error has the command's output.
func (c *Cluster) OnNode(ctx context.Context, args ...string) (string, error) {
	args = append(slices.Clone(c.nodeExec), args...)
	return output(exec.CommandContext(ctx, args[0], args[1:]...))
}

// output runs a command and returns its standard output. An error has its standard error.
func output(cmd *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", filepath.Base(cmd.Path), strings.Join(cmd.Args[1:], " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

// Until polls done until it is true. It returns an error with the last result when ctx ends first.
func Until(ctx context.Context, what string, done func() (bool, string)) error {
	last := "none"
	for {
		ok, now := done()
		if ok {
			return nil
		}
		if ctx.Err() == nil { // else the result is only that ctx ended
			last = now
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not in time; the last result was: %s", what, last)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Dispatcher is an OutboxDispatcher on a cluster, as a Stage.
type Dispatcher struct {
	*Cluster
	Namespace, Name string
}

// Columns is `kubectl get outboxdispatchers`. It returns an error when kubectl fails.
func (d *Dispatcher) Columns(ctx context.Context) (string, error) {
	return d.Run(ctx, "-n", d.Namespace, "get", "outboxdispatchers", d.Name)
}

// Pods names the dispatcher's pods that run. It returns an error when kubectl fails.
func (d *Dispatcher) Pods(ctx context.Context) ([]string, error) {
	out, err := d.Run(ctx, "-n", d.Namespace, "get", "pods", "-l", "outbox.dev/component=dispatcher,outbox.dev/dispatcher="+d.Name,
		"--field-selector=status.phase=Running", "-o", "jsonpath={.items[*].metadata.name}")
	return strings.Fields(out), err
}

// Status is what a pod says of itself. It returns an error when no pod responds.
func (d *Dispatcher) Status(ctx context.Context, pod string) (status.Status, error) {
	var s status.Status
	out, err := d.Run(ctx, "get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:8080/proxy%s", d.Namespace, pod, status.Path))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(out), &s)
}

// FreezeOne freezes the process of the pod that holds the most rows. It returns an error when no pod runs.
func (d *Dispatcher) FreezeOne(ctx context.Context) (Frozen, error) {
	pods, err := d.Pods(ctx)
	if err != nil {
		return Frozen{}, err
	}
	var victim string
	var worker uuid.UUID
	held := -1
	for _, pod := range pods {
		s, err := d.Status(ctx, pod)
		if err != nil {
			return Frozen{}, err
		}
		if s.InFlight.Rows > held {
			victim, held = pod, s.InFlight.Rows
			if worker, err = uuid.Parse(s.Worker); err != nil {
				return Frozen{}, fmt.Errorf("the worker id of pod %s: %w", pod, err)
			}
		}
	}
	if victim == "" {
		return Frozen{}, fmt.Errorf("no pod of %s/%s runs", d.Namespace, d.Name)
	}
	pid, err := d.PID(ctx, d.Namespace, victim, "dispatcher")
	if err != nil {
		return Frozen{}, err
	}
	return freeze(worker, func(signal syscall.Signal) error { return d.Signal(ctx, pid, signal) })
}

// Signal sends a signal to a process that PID found. It returns an error when the process has ended.
func (c *Cluster) Signal(ctx context.Context, pid int, signal syscall.Signal) error {
	if len(c.nodeExec) == 0 {
		return syscall.Kill(pid, signal)
	}
	// By name, since this system may count signals otherwise. The shell's own kill, since the node may have no other.
	_, err := c.OnNode(ctx, "sh", "-c", fmt.Sprintf("kill -%s %d", signalNames[signal], pid))
	return err
}

var signalNames = map[syscall.Signal]string{syscall.SIGSTOP: "STOP", syscall.SIGCONT: "CONT", syscall.SIGKILL: "KILL"}

// PID is the first process of a pod's container, as OnNode's commands count. It returns an error when the container does
// not run there.
func (c *Cluster) PID(ctx context.Context, namespace, pod, container string) (int, error) {
	id, err := c.Run(ctx, "-n", namespace, "get", "pod", pod, "-o", fmt.Sprintf("jsonpath={.status.containerStatuses[?(@.name==%q)].containerID}", container))
	if err != nil {
		return 0, err
	}
	_, id, _ = strings.Cut(id, "://")
	if id == "" {
		return 0, fmt.Errorf("container %s of pod %s has no id yet", container, pod)
	}
	if len(c.nodeExec) > 0 {
		out, err := c.OnNode(ctx, "crictl", "inspect", "-o", "go-template", "--template", "{{.info.pid}}", id)
		if err != nil {
			return 0, err
		}
		pid, err := strconv.Atoi(strings.TrimSpace(out))
		if err != nil {
			return 0, fmt.Errorf("the process of container %s of pod %s: %w", container, pod, err)
		}
		return pid, nil
	}
	files, err := filepath.Glob("/proc/[0-9]*/cgroup") // of all processes, the one in the container's cgroup
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), id) {
			continue // a process that just ended, or another container's
		}
		var pid int
		_, err = fmt.Sscanf(file, "/proc/%d/cgroup", &pid)
		return pid, err
	}
	return 0, fmt.Errorf("container %s has no process on this machine: it must run here to be reached from here", id)
}

// Shell writes arguments as a person would type them.
func Shell(args []string) string {
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = a
		if strings.ContainsAny(a, " {}()'\"\\*?$") {
			words[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// Condition is a condition as kubectl shows it.
type Condition struct {
	Status, Reason, Message string
	// Current is true when it is about the object's current generation, or it is absent, and the status is.
	Current bool
}

// Condition reads one condition. It returns an error when kubectl fails.
func (d *Dispatcher) Condition(ctx context.Context, kind string) (Condition, error) {
	const sep = "\x1f"
	path := fmt.Sprintf(`jsonpath={.metadata.generation}%[2]s{.status.conditions[?(@.type==%[1]q)].observedGeneration}%[2]s{.status.conditions[?(@.type==%[1]q)].status}%[2]s{.status.conditions[?(@.type==%[1]q)].reason}%[2]s{.status.conditions[?(@.type==%[1]q)].message}%[2]s{.status.observedGeneration}`, kind, sep)
	out, err := d.Run(ctx, "-n", d.Namespace, "get", "outboxdispatcher", d.Name, "-o", path)
	if err != nil {
		return Condition{}, err
	}
	f := strings.Split(out, sep)
	if len(f) != 6 {
		return Condition{}, fmt.Errorf("condition %s: unexpected output %q", kind, out)
	}
	return Condition{Status: f[2], Reason: f[3], Message: f[4], Current: f[0] == cmp.Or(f[1], f[5])}, nil
}

// WaitCondition waits until a condition has the status and, when reason is not empty, the reason; or one that is at rest then
// is absent. It returns an error when ctx ends first.
func (d *Dispatcher) WaitCondition(ctx context.Context, kind, status, reason string) error {
	atRest := v1alpha1.AtRest(metav1.Condition{Type: kind, Status: metav1.ConditionStatus(status), Reason: reason})
	what := fmt.Sprintf("condition %s=%s %s of %s/%s", kind, status, reason, d.Namespace, d.Name)
	return Until(ctx, what, func() (bool, string) {
		c, err := d.Condition(ctx, kind)
		if err != nil {
			return false, err.Error()
		}
		if atRest {
			return c.Status == "" && c.Current, fmt.Sprintf("%+v", c)
		}
		return c.Status == status && (reason == "" || c.Reason == reason) && c.Current, fmt.Sprintf("%+v", c)
	})
}

// WaitReady waits until Ready is True for the current generation. It returns an error when the timeout ends first.
func (d *Dispatcher) WaitReady(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return d.WaitCondition(ctx, "Ready", "True", "")
}
