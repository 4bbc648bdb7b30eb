package daemon

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// Pause returns when a process stands still, also one that has ended and was not waited for: a frozen
// PostgreSQL has such children.
func TestPauseReturnsWhenTheProcessStands(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"running": "exec >&-; while :; do :; done",
		"ended":   "",
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait() // killed
			}()
			if _, err := io.Copy(io.Discard, out); err != nil { // until it runs, or has ended
				t.Fatal(err)
			}
			still := make(chan bool, 1)
			go func() {
				Pause(cmd.Process.Pid)
				still <- stopped(cmd.Process.Pid)
			}()
			select {
			case ok := <-still:
				if !ok {
					t.Error("it runs")
				}
			case <-time.After(need.Wait):
				t.Fatal("Pause does not return")
			}
		})
	}
}

// No two servers are given one port: a broker takes seconds until it listens.
func TestFreePortIsGivenOnce(t *testing.T) {
	const many = 400 // two processes with as many at random would meet in about 16 of them
	if os.Getenv("OUTBOX_TEST_PORTS") != "" {
		for range many {
			port, err := FreePort()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Println("port", port)
		}
		fmt.Println("done")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // ports are given while the process lives
		return
	}
	other := exec.Command(os.Args[0], "-test.run=^TestFreePortIsGivenOnce$")
	other.Env = append(os.Environ(), "OUTBOX_TEST_PORTS=1")
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	given := map[string]bool{}
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "done"; {
		given[strings.TrimPrefix(lines.Text(), "port ")] = true
	}
	if len(given) != many {
		t.Errorf("the other process: %d ports of %d", len(given), many)
	}
	for range many {
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if name := fmt.Sprint(port); given[name] {
			t.Errorf("port %s was given twice", name)
		} else {
			given[name] = true
		}
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if err := other.Wait(); err != nil {
		t.Error(err)
	}
}
