// Package pgbouncer runs a temporary PgBouncer in transaction mode in front of a test's PostgreSQL.
package pgbouncer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os/exec"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
)

// ErrMissing is returned by [Start] when this machine has no PgBouncer and cannot get one.
var ErrMissing = errors.New("no pgbouncer on this machine; install the package pgbouncer")

// Options say how a PgBouncer is made.
type Options struct {
	// Server is what it leads to. Its superuser logs in here too, with the same password.
	Server *postgres.Server
	// Port to listen on, at 127.0.0.1. Defaults to a free one.
	Port int
	// Users are further logins of the server that log in here, with their passwords.
	Users map[string]string
	// Settings are added to the section [pgbouncer], such as max_client_conn.
	Settings map[string]string
}

// Bouncer is a PgBouncer. On Linux it ends with this process at the latest. Its methods are not for
// concurrent use.
type Bouncer struct {
	daemon.Server
	// Port is where it listens. It stays the same over Restart.
	Port int

	opts     Options
	upstream *url.URL
}

// Start runs a PgBouncer and waits until it leads to the server. When the machine has none, it is
// installed from the distribution's package, if this process may do that.
// It returns an error when it is not ready before ctx ends, or cannot be installed.
func Start(ctx context.Context, opts Options) (*Bouncer, error) {
	binary, err := daemon.Need(ctx, ErrMissing, "pgbouncer", "pgbouncer")
	if err != nil {
		return nil, err
	}
	b := &Bouncer{opts: opts, Port: opts.Port}
	if b.upstream, err = url.Parse(opts.Server.DSN("postgres")); err != nil {
		return nil, err
	}
	if b.Server, err = daemon.NewUnprivileged("outbox-pgbouncer-*"); err != nil {
		return nil, err
	}
	return b, b.Launch(ctx, b.configure, daemon.Program{
		Name: "PgBouncer", Abrupt: true, Ready: b.ready,
		Command: func() *exec.Cmd { return exec.Command(binary, b.Path("ini")) },
	})
}

// DSN is the connection string of the server's superuser for a database, by way of this PgBouncer.
func (b *Bouncer) DSN(database string) string {
	u := *b.upstream
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(b.Port))
	u.Path = "/" + database
	return u.String()
}

// configure chooses the port and writes its two files.
func (b *Bouncer) configure() (err error) {
	if b.Port == 0 {
		if b.Port, err = daemon.FreePort(); err != nil {
			return err
		}
	}
	settings := map[string]string{
		"listen_addr": "127.0.0.1", "listen_port": strconv.Itoa(b.Port), "unix_socket_dir": "",
		"auth_type": "scram-sha-256", "auth_file": b.Path("users"),
		"pool_mode": "transaction", "default_pool_size": "10", "max_client_conn": "500",
		"ignore_startup_parameters": "extra_float_digits",
		"server_login_retry":        "0.1", // else it does not look for 15 s after the server was unreachable
	}
	maps.Copy(settings, b.opts.Settings)
	users := map[string]string{}
	users[b.upstream.User.Username()], _ = b.upstream.User.Password()
	maps.Copy(users, b.opts.Users)
	return b.Write(map[string]string{
		"users": daemon.Lines("%q %q", users),
		"ini":   fmt.Sprintf("[databases]\n* = host=%s port=%s\n[pgbouncer]\n", b.upstream.Hostname(), b.upstream.Port()) + daemon.Lines("%s = %s", settings),
	})
}

// ready is nil when the server responds through it.
func (b *Bouncer) ready(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, b.DSN("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}
