package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Process is a child that ends with its parent, on Linux also when that is killed.
type Process struct {
	// Done is closed when the child has ended.
	Done chan struct{}

	cmd *exec.Cmd
}

// Start starts cmd as a user, nil for this process' own, in a process group of its own: a terminal's
// Ctrl-C is for this process, which then stops the child. When this process ends, the child gets the
// signal atParentExit.
//
// Linux sends that signal when the THREAD that started the child ends, so one goroutine keeps that
// thread until the child has ended. It returns an error when cmd does not start.
func Start(cmd *exec.Cmd, owner *syscall.Credential, atParentExit syscall.Signal) (*Process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: owner, Setpgid: true}
	endWithParent(cmd, atParentExit)
	p := &Process{Done: make(chan struct{}), cmd: cmd}
	started := make(chan error, 1)
	go func() {
		defer close(p.Done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in the server's log
		}
	}()
	return p, <-started
}

// Pid is the child's process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends sig to the child. That it has ended already is seen by Done.
func (p *Process) Signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// End sends sig to the child and waits for its end.
func (p *Process) End(sig syscall.Signal) {
	p.Signal(sig)
	<-p.Done
}

// Tail is the end of a log file, for an error message.
func Tail(path string) string {
	data, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(data[max(0, len(data)-1000):]))
}

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
