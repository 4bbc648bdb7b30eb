// Package python makes environments of Python with packages of the Python Package Index, in the user's cache, and runs
// programs in them: the workers, readers and servers in another language that tests need.
package python

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/internal/fetch"
)

// ErrMissing is returned by [Command] when this machine has no Python, or cannot get a package.
var ErrMissing = errors.New("no python3 with the packages on this machine; install python3 and python3-venv, and see that PyPI can be reached")

// Command is python3 with the arguments, in an environment with the packages, each as pip names one with its version:
// "psycopg[binary]==3.2.10". It returns [ErrMissing] when it cannot be installed.
func Command(ctx context.Context, packages []string, args ...string) (*exec.Cmd, error) {
	bin, err := Environment(ctx, "python", []byte(strings.Join(packages, "\n")+"\n"))
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrMissing, err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "python3"), args...)
	cmd.Env = append(os.Environ(), "PYTHONUNBUFFERED=1")
	return cmd, nil
}

// Environment returns the directory of the programs of the environment with a name. It is made once for each
// content of requirements, which are a requirements.txt; processes that want it at the same time wait for one of them.
// It returns [ErrMissing] when it cannot be installed.
func Environment(ctx context.Context, name string, requirements []byte) (bin string, err error) {
	dir, err := fetch.Once(name, requirements, func(dir string) error {
		if err := need(ctx); err != nil {
			return err
		}
		if err := command(ctx, "python3", "-m", "venv", "--clear", dir); err != nil {
			return err
		}
		list := filepath.Join(dir, "requirements.txt")
		if err := os.WriteFile(list, requirements, 0o644); err != nil {
			return fmt.Errorf("write the requirements: %w", err)
		}
		return command(ctx, filepath.Join(dir, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check", "--requirement", list)
	})
	return filepath.Join(dir, "bin"), err
}

// need gets Python's venv, which Debian has in a package of its own.
func need(ctx context.Context) error {
	installed := func() bool { return exec.CommandContext(ctx, "python3", "-c", "import ensurepip").Run() == nil }
	if installed() {
		return nil
	}
	return daemon.Install(ctx, "python3-venv", installed)
}

func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}
