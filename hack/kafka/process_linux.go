package kafka

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel stop the broker at once when this process is killed.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL }
