package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
)

// settings are PostgreSQL's, next to its defaults: the same for every system, and printed.
var settings = map[string]string{
	"shared_buffers":           "2GB",
	"max_wal_size":             "16GB",
	"checkpoint_timeout":       "30min", // none within a run: each begins with one
	"random_page_cost":         "1.1",
	"maintenance_work_mem":     "512MB",
	"max_connections":          "100",
	"shared_preload_libraries": "pg_stat_statements",
	"fsync":                    "on",
	"synchronous_commit":       "on",
	"full_page_writes":         "on",
	"autovacuum":               "on",
}

// server is the PostgreSQL that every system uses, one at a time.
type server struct {
	*postgres.Server
	admin     *pgx.Conn // to the database postgres
	pid       int       // of the postmaster
	Version   string
	databases int
}

func startServer(ctx context.Context, settings map[string]string) (*server, error) {
	srv, err := postgres.Start(ctx, postgres.Options{Durable: true, Settings: settings})
	if err != nil {
		return nil, fmt.Errorf("%w (the benchmark needs PostgreSQL's contrib modules too, for pg_stat_statements)", err)
	}
	s := &server{Server: srv}
	if err := s.connect(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *server) connect(ctx context.Context) (err error) {
	if s.admin, err = pgx.Connect(ctx, s.DSN("postgres")); err != nil {
		return err
	}
	var backend int
	if err := s.admin.QueryRow(ctx, `select pg_backend_pid(), split_part(version(), ' on ', 1)`).Scan(&backend, &s.Version); err != nil {
		return err
	}
	if _, _, s.pid, err = procStat(backend); err != nil {
		return err
	}
	_, err = s.admin.Exec(ctx, `create extension pg_stat_statements`)
	return err
}

func (s *server) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if s.admin != nil {
		_ = s.admin.Close(ctx)
	}
	if err := s.Stop(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// database makes an empty database, after a checkpoint: the next one is far then.
func (s *server) database(ctx context.Context) (*database, error) {
	s.databases++
	db := &database{server: s, name: fmt.Sprintf("bench%d", s.databases)}
	if _, err := s.admin.Exec(ctx, `checkpoint`); err != nil {
		return nil, err
	}
	if _, err := s.admin.Exec(ctx, `create database `+db.name); err != nil {
		return nil, err
	}
	var err error
	db.conn, err = pgx.Connect(ctx, db.dsn())
	return db, err
}

// database is one system's, for one run.
type database struct {
	*server
	name string
	conn *pgx.Conn
}

func (db *database) dsn() string { return db.DSN(db.name) }

func (db *database) drop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = db.conn.Close(ctx)
	if _, err := db.admin.Exec(ctx, `drop database if exists `+db.name+` with (force)`); err != nil {
		fmt.Fprintln(os.Stderr, "drop a database:", err)
	}
}

func (db *database) exec(ctx context.Context, sql string) error {
	_, err := db.conn.Exec(ctx, sql)
	return err
}

// queryOne returns the one value of a query.
func queryOne[T any](ctx context.Context, conn *pgx.Conn, sql string, args ...any) (value T, err error) {
	err = conn.QueryRow(ctx, sql, args...).Scan(&value)
	return value, err
}

// usage is what the server has used so far.
type usage struct {
	at  int64 // monotonic
	cpu time.Duration
	wal int64 // bytes
}

func (s *server) usage(ctx context.Context) (u usage, err error) {
	if u.wal, err = queryOne[int64](ctx, s.admin, `select (pg_current_wal_insert_lsn() - '0/0')::bigint`); err != nil {
		return u, err
	}
	u.cpu, err = treeCPU(s.pid)
	u.at = now()
	return u, err
}

// statements counts what pg_stat_statements saw since its reset in this database.
type statements struct {
	calls int64
	// claimBuffers and claimTime are of the statements that claim.
	claimBuffers int64
	claimMillis  float64
}

func (db *database) resetStatements(ctx context.Context) error {
	_, err := db.admin.Exec(ctx, `select pg_stat_statements_reset(0, oid, 0) from pg_database where datname = $1`, db.name)
	return err
}

func (db *database) statements(ctx context.Context) (s statements, err error) {
	err = db.admin.QueryRow(ctx, `select coalesce(sum(calls), 0)::bigint,
			coalesce(sum(shared_blks_hit + shared_blks_read) filter (where claims), 0)::bigint,
			coalesce(sum(total_exec_time) filter (where claims), 0)
		from (select *, query ilike '%skip locked%' as claims from pg_stat_statements) as s
		join pg_database as d on d.oid = s.dbid and d.datname = $1`, db.name).Scan(&s.calls, &s.claimBuffers, &s.claimMillis)
	return s, err
}

// hotShare is the share of updates that touched no index, of all of the database's tables.
func (db *database) hotShare(ctx context.Context) (share float64, err error) {
	return queryOne[float64](ctx, db.conn, `select coalesce(sum(n_tup_hot_upd)::float8 / nullif(sum(n_tup_upd), 0), -1) from pg_stat_user_tables`)
}

// machine describes where the benchmark ran.
func machine() string {
	model := runtime.GOARCH
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d cores (%s), shared by PostgreSQL, producers and workers", runtime.NumCPU(), model)
}
