// Package python runs programs in Python, with packages of PyPI: the workers and consumers in another language that
// tests need.
package python

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// ErrMissing is returned by [Command] when this machine has no Python with pip, or cannot get a package.
var ErrMissing = errors.New("no python3 with the packages on this machine; install python3 and python3-pip, and see that PyPI can be reached")

// Command is python3 with the arguments, and with the packages, each as pip names one with its version:
// "psycopg[binary]==3.2.10". They are installed at first use, and kept in the user's cache.
func Command(ctx context.Context, packages []string, args ...string) (*exec.Cmd, error) {
	hasPip := func() bool { return exec.Command("python3", "-m", "pip", "--version").Run() == nil }
	if !hasPip() {
		if err := daemon.Install(ctx, "python3-pip", hasPip); err != nil {
			return nil, fmt.Errorf("%w (%w)", ErrMissing, err)
		}
	}
	dir, err := install(ctx, packages)
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrMissing, err)
	}
	cmd := exec.CommandContext(ctx, "python3", args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONUNBUFFERED=1")
	return cmd, nil
}

// install makes the directory of the packages, for this Python. Several processes may do so at once.
func install(ctx context.Context, packages []string) (string, error) {
	version, err := exec.CommandContext(ctx, "python3", "--version").Output()
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append(version, strings.Join(packages, " ")...))
	dir := filepath.Join(cache, "outbox-operator", "python-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), "python-part-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(part) }() // unless it was renamed
	cmd := exec.CommandContext(ctx, "python3", append([]string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", part}, packages...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("pip install %s: %w: %s", strings.Join(packages, " "), err, out)
	}
	if err := os.Rename(part, dir); err != nil {
		if _, other := os.Stat(dir); other != nil { // else another process was first
			return "", err
		}
	}
	return dir, nil
}
