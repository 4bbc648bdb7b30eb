package daemon

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// FreePort finds a port of 127.0.0.1 below the range that the kernel gives to outgoing connections,
// so that a stopped server finds it free again.
func FreePort() (int, error) {
	var err error
	for range 50 {
		var l net.Listener
		port := 20_000 + rand.IntN(10_000)
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("find a free port: %w; set Options.Port", err)
}
