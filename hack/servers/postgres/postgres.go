// Package postgres runs a temporary PostgreSQL server for tests and demonstrations, from the
// server binaries on the machine. Nothing of an installed server is touched: the data directory,
// the port and the settings are its own.
package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// Options say how a server is made. The zero value is a server for tests.
type Options struct {
	// Dir holds the data and the log. It must be empty or missing, and is kept after Stop.
	// Defaults to a temporary directory that Stop removes.
	Dir string
	// Port to listen on. Defaults to a free one.
	Port int
	// Listen are the addresses to listen on, with 127.0.0.1 among them. Everyone logs in with a
	// password. Defaults to 127.0.0.1 alone.
	Listen []string
	// Settings are added to postgresql.conf and win over this package's own.
	Settings map[string]string
	// Durable makes commits survive the machine's crash. Defaults to false: they survive the
	// server's crash only, and tests are much faster.
	Durable bool
	// Env is added to the environment of the server's processes.
	Env []string
}

// Server is a PostgreSQL server. On Linux it ends with this process at the latest, also when the
// process is killed. Its methods are not for concurrent use.
type Server struct {
	// Port is where the server listens. It stays the same over Restart.
	Port int

	opts     Options
	bin      string // directory of the server's binaries
	dir      string
	tempLock *os.File // held while dir is a temporary one
	password string
	owner    *syscall.Credential // nil: this process' own user
	process  *daemon.Process     // nil: not running
	follows  string              // connection string of the primary; "" when it is one itself
}

// Start makes a new server and waits until it accepts connections. When the machine has no server binaries, a pinned
// build of the newest major is fetched.
// It returns an error when it is not ready before ctx ends, or cannot be installed.
func Start(ctx context.Context, opts Options) (*Server, error) {
	bin, err := findBinaries(ctx)
	if err != nil {
		return nil, err
	}
	owner, err := daemon.UnprivilegedUser()
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts, bin: bin, dir: opts.Dir, password: rand.Text(), owner: owner}
	return s.launch(ctx, s.init)
}

// launch fills the server's directory and starts it, or leaves nothing behind.
func (s *Server) launch(ctx context.Context, fill func(context.Context) error) (*Server, error) {
	err := s.makeDir()
	if err == nil {
		err = fill(ctx)
	}
	if err == nil {
		err = s.startOnPort(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop(ctx))
	}
	return s, nil
}

// DSN is the connection string of the superuser for a database, by way of 127.0.0.1. A new
// server has the database "postgres".
func (s *Server) DSN(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Stop ends the server for good: it shuts down in order, or, when ctx ends first, at once.
// A temporary directory is removed. It returns an error when its directory stays.
func (s *Server) Stop(ctx context.Context) error {
	s.shutdown(ctx)
	if s.tempLock == nil {
		return nil
	}
	if err := errors.Join(os.RemoveAll(s.dir), s.tempLock.Close()); err != nil {
		return fmt.Errorf("remove the server's directory: %w; remove it by hand", err)
	}
	s.tempLock = nil
	return nil
}

// Kill ends the server as a crash does: every connection breaks, nothing is flushed. The data is
// kept, and Restart recovers it.
func (s *Server) Kill() {
	if s.process != nil {
		s.process.Signal(syscall.SIGQUIT)
		s.Thaw()
		<-s.process.Done
		s.process = nil
	}
}

// Shutdown ends the server in order: its standbys have all that it wrote. The data is kept, and
// Restart or Follow starts it again. It returns an error when pg_ctl fails.
func (s *Server) Shutdown(ctx context.Context) error {
	s.shutdown(ctx)
	return context.Cause(ctx)
}

// Restart starts the server again on the same port and data, after it was killed or, in order,
// when it still runs. It returns when the server accepts connections.
// It returns an error when it is not ready before ctx ends.
func (s *Server) Restart(ctx context.Context) error {
	s.shutdown(ctx)
	return s.start(ctx)
}

const superuser = "postgres"

// makeDir makes the server's directory, for the server's user.
func (s *Server) makeDir() (err error) {
	if s.dir == "" {
		if s.dir, s.tempLock, err = daemon.TempDir("outbox-postgres-*"); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("make the server's directory: %w", err)
	}
	return daemon.Give(s.owner, s.dir)
}

// init makes the database cluster.
func (s *Server) init(ctx context.Context) error {
	passwordFile := filepath.Join(s.dir, "password")
	if err := os.WriteFile(passwordFile, []byte(s.password), 0o600); err != nil {
		return fmt.Errorf("write the superuser's password: %w", err)
	}
	if err := daemon.Give(s.owner, passwordFile); err != nil {
		return err
	}
	initdb := s.command(ctx, "initdb", "--pgdata", s.dataDir(), "--username", superuser,
		"--pwfile", passwordFile, "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb in %s: %w: %s; the directory and its parents must be open to uid %d",
			s.dir, err, out, s.uid())
	}
	hba := "local all all scram-sha-256\nhost all all all scram-sha-256\nhost replication all all scram-sha-256\n"
	if err := os.WriteFile(filepath.Join(s.dataDir(), "pg_hba.conf"), []byte(hba), 0o600); err != nil {
		return fmt.Errorf("write pg_hba.conf: %w", err)
	}
	return nil
}

