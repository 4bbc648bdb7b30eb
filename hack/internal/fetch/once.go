package fetch

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

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
