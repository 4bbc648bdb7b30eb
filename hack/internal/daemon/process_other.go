//go:build !linux

package daemon

import (
	"os/exec"
	"syscall"
)

// endWithParent does nothing: only Linux can tell a child of its parent's death.
func endWithParent(*exec.Cmd, syscall.Signal) {}
