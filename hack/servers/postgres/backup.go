package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// backup copies the data of a running server to the directory of another one, which then needs the
// server's WAL since the copy began. Not every build of PostgreSQL has pg_basebackup.
func (s *Server) backup(ctx context.Context, to *Server) (err error) {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	var version int
	if err := conn.QueryRow(ctx, `select current_setting('server_version_num')::integer`).Scan(&version); err != nil {
		return err
	}
	start, stop := `select pg_backup_start('standby', fast => true)`, `select labelfile from pg_backup_stop(wait_for_archive => false)`
	if version < 150000 {
		start = `select pg_start_backup('standby', fast => true, exclusive => false)`
		stop = `select labelfile from pg_stop_backup(exclusive => false, wait_for_archive => false)`
	}
	if _, err := conn.Exec(ctx, start); err != nil {
		return err
	}
	if err := s.copyData(to); err != nil {
		return fmt.Errorf("copy %s: %w", s.dataDir(), err)
	}
	var label string
	if err := conn.QueryRow(ctx, stop).Scan(&label); err != nil {
		return err
	}
	return to.put("backup_label", func(w io.Writer) error {
		_, err := io.WriteString(w, label)
		return err
	})
}

// copyData copies all files but those that are the running server's alone. The server continues to write
// and remove files meanwhile: its WAL repairs that.
func (s *Server) copyData(to *Server) error {
	data := os.DirFS(s.dataDir())
	return fs.WalkDir(data, ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist), path == "postmaster.pid", path == "postmaster.opts":
			return nil
		case err != nil:
			return err
		case entry.IsDir():
			dir := filepath.Join(to.dataDir(), path)
			return errors.Join(os.Mkdir(dir, 0o700), daemon.Give(to.owner, dir))
		case strings.HasPrefix(path, "pg_wal/"): // what is needed of it is streamed
			return nil
		}
		file, err := data.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		return to.put(path, func(w io.Writer) error {
			_, err := io.Copy(w, file)
			return err
		})
	})
}

// put makes a file of the data directory.
func (s *Server) put(path string, write func(io.Writer) error) error {
	file, err := os.OpenFile(filepath.Join(s.dataDir(), path), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close(), daemon.Give(s.owner, file.Name()))
}

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

// follow has the next start be one of a standby.
func (s *Server) follow(primary *Server) error {
	s.follows = primary.DSN("postgres")
	signal := filepath.Join(s.dataDir(), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		return fmt.Errorf("make the server a standby: %w", err)
	}
	return daemon.Give(s.owner, signal)
}

// Freeze stops every process of the server where it is, as a virtual machine that is suspended: the
// server keeps its connections, and does not respond. It is for Linux.
// It returns an error when a process cannot be stopped.
func (s *Server) Freeze() error {
	if err := s.eachProcess(daemon.Pause); err != nil {
		return fmt.Errorf("freeze PostgreSQL on port %d: %w", s.Port, err)
	}
	return nil
}

// Thaw lets a frozen server continue.
func (s *Server) Thaw() {
	// Where Freeze cannot work there is nothing to do, and that one has ended meanwhile is as good.
	_ = s.eachProcess(func(pid int) { _ = syscall.Kill(pid, syscall.SIGCONT) })
}

// eachProcess calls f with the postmaster and then with its children: it starts no more once it has stopped.
func (s *Server) eachProcess(f func(pid int)) error {
	f(s.process.Pid())
	pid := strconv.Itoa(s.process.Pid())
	children, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	if err != nil {
		return err
	}
	for _, child := range bytes.Fields(children) {
		pid, err := strconv.Atoi(string(child))
		if err != nil {
			return err
		}
		f(pid)
	}
	return nil
}
