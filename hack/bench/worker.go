package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// worker is a worker process: this program again, or Node.js.
type worker struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr *tail

	ready chan struct{} // closed when the process is ready
	ended chan struct{} // closed when it has ended

	mu     sync.Mutex
	latest report
	err    error // how it ended
}

// startWorker runs a job in a process of its own, and returns when it is ready.
func startWorker(ctx context.Context, argv []string, j job) (*worker, error) {
	arg, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	w := &worker{
		cmd: exec.Command(argv[0], append(argv[1:], string(arg))...), stderr: &tail{},
		ready: make(chan struct{}), ended: make(chan struct{}),
	}
	w.cmd.Stderr = w.stderr
	w.cmd.Env = append([]string{"GOGC=125", "GOMEMLIMIT=160MiB"}, os.Environ()...) // as our binary sets it, unless it is set; for all that are in Go
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}                        // a terminal's Ctrl-C is for this process alone
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	go w.listen(stdout)
	select {
	case <-w.ready:
		return w, nil
	case <-w.ended:
		return nil, w.failure("ended before it was ready")
	case <-ctx.Done():
		w.kill()
		return nil, w.failure("was not ready in time")
	}
}

// listen reads the process's reports until it ends. Its standard input is a pipe from this process:
// when this process ends, so does the worker.
func (w *worker) listen(stdout io.Reader) {
	defer close(w.ended)
	in := json.NewDecoder(bufio.NewReaderSize(stdout, 1<<20))
	for {
		var r report
		if err := in.Decode(&r); err != nil {
			break
		}
		if r.Ready {
			close(w.ready)
			continue
		}
		w.mu.Lock()
		w.latest = r
		w.mu.Unlock()
	}
	err := w.cmd.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	if w.latest.Error != "" {
		w.err = errors.Join(errors.New(w.latest.Error), err)
	}
}

func (w *worker) read() (report, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.latest, w.err
}

// begin has the process start working.
func (w *worker) begin() error {
	_, err := w.stdin.Write([]byte("\n"))
	return err
}

// stop ends the process and returns its last report.
func (w *worker) stop() (report, error) {
	_ = w.stdin.Close() // that it has ended is seen below
	select {
	case <-w.ended:
	case <-time.After(15 * time.Second):
		w.kill()
		return report{}, w.failure("did not stop within 15s")
	}
	r, err := w.read()
	if err != nil {
		return r, w.failure("failed")
	}
	return r, nil
}

func (w *worker) kill() {
	_ = w.cmd.Process.Kill() // it may have ended
	<-w.ended
}

func (w *worker) failure(what string) error {
	_, err := w.read()
	return errors.Join(fmt.Errorf("worker process %d %s: %s", w.cmd.Process.Pid, what, w.stderr), err)
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-1500):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}

// procStat is the CPU time of a process, with that of its ended children, and its parent.
func procStat(pid int) (own, children time.Duration, parent int, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, 0, err
	}
	_, rest, _ := strings.Cut(string(data), ") ") // the name before it may hold anything but this
	f := strings.Fields(rest)
	if len(f) < 15 {
		return 0, 0, 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(f))
	}
	ticks := make([]int64, 4)
	for i := range ticks {
		if ticks[i], err = strconv.ParseInt(f[11+i], 10, 64); err != nil {
			return 0, 0, 0, err
		}
	}
	if parent, err = strconv.Atoi(f[1]); err != nil {
		return 0, 0, 0, err
	}
	const tick = time.Second / 100 // USER_HZ of every Linux
	return time.Duration(ticks[0]+ticks[1]) * tick, time.Duration(ticks[2]+ticks[3]) * tick, parent, nil
}

// treeCPU is the CPU time that a process and its children have used, ended ones too.
func treeCPU(root int) (time.Duration, error) {
	own, ended, _, err := procStat(root)
	if err != nil {
		return 0, err
	}
	total := own + ended
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if own, _, parent, err := procStat(pid); err == nil && parent == root { // else it has just ended
			total += own
		}
	}
	return total, nil
}

// memory is what a process had mapped at most, and what it has mapped of files now, which is its program.
// In bytes.
type memory struct{ peak, file int64 }

func memoryOf(pid int) (m memory, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(line, ":")
		to := map[string]*int64{"VmHWM": &m.peak, "RssFile": &m.file}[name]
		if to == nil {
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		if err != nil {
			return m, err
		}
		*to = kb << 10
	}
	if m.peak == 0 {
		return m, fmt.Errorf("/proc/%d/status has no VmHWM", pid)
	}
	return m, nil
}
