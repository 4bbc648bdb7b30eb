// Package promtool checks and plays alert rules with Prometheus' own tool, from the distribution's package.
package promtool

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// ErrMissing is returned by [Run] when this machine has no promtool and cannot get one.
var ErrMissing = errors.New("no promtool on this machine; install the package prometheus")

// Run runs promtool in a directory. When the machine has none, it is installed from the distribution's
// packages, if this process may do that. The error holds what promtool said.
func Run(ctx context.Context, dir string, args ...string) error {
	binary, err := daemon.Need(ctx, ErrMissing, "prometheus", "promtool")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("promtool: %w:\n%s", err, out)
	}
	return nil
}
