package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

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
