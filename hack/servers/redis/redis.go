// Package redis runs servers of Redis for tests and benchmarks, from the distribution's
// package: alone or as a cluster, on 127.0.0.1, each with its own port, data and settings.
package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// ErrMissing is returned by [Start] when this machine has no Redis and cannot get one.
var ErrMissing = errors.New("no redis-server on this machine; install the packages redis-server and redis-tools")

// Options say how a server is made. The zero value is a server for plain connections, where the user
// default may do everything without a password. A confirmed write is on the disk.
type Options struct {
	// TLS has the server speak TLS instead of plain text.
	TLS *TLS
	// Settings are added to redis.conf and win over this package's own, such as maxmemory.
	Settings map[string]string
}

// TLS is a server's side of it.
type TLS struct {
	// CertPEM and KeyPEM are the server's certificate and key.
	CertPEM, KeyPEM string
	// ClientCAPEM signs the certificates that clients must have. Defaults to none: they need none.
	ClientCAPEM string
}

// Server is a running server. On Linux it ends with this process at the latest. Its methods are not
// for concurrent use.
type Server struct {
	daemon.Server
	// Address is host:port. It stays the same over Restart.
	Address string

	binary string
	owner  *syscall.Credential
	tls    bool
}

// Start makes a new server and waits until it is ready. When the machine has none, it is installed from
// the distribution's packages, if this process may do that.
// It returns an error when it is not ready before ctx ends, or cannot be installed.
func Start(ctx context.Context, opts Options) (*Server, error) {
	binary, err := find(ctx)
	if err != nil {
		return nil, err
	}
	s := &Server{binary: binary, tls: opts.TLS != nil}
	if s.owner, err = daemon.UnprivilegedUser(); err != nil {
		return nil, err
	}
	if s.Server, err = daemon.NewServer("outbox-redis-*"); err != nil {
		return nil, err
	}
	for range 3 { // another process may take the port first
		if err = s.configure(opts); err != nil {
			break
		}
		if err = s.start(ctx); err == nil {
			return s, nil
		}
	}
	return nil, errors.Join(err, s.Stop(ctx))
}

// TLS reports whether the server speaks TLS.
func (s *Server) TLS() bool { return s.tls }

// Stop ends the server for good and removes its directory. It returns an error when its directory stays.
func (s *Server) Stop(context.Context) error {
	s.Kill()
	return s.Remove()
}

// Restart kills the server, if it runs, and starts it again on the same port and data. It returns when
// the server is ready. It returns an error when it is not ready before ctx ends.
func (s *Server) Restart(ctx context.Context) error {
	s.Kill()
	return s.start(ctx)
}

// Tool is one of Redis' own programs, redis-cli or redis-benchmark, at a server without TLS.
func (s *Server) Tool(ctx context.Context, name string, args ...string) *exec.Cmd {
	host, port, _ := net.SplitHostPort(s.Address) // this package's own
	return exec.CommandContext(ctx, name, append([]string{"-h", host, "-p", port}, args...)...)
}

func find(ctx context.Context) (string, error) {
	installed := func() bool {
		for _, name := range []string{"redis-server", "redis-cli", "redis-benchmark"} {
			if _, err := exec.LookPath(name); err != nil {
				return false
			}
		}
		return true
	}
	if !installed() {
		if err := daemon.Install(ctx, "redis-server", installed); err != nil { // with redis-tools
			return "", fmt.Errorf("%w (%w)", ErrMissing, err)
		}
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", ErrMissing
	}
	return path, nil
}

// configure chooses the port and writes the server's files.
func (s *Server) configure(opts Options) error {
	var ports [2]string // of the clients, and of a cluster's nodes
	for i := range ports {
		port, err := daemon.FreePort()
		if err != nil {
			return err
		}
		ports[i] = strconv.Itoa(port)
	}
	s.Address = net.JoinHostPort("127.0.0.1", ports[0])
	settings := map[string]string{
		"bind": "127.0.0.1", "port": ports[0], "dir": s.Dir, "daemonize": "no", "save": `""`,
		"appendonly": "yes", "appendfsync": "always",
		"cluster-port": ports[1], "cluster-node-timeout": "2000",
	}
	files := map[string]string{}
	if t := opts.TLS; t != nil {
		files["tls.crt"], files["tls.key"], files["ca.crt"] = t.CertPEM, t.KeyPEM, t.ClientCAPEM
		settings["port"], settings["tls-port"] = "0", ports[0]
		settings["tls-cert-file"], settings["tls-key-file"] = s.Path("tls.crt"), s.Path("tls.key")
		settings["tls-ca-cert-dir"], settings["tls-auth-clients"] = s.Dir, "no"
		if t.ClientCAPEM != "" {
			delete(settings, "tls-ca-cert-dir")
			settings["tls-ca-cert-file"], settings["tls-auth-clients"] = s.Path("ca.crt"), "yes"
		}
	}
	maps.Copy(settings, opts.Settings)
	var conf strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&conf, "%s %s\n", name, settings[name])
	}
	files["redis.conf"] = conf.String()
	for name, text := range files {
		if err := os.WriteFile(s.Path(name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write Redis' settings: %w", err)
		}
		if err := daemon.Give(s.owner, s.Path(name)); err != nil {
			return err
		}
	}
	return daemon.Give(s.owner, s.Dir)
}

// start runs the server and waits until it takes commands.
func (s *Server) start(ctx context.Context) error {
	cmd := exec.CommandContext(context.Background(), s.binary, s.Path("redis.conf"))
	return s.Run(ctx, "redis-server", cmd, s.owner, s.ready)
}

// ready reports why the server takes no commands yet. One that speaks TLS may want certificates of
// its clients: it is there when it takes connections.
func (s *Server) ready(ctx context.Context) error {
	if s.tls {
		return daemon.Listens(s.Address)(ctx)
	}
	logging.Disable() // of the failures that are waited out here
	client := redis.NewClient(&redis.Options{Addr: s.Address, MaxRetries: -1, DialerRetries: 1})
	defer func() { _ = client.Close() }()
	err := client.Ping(ctx).Err()
	if redis.IsAuthError(err) || redis.HasErrorPrefix(err, "CLUSTERDOWN") {
		return nil
	}
	return err
}
