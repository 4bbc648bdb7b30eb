// Package rabbitmq runs a RabbitMQ for tests and measurements: one node from the
// distribution's package, in a directory of its own.
package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

const (
	// Plain names the listener without TLS, which every broker has.
	Plain = "PLAIN"
	// Admin is the user who may do everything, with the password Admin.
	Admin = "admin"

	// AMQP10 is the plugin that speaks AMQP 1.0 on the same ports. From RabbitMQ 4 on it is always there.
	AMQP10 = "rabbitmq_amqp1_0"

	// scripts are in this directory. The ones in the path are Debian's, for its own node.
	scripts = "/usr/lib/rabbitmq/bin"
)

// ErrMissing is returned by [Start] when this machine has no RabbitMQ and cannot get one.
var ErrMissing = errors.New("no RabbitMQ on this machine; install the package rabbitmq-server")

// Options say how a broker is made.
type Options struct {
	// Listeners are further listeners, all with TLS.
	Listeners []Listener
	// Users have these passwords, and no rights. One with an empty password logs in by EXTERNAL only:
	// with a certificate that has its name.
	Users map[string]string
	// Permissions of users in the vhost /, as configure, write and read.
	Permissions map[string][3]string
	// Settings are added to rabbitmq.conf, such as max_message_size.
	Settings map[string]string
	// Plugins of RabbitMQ are enabled, such as [AMQP10].
	Plugins []string
}

// Listener is a port with TLS.
type Listener struct {
	Name string
	// CertPEM and KeyPEM are the server's certificate and key.
	CertPEM, KeyPEM string
	// ClientCAPEM signs the certificates that clients must have. Defaults to none: they need none.
	ClientCAPEM string
}

// Broker is a running node. On Linux it ends with this process at the latest. Its methods are not for
// concurrent use.
type Broker struct {
	daemon.Server
	opts  Options
	ports map[string]int
	epmd  *daemon.Process // Erlang's name service, for Control; nil: not running
}

// Start makes a new broker and waits until it is ready. When the machine has no RabbitMQ, it is
// installed from the distribution's package, if this process may do that.
// It returns an error when it is not ready before ctx ends, or cannot be installed.
func Start(ctx context.Context, opts Options) (*Broker, error) {
	if _, err := daemon.Need(ctx, ErrMissing, "rabbitmq-server", filepath.Join(scripts, "rabbitmq-server")); err != nil {
		return nil, err
	}
	b := &Broker{opts: opts}
	var err error
	if b.Server, err = daemon.NewUnprivileged("outbox-rabbitmq-*"); err != nil {
		return nil, err
	}
	err = b.Launch(ctx, b.configure, daemon.Program{
		Name: "RabbitMQ", Abrupt: true, Ready: b.ready,
		Command: func() *exec.Cmd {
			return b.script(context.Background(), "rabbitmq-server", "-noinput", "-eval", b.listen())
		},
	})
	if err != nil {
		b.endNames()
	}
	return b, err
}

// Address is host:port of a listener. It stays the same over Restart.
func (b *Broker) Address(listener string) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.ports[listener]))
}

// URL leads a client to the listener Plain as Admin.
func (b *Broker) URL() string {
	return "amqp://" + Admin + ":" + Admin + "@" + b.Address(Plain) + "/"
}

// Stop ends the broker for good, and removes its data. It returns an error when its directory stays.
func (b *Broker) Stop(ctx context.Context) error {
	err := b.Server.Stop(ctx)
	b.endNames()
	return err
}

func (b *Broker) endNames() {
	if b.epmd != nil {
		b.epmd.End(syscall.SIGKILL)
	}
}

// Control runs rabbitmqctl. It returns an error when rabbitmqctl fails.
func (b *Broker) Control(ctx context.Context, args ...string) (string, error) {
	cmd := b.script(ctx, "rabbitmqctl", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: b.Owner()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("rabbitmqctl %s: %w: %s", args[0], err, out)
	}
	return string(out), err
}

// ready is nil when clients can log in, and all ports with TLS are open, which are the last to open.
func (b *Broker) ready(ctx context.Context) error {
	for _, l := range b.opts.Listeners {
		if err := daemon.Listens(b.Address(l.Name))(ctx); err != nil {
			return err
		}
	}
	conn, err := amqp.Dial(b.URL())
	if err != nil {
		return err
	}
	return conn.Close()
}
