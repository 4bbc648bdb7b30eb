// Package rabbitmq runs a RabbitMQ for tests and measurements: one node from the
// distribution's package, in a directory of its own.
package rabbitmq

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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

// Ports that are not for clients.
const (
	epmdPort = "epmd"
	distPort = "distribution"
)

// script returns a command that runs one of RabbitMQ's scripts for this node alone.
func (b *Broker) script(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(scripts, name), args...)
	cmd.Dir = b.Dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "HOME=" + b.Dir,
		"RABBITMQ_NODENAME=outbox@localhost",
		"RABBITMQ_ALLOW_INPUT=true", // the node is this very process then, not a child of a shell
		"RABBITMQ_MNESIA_BASE=" + b.Path("data"),
		"RABBITMQ_LOG_BASE=" + b.Dir, "RABBITMQ_LOGS=-",
		"RABBITMQ_CONFIG_FILE=" + b.Path("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + b.Path("none.config"),
		"RABBITMQ_CONF_ENV_FILE=" + b.Path("none"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + b.Path("plugins"),
		"RABBITMQ_GENERATED_CONFIG_DIR=" + b.Path("data"),
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(b.ports[distPort]),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
		"ERL_EPMD_ADDRESS=127.0.0.1", "ERL_EPMD_PORT=" + strconv.Itoa(b.ports[epmdPort]),
	}
	return cmd
}

// configure writes the node's files, and starts Erlang's name service.
func (b *Broker) configure() error {
	b.ports = map[string]int{}
	listeners := []string{epmdPort, distPort, Plain}
	for _, l := range b.opts.Listeners {
		listeners = append(listeners, l.Name)
	}
	for _, name := range listeners {
		port, err := daemon.FreePort()
		if err != nil {
			return err
		}
		b.ports[name] = port
	}
	definitions, err := json.Marshal(b.definitions())
	if err != nil {
		return err
	}
	files := map[string]string{
		"rabbitmq.conf": b.conf(), "definitions.json": string(definitions),
		"plugins": "[" + strings.Join(append(b.opts.Plugins, "rabbitmq_auth_mechanism_ssl"), ",") + "].\n", ".erlang.cookie": "outbox",
	}
	for _, l := range b.opts.Listeners {
		files[l.Name+".crt"], files[l.Name+".key"], files[l.Name+".ca"] = l.CertPEM, l.KeyPEM, l.ClientCAPEM
	}
	if err := os.Mkdir(b.Path("data"), 0o700); err != nil {
		return fmt.Errorf("make the broker's directory: %w", err)
	}
	if err := errors.Join(daemon.Give(b.Owner(), b.Path("data")), b.Write(files)); err != nil {
		return err
	}
	names := exec.Command("epmd", "-address", "127.0.0.1", "-port", strconv.Itoa(b.ports[epmdPort]))
	if b.epmd, err = daemon.Start(names, b.Owner(), syscall.SIGKILL); err != nil {
		b.epmd = nil
		return fmt.Errorf("start Erlang's name service: %w", err)
	}
	return nil
}

func (b *Broker) conf() string {
	settings := map[string]string{
		"listeners.tcp.1":  b.Address(Plain),
		"load_definitions": b.Path("definitions.json"),
		// EXTERNAL needs these, though each listener has its own.
		"ssl_options.verify":               "verify_peer",
		"ssl_options.fail_if_no_peer_cert": "true",
		"auth_mechanisms.1":                "PLAIN",
		"auth_mechanisms.2":                "EXTERNAL",
		"ssl_cert_login_from":              "common_name",
		"disk_free_limit.absolute":         "50MB",
	}
	maps.Copy(settings, b.opts.Settings)
	return daemon.Lines("%s = %s", settings)
}

// definitions are the users and the vhost /, in RabbitMQ's own form.
func (b *Broker) definitions() any {
	type object map[string]any
	all := [3]string{".*", ".*", ".*"}
	users := []object{{"name": Admin, "password_hash": hash(Admin), "tags": "administrator"}}
	permission := func(user string, p [3]string) object {
		return object{"user": user, "vhost": "/", "configure": p[0], "write": p[1], "read": p[2]}
	}
	permissions := []object{permission(Admin, all)}
	for user, password := range b.opts.Users {
		h := ""
		if password != "" {
			h = hash(password)
		}
		users = append(users, object{"name": user, "password_hash": h, "tags": ""})
	}
	for user, p := range b.opts.Permissions {
		permissions = append(permissions, permission(user, p))
	}
	return object{"vhosts": []object{{"name": "/"}}, "users": users, "permissions": permissions}
}

// hash is RabbitMQ's hash of a password.
func hash(password string) string {
	salt := []byte("salt")
	sum := sha256.Sum256(append(salt, password...))
	return base64.StdEncoding.EncodeToString(append(salt, sum[:]...))
}

// listen is Erlang that opens the listeners with TLS. Those of the settings have one certificate between
// them.
func (b *Broker) listen() string {
	var code strings.Builder
	for _, l := range b.opts.Listeners {
		tls := fmt.Sprintf("{certfile,%q},{keyfile,%q}", b.Path(l.Name+".crt"), b.Path(l.Name+".key"))
		if l.ClientCAPEM != "" {
			tls += fmt.Sprintf(",{cacertfile,%q},{verify,verify_peer},{fail_if_no_peer_cert,true}", b.Path(l.Name+".ca"))
		}
		fmt.Fprintf(&code, "rabbit_networking:start_ssl_listener({\"127.0.0.1\",%d}, [%s], 1), ", b.ports[l.Name], tls)
	}
	return code.String() + "ok."
}
