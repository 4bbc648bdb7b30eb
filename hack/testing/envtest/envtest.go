// Package envtest gives tests a real API server: etcd and kube-apiserver on 127.0.0.1, with the
// CRDs of the chart. There is no controller manager, scheduler or kubelet, so nothing happens to
// an object unless a test does it.
//
//	func TestMain(m *testing.M) { envtest.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		cfg := envtest.Start(t)
//	}
package envtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// assetsEnv names the directory of the binaries. Without it hack/pins/kube builds them.
const assetsEnv = "KUBEBUILDER_ASSETS"

var server struct {
	sync.Mutex
	inMain bool
	env    *envtest.Environment
	config *rest.Config
	err    error
}

// Main runs a package's tests and exits; a server that they started is stopped, also when a signal
// ends the tests early. Call it from TestMain. Gomega's Eventually waits for [need.Wait], and polls each 20 ms.
func Main(m *testing.M) {
	gomega.SetDefaultEventuallyTimeout(need.Wait)
	gomega.SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	server.inMain = true
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		stop()
		os.Exit(1)
	}()
	code := m.Run()
	stop()
	os.Exit(code)
}

// Start returns an administrator's way to the API server, which all tests of the process share:
// the first call starts it, in about 3 s. A test that needs a place of its own makes a namespace.
//
// The binaries are those in KUBEBUILDER_ASSETS; when it is not set, hack/pins/kube/build.sh provides
// them, which takes minutes the first time.
func Start(tb testing.TB) *rest.Config {
	tb.Helper()
	server.Lock()
	defer server.Unlock()
	if !server.inMain {
		tb.Fatal("envtest.Start: the server would never stop; add func TestMain(m *testing.M) { envtest.Main(m) } to the package")
	}
	if server.env == nil && server.err == nil {
		server.err = start()
	}
	if server.err != nil {
		tb.Fatalf("start the API server: %v", server.err)
	}
	return rest.CopyConfig(server.config)
}

// Kubectl runs kubectl with the arguments as the administrator of the API server. The error holds
// what it wrote to standard error.
func Kubectl(tb testing.TB, stdin string, args ...string) (stdout string, err error) {
	tb.Helper()
	kubeconfig := Kubeconfig(tb)
	cmd := exec.CommandContext(tb.Context(), server.env.ControlPlane.KubectlPath, append([]string{"--kubeconfig", kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

// Kubeconfig writes a file with an administrator's way to the API server, for programs that read one.
func Kubeconfig(tb testing.TB) string {
	tb.Helper()
	Start(tb)
	file := filepath.Join(tb.TempDir(), "kubeconfig")
	need.OK(tb, os.WriteFile(file, server.env.KubeConfig, 0o600))
	return file
}

// FreeAddress is an address of 127.0.0.1 for a server that a test starts. No other test of the user is given it.
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	port, err := daemon.FreePort()
	need.OK(tb, err)
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// Root is the checkout's top directory. It returns an error outside a checkout.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "hack", "pins", "kube", "build.sh")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("hack/pins/kube/build.sh is in no parent of the working directory; run the tests inside the checkout")
		}
	}
}

func start() error {
	root, err := Root()
	if err != nil {
		return err
	}
	assets := os.Getenv(assetsEnv)
	if assets == "" {
		if assets, err = build(root); err != nil {
			return err
		}
	}
	// A machine that builds and tests other packages too starts a server late. What envtest waits for after that has
	// limits of its own, which cannot be set: so a start that failed is tried once more.
	var failed error
	for range 2 {
		env := &envtest.Environment{
			BinaryAssetsDirectory:    assets,
			CRDDirectoryPaths:        []string{filepath.Join(root, "charts", "outbox-operator", "files", "crds")},
			ErrorIfCRDPathMissing:    true,
			ControlPlaneStartTimeout: need.Wait,
		}
		config, err := env.Start()
		if err == nil {
			server.env, server.config = env, config
			return nil
		}
		failed = errors.Join(failed, err, env.Stop())
	}
	return failed
}

// build returns the directory of the binaries that hack/pins/kube pins.
func build(root string) (string, error) {
	cmd := exec.Command(filepath.Join(root, "hack", "pins", "kube", "build.sh"), "test")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("hack/pins/kube/build.sh test: %w; its output above says why, or set %s to a directory with etcd, kube-apiserver and kubectl", err, assetsEnv)
	}
	lines := strings.Fields(string(out))
	return lines[len(lines)-1], nil
}

func stop() {
	server.Lock()
	defer server.Unlock()
	if server.env == nil {
		return
	}
	if err := server.env.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "envtest: stop the API server:", err)
	}
	server.env = nil
}
