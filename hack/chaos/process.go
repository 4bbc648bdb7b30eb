package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// process is a program that this one runs, and that ends with it.
type process struct {
	*daemon.Process
	name string
	cmd  *exec.Cmd
}

// start runs a program that writes what it says to a log.
func start(logFile string, env []string, program string, args ...string) (*process, error) {
	log, err := appendTo(logFile)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	p := &process{name: filepath.Base(logFile), cmd: cmd}
	if p.Process, err = daemon.Start(cmd, nil, syscall.SIGKILL); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(program), err)
	}
	return p, nil
}

// kill ends the process at once, also when it is stopped by a signal.
func (p *process) kill() { p.End(syscall.SIGKILL) }

// stop signals the process to end, and reports an error unless it does so in order and in time.
func (p *process) stop(within time.Duration) error {
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.Done:
	case <-time.After(within):
		p.kill()
		return fmt.Errorf("%s did not end within %s of SIGTERM; it was killed", p.name, within)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("%s ended with %s after SIGTERM; its log says why", p.name, p.cmd.ProcessState)
	}
	return nil
}
