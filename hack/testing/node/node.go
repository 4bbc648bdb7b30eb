// Package node makes directories with packages of the npm registry, in the user's cache, and runs programs there: the
// consumers and producers in TypeScript that tests need.
package node

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

// ErrMissing is returned by [TypeScript] when this machine has no Node.js, or cannot get a package.
var ErrMissing = errors.New("no node with the packages on this machine; install nodejs and npm, and see that the npm registry can be reached")

// compiler is added to the packages of every program.
var compiler = []string{"typescript@5.9.3", "@types/node@20.19.0"}

// TypeScript compiles a program, strictly, and returns the command that runs it. Packages are as npm names one with its
// version: "pg@8.16.3". It returns [ErrMissing] when they cannot be installed, and what the compiler says of the program.
func TypeScript(ctx context.Context, packages []string, program string) (*exec.Cmd, error) {
	dir, err := environment(ctx, append(compiler, packages...))
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrMissing, err)
	}
	out, err := os.MkdirTemp(dir, "program-")
	if err != nil {
		return nil, fmt.Errorf("make the program's directory: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = os.RemoveAll(out) })
	source := filepath.Join(out, "program.mts")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		return nil, fmt.Errorf("write the program: %w", err)
	}
	tsc := exec.CommandContext(ctx, filepath.Join(dir, "node_modules", ".bin", "tsc"),
		"--strict", "--skipLibCheck", "--target", "es2022", "--module", "nodenext", "--types", "node", "--typeRoots", filepath.Join(dir, "node_modules", "@types"), source)
	if said, err := tsc.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile the program: %w: %s", err, said)
	}
	cmd := exec.CommandContext(ctx, "node", filepath.Join(out, "program.mjs"))
	cmd.Env = os.Environ()
	return cmd, nil
}

// environment is a directory with the packages, made once for each list of them.
func environment(ctx context.Context, packages []string) (string, error) {
	return fetch.Once("node", []byte(strings.Join(packages, "\n")), func(dir string) error {
		if _, err := daemon.Need(ctx, ErrMissing, "npm", "npm"); err != nil {
			return err
		}
		install := exec.CommandContext(ctx, "npm", append([]string{"install", "--prefix", dir, "--silent", "--no-audit", "--no-fund", "--ignore-scripts"}, packages...)...)
		if said, err := install.CombinedOutput(); err != nil {
			return fmt.Errorf("npm install: %w: %s", err, said)
		}
		return nil
	})
}
