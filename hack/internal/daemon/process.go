package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
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
