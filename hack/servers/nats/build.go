package nats

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"syscall"
)

// packages are the programs, with their versions. Go checks their modules against its checksum database.
var packages = map[string]string{
	"nats-server": "github.com/nats-io/nats-server/v2@v2.15.2",
	"nats":        "github.com/nats-io/natscli/nats@v0.3.0",
}

// tool returns the path of a program, built when it is not in the user's cache. Several processes may come here at once:
// one builds, the others wait.
func tool(ctx context.Context, name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a directory for %s: %w; set HOME or XDG_CACHE_HOME", name, err)
	}
	pkg := packages[name]
	dir := filepath.Join(cache, "outbox-operator", "nats", path.Base(pkg))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make a directory for %s: %w", name, err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	program := filepath.Join(dir, name)
	if _, err := os.Stat(program); !errors.Is(err, os.ErrNotExist) {
		return program, err
	}
	fresh := filepath.Join(dir, "new")
	cmd := exec.CommandContext(ctx, "go", "install", "-trimpath", "-ldflags", "-s -w", pkg)
	cmd.Dir = os.TempDir() // in no module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=", "GOBIN="+fresh)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", pkg, err, out)
	}
	return program, os.Rename(filepath.Join(fresh, name), program)
}
