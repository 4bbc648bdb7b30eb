// Package maven fetches the Java programs that tests run, from their projects' own artifacts.
package maven

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// ErrMissing is returned by [Files] when this machine does not have the files and cannot get them.
var ErrMissing = errors.New("no Java, Maven or what Maven fetches on this machine")

// Files returns the paths of the runtime dependencies of a project, pom, from the user's cache, or else
// fetched with Maven. sums has one line for each, as sha256sum writes it: what runs is pinned whatever
// a repository serves. It also sees to it that there is a Java runtime.
func Files(ctx context.Context, name string, pom []byte, sums string) ([]string, error) {
	if err := need(ctx, "java", "default-jre-headless"); err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find a directory for what Maven fetches: %w; set HOME or XDG_CACHE_HOME", err)
	}
	sum := sha256.Sum256([]byte(sums))
	dir := filepath.Join(cache, "outbox-operator", name, hex.EncodeToString(sum[:6]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a directory for what Maven fetches: %w", err)
	}
	unlock, err := lock(dir + ".lock")
	if err != nil {
		return nil, err
	}
	defer unlock()
	paths, err := verify(dir, sums)
	if err == nil {
		return paths, nil
	}
	if err := fetch(ctx, dir, pom); err != nil {
		return nil, err
	}
	return verify(dir, sums)
}

// verify compares the files in dir with their checksums.
func verify(dir, sums string) (paths []string, err error) {
	lines := bufio.NewScanner(strings.NewReader(sums))
	for lines.Scan() {
		want, name, _ := strings.Cut(lines.Text(), "  ")
		path := filepath.Join(dir, name)
		if got, err := checksum(path); err != nil {
			return nil, err
		} else if got != want {
			return nil, fmt.Errorf("%s has the checksum %s, want %s; remove it", path, got, want)
		}
		paths = append(paths, path)
	}
	return paths, lines.Err()
}

func checksum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func fetch(ctx context.Context, dir string, pom []byte) error {
	if err := need(ctx, "mvn", "maven"); err != nil {
		return err
	}
	project, err := os.MkdirTemp("", "outbox-pom-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(project) }()
	file := filepath.Join(project, "pom.xml")
	if err := os.WriteFile(file, pom, 0o600); err != nil {
		return err
	}
	mvn := exec.CommandContext(ctx, "mvn", "--batch-mode", "--quiet", "--file", file,
		"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+dir)
	if out, err := mvn.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: fetch with Maven: %w: %s; check that it reaches its repository", ErrMissing, err, out)
	}
	return nil
}

// need installs a program from Debian's package when it is missing.
func need(ctx context.Context, program, debian string) error {
	installed := func() bool { _, err := exec.LookPath(program); return err == nil }
	if installed() {
		return nil
	}
	if err := daemon.Install(ctx, debian, installed); err != nil {
		return fmt.Errorf("%w: no %s: %w; install it by hand", ErrMissing, program, err)
	}
	return nil
}

// lock waits until no other process holds the lock.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open a lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}
