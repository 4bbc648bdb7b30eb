//go:build unix

package engine_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// childDSN makes TestStoppedProcessBeginsNothing the process that is stopped: a dispatcher on this database.
const childDSN = "OUTBOX_TEST_STOPPED_PROCESS"

// A process that is stopped for longer than its lease, and then continues, begins nothing of what it
// had claimed: another worker has it.
//
// CONTRACT: C-23 C-31
func TestStoppedProcessBeginsNothing(t *testing.T) {
	if dsn := os.Getenv(childDSN); dsn != "" {
		stoppedProcess(t, dsn)
		return
	}
	const events = 20
	t.Parallel()
	dsn := pgtest.Migrated(t)
	r := rig{t, pgtest.Pool(t, dsn)}
	r.enqueue("orders", events)

	child := exec.Command(os.Args[0], "-test.run=^TestStoppedProcessBeginsNothing$")
	child.Env = append(os.Environ(), childDSN+"="+dsn)
	child.Stderr = os.Stderr
	stdin, err := child.StdinPipe()
	need.OK(t, err)
	stdout, err := child.StdoutPipe()
	need.OK(t, err)
	need.OK(t, child.Start())
	t.Cleanup(func() { _ = child.Process.Kill() })
	lines := bufio.NewScanner(stdout)
	next := func() string {
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "begun") || strings.HasPrefix(lines.Text(), "lost") {
				return lines.Text()
			}
		}
		return "the end"
	}

	if line := next(); line != "begun 1" {
		t.Fatalf("the child said %q, want the begin of the first delivery", line)
	}
	need.OK(t, child.Process.Signal(syscall.SIGSTOP))
	r.eventually("the leases expire", func() bool { return r.count("status = 'processing' and locked_until < now()") == events })
	r.start(r.store(), &book{}, dispatcher.Config{})
	r.eventually("another worker delivers everything", func() bool { return r.count("status = 'delivered' and attempts = 1 and suspicion > 1") == events })

	_, err = io.WriteString(stdin, "continue\n")
	need.OK(t, err)
	need.OK(t, child.Process.Signal(syscall.SIGCONT))
	for lost := 0; lost < events; {
		var n int
		if line := next(); !strings.HasPrefix(line, "lost ") {
			t.Fatalf("after it was stopped, the child said %q; want lost leases and no delivery", line)
		} else if _, err := fmt.Sscanf(line, "lost %d", &n); err != nil {
			t.Fatal(err)
		}
		lost += n
	}
	stdin.Close()
	need.Want(t, "the end", "the child said %q at the end", next())
	need.Want(t, nil, "the child ended with %v", child.Wait())
	need.Want(t, events, "%d of %d rows are as the other worker left them", r.count("status = 'delivered' and attempts = 1 and suspicion > 1 and last_error is null"))
}

// stoppedProcess runs a dispatcher until standard input ends. Its first delivery lasts until the
// first line.
func stoppedProcess(t *testing.T, dsn string) {
	proceed := make(chan struct{})
	sink := &book{respond: func(_ context.Context, e *dispatcher.Event) error {
		fmt.Println("begun", e.Attempt)
		<-proceed
		return nil
	}}
	r := rig{t, pgtest.Pool(t, dsn)}
	d := r.start(r.store(), sink, dispatcher.Config{Lease: time.Second, BatchSize: 100, Concurrency: 1, Observer: &teller{}})
	lines := bufio.NewScanner(os.Stdin)
	lines.Scan()
	close(proceed)
	for lines.Scan() {
	}
	d.stop()
}

// teller is an Observer that prints the leases that were lost.
type teller struct{ watcher }

func (*teller) LeaseLost(n int) { fmt.Println("lost", n) }
