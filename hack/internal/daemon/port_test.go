package daemon

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// No two servers are given one port: a broker takes seconds until it listens.
func TestFreePort(t *testing.T) {
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
	other := exec.Command(os.Args[0], "-test.run=^TestFreePort$")
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
