package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
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
	version   string
	databases int
}

func startServer(ctx context.Context, settings map[string]string) (*server, error) {
	srv, err := postgres.Start(ctx, postgres.Options{Durable: true, Settings: settings})
	if err != nil {
		return nil, fmt.Errorf("%w (the benchmark needs PostgreSQL's contrib modules too, for pg_stat_statements)", err)
	}
	s := &server{Server: srv}
	if s.admin, err = pgx.Connect(ctx, s.DSN("postgres")); err == nil {
		var backend int
		err = s.admin.QueryRow(ctx, `select pg_backend_pid(), split_part(version(), ' on ', 1)`).Scan(&backend, &s.version)
		if err == nil {
			_, s.pid, err = procStat(backend)
		}
	}
	if err == nil {
		_, err = s.admin.Exec(ctx, `create extension pg_stat_statements`)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
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

// database is one system's, for one run.
type database struct {
	*server
	name string
	conn *pgx.Conn
	// clientPID and brokerPID are the processes whose CPU time counts; 0 is left out. idle is the share of a core that the
	// broker takes with nothing to do.
	clientPID, brokerPID int
	idle                 float64
}

// database makes a database with a schema, after a checkpoint: the next one is far then.
func (s *server) database(ctx context.Context, setup func(ctx context.Context, dsn string) error) (*database, error) {
	s.databases++
	db := &database{server: s, name: fmt.Sprintf("bench%d", s.databases)}
	for _, sql := range []string{`checkpoint`, `create database ` + db.name} {
		if _, err := s.admin.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	if err := setup(ctx, db.dsn()); err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	var err error
	db.conn, err = pgx.Connect(ctx, db.dsn())
	return db, err
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
func queryOne[T any](ctx context.Context, conn *pgx.Conn, sql string) (value T, err error) {
	err = conn.QueryRow(ctx, sql).Scan(&value)
	return value, err
}

// until queries every 5 ms, for a minute at most, until it is true. It returns when that was, and whether it was at once.
func (db *database) until(ctx context.Context, sql string) (at time.Time, atOnce bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for atOnce = true; ; atOnce = false {
		at = time.Now()
		if ok, err := queryOne[bool](ctx, db.conn, sql); ok || err != nil {
			return at, atOnce, err
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return at, false, fmt.Errorf("%w: %s is not true", err, sql)
		}
	}
}

// spent is what was used so far: CPU time in seconds, and bytes of WAL.
type spent struct {
	db, client, broker float64
	wal                int64
}

func (db *database) spent(ctx context.Context) (s spent, err error) {
	if s.wal, err = queryOne[int64](ctx, db.admin, `select (pg_current_wal_insert_lsn() - '0/0')::bigint`); err != nil {
		return s, err
	}
	for pid, cpu := range map[int]*float64{db.pid: &s.db, db.clientPID: &s.client, db.brokerPID: &s.broker} {
		if pid != 0 {
			used, failed := treeCPU(pid)
			*cpu, err = used.Seconds(), errors.Join(err, failed)
		}
	}
	return s, err
}

// costing measures what do costs for each of n events, with the broker's share of idling taken off.
func (db *database) costing(ctx context.Context, n int, do func(m measure) error) (measure, error) {
	before, err := db.spent(ctx)
	if err != nil {
		return nil, err
	}
	m, began := measure{}, time.Now()
	if err := do(m); err != nil {
		return nil, err
	}
	idle := db.idle * time.Since(began).Seconds()
	after, err := db.spent(ctx)
	for name, seconds := range map[metric]float64{
		dbCPU: after.db - before.db, clientCPU: after.client - before.client, brokerCPU: after.broker - before.broker - idle,
	} {
		m[name] = seconds * 1e6 / float64(n)
	}
	m[walWork] = float64(after.wal-before.wal) / float64(n)
	if db.brokerPID == 0 {
		delete(m, brokerCPU)
	}
	return m, err
}

// procStat is the CPU time of a process, with that of its ended children, and its parent.
func procStat(pid int) (cpu time.Duration, parent int, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	_, rest, _ := strings.Cut(string(data), ") ") // the name before it may hold anything but this
	f := strings.Fields(rest)
	if len(f) < 15 {
		return 0, 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(f))
	}
	const tick = time.Second / 100 // USER_HZ of every Linux
	for _, text := range f[11:15] {
		ticks, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		cpu += time.Duration(ticks) * tick
	}
	parent, err = strconv.Atoi(f[1])
	return cpu, parent, err
}

// treeCPU is the CPU time that a process and its children have used, ended ones too.
func treeCPU(root int) (total time.Duration, err error) {
	if total, _, err = procStat(root); err != nil {
		return 0, err
	}
	entries, err := os.ReadDir("/proc")
	for _, e := range entries {
		pid, notNumber := strconv.Atoi(e.Name())
		if notNumber != nil {
			continue
		}
		if cpu, parent, err := procStat(pid); err == nil && parent == root { // else it has just ended
			total += cpu
		}
	}
	return total, err
}

// peakMemory is what a process had mapped at most, in MiB; 0 when it cannot be read.
func peakMemory(pid int) float64 {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(data), "VmHWM:")
	value, _, _ := strings.Cut(rest, "kB")
	kib, _ := strconv.Atoi(strings.TrimSpace(value))
	return float64(kib) / 1024
}

// processor names the machine's.
func processor() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