// configure writes the settings. A later line of postgresql.conf wins.
func (s *Server) configure() error {
	listen := s.opts.Listen
	if len(listen) == 0 {
		listen = []string{"127.0.0.1"}
	}
	settings := [][2]string{
		{"listen_addresses", strings.Join(listen, ",")},
		{"port", strconv.Itoa(s.Port)},
		{"unix_socket_directories", ""}, // unused, and a deep Dir exceeds a socket's path
		{"max_connections", "300"},
		{"shared_buffers", "256MB"},
		{"max_wal_size", "4GB"},
	}
	if !s.opts.Durable {
		settings = append(settings, [2]string{"fsync", "off"}, [2]string{"full_page_writes", "off"})
	}
	if s.follows != "" {
		settings = append(settings, [2]string{"primary_conninfo", s.follows})
	}
	for name, value := range s.opts.Settings {
		settings = append(settings, [2]string{name, value})
	}
	var conf strings.Builder
	for _, kv := range settings {
		fmt.Fprintf(&conf, "%s = '%s'\n", kv[0], strings.ReplaceAll(kv[1], "'", "''"))
	}
	// postgresql.auto.conf is read after postgresql.conf, which stays as initdb wrote it.
	path := filepath.Join(s.dataDir(), "postgresql.auto.conf")
	if err := os.WriteFile(path, []byte(conf.String()), 0o600); err != nil {
		return fmt.Errorf("write the server's settings: %w", err)
	}
	return nil
}

// startOnPort starts the server on the given port, or on a free one. Another process may take
// a free port before the server does, so it tries again.
func (s *Server) startOnPort(ctx context.Context) error {
	var err error
	for range 3 {
		s.Port = s.opts.Port
		if s.opts.Port == 0 {
			if s.Port, err = daemon.FreePort(); err != nil {
				return err
			}
		}
		if err = s.configure(); err != nil {
			return err
		}
		if err = s.start(ctx); err == nil || s.opts.Port != 0 {
			return err
		}
	}
	return err
}

// start runs the server and waits until it accepts connections.
func (s *Server) start(ctx context.Context) (err error) {
	cmd := s.command(context.Background(), "postgres", "-D", s.dataDir())
	cmd.Env = append(cmd.Env, s.opts.Env...)
	s.process, err = daemon.Serve(ctx, "PostgreSQL", cmd, s.owner, syscall.SIGQUIT, filepath.Join(s.dir, "log"), func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, s.DSN("postgres"))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
	return err
}

// shutdown ends a running server in order, or at once when ctx ends first.
func (s *Server) shutdown(ctx context.Context) {
	if s.process == nil {
		return
	}
	s.process.Signal(syscall.SIGINT)
	select {
	case <-s.process.Done:
		s.process = nil
	case <-ctx.Done():
		s.Kill()
	}
}

func (s *Server) dataDir() string { return filepath.Join(s.dir, "data") }

func (s *Server) uid() int {
	if s.owner != nil {
		return int(s.owner.Uid)
	}
	return os.Getuid()
}

// command runs one of the server's binaries as the server's user, with no PG* variable of ours.
func (s *Server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.owner}
	return cmd
}
