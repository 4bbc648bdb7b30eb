//go:build !linux

package kafka

import "os/exec"

// endWithParent does nothing: only Linux can tell a child of its parent's death.
func endWithParent(*exec.Cmd) {}
