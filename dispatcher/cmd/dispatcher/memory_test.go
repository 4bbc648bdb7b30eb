//go:build linux && !race

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
)

// A dispatcher that delivers a backlog at full speed takes a bounded amount of memory, whatever the size of the payloads.
// Each backlog is larger than its bound. The bounds leave out memory that is mapped from files: 28 MiB of the image's program.
// Alone on the machine it takes 29 to 36 MiB more with small payloads. The collector falls behind when others use the cores: at a load of 20
// it took 54 MiB.
func TestMemoryIsBoundedUnderABacklog(t *testing.T) {
	const mib = 1 << 20
	consumer := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer consumer.Close()
	for _, test := range []struct {
		name, config        string
		events, size, bound int
	}{
		{"small payloads", dispatching("{log: {}}") + "delivery: {batchSize: 2000}\n", 400_000, 200, 72 * mib},
		{"large payloads", dispatching("{http: {url: '" + consumer.URL + "'}}"), 320, mib, 228 * mib},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.events*test.size <= test.bound {
				t.Fatal("all of the backlog fits: this test proves nothing")
			}
			o := installed(t)
			o.exec(t, fmt.Sprintf(`insert into outbox.outbox_events (id, namespace, topic, payload)
				select gen_random_uuid(), 'shop', 'orders', to_jsonb(repeat('x', %d)) from generate_series(1, %d)`, test.size-2, test.events))
			cmd := command(t, "run", "-f", o.file(t, o.dispatcher, test.config), "--listen", "127.0.0.1:0")
			var errs strings.Builder
			cmd.Stderr = &errs
			check(t, cmd.Start())
			await(t, "all are delivered", func() bool { return o.count(t, "live") == 0 })
			peak, file := memoryOf(t, cmd.Process.Pid)
			check(t, cmd.Process.Signal(syscall.SIGTERM))
			if err := cmd.Wait(); err != nil {
				t.Errorf("it ended with %v: %s", err, &errs)
			}
			t.Logf("%d events of %d bytes: peak of %.1f MiB, %.1f of them mapped from files", test.events, test.size, float64(peak)/mib, float64(file)/mib)
			if peak-file > test.bound {
				t.Errorf("the process took up to %.1f MiB without mapped files, want at most %d", float64(peak-file)/mib, test.bound/mib)
			}
		})
	}
}

// memoryOf returns the peak of a process's memory, and its part that is mapped from files now, in bytes.
func memoryOf(t *testing.T, pid int) (peak, file int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	check(t, err)
	for line := range strings.Lines(string(text)) {
		var kb int
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kb); n == 1 {
			peak = kb << 10
		}
		if n, _ := fmt.Sscanf(line, "RssFile: %d kB", &kb); n == 1 {
			file = kb << 10
		}
	}
	if peak == 0 {
		t.Fatal("/proc does not have the peak")
	}
	return peak, file
}
