//go:build !linux

package daemon

import (
	"os/exec"
	"syscall"
)

// endWithParent does nothing: only Linux can signal a child when its parent ends.
func endWithParent(*exec.Cmd, syscall.Signal) {}
