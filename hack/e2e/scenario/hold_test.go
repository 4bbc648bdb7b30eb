package scenario

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// asHolder turns this test binary into a process that holds a cluster until its standard input ends.
const asHolder = "RUN_AS_HOLDER"

func TestMain(m *testing.M) {
	path := os.Getenv(asHolder)
	if path == "" {
		os.Exit(m.Run())
	}
	if _, err := lockFile(path, "e2e"); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("held")
	_, _ = io.ReadAll(os.Stdin)
}

func TestOneProcessHoldsTheCluster(t *testing.T) {
	path := filepath.Join(t.TempDir(), "held")
	check(t, os.WriteFile(path, []byte("4194304 (an earlier holder whose name is longer)\n"), 0o600))
	holder := exec.Command(os.Args[0])
	holder.Env = append(os.Environ(), asHolder+"="+path)
	stdin, err := holder.StdinPipe()
	check(t, err)
	defer stdin.Close()
	stdout, err := holder.StdoutPipe()
	check(t, err)
	check(t, holder.Start())
	if line, _ := bufio.NewReader(stdout).ReadString('\n'); line != "held\n" {
		t.Fatalf("the first process printed %q, want held", line)
	}

	_, err = lockFile(path, "e2e")
	want := fmt.Sprintf("process %d (%s) uses the cluster e2e: wait until it ends, or end it", holder.Process.Pid, filepath.Base(os.Args[0]))
	if err == nil || err.Error() != want {
		t.Errorf("while another process holds it the error is %v, want %s", err, want)
	}
	other, err := lockFile(path+"2", "demo")
	check(t, err)
	check(t, other.Close())

	check(t, holder.Process.Kill())
	_ = holder.Wait() // it was killed
	lock, err := lockFile(path, "e2e")
	check(t, err)
	text, err := os.ReadFile(path)
	check(t, err)
	if want := fmt.Sprintf("%d (%s)\n", os.Getpid(), filepath.Base(os.Args[0])); string(text) != want {
		t.Errorf("after the holder was killed the file has %q, want %q", text, want)
	}
	check(t, lock.Close())
}

// programs are kind, docker and kubectl, as far as the scripts and a story use them.
const programs = `#!/bin/sh
program=${0##*/}
echo "$program $*" >>"$DIR/log"
case "$program $*" in
  "kind get clusters") cat "$DIR/clusters" ;;
  "kind create cluster "*) echo "$4" >>"$DIR/clusters" ;;
  "docker exec "*getent*) echo "127.0.0.1 STREAM host" ;;
  "docker exec "*crictl*) echo 4711 ;;
  "kubectl "*containerStatuses*) echo containerd://c0ffee ;;
  "kubectl "*" get pods "*) echo pod-1 ;;
  "kubectl get --raw "*) echo '{"worker": "0190a5c8-5d1e-7000-8000-000000000001", "inFlight": {"rows": 3}}' ;;
esac
[ "$program" != kubectl ] || [ "$NO_PROXY" = "*" ]
`

// A person's own cluster of the same short name is left alone, and a dispatcher is killed on kind's node. A real kind could
// not be had when this was written.
func TestClusterOfKind(t *testing.T) {
	dir, name := t.TempDir(), fmt.Sprint("t", os.Getpid())
	t.Cleanup(func() { _ = os.Remove(lockPath(name)) })
	for _, program := range []string{"kind", "docker", "kubectl"} {
		check(t, os.WriteFile(filepath.Join(dir, program), []byte(programs), 0o700))
	}
	check(t, os.WriteFile(filepath.Join(dir, "clusters"), []byte(name+"\n"), 0o600))
	for key, value := range map[string]string{"PATH": dir + ":" + os.Getenv("PATH"), "DIR": dir, "OUTBOX_CACHE": dir, "KIND_EXPERIMENTAL_PROVIDER": "", "OUTBOX_CLUSTER": name} {
		t.Setenv(key, value)
	}

	c, err := UpCluster(t.Context(), "../../..", name)
	check(t, err)
	frozen, err := (&Dispatcher{Cluster: c, Namespace: "shop", Name: "orders"}).FreezeOne(t.Context())
	check(t, err)
	check(t, frozen.resume())
	check(t, frozen.kill())
	check(t, exec.Command("../../cluster/down.sh", "--clean").Run()) // make clean, next to a run
	check(t, c.Down(t.Context()))

	kind, kubeconfig := "outbox-operator-"+name, filepath.Join(dir, "cluster-"+name, "kubeconfig")
	if uid := os.Geteuid(); uid != 0 {
		kind += fmt.Sprint("-", uid)
	}
	node := "docker exec " + kind + "-control-plane "
	want := []string{
		"kind create cluster --name " + kind + " --kubeconfig " + kubeconfig + " --wait 3m",
		node + "crictl inspect -o go-template --template {{.info.pid}} c0ffee",
		node + "sh -c kill -STOP 4711", node + "sh -c kill -CONT 4711", node + "sh -c kill -KILL 4711",
		"kind delete cluster --name " + kind + " --kubeconfig " + kubeconfig,
	}
	text, err := os.ReadFile(filepath.Join(dir, "log"))
	check(t, err)
	var got []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " cluster ") || strings.Contains(line, "crictl") || strings.Contains(line, "kill") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the programs were run with\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestClusterThatDidNotComeUpIsStopped(t *testing.T) {
	name := fmt.Sprint("t", os.Getpid())
	t.Cleanup(func() { _ = os.Remove(lockPath(name)) })
	for what, test := range map[string]struct {
		up, downs, want string
	}{
		"it failed":       {"exit 1", "--purge\n\n", "hack/cluster/up.sh: exit status 1"},
		"it was cut":      {`echo >"${0%/*}/started"; exec sleep 600`, "--purge\n\n", "hack/cluster/up.sh was cut short: context canceled"},
		"it printed less": {"echo", "--purge\n\n", "cluster/up.sh --env has no "},
		"there is none":   {"exit 3", "--purge\n", ErrNoCluster.Error()},
	} {
		t.Run(what, func(t *testing.T) {
			checkout := t.TempDir()
			scripts := filepath.Join(checkout, "hack/cluster")
			check(t, os.MkdirAll(scripts, 0o700))
			check(t, os.WriteFile(filepath.Join(scripts, "up.sh"), []byte("#!/bin/sh\n"+test.up+"\n"), 0o700))
			check(t, os.WriteFile(filepath.Join(scripts, "down.sh"), []byte("#!/bin/sh\necho \"$*\" >>\"${0%/*}/downs\"\n"), 0o700))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if started := filepath.Join(scripts, "started"); what == "it was cut" {
				check(t, syscall.Mkfifo(started, 0o600))
				go func() { _, _ = os.ReadFile(started); cancel() }() // it returns when the script has written
			}
			_, err := UpCluster(ctx, checkout, name)
			if err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("the error is %v, want %s", err, test.want)
			}
			downs, err := os.ReadFile(filepath.Join(scripts, "downs"))
			check(t, err)
			if string(downs) != test.downs {
				t.Errorf("down.sh ran with %q, want %q", downs, test.downs)
			}
			lock, err := hold(name)
			check(t, err)
			check(t, lock.Close())
		})
	}
}

func TestConsumerIsReachedWithoutAProxy(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	server := httptest.NewServer(&Consumer{})
	defer server.Close()
	// The address of any interface leads here too, and is none of those for which Go takes no proxy anyway.
	_, err := Deliveries(t.Context(), strings.Replace(server.URL, "127.0.0.1", "0.0.0.0", 1))
	check(t, err)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
