package nats

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
	"syscall"
)

// packages are what tools/go.mod pins the modules of.
var packages = map[string]string{
	"nats-server": "github.com/nats-io/nats-server/v2",
	"nats":        "github.com/nats-io/natscli/nats",
}

// tool returns the path of a program, built when it is not in the user's cache.
func tool(ctx context.Context, name string) (string, error) {
	module, err := moduleDir(ctx)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a directory for %s: %w; set HOME or XDG_CACHE_HOME", name, err)
	}
	pins, err := os.ReadFile(filepath.Join(module, "go.sum"))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(pins)
	dir := filepath.Join(cache, "outbox-operator", "nats", hex.EncodeToString(sum[:6]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make a directory for %s: %w", name, err)
	}
	path := filepath.Join(dir, name)
	return path, build(ctx, module, packages[name], path)
}

// moduleDir is the directory tools of this package, whichever of the project's modules this runs in.
func moduleDir(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/outbox-operator/outbox-operator").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w; run this in the project's checkout, with go in the path", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "hack", "servers", "nats", "tools"), nil
}

// build makes the program, unless it is there. Several processes may come here at once: one builds, the
// others wait.
func build(ctx context.Context, module, pkg, path string) error {
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", path+".new", pkg)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, out)
	}
	return os.Rename(path+".new", path)
}
