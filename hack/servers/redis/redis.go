// Package redis runs servers of Redis for tests and benchmarks, from the distribution's
// package: alone or as a cluster, on 127.0.0.1, each with its own port, data and settings.
package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

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

	tls bool
}

// Start makes a new server and waits until it is ready. When the machine has none, it is installed from
// the distribution's packages, if this process may do that.
// It returns an error when it is not ready before ctx ends, or cannot be installed.
func Start(ctx context.Context, opts Options) (*Server, error) {
	binary, err := daemon.Need(ctx, ErrMissing, "redis-server", "redis-server", "redis-cli", "redis-benchmark") // with redis-tools
	if err != nil {
		return nil, err
	}
	s := &Server{tls: opts.TLS != nil}
	if s.Server, err = daemon.NewUnprivileged("outbox-redis-*"); err != nil {
		return nil, err
	}
	return s, s.Launch(ctx, func() error { return s.configure(opts) }, daemon.Program{
		Name: "redis-server", Abrupt: true, Ready: s.ready,
		Command: func() *exec.Cmd { return exec.Command(binary, s.Path("redis.conf")) },
	})
}

// TLS reports whether the server speaks TLS.
func (s *Server) TLS() bool { return s.tls }

// Tool is one of Redis' own programs, redis-cli or redis-benchmark, at a server without TLS.
func (s *Server) Tool(ctx context.Context, name string, args ...string) *exec.Cmd {
	host, port, _ := net.SplitHostPort(s.Address) // this package's own
	return exec.CommandContext(ctx, name, append([]string{"-h", host, "-p", port}, args...)...)
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
	files["redis.conf"] = daemon.Lines("%s %s", settings)
	return s.Write(files)
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

const slots = 16384

// StartCluster makes a cluster of n masters, which share the slots evenly, and waits until it is ready.
// It returns an error when it is not ready before ctx ends, or cannot be installed.
func StartCluster(ctx context.Context, n int, opts Options) (nodes []*Server, err error) {
	defer func() {
		if err != nil {
			for _, node := range nodes {
				err = errors.Join(err, node.Stop(ctx))
			}
			nodes = nil
		}
	}()
	settings := map[string]string{"cluster-enabled": "yes"}
	maps.Copy(settings, opts.Settings)
	opts.Settings = settings
	for range n {
		node, err := Start(ctx, opts)
		if err != nil {
			return nodes, err
		}
		nodes = append(nodes, node)
	}
	for i, node := range nodes {
		if err := node.join(ctx, nodes[0], i*slots/n, (i+1)*slots/n-1); err != nil {
			return nodes, fmt.Errorf("add %s to the cluster: %w", node.Address, err)
		}
	}
	for _, node := range nodes {
		if err := node.awaitCluster(ctx, n); err != nil {
			return nodes, err
		}
	}
	return nodes, nil
}

// join gives the node its slots and has it meet another one.
func (s *Server) join(ctx context.Context, other *Server, first, last int) error {
	client := redis.NewClient(&redis.Options{Addr: s.Address})
	defer func() { _ = client.Close() }()
	if err := client.ClusterAddSlotsRange(ctx, first, last).Err(); err != nil || s == other {
		return err
	}
	otherClient := redis.NewClient(&redis.Options{Addr: other.Address})
	defer func() { _ = otherClient.Close() }()
	bus, err := otherClient.ConfigGet(ctx, "cluster-port").Result()
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(other.Address)
	if err != nil {
		return err
	}
	return client.Do(ctx, "cluster", "meet", host, port, bus["cluster-port"]).Err()
}

// awaitCluster waits until the node knows all others.
func (s *Server) awaitCluster(ctx context.Context, n int) error {
	client := redis.NewClient(&redis.Options{Addr: s.Address})
	defer func() { _ = client.Close() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		info, err := client.ClusterInfo(ctx).Result()
		lines := strings.Fields(info)
		if err == nil && slices.Contains(lines, "cluster_state:ok") && slices.Contains(lines, fmt.Sprintf("cluster_known_nodes:%d", n)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cluster is not ready at %s: %w: %w: %s", s.Address, ctx.Err(), err, info)
		case <-tick.C:
		}
	}
}
