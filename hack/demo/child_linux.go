package main

import (
	"os/exec"
	"runtime"
	"syscall"
)

// Linux signals a child when the thread that started it ends. All children are started by the
// main goroutine, which stays on the main thread.
func init() { runtime.LockOSThread() }

// child makes a command one that ends with the demo, also when the demo is killed, and that does not
// get the terminal's Ctrl-C, which is for the demo.
func child(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	return cmd
}
