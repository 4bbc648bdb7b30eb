package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// hold makes this process the only one that uses the cluster of a name. The lock ends with the process, or when the file
// that hold returns is closed. It returns an error that names the holder when another process has it.
func hold(name string) (io.Closer, error) {
	return lockFile(lockPath(name), name)
}

// lockPath is the file of a name. hack/cluster/lib.sh looks at it.
func lockPath(name string) string {
	if os.Geteuid() == 0 {
		if info, err := os.Stat("/run"); err == nil && info.IsDir() {
			return "/run/outbox-cluster-" + name + ".held" // where hack/cluster keeps what all checkouts share
		}
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("outbox-cluster-%s-%d.held", name, os.Getuid()))
}

// lockFile is hold with the path of the file. The file stays: whoever removes it lets two processes lock two files.
func lockFile(path, name string) (io.Closer, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cluster %s: %w", name, err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		holder, _ := io.ReadAll(file) // a best effort: the sentence is right without it
		err = fmt.Errorf("process %s uses the cluster %s: wait until it ends, or end it", cmp.Or(strings.TrimSpace(string(holder)), "(unknown)"), name)
	}
	if err == nil {
		err = errors.Join(file.Truncate(0), write(file))
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// write names this process in the file.
func write(file *os.File) error {
	_, err := fmt.Fprintf(file, "%d (%s)\n", os.Getpid(), filepath.Base(os.Args[0]))
	return err
}
