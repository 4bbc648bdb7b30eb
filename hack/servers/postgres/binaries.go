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
)

// findBinaries returns the directory of initdb and postgres: those that [Variable] names, or else the
// machine's, or else the newest build's.
func findBinaries(ctx context.Context) (string, error) {
	if value := os.Getenv(Variable); value != "" {
		return chosen(ctx, value)
	}
	if dir := lookForBinaries(ctx); dir != "" {
		return dir, nil
	}
	majors := Majors()
	if len(majors) == 0 {
		return "", fmt.Errorf("no PostgreSQL server binaries (initdb, postgres) on this machine, and no pinned build for it; install PostgreSQL 14 or later, or set %s", Variable)
	}
	return Build(ctx, majors[len(majors)-1])
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
