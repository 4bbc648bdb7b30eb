package postgres

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// Freeze stops every process of the server where it is, as a virtual machine that is suspended: the
// server keeps its connections, and answers nothing. It is for Linux.
func (s *Server) Freeze() error {
	if err := s.signalAll(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze PostgreSQL on port %d: %w", s.Port, err)
	}
	return nil
}

// Thaw lets a frozen server go on.
func (s *Server) Thaw() {
	_ = s.signalAll(syscall.SIGCONT) // where Freeze cannot work there is nothing to do
}

// signalAll signals the postmaster and then its children: it starts no more once it has stopped.
func (s *Server) signalAll(sig syscall.Signal) error {
	s.process.Signal(sig)
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
		_ = syscall.Kill(pid, sig) // that it has ended meanwhile is as good
	}
	return nil
}
