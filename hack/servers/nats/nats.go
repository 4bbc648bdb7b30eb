// Package nats runs a server of NATS with JetStream for tests: the real one, built from its
// Go module, as a process of its own on 127.0.0.1, with its own port, data and settings.
package nats

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/internal/fetch"
)

// Options say how a server is made. The zero value is one that everybody may use.
type Options struct {
	// Sync has JetStream write each message through to the disk before it confirms it (sync_interval:
	// always). Without, as is the server's own default, a confirmed message is in the operating
	// system's memory for up to two minutes: a killed server loses nothing, a machine without power may.
	Sync bool
	// NoJetStream leaves JetStream off.
	NoJetStream bool
	// Settings are added to the configuration file as they are, such as authorization, tls or cluster.
	Settings string
}

// Server is a running server. On Linux it ends with this process at the latest. Its methods are not for
// concurrent use.
type Server struct {
	daemon.Server
	port int
}

// Start makes a new server and waits until it is ready. The binary is built when it is not in
// the user's cache, which takes a minute.
// It returns an error when it is not ready before ctx ends, or cannot be installed.
func Start(ctx context.Context, opts Options) (*Server, error) {
	binary, err := tool(ctx, "nats-server")
	if err != nil {
		return nil, err
	}
	s := &Server{}
	if s.Server, err = daemon.NewServer("outbox-nats-*"); err != nil {
		return nil, err
	}
	prepare := func() (err error) {
		if s.port, err = daemon.FreePort(); err != nil {
			return err
		}
		return s.configure(opts)
	}
	return s, s.Launch(ctx, prepare, daemon.Program{
		Name: "NATS", Command: func() *exec.Cmd { return exec.Command(binary, "--config", s.Path("conf")) },
		// The server listens when JetStream has read its streams.
		Ready: func(ctx context.Context) error { return daemon.Listens(s.Address())(ctx) },
	})
}

// Address is host:port of the server. It stays the same over Restart.
func (s *Server) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// URL is nats:// and the address.
func (s *Server) URL() string { return "nats://" + s.Address() }

// LameDuck makes the server disconnect its clients, and then stop.
func (s *Server) LameDuck() { s.Signal(syscall.SIGUSR2) }

// Configure replaces the settings that the server has from its next start on, and, when it runs, from
// now on, as far as NATS can change them while it runs. It returns an error when it cannot write the file.
func (s *Server) Configure(opts Options) error {
	if err := s.configure(opts); err != nil {
		return err
	}
	s.Signal(syscall.SIGHUP)
	return nil
}

// Tool returns a command of the nats command line, connected to the server. It is built as the server
// is, from natscli. It returns an error when the tool cannot be built.
func (s *Server) Tool(ctx context.Context, args ...string) (*exec.Cmd, error) {
	binary, err := tool(ctx, "nats")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, binary, append([]string{"--server", s.URL(), "--no-context"}, args...)...)
	cmd.Dir = s.Dir
	cmd.Env = append(os.Environ(), "HOME="+s.Dir) // its own settings, not the user's
	return cmd, nil
}

func (s *Server) configure(opts Options) error {
	text := fmt.Sprintf("listen: %q\nserver_name: \"test-%d\"\n", s.Address(), s.port)
	if !opts.NoJetStream {
		sync := ""
		if opts.Sync {
			sync = ", sync_interval: always"
		}
		text += fmt.Sprintf("jetstream: {store_dir: %q, max_file_store: 20GB%s}\n", s.Path("data"), sync)
	}
	return s.Write(map[string]string{"conf": text + opts.Settings})
}

// packages are the programs, with their versions. Go checks their modules against its checksum database.
var packages = map[string]string{
	"nats-server": "github.com/nats-io/nats-server/v2@v2.15.2",
	"nats":        "github.com/nats-io/natscli/nats@v0.3.0",
}

// tool returns the path of a program, built when it is not in the cache.
func tool(ctx context.Context, name string) (string, error) {
	pkg := packages[name]
	dir, err := fetch.Once("nats-"+name, []byte(pkg), func(dir string) error {
		cmd := exec.CommandContext(ctx, "go", "install", "-trimpath", "-ldflags", "-s -w", pkg)
		cmd.Dir = os.TempDir() // in no module
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=", "GOBIN="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", pkg, err, out)
		}
		return nil
	})
	return filepath.Join(dir, name), err
}

// StartCluster makes n servers that know each other. It returns when each is ready, which is before they
// have elected a leader. It returns an error when it is not ready before ctx ends, or cannot be installed.
func StartCluster(ctx context.Context, n int, opts Options) (servers []*Server, err error) {
	var routes []string
	for range n {
		port, err := daemon.FreePort()
		if err != nil {
			return nil, err
		}
		routes = append(routes, fmt.Sprintf("\"nats://127.0.0.1:%d\"", port))
	}
	for i := range n {
		own := opts
		own.Settings += fmt.Sprintf("\ncluster: {name: test, listen: %s, routes: [%s]}\n",
			strings.ReplaceAll(routes[i], "nats://", ""), strings.Join(routes, ", "))
		s, err := Start(ctx, own)
		if err != nil {
			for _, s := range servers {
				err = errors.Join(err, s.Stop(ctx))
			}
			return nil, err
		}
		servers = append(servers, s)
	}
	return servers, nil
}
