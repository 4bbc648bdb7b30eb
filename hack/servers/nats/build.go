package nats

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/outbox-operator/outbox-operator/hack/internal/fetch"
)

// packages are the programs, with their versions. Go checks their modules against its checksum database.
var packages = map[string]string{
	"nats-server": "github.com/nats-io/nats-server/v2@v2.15.2",
	"nats":        "github.com/nats-io/natscli/nats@v0.3.0",
}

// tool returns the path of a program, built when it is not in the cache.
func tool(ctx context.Context, name string) (string, error) {
	pkg := packages[name]
	dir, err := fetch.Once("nats-"+name, []byte(pkg), func(dir string) error {
		cmd := exec.CommandContext(ctx, "go", "install", "-trimpath", "-ldflags", "-s -w", pkg)
		cmd.Dir = os.TempDir() // in no module
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=", "GOBIN="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", pkg, err, out)
		}
		return nil
	})
	return filepath.Join(dir, name), err
}
