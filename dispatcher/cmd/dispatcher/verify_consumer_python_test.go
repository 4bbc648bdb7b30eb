package main

import (
	"bufio"
	"context"
	"net"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/python"
)

var flask = []string{"flask==3.1.3", "werkzeug==3.1.9"}

// inPython runs testdata/consumer.py until the test ends, and again when it has crashed. It returns its port.
func inPython(t *testing.T, dir, kind string) (port string) {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	port = strconv.Itoa(free.Addr().(*net.TCPAddr).Port)
	check(t, free.Close())
	ctx, cancel := context.WithCancel(context.Background())
	listening, ended := make(chan bool), make(chan struct{})
	_, err = python.Command(ctx, flask)
	need.Server(t, err, python.ErrMissing)
	go func() {
		defer close(ended)
		for first := true; ctx.Err() == nil; {
			cmd, err := python.Command(ctx, flask, "testdata/consumer.py", port, dir, kind)
			if err != nil {
				return
			}
			out, err := cmd.StdoutPipe()
			if err != nil || cmd.Start() != nil {
				return
			}
			if line := bufio.NewScanner(out); line.Scan() && first {
				first = false
				listening <- true
			}
			_ = cmd.Wait() // it was killed
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	select {
	case <-listening:
	case <-ended:
		t.Fatal("the consumer did not start")
	}
	return port
}

// A right and a broken consumer in Python, on Flask and sqlite3, which crash for real. The second writes record
// and effect each by itself.
//
// CONTRACT: C-81
func TestVerifyConsumerInPython(t *testing.T) {
	t.Parallel()
	for kind, broken := range map[string]string{"right": "", "broken": "RULE-010-012"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			url := "http://127.0.0.1:" + inPython(t, dir, kind)
			got := run(t, "", "verify-consumer", "--url", url+"/events", "--probe", url+"/effects?id={id}", "--probe-member", "effects",
				"--fail", "echo {state} > "+filepath.Join(dir, "fail"), "--crash", "echo {state} > "+filepath.Join(dir, "crash"))
			if broken == "" {
				got.ok(t, "of 19 checks 15 passed, 0 passed partly, 0 found a rule broken, 4 were not run\n")
				return
			}
			got.ended(t, 3, "the consumer breaks "+broken+"\n", broken+" broken: ")
		})
	}
}
