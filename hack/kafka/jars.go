package kafka

import (
	"bufio"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// pom lists the artifacts of Apache Kafka, and jars the files that they come to, with checksums:
// what runs is pinned whatever a repository serves.
var (
	//go:embed pom.xml
	pom []byte
	//go:embed jars.sha256
	jars string
)

// files returns the paths of the jars, fetched with Maven when they are not in the user's cache.
func files(ctx context.Context) ([]string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find a directory for Kafka's jars: %w; set HOME or XDG_CACHE_HOME", err)
	}
	sum := sha256.Sum256([]byte(jars))
	dir := filepath.Join(cache, "outbox-operator", "kafka", hex.EncodeToString(sum[:6]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a directory for Kafka's jars: %w", err)
	}
	unlock, err := lock(dir + ".lock")
	if err != nil {
		return nil, err
	}
	defer unlock()
	paths, err := verify(dir)
	if err == nil {
		return paths, nil
	}
	if err := fetch(ctx, dir); err != nil {
		return nil, err
	}
	return verify(dir)
}

// verify compares the files in dir with their checksums.
func verify(dir string) (paths []string, err error) {
	lines := bufio.NewScanner(strings.NewReader(jars))
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

func fetch(ctx context.Context, dir string) error {
	if err := need(ctx, "mvn", "maven"); err != nil {
		return err
	}
	project, err := os.MkdirTemp("", "outbox-kafka-pom-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(project)
	file := filepath.Join(project, "pom.xml")
	if err := os.WriteFile(file, pom, 0o600); err != nil {
		return err
	}
	mvn := exec.CommandContext(ctx, "mvn", "--batch-mode", "--quiet", "--file", file,
		"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+dir)
	if out, err := mvn.CombinedOutput(); err != nil {
		return fmt.Errorf("fetch Kafka's jars with Maven: %w: %s; check that it reaches its repository", err, out)
	}
	return nil
}

// need installs a program from Debian's package when it is missing and this process may do that.
func need(ctx context.Context, program, debian string) error {
	if _, err := exec.LookPath(program); err == nil {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("no %s on this machine, and installing it takes root and apt-get; install it by hand", program)
	}
	unlock, err := lock(filepath.Join(os.TempDir(), "outbox-kafka-install.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	for _, args := range [][]string{{"update", "-q"}, {"install", "-q", "-y", "--no-install-recommends", debian}} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, out)
		}
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
