package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// The program that is put to the test.
const dispatcherPackage = "github.com/outbox-operator/outbox-operator/dispatcher/cmd/dispatcher"

// clockVariable holds the error of a dispatcher's clock, as a Go duration.
const clockVariable = "OUTBOX_CHAOS_CLOCK"

// buildDispatcher builds the dispatcher.
func buildDispatcher(ctx context.Context, output string, flags ...string) error {
	args := append([]string{"build", "-o", output}, flags...)
	cmd := exec.Command("go", append(args, dispatcherPackage)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	p, err := daemon.Start(cmd, nil, syscall.SIGKILL) // so that it ends with this process, however that ends
	if err != nil {
		return fmt.Errorf("build the dispatcher: %w", err)
	}
	select {
	case <-p.Done:
	case <-ctx.Done():
		_ = syscall.Kill(-p.Pid(), syscall.SIGKILL) // with the compilers that it started
		<-p.Done
	}
	if !cmd.ProcessState.Success() {
		return fmt.Errorf("build the dispatcher: %s: %s", cmd.ProcessState, out.Bytes())
	}
	return nil
}

// buildWrongClock builds the same code with a wrong clock: a copy of Go's package time, in which Now
// adds what the environment says to the wall clock. The monotonic clock stays right, as it does when
// a person sets a machine's clock.
func buildWrongClock(ctx context.Context, dir, output string) error {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source, err := os.ReadFile(original)
	if err != nil {
		return fmt.Errorf("read Go's package time: %w", err)
	}
	head := []byte("func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n")
	if bytes.Count(source, head) != 1 {
		return fmt.Errorf("%s does not begin Now as expected, so it cannot be given a wrong clock; correct clock.go for this version of Go", original)
	}
	source = bytes.Replace(source, head, append(head, "\tsec += wrongBy\n"...), 1)
	source = bytes.Replace(source, []byte("\nimport (\n"), []byte("\nimport (\n\t\"syscall\"\n"), 1)
	source = append(source, `
var wrongBy = func() int64 {
	text, _ := syscall.Getenv("`+clockVariable+`")
	d, _ := ParseDuration(text)
	return int64(d / Second)
}()
`...)
	copied := filepath.Join(dir, "time.go")
	if err := os.WriteFile(copied, source, 0o600); err != nil {
		return err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {original: copied}})
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return err
	}
	return buildDispatcher(ctx, output, "-overlay", file)
}
