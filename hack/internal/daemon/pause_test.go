package daemon

import (
	"io"
	"os/exec"
	"testing"
	"time"
)

// Pause returns when a process stands still, also one that has ended and was not waited for: a frozen
// PostgreSQL has such children.
func TestPauseReturnsWhenTheProcessStands(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"running": "exec >&-; while :; do :; done",
		"ended":   "",
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait() // killed
			}()
			if _, err := io.Copy(io.Discard, out); err != nil { // until it runs, or has ended
				t.Fatal(err)
			}
			still := make(chan bool, 1)
			go func() {
				Pause(cmd.Process.Pid)
				still <- stopped(cmd.Process.Pid)
			}()
			select {
			case ok := <-still:
				if !ok {
					t.Error("it runs")
				}
			case <-time.After(time.Minute):
				t.Fatal("Pause does not return")
			}
		})
	}
}
