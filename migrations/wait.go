package migrations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// lockTimeout is how long a migration waits for a lock: producers queue behind it for as long.
	lockTimeout = 2 * time.Second
	// lockPause is the time between two attempts, for the queue to drain; with lockRetries it makes 5 minutes.
	lockPause   = 3 * time.Second
	lockRetries = 60
	// busyLimit is how long one migrator waits for another. The operator's Jobs end after 30 minutes, and say nothing then.
	busyLimit = 25 * time.Minute
	// busyPause is the time between two attempts to get its lock. A statement that waited for the lock in the database
	// would have a snapshot, which an index that is built concurrently waits for.
	busyPause = 100 * time.Millisecond
	// reportAfter is how long a wait is silent, and reportEvery how long after a report the next one follows.
	reportAfter, reportEvery = 5 * time.Second, 30 * time.Second
)

// errBusy reports that another migrator of the schema is running.
var errBusy = errors.New("another migrator is at work")

// lockWait says how a migration waits for locks.
type lockWait struct {
	timeout time.Duration
	retries int
	pause   time.Duration
	// busy is the most that it waits for another migrator, and silent how long before it reports that it waits.
	busy, silent time.Duration
}

// patient is how migrations wait.
var patient = lockWait{lockTimeout, lockRetries, lockPause, busyLimit, reportAfter}

type reportKey struct{}

// ReportWaits returns a context in which the functions of this package report why they wait, once they have waited for
// 5 seconds and then every 30: one sentence without a full stop, with the server's process that is in the way.
func ReportWaits(ctx context.Context, report func(sentence string)) context.Context {
	return context.WithValue(ctx, reportKey{}, report)
}

// OnTable says of an error of [Transact]'s work that the lock that it did not get is on that table, written as to_regclass
// takes it, and whether readers are in its way too. Without it, the lock is taken for one on a table of the schema.
func OnTable(table string, readers bool, err error) error {
	if err == nil || table == "" {
		return err
	}
	return onTable{err, table, readers}
}

type onTable struct {
	error
	table   string
	readers bool
}

func (e onTable) Unwrap() error { return e.error }

// retry repeats the work on the schema while it fails for a lock.
func (w lockWait) retry(ctx context.Context, conn *pgx.Conn, schema string, work func() error) error {
	begun := time.Now()
	next := begun.Add(w.silent)
	var first time.Time // that the work failed for a lock
	for n := 0; ; {
		err := work()
		pause := busyPause
		busy := errors.Is(err, errBusy)
		var on onTable
		errors.As(err, &on)
		switch {
		case busy && time.Since(begun) >= w.busy:
			return fmt.Errorf("%w for %s: %s; wait until it has ended, or end it, and migrate again", err, w.busy, holder(ctx, conn, schema, onTable{}, true))
		case !busy:
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.Code != "55P03" && pg.Code != "40P01" {
				return err
			}
			if n == 0 {
				first = time.Now()
			}
			// By time too: what the work does before it locks may take longer than the lock.
			if n == w.retries || time.Since(first) >= time.Duration(w.retries)*(w.timeout+w.pause) {
				return fmt.Errorf("%w, %d times: a transaction holds the table: %s; end it (pg_stat_activity shows it), and migrate again", err, n+1, holder(ctx, conn, schema, on, false))
			}
			n++
			pause = w.pause
		}
		if report, ok := ctx.Value(reportKey{}).(func(string)); ok && time.Now().After(next) {
			report("waiting for " + holder(ctx, conn, schema, on, busy))
			next = time.Now().Add(reportEvery)
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}

// holder names the session that is in the way: the other migrator, or the oldest transaction that has a lock on the
// table, or on any of the schema. PostgreSQL shows since when to those with the rights of pg_read_all_stats alone.
func holder(ctx context.Context, conn *pgx.Conn, schema string, on onTable, migrator bool) string {
	const of = `select pid, usename::text, coalesce(' since ' || to_char(xact_start at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS "UTC"'), '') from pg_stat_activity join `
	const here = `database = (select oid from pg_database where datname = current_database())` // copies of a database share oids
	const table = of + `pg_locks using (pid) join pg_class as c on c.oid = relation where granted and pid <> pg_backend_pid() and ` + here
	what, args := "a lock on a table of schema "+schema, []any{schema}
	query := table + ` and relnamespace = (select oid from pg_namespace where nspname = $1) order by xact_start limit 1`
	switch {
	case migrator:
		what = "another migrator of schema " + schema
		query = of + `pg_locks using (pid) where granted and locktype = 'advisory' and objsubid = 1 and pid <> pg_backend_pid() and ` + here + `
			and classid::bigint << 32 | objid::bigint = ` + migrators + ` limit 1`
	case on.table != "":
		what, args = "a lock on table "+on.table, []any{on.table, on.readers}
		query = table + ` and c.oid = to_regclass($1) and ($2 or mode <> 'AccessShareLock') order by xact_start limit 1`
	}
	var pid int
	var user, since string
	if conn == nil || conn.QueryRow(ctx, query, args...).Scan(&pid, &user, &since) != nil {
		return what // which has just been given back
	}
	return fmt.Sprintf("%s, which the process %d of user %s has%s", what, pid, user, since)
}
