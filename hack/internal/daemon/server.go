// Package daemon is what the temporary servers of tests have in common: they come from the
// distribution's packages, run as an unprivileged user in a directory of their own, and end with the
// process that started them.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Server is a process with a directory of its own, which the servers of tests embed. Its methods are not for concurrent
// use.
type Server struct {
	// Dir has the server's files, among them its log.
	Dir string

	lock    *os.File // of Dir
	process *Process // nil: not running
}

// NewServer makes the directory, as [TempDir] does. It returns an error when it cannot make or lock it.
func NewServer(pattern string) (s Server, err error) {
	s.Dir, s.lock, err = TempDir(pattern)
	return s, err
}

// Path is a file of the directory.
func (s *Server) Path(name string) string { return filepath.Join(s.Dir, name) }

// Run runs cmd, in the directory unless it has another. It fails as [Serve] does.
func (s *Server) Run(ctx context.Context, name string, cmd *exec.Cmd, owner *syscall.Credential, ready func(context.Context) error) (err error) {
	cmd.Dir = cmp.Or(cmd.Dir, s.Dir)
	s.process, err = Serve(ctx, name, cmd, owner, syscall.SIGKILL, s.Path("log"), ready)
	return err
}

// Pid is the process id of a running server. It is another one after a restart.
func (s *Server) Pid() int { return s.process.Pid() }

// Signal sends sig to a running server.
func (s *Server) Signal(sig syscall.Signal) {
	if s.process != nil {
		s.process.Signal(sig)
	}
}

// Kill ends a running server and its children with kill -9.
func (s *Server) Kill() {
	if s.process != nil {
		pid := s.process.Pid()
		s.process.End(syscall.SIGKILL)
		_ = syscall.Kill(-pid, syscall.SIGKILL) // Redis has a child while it makes a copy for a replica
		s.process = nil
	}
}

// Shutdown ends a running server in order, or with kill -9 when ctx ends first.
func (s *Server) Shutdown(ctx context.Context) {
	if s.process != nil {
		s.process.Shutdown(ctx)
		s.process = nil
	}
}

// Pause suspends the server: its connections stay, and it does not respond until Resume.
func (s *Server) Pause() { s.process.Pause() }

// Resume continues a paused server.
func (s *Server) Resume() { s.Signal(syscall.SIGCONT) }

// Remove removes the directory. It returns an error when a file cannot be removed.
func (s *Server) Remove() error {
	err := os.RemoveAll(s.Dir)
	for range 600 { // a killed child may have made a file meanwhile
		if err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
		err = os.RemoveAll(s.Dir)
	}
	if err = errors.Join(err, s.lock.Close()); err != nil {
		return fmt.Errorf("remove the server's directory: %w; remove it by hand", err)
	}
	return nil
}
