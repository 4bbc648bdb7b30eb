// Package scenario is the main job as a story that can be played: a shop commits orders with their
// events, a consumer takes what the dispatchers deliver, and a ledger says at the end whether every
// committed event arrived and no rolled-back one did.
//
// The demo plays it for a person, the end-to-end test for a machine.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ErrNoCluster is returned where this machine can have no Kubernetes; the script has said why.
var ErrNoCluster = errors.New("this machine can have no cluster")

// Image is the name under which the operator's image is made.
const Image = "outbox-operator:dev"

// UpCluster starts an empty cluster of the name with the scripts of a checkout, after it removed what a run that was killed
// has left of it. What they do and how long it takes they say on standard error. Clusters of different names live side by
// side; one name is for one process, until Down or its end. It returns an error when another process has the name, when this
// machine can have no cluster, [ErrNoCluster], and when a script fails.
//
// What it started before an error is stopped, and its logs stay.
func UpCluster(ctx context.Context, checkout, name string) (_ *Cluster, err error) {
	held, err := hold(name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = held.Close()
		}
	}()
	c := &Cluster{scripts: filepath.Join(checkout, "hack"), name: name, held: held}
	if err := c.remove(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && !errors.Is(err, ErrNoCluster) {
			_, failed := c.script(context.WithoutCancel(ctx), "cluster/down.sh")
			err = errors.Join(err, failed)
		}
	}()
	out, err := c.script(ctx, "cluster/up.sh", "--env")
	if err != nil {
		return nil, orNoCluster(err)
	}
	values := map[string]*string{"KUBECTL": &c.Kubectl, "KUBECONFIG": &c.Kubeconfig, "HOST_IP": &c.HostIP, "HOST_LISTEN": &c.HostListen, "KUBECACHEDIR": &c.cache}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if field := values[name]; field != nil {
			*field = value
		}
		if name == "NODE_EXEC" {
			c.nodeExec = strings.Split(value, ",")
		}
	}
	for name, field := range values {
		if *field == "" {
			return nil, fmt.Errorf("cluster/up.sh --env has no %s", name)
		}
	}
	return c, nil
}

// BuildCluster builds what a cluster needs, which takes minutes once on a machine, and lets other programs go first. It returns
// [ErrNoCluster] where this machine can have none, and an error when a script fails.
func BuildCluster(ctx context.Context, checkout string) error {
	_, err := finished(ctx, exec.CommandContext(ctx, "nice", "-n", "10", filepath.Join(checkout, "hack/cluster/up.sh"), "--build"), "hack/cluster/up.sh")
	return orNoCluster(err)
}

// orNoCluster is ErrNoCluster in place of the error of a script that says so.
func orNoCluster(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 3 {
		return ErrNoCluster
	}
	return err
}

// Down stops the cluster, forgets its objects, and frees its name. It returns an error when its script fails.
func (c *Cluster) Down(ctx context.Context) error {
	return errors.Join(c.remove(ctx), c.held.Close())
}

func (c *Cluster) remove(ctx context.Context) error {
	_, err := c.script(ctx, "cluster/down.sh", "--purge")
	return err
}

// Install builds the image, loads it, applies config/default with more arguments for the manager, and
// waits for it. It returns an error when kubectl fails.
func (c *Cluster) Install(ctx context.Context, args ...string) error {
	if err := c.LoadImage(ctx, Image); err != nil {
		return err
	}
	return c.Deploy(ctx, args...)
}

// Deploy applies config/default with more arguments for the manager, and waits for it. The image is in the cluster.
// It returns an error when kubectl fails.
func (c *Cluster) Deploy(ctx context.Context, args ...string) error {
	if _, err := c.Run(ctx, "apply", "--server-side", "--force-conflicts", "-k", filepath.Join(c.scripts, "../config/default")); err != nil {
		return err
	}
	for _, arg := range args {
		patch := fmt.Sprintf(`[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": %q}]`, arg)
		if _, err := c.Run(ctx, "-n", "outbox-system", "patch", "deployment", "outbox-operator", "--type=json", "-p", patch); err != nil {
			return err
		}
	}
	_, err := c.Run(ctx, "-n", "outbox-system", "rollout", "status", "deployment", "--timeout=10m")
	return err
}

// LoadImage builds the image under a name and puts it into the cluster.
// It returns an error when the build or the import fails.
func (c *Cluster) LoadImage(ctx context.Context, name string) error {
	archive, err := os.CreateTemp("", "outbox-image-*.tar")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(archive.Name()) }()
	if err := archive.Close(); err != nil {
		return err
	}
	if err := BuildImage(ctx, filepath.Dir(c.scripts), name, archive.Name()); err != nil {
		return err
	}
	return c.LoadArchive(ctx, archive.Name())
}

// BuildImage writes the image of a checkout, under a name, to an archive. It needs no cluster.
// It returns an error when the build fails.
func BuildImage(ctx context.Context, checkout, name, archive string) error {
	archive, err := filepath.Abs(archive)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "run", "./hack/release", "image", name, archive)
	cmd.Dir = checkout
	_, err = finished(ctx, cmd, "hack/release")
	return err
}

// LoadArchive puts the image of an archive into the cluster. It returns an error when the import fails.
func (c *Cluster) LoadArchive(ctx context.Context, archive string) error {
	_, err := c.script(ctx, "cluster/load.sh", archive)
	return err
}

func (c *Cluster) script(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.scripts, name), args...)
	cmd.Env = append(os.Environ(), "OUTBOX_CLUSTER="+c.name)
	return finished(ctx, cmd, "hack/"+name)
}

// finished returns what a program writes. It returns an error with the name when the program fails.
func finished(ctx context.Context, cmd *exec.Cmd, name string) (string, error) {
	cmd.Stderr = os.Stderr
	// A script that is cut short takes its compilers with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return "", fmt.Errorf("%s was cut short: %w", name, context.Cause(ctx))
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return string(out), nil
}
