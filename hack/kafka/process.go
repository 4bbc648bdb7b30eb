package kafka

import (
	"os/exec"
	"runtime"
	"syscall"
)

// process is a child that ends with its parent.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has ended
}

// startProcess starts cmd. Linux sends the parent's death signal when the THREAD that started the
// child ends, so one goroutine keeps that thread until the child has ended.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	endWithParent(cmd)
	started := make(chan error, 1)
	go func() {
		defer close(p.done)
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

// signal sends sig to the child. That it has ended already is seen by done.
func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }
