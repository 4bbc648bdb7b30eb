// Package fetch gets programs that tests run, which are not Go's, from Maven Central.
package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// MirrorVariable names the environment variable with the URL of a mirror of Maven Central.
const MirrorVariable = "OUTBOX_MAVEN"

// CacheVariable names the environment variable with the directory of what is fetched and built.
const CacheVariable = "OUTBOX_CACHE"

// central is read without a mirror.
const central = "https://repo1.maven.org/maven2"

// ErrMissing is returned by [Files] and [Java] when this machine does not have a program and cannot get it.
var ErrMissing = errors.New("a program that this test runs is not on this machine")

// stalled bounds the time until a repository begins to respond.
const stalled = 30 * time.Second

var client = &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, ResponseHeaderTimeout: stalled, TLSHandshakeTimeout: stalled}}

// Files returns the paths of files, from the cache or fetched. sums has a line for each, as sha256sum writes it: the
// checksum and the path in the repository. The error is an [ErrMissing] when a file cannot be fetched, or is another
// one than the checksum says.
func Files(ctx context.Context, sums string) ([]string, error) {
	cache, err := Cache()
	if err != nil {
		return nil, err
	}
	var files []string
	for line := range strings.Lines(sums) {
		sum, path, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			return nil, fmt.Errorf("%q is not a checksum and a path", line)
		}
		// A file has its name only once its checksum is verified.
		file := filepath.Join(cache, "files", sum[:12], filepath.Base(path))
		if _, err := os.Stat(file); err != nil {
			if err := fetch(ctx, path, sum, file); err != nil {
				return nil, fmt.Errorf("%w: fetch %s: %w", ErrMissing, path, err)
			}
		}
		files = append(files, file)
	}
	return files, nil
}

// Java is Files for a program in Java. It also sees to it that there is a runtime: the error is an [ErrMissing] when
// there is none and it cannot be installed.
func Java(ctx context.Context, sums string) ([]string, error) {
	if _, err := daemon.Need(ctx, ErrMissing, "default-jre-headless", "java"); err != nil {
		return nil, err
	}
	return Files(ctx, sums)
}

// Cache is the directory that CacheVariable names, or the user's. The error says which variable to set when neither is
// known.
func Cache() (string, error) {
	if dir := os.Getenv(CacheVariable); dir != "" {
		return dir, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache: %w; set %s, HOME or XDG_CACHE_HOME", err, CacheVariable)
	}
	return filepath.Join(cache, "outbox-operator"), nil
}

func fetch(ctx context.Context, path, sum, file string) (err error) {
	repository := os.Getenv(MirrorVariable)
	if repository == "" {
		repository = central
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(repository, "/")+"/"+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("%w; %s names a mirror", err, MirrorVariable)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", req.URL, resp.Status)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	part, err := os.CreateTemp(filepath.Dir(file), "part-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(part.Name()) }() // it is gone when it was renamed
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(part, h), resp.Body)
	if err := errors.Join(err, part.Close()); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != sum {
		return fmt.Errorf("%s has the checksum %s, want %s", req.URL, got, sum)
	}
	return os.Rename(part.Name(), file)
}

// Once returns a directory of the cache that fill has filled, once for each name and content. Processes that want it at the
// same time wait for one of them. The error is that of the cache or of fill, after which the next call fills again.
func Once(name string, content []byte, fill func(dir string) error) (dir string, err error) {
	cache, err := Cache()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(cache, fmt.Sprintf("%s-%x", name, sha256.Sum256(content))[:len(name)+17])
	done := filepath.Join(dir, "done")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", fmt.Errorf("lock the cache: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock the cache: %w", err)
	}
	if _, err := os.Stat(done); !errors.Is(err, os.ErrNotExist) {
		return dir, err
	}
	if err := fill(dir); err != nil {
		return "", err
	}
	return dir, os.WriteFile(done, nil, 0o600)
}
