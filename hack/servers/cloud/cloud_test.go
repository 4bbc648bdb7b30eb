package cloud

import (
	"net"
	"testing"
)

// A server listens, and its end closes the port.
func TestServersListenUntilStopped(t *testing.T) {
	for name, start := range map[string]func() (*Server, error){
		"AWS":        func() (*Server, error) { return AWS(t.Context()) },
		"ServiceBus": func() (*Server, error) { return ServiceBus(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			s, err := start()
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			if conn, err := net.Dial("tcp", s.Address); err == nil {
				conn.Close()
				t.Errorf("%s is listened at after Stop", s.Address)
			}
		})
	}
}
