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
	"strings"
	"syscall"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
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
	need.That(t, err != nil && err.Error() == want, "while another process holds it the error is %v, want %s", err, want)
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
			need.That(t, err != nil && strings.HasPrefix(err.Error(), test.want), "the error is %v, want %s", err, test.want)
			downs, err := os.ReadFile(filepath.Join(scripts, "downs"))
			check(t, err)
			need.That(t, string(downs) == test.downs, "down.sh ran with %q, want %q", downs, test.downs)
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
	need.OK(t, err)
}
