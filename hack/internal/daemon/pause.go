package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Pause freezes the child: it keeps its connections, and does not respond until Resume.
func (p *Process) Pause() { Pause(p.Pid()) }

// Resume lets a paused child continue.
func (p *Process) Resume() { p.Signal(syscall.SIGCONT) }

// Pause stops a process, and returns when it stands still. The signal alone does not say so: threads
// stop one after the other, and until then one of them may respond to a request.
func Pause(pid int) {
	_ = syscall.Kill(pid, syscall.SIGSTOP) // that it has ended is as good
	for !stopped(pid) {
		time.Sleep(time.Millisecond)
	}
}

// stopped reports whether no thread of a process runs any more: it was stopped, or has ended and is not
// waited for yet (Z). What it cannot see counts as stopped.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is well-formed
	for _, path := range threads {
		stat, err := os.ReadFile(path)
		if _, state, _ := strings.Cut(string(stat), ") "); err == nil && state != "" && !strings.Contains("TZX", state[:1]) {
			return false
		}
	}
	return true
}
