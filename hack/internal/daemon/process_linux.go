package daemon

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel signal the child when this process is killed.
func endWithParent(cmd *exec.Cmd, sig syscall.Signal) { cmd.SysProcAttr.Pdeathsig = sig }
