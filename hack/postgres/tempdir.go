package postgres

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

const tempPattern = "outbox-postgres-*"

// newTempDir makes a directory with a lock that this process holds until it ends. First it removes
// the directories of processes that were killed: their locks are free, and they can be large.
func newTempDir() (dir string, lock *os.File, err error) {
	if err := sweep(); err != nil {
		return "", nil, err
	}
	if dir, err = os.MkdirTemp("", tempPattern); err != nil {
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

func sweep() error {
	locks, err := filepath.Glob(filepath.Join(os.TempDir(), tempPattern, "lock"))
	if err != nil {
		return fmt.Errorf("look for directories to remove: %w", err)
	}
	for _, path := range locks {
		lock, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			continue // another user's, or just removed
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			err = os.RemoveAll(filepath.Dir(path))
		}
		lock.Close()
		if err != nil {
			return fmt.Errorf("remove what a killed process left: %w; remove it by hand", err)
		}
	}
	return nil
}
