package postgres

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// Standby makes a hot standby that streams from this server, and waits until it accepts connections. Its
// superuser is this server's, and so are its environment and the settings that opts does not change.
// It returns an error when it is not ready before ctx ends, or cannot be installed.
func (s *Server) Standby(ctx context.Context, opts Options) (*Server, error) {
	settings := map[string]string{}
	maps.Copy(settings, s.opts.Settings)
	maps.Copy(settings, opts.Settings)
	opts.Settings, opts.Env = settings, append(slices.Clone(s.opts.Env), opts.Env...)
	standby := &Server{opts: opts, bin: s.bin, dir: opts.Dir, password: s.password, owner: s.owner}
	return standby.launch(ctx, func(ctx context.Context) error {
		if err := s.backup(ctx, standby); err != nil {
			return fmt.Errorf("copy the server on port %d to %s: %w", s.Port, standby.dir, err)
		}
		return standby.follow(s)
	})
}

// Promote makes a standby a primary. It returns when the server takes writes.
// It returns an error when the server does not promote.
func (s *Server) Promote(ctx context.Context) error {
	promote := s.command(ctx, "pg_ctl", "promote", "--pgdata", s.dataDir(), "--wait") // pg_promote() may be cancelled by the recovery
	if out, err := promote.CombinedOutput(); err != nil {
		return fmt.Errorf("promote the standby on port %d: %w: %s", s.Port, err, out)
	}
	s.follows = ""
	return nil
}

// TakeOver restarts a promoted server on the port of another one, which has ended.
// It returns an error when it is not ready before ctx ends.
func (s *Server) TakeOver(ctx context.Context, ended *Server) error {
	s.shutdown(ctx)
	s.Port = ended.Port
	if err := s.configure(); err != nil {
		return err
	}
	return s.start(ctx)
}

// Follow restarts the server as a standby of another one, which was its standby before. The server
// must have been stopped in order then: what only it has is not undone.
// It returns an error when it is not ready before ctx ends.
func (s *Server) Follow(ctx context.Context, primary *Server) error {
	s.shutdown(ctx)
	if err := s.follow(primary); err != nil {
		return err
	}
	if err := s.configure(); err != nil {
		return err
	}
	return s.start(ctx)
}

// follow has the next start be one of a standby.
func (s *Server) follow(primary *Server) error {
	s.follows = primary.DSN("postgres")
	signal := filepath.Join(s.dataDir(), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		return fmt.Errorf("make the server a standby: %w", err)
	}
	return daemon.Give(s.owner, signal)
}
