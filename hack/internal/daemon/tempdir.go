package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// TempDir makes a directory with a lock that this process holds until it ends. First it removes the
// directories of the same pattern whose processes were killed: their locks are free, and they can be
// large. It returns an error when it cannot make or lock the directory.
func TempDir(pattern string) (dir string, lock *os.File, err error) {
	sweep(pattern)
	if dir, err = os.MkdirTemp("", pattern); err != nil {
		return "", nil, fmt.Errorf("make the server's directory: %w", err)
	}
	path := filepath.Join(dir, "lock")
	if lock, err = os.Create(path + ".new"); err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	if err == nil {
		err = os.Rename(lock.Name(), path) // held before others see it
	}
	if err != nil {
		return "", nil, fmt.Errorf("lock the server's directory: %w", err)
	}
	return dir, lock, nil
}

// sweep removes what it can. A directory whose server is just ending is for the next sweep.
func sweep(pattern string) {
	locks, _ := filepath.Glob(filepath.Join(os.TempDir(), pattern, "lock")) // the pattern is well-formed
	for _, path := range locks {
		lock, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			continue // another user's, or removed meanwhile
		}
		free := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
		dir := filepath.Dir(path)
		if free && os.RemoveAll(filepath.Join(dir, "data")) == nil { // the lock goes last
			_ = os.RemoveAll(dir)
		}
		lock.Close()
	}
}
