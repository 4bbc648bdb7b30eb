package postgres

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// findBinaries returns the directory of initdb and postgres: those that [Variable] asks for, or else the
// machine's. It installs the distribution's package when there is none.
func findBinaries(ctx context.Context) (string, error) {
	if value := os.Getenv(Variable); value != "" {
		return chosen(ctx, value)
	}
	if dir := lookForBinaries(ctx); dir != "" {
		return dir, nil
	}
	if err := daemon.Install(ctx, "postgresql", func() bool { return lookForBinaries(ctx) != "" }); err != nil {
		return "", fmt.Errorf("no PostgreSQL server binaries (initdb, postgres) on this machine: %w; "+
			"install PostgreSQL %s or later", err, Majors()[0])
	}
	if dir := lookForBinaries(ctx); dir != "" {
		return dir, nil
	}
	return "", fmt.Errorf("the package postgresql has no initdb; install PostgreSQL %s or later by hand", Majors()[0])
}

func lookForBinaries(ctx context.Context) string {
	var dirs []string
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is well-formed
	slices.SortFunc(debian, func(a, b string) int { return majorVersion(b) - majorVersion(a) })
	dirs = append(dirs, debian...)
	for _, dir := range dirs {
		if isBinaries(dir) {
			return dir
		}
	}
	return ""
}

// majorVersion reads the 15 of /usr/lib/postgresql/15/bin.
func majorVersion(dir string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir))) // 0 sorts last
	return n
}

// isBinaries reports whether a directory has what a server is made with.
func isBinaries(dir string) bool {
	return isFile(filepath.Join(dir, "initdb")) && isFile(filepath.Join(dir, "postgres"))
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
