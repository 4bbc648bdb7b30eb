//go:build linux && !race

package dispatcher_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/pgtest"
)

// A process that delivers a backlog as fast as it can takes a bounded amount of memory, whatever the
// size of the payloads. Each backlog is larger than its bound.
func TestMemory(t *testing.T) {
	const mib = 1 << 20
	for name, test := range map[string]struct{ events, size, bound int }{
		"small payloads": {events: 400_000, size: 200, bound: 64 * mib},
		"large payloads": {events: 320, size: mib, bound: 256 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.events*test.size <= test.bound {
				t.Fatal("all of the backlog fits: this test proves nothing")
			}
			dsn := pgtest.Migrated(t)
			if err := fillTopic(t.Context(), pgtest.Pool(t, dsn), test.events, test.size); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMemoryProcess$", "-test.v")
			// The collector is set as the binary sets it.
			cmd.Env = append(os.Environ(), "GOGC=400", "GOMEMLIMIT=160MiB", "OUTBOX_MEMORY_DSN="+dsn, "OUTBOX_MEMORY_EVENTS="+strconv.Itoa(test.events))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			_, after, _ := strings.Cut(string(out), "peak: ")
			var peak int
			if _, err := fmt.Sscan(after, &peak); err != nil {
				t.Fatalf("no peak in %s", out)
			}
			t.Logf("%d events of %d bytes: peak of %.1f MiB", test.events, test.size, float64(peak)/mib)
			if peak > test.bound {
				t.Errorf("the process took up to %d MiB, want at most %d", peak/mib, test.bound/mib)
			}
		})
	}
}

// TestMemoryProcess is the process of TestMemory.
func TestMemoryProcess(t *testing.T) {
	dsn := os.Getenv("OUTBOX_MEMORY_DSN")
	if dsn == "" {
		t.Skip("TestMemory runs it")
	}
	events, err := strconv.Atoi(os.Getenv("OUTBOX_MEMORY_EVENTS"))
	if err != nil {
		t.Fatal(err)
	}
	acked := &counter{done: make(chan struct{})}
	acked.left.Store(int64(events))
	d, err := dispatcher.New(pgstore.New(pgtest.Pool(t, dsn), pgstore.Options{Namespace: "shop"}),
		dispatcher.Handlers{"orders": func(context.Context, *dispatcher.Event) error { return nil }},
		dispatcher.Config{Observer: acked, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = d.Run(ctx) }()
	<-acked.done
	cancel()
	<-ended
	fmt.Println("peak:", peakMemory(t))
}

// peakMemory is the most memory that this process ever had, in bytes.
func peakMemory(t *testing.T) int {
	file, err := os.Open("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var kb int
		if n, _ := fmt.Sscanf(lines.Text(), "VmHWM: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	t.Fatal("the system does not tell the peak")
	return 0
}
