package daemon

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
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

// UnprivilegedUser is the user that runs servers that refuse to run as root. nil means this process' own user.
// It returns an error when this is root and the machine has no such user.
func UnprivilegedUser() (*syscall.Credential, error) {
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

// Give makes owner the owner of files. With a nil owner they stay this process' own.
// It returns an error when a file cannot change its owner.
func Give(owner *syscall.Credential, paths ...string) error {
	if owner == nil {
		return nil
	}
	for _, path := range paths {
		if err := os.Chown(path, int(owner.Uid), int(owner.Gid)); err != nil {
			return fmt.Errorf("give %s to the server's user: %w", path, err)
		}
	}
	return nil
}

// ports are the ports that this process was given. The file is locked at their bytes until the process ends,
// so that no other process is given one before its server listens, which takes a broker seconds.
var ports struct {
	sync.Mutex
	given map[int]bool
	locks *os.File
}

// FreePort finds a port of 127.0.0.1 below the range that the kernel gives to outgoing connections,
// so that a stopped server finds it free again. It gives no port twice, in this process or in another
// of the same user that still runs. It returns an error when 50 tries found none.
func FreePort() (int, error) {
	ports.Lock()
	defer ports.Unlock()
	if ports.locks == nil {
		path := filepath.Join(os.TempDir(), fmt.Sprintf("outbox-ports-%d.lock", os.Getuid()))
		locks, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return 0, fmt.Errorf("open the file of the ports that are taken: %w; remove %s", err, path)
		}
		ports.locks, ports.given = locks, map[int]bool{}
	}
	err := errors.New("all that were tried are taken")
	for range 50 {
		port := 20_000 + rand.IntN(10_000)
		if ports.given[port] || !lockByte(ports.locks, port) {
			continue
		}
		ports.given[port] = true
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("find a free port: %w; set Options.Port", err)
}

// lockByte reports whether the byte was free; it is this process's from then on.
func lockByte(f *os.File, offset int) bool {
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart, Start: int64(offset), Len: 1}
	return syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &lock) == nil
}
