package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// findBinaries returns the directory of initdb and postgres, and installs the distribution's
// package when there is none.
func findBinaries(ctx context.Context) (string, error) {
	if dir := lookForBinaries(ctx); dir != "" {
		return dir, nil
	}
	if err := install(ctx); err != nil {
		return "", fmt.Errorf("no PostgreSQL server binaries (initdb, postgres) on this machine: %w; "+
			"install PostgreSQL 15 or later", err)
	}
	if dir := lookForBinaries(ctx); dir != "" {
		return dir, nil
	}
	return "", errors.New("the package postgresql has no initdb; install PostgreSQL 15 or later by hand")
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
		if isFile(filepath.Join(dir, "initdb")) && isFile(filepath.Join(dir, "postgres")) {
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

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// install gets Debian's package. Several test processes may come here at once: one installs, the
// others wait and find it.
func install(ctx context.Context) error {
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return errors.New("installing it here takes root and apt-get")
	}
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "outbox-postgres-install.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	if lookForBinaries(ctx) != "" {
		return nil
	}
	if err := noMainCluster(); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"update", "-q"},
		{"install", "-q", "-y", "--no-install-recommends", "postgresql"},
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "UCF_FORCE_CONFFOLD=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// noMainCluster keeps Debian's package from making and starting a server of its own.
func noMainCluster() error {
	const path = "/etc/postgresql-common/createcluster.conf"
	if isFile(path) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte("create_main_cluster = false\n"), 0o644)
}

// unprivilegedUser is who runs the server, which refuses to run as root. nil means this process'
// own user.
func unprivilegedUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root: %w; add a user named postgres", err)
	}
	uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
	gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(errUID, errGID); err != nil {
		return nil, fmt.Errorf("user %s: %w", u.Username, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func randomPort() int { return 20_000 + rand.IntN(10_000) }
