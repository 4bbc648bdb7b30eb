package postgres

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel stop the server at once when this process is killed.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT }
