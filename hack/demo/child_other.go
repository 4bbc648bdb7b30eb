//go:build !linux

package main

import (
	"os/exec"
	"syscall"
)

// child makes a command one that does not get the terminal's Ctrl-C, which is for the demo.
func child(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}
