package daemon

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

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
