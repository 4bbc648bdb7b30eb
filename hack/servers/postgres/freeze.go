package postgres

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// Freeze stops every process of the server where it is, as a virtual machine that is suspended: the
// server keeps its connections, and does not respond. It is for Linux.
// It returns an error when a process cannot be stopped.
func (s *Server) Freeze() error {
	if err := s.eachProcess(daemon.Pause); err != nil {
		return fmt.Errorf("freeze PostgreSQL on port %d: %w", s.Port, err)
	}
	return nil
}

// Thaw lets a frozen server continue.
func (s *Server) Thaw() {
	// Where Freeze cannot work there is nothing to do, and that one has ended meanwhile is as good.
	_ = s.eachProcess(func(pid int) { _ = syscall.Kill(pid, syscall.SIGCONT) })
}

// eachProcess calls f with the postmaster and then with its children: it starts no more once it has stopped.
func (s *Server) eachProcess(f func(pid int)) error {
	f(s.process.Pid())
	pid := strconv.Itoa(s.process.Pid())
	children, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	if err != nil {
		return err
	}
	for _, child := range bytes.Fields(children) {
		pid, err := strconv.Atoi(string(child))
		if err != nil {
			return err
		}
		f(pid)
	}
	return nil
}
