// Package daemon is what the temporary servers of tests have in common: they come from the
// distribution's packages, run as an unprivileged user in a directory of their own, and end with the
// process that started them.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Serve is [Start] for a server with a name, for errors. Its output goes to the end of the file log. It
// returns when the server is ready, which is when ready returns nil.
func Serve(ctx context.Context, name string, cmd *exec.Cmd, owner *syscall.Credential, atParentExit syscall.Signal, log string, ready func(context.Context) error) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	p, err := Start(cmd, owner, atParentExit)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if err = ready(ctx); err == nil {
			return p, nil
		}
		select {
		case <-p.Done:
			return nil, fmt.Errorf("%s ended at once; its log %s ends: %s", name, log, Tail(log))
		case <-ctx.Done():
			p.End(atParentExit)
			return nil, fmt.Errorf("%s was not ready in time: %w; its log %s ends: %s", name, err, log, Tail(log))
		case <-tick.C:
		}
	}
}

// Listens is for [Serve]: the server is ready when it accepts connections.
func Listens(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// Shutdown signals the child to end, and ends it with kill -9 when ctx ends first.
func (p *Process) Shutdown(ctx context.Context) {
	p.Signal(syscall.SIGCONT)
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.Done:
	case <-ctx.Done():
		p.End(syscall.SIGKILL)
	}
}

// Server is a process with a directory of its own, which the servers of tests embed. Its methods are not for concurrent
// use.
type Server struct {
	// Dir has the server's files, among them its log.
	Dir string

	lock    *os.File // of Dir
	owner   *syscall.Credential
	program Program
	process *Process // nil: not running
}

// Program is what a server runs, at first and after each restart.
type Program struct {
	// Name is for errors.
	Name string
	// Command makes the command, which runs in the directory unless it has another one.
	Command func() *exec.Cmd
	// Ready is nil when the server is ready.
	Ready func(context.Context) error
	// Abrupt has Restart and Stop end the server with kill -9. Defaults to false: in order.
	Abrupt bool
}

// NewServer makes the directory, as [TempDir] does. It returns an error when it cannot make or lock it.
func NewServer(pattern string) (s Server, err error) {
	s.Dir, s.lock, err = TempDir(pattern)
	return s, err
}

// NewUnprivileged is NewServer for a server that refuses to run as root, or that tests kill with all that it owns: it runs as
// [UnprivilegedUser], who owns the directory.
func NewUnprivileged(pattern string) (s Server, err error) {
	owner, err := UnprivilegedUser()
	if err != nil {
		return s, err
	}
	if s, err = NewServer(pattern); err != nil {
		return s, err
	}
	s.owner = owner
	return s, Give(owner, s.Dir)
}

// Write writes files of the server's user, by name. It returns an error when it cannot.
func (s *Server) Write(files map[string]string) error {
	for name, text := range files {
		if err := os.WriteFile(s.Path(name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write the server's settings: %w", err)
		}
		if err := Give(s.owner, s.Path(name)); err != nil {
			return err
		}
	}
	return nil
}

// Lines are settings as a server's file has them, in their order: each by a format of name and value.
func Lines(format string, settings map[string]string) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, format+"\n", name, settings[name])
	}
	return text.String()
}

// Launch runs a program once prepare has made what it needs, and waits until it is ready. What fails leaves nothing behind.
// It fails as prepare and [Serve] do.
func (s *Server) Launch(ctx context.Context, prepare func() error, p Program) error {
	s.program = p
	err := prepare()
	if err == nil {
		err = s.start(ctx)
	}
	if err != nil {
		return errors.Join(err, s.Stop(ctx))
	}
	return nil
}

func (s *Server) start(ctx context.Context) (err error) {
	cmd := s.program.Command()
	cmd.Dir = cmp.Or(cmd.Dir, s.Dir)
	s.process, err = Serve(ctx, s.program.Name, cmd, s.owner, syscall.SIGKILL, s.Path("log"), s.program.Ready)
	return err
}

// Restart starts the server again on the same ports and data, also one that still runs. It returns when the server is
// ready, and an error when it is not before ctx ends.
func (s *Server) Restart(ctx context.Context) error {
	s.end(ctx)
	return s.start(ctx)
}

// Stop ends the server for good and removes its directory: in order, or at once when ctx ends first. It returns an error when
// the directory stays.
func (s *Server) Stop(ctx context.Context) error {
	s.end(ctx)
	return s.Remove()
}

func (s *Server) end(ctx context.Context) {
	if s.program.Abrupt {
		s.Kill()
	}
	s.Shutdown(ctx)
}

// Owner is the user who runs the server; nil is this process' own.
func (s *Server) Owner() *syscall.Credential { return s.owner }

// Path is a file of the directory.
func (s *Server) Path(name string) string { return filepath.Join(s.Dir, name) }

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
