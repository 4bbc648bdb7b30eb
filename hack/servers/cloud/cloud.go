// Package cloud runs stand-ins for the clouds' queues, for tests: Moto for Amazon SQS and SNS, and a
// small AMQP 1.0 server on Qpid Proton for Azure Service Bus. Both come from the Python Package Index
// into an environment of their own in the user's cache, which takes python3 with its module venv.
package cloud

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/testing/languages"
)

// ErrMissing is returned when this machine has no stand-ins and cannot get them.
var ErrMissing = errors.New("no stand-ins for cloud services on this machine; install python3 with its module venv, and let pip reach its index")

var (
	//go:embed requirements.txt
	requirements []byte
	//go:embed servicebus.py
	serviceBus string
)

// Server is one stand-in. On Linux it ends with this process at the latest. It keeps everything in
// memory. Its methods are not for concurrent use.
type Server struct {
	daemon.Server
	// Address is its host:port, on 127.0.0.1.
	Address string
}

// AWS runs a stand-in for SQS and SNS, at http://Address, which takes any credentials.
// It returns an error when it is not ready before ctx ends, or cannot be installed.
func AWS(ctx context.Context) (*Server, error) {
	return start(ctx, func(bin, port string) *exec.Cmd {
		return exec.CommandContext(context.Background(), filepath.Join(bin, "moto_server"), "-H", "127.0.0.1", "-p", port)
	})
}

// ServiceBus runs a stand-in for Azure Service Bus, which speaks AMQP 1.0 at Address without TLS. Queues
// appear as they are used; servicebus.py says which ones it refuses.
func ServiceBus(ctx context.Context) (*Server, error) {
	return start(ctx, func(bin, port string) *exec.Cmd {
		return exec.CommandContext(context.Background(), filepath.Join(bin, "python3"), "-c", serviceBus, port)
	})
}

func start(ctx context.Context, command func(bin, port string) *exec.Cmd) (*Server, error) {
	bin, err := languages.PythonEnvironment(ctx, "cloud", requirements)
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrMissing, err)
	}
	port, err := daemon.FreePort()
	if err != nil {
		return nil, err
	}
	s := &Server{Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	if s.Server, err = daemon.NewServer("outbox-cloud-*"); err != nil {
		return nil, err
	}
	return s, s.Launch(ctx, func() error { return nil }, daemon.Program{
		Name: "the stand-in", Abrupt: true, Ready: daemon.Listens(s.Address),
		Command: func() *exec.Cmd { return command(bin, strconv.Itoa(port)) },
	})
}
