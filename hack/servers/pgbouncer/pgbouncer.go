// Package pgbouncer runs a temporary PgBouncer in transaction mode in front of a test's PostgreSQL.
package pgbouncer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

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
	binary   string
	owner    *syscall.Credential
	upstream *url.URL
}

// Start runs a PgBouncer and waits until it leads to the server. When the machine has none, it is
// installed from the distribution's package, if this process may do that.
// It returns an error when it is not ready before ctx ends, or cannot be installed.
func Start(ctx context.Context, opts Options) (*Bouncer, error) {
	binary, err := find(ctx)
	if err != nil {
		return nil, err
	}
	b := &Bouncer{opts: opts, binary: binary}
	if b.owner, err = daemon.UnprivilegedUser(); err != nil {
		return nil, err
	}
	if b.upstream, err = url.Parse(opts.Server.DSN("postgres")); err != nil {
		return nil, err
	}
	if b.Server, err = daemon.NewServer("outbox-pgbouncer-*"); err != nil {
		return nil, err
	}
	if err := b.startOnPort(ctx); err != nil {
		return nil, errors.Join(err, b.Stop(ctx))
	}
	return b, nil
}

// DSN is the connection string of the server's superuser for a database, by way of this PgBouncer.
func (b *Bouncer) DSN(database string) string {
	u := *b.upstream
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(b.Port))
	u.Path = "/" + database
	return u.String()
}

// Stop ends it for good and removes its directory. It returns an error when its directory stays.
func (b *Bouncer) Stop(context.Context) error {
	b.Kill()
	return b.Remove()
}

// Restart kills it, if it runs, and starts it again on the same port. It returns when it leads to the
// server. It returns an error when it is not ready before ctx ends.
func (b *Bouncer) Restart(ctx context.Context) error {
	b.Kill()
	return b.start(ctx)
}

func find(ctx context.Context) (string, error) {
	look := func() string {
		for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} { // sbin is not in everyone's path
			if path, err := exec.LookPath(name); err == nil {
				return path
			}
		}
		return ""
	}
	if path := look(); path != "" {
		return path, nil
	}
	if err := daemon.Install(ctx, "pgbouncer", func() bool { return look() != "" }); err != nil {
		return "", fmt.Errorf("%w (%w)", ErrMissing, err)
	}
	if path := look(); path != "" {
		return path, nil
	}
	return "", ErrMissing
}

// startOnPort starts it on the given port, or on a free one, which another process may take first.
func (b *Bouncer) startOnPort(ctx context.Context) (err error) {
	for range 3 {
		b.Port = b.opts.Port
		if b.Port == 0 {
			if b.Port, err = daemon.FreePort(); err != nil {
				return err
			}
		}
		if err = b.configure(); err != nil {
			return err
		}
		if err = b.start(ctx); err == nil || b.opts.Port != 0 {
			return err
		}
	}
	return err
}

// configure writes its two files.
func (b *Bouncer) configure() error {
	var conf strings.Builder
	fmt.Fprintf(&conf, "[databases]\n* = host=%s port=%s\n[pgbouncer]\n", b.upstream.Hostname(), b.upstream.Port())
	settings := map[string]string{
		"listen_addr": "127.0.0.1", "listen_port": strconv.Itoa(b.Port), "unix_socket_dir": "",
		"auth_type": "scram-sha-256", "auth_file": b.Path("users"),
		"pool_mode": "transaction", "default_pool_size": "10", "max_client_conn": "500",
		"ignore_startup_parameters": "extra_float_digits",
		"server_login_retry":        "0.1", // else it does not look for 15 s after the server was unreachable
	}
	for name, value := range b.opts.Settings {
		settings[name] = value
	}
	for name, value := range settings {
		fmt.Fprintf(&conf, "%s = %s\n", name, value)
	}
	password, _ := b.upstream.User.Password()
	users := fmt.Sprintf("%q %q\n", b.upstream.User.Username(), password)
	for user, password := range b.opts.Users {
		users += fmt.Sprintf("%q %q\n", user, password)
	}
	for path, text := range map[string]string{b.Path("ini"): conf.String(), b.Path("users"): users} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return fmt.Errorf("write PgBouncer's settings: %w", err)
		}
	}
	return daemon.Give(b.owner, b.Dir, b.Path("ini"), b.Path("users"))
}

// start runs it and waits until the server responds through it.
func (b *Bouncer) start(ctx context.Context) error {
	cmd := exec.CommandContext(context.Background(), b.binary, b.Path("ini"))
	return b.Run(ctx, "PgBouncer", cmd, b.owner, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, b.DSN("postgres"))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
}
