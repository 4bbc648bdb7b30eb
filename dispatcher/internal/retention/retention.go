// Package retention removes rows after their retention (CONTRACT C-60): delivered rows, resolved dead rows with their
// dead letters, and, only where that is set, unresolved dead rows. It also makes and removes the daily
// partitions of the journal (CONTRACT C-61), whose retention is set in the database.
//
// A [Sweeper] works in short statements, and no statement waits for a locked row. Delivered rows are found by
// reading the pages of the table one after the other, so they cost producers and dispatchers no index. A live row is
// never touched: only a replay makes a dead row live, and the row's lock excludes it.
//
// Of all processes that sweep a database, one works at a time: the holder of the lease, a row of the table
// outbox_sweeps, which ends on the database's clock when its holder is gone. The next one continues where the last
// one was. Nothing is kept in a session, so it works behind PgBouncer.
package retention

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sqlfile"
)

// Options say what a [Sweeper] removes.
type Options struct {
	// Schema is where the outbox is. Defaults to "outbox".
	Schema string
	// Name is the sweep's in the table outbox_sweeps. Processes that sweep the same rows share one.
	// Empty for the whole tables; then Namespace and Topics are empty too.
	Name string
	// Namespace and Topics of the rows. No topics means all of the namespace, and no namespace the whole
	// tables.
	Namespace string
	Topics    []string
	// Worker is the name of this process in the lease. Defaults to a random one.
	Worker uuid.UUID

	// Delivered is how long a delivered, withdrawn or expired row stays. 0 removes it at the next run.
	Delivered time.Duration
	// DeadResolved is how long a dead row stays after its last dead letter was resolved, and the dead letters with it;
	// and the dead letters of a row that is delivered, or gone. An operation on dead letters of the Namespace stays as long after
	// its end, 90 days at least, and while the journal may have records of it.
	DeadResolved time.Duration
	// DeadUnresolved is how long an unresolved dead row stays. Then its dead letter is resolved as expired, and stays for
	// DeadResolved. A dead letter that blocks its key stays open, and so its row: where a dispatcher
	// has onDead Block, a key is freed by a person. Defaults to 0: forever.
	DeadUnresolved time.Duration

	// Ready reports whether the outbox can be used. While it cannot, a Sweeper does nothing. Defaults to always.
	Ready func() bool
	// Busy reports whether delivery is saturated: then a run takes a smaller share of the time. It is called before
	// each statement. Defaults to never.
	Busy func() bool
	// Removed is called with what this process has removed. Optional.
	Removed func(Counts)
	// Logger defaults to one that discards.
	Logger *slog.Logger
	// PollEvery is how often a Sweeper checks whether a run is due. Defaults to 30s.
	PollEvery time.Duration
}

// Counts are numbers of removed rows.
type Counts struct {
	// Delivered are delivered rows, Withdrawn those that producers took back or whose time was over at their claim; Dead are dead rows, resolved or expired; DeadLetters are
	// dead letters.
	Delivered, Withdrawn, Dead, DeadLetters int64
	// Expired are dead letters that were resolved as expired.
	Expired int64
}

func (c *Counts) add(more Counts) {
	c.Delivered += more.Delivered
	c.Withdrawn += more.Withdrawn
	c.Dead += more.Dead
	c.Expired += more.Expired
	c.DeadLetters += more.DeadLetters
}

// The pace of a run.
const (
	// After a statement a run pauses for pauseFactor times as long as it took, and for busyPauseFactor times while
	// delivery is saturated: it takes a fifth of one session's time, or a fiftieth.
	pauseFactor     = 4
	busyPauseFactor = 49
	// maxPause bounds a pause, so that a run continues.
	maxPause = 10 * time.Second
	// maxPages and maxRows bound a statement. It reads fewer pages when it takes longer than slow, and more
	// when it takes less than quick. A statement of [statementTimeout] is given up.
	maxPages, maxRows = 1000, 2000
	quick, slow       = 25 * time.Millisecond, 100 * time.Millisecond
	statementTimeout  = 5 * time.Second
	// readDeadLetters is how many dead letters are read at a time.
	readDeadLetters = 500
	// maxSlow is how many dead letters are each too slow by themselves, in a row, before a run is given up.
	maxSlow = 3
	// leaseTime is how long the lease lasts. Every noteEvery it is extended, and the run's progress written.
	leaseTime = time.Minute
	noteEvery = 10 * time.Second
	// The time between two runs is a 24th of the shortest age, within these bounds.
	minEvery, maxEvery = time.Minute, 6 * time.Hour
)

// Sweeper removes rows. It is safe for concurrent use.
type Sweeper struct {
	pool *pgxpool.Pool
	opts Options
	sql  func(name string) string // a statement

	mu      sync.Mutex
	problem string
	// refused is the error of the run that ended at refusedAt, the last one of this process, until the next one is due or has ended.
	refused   error
	refusedAt *time.Time

	// What tests change.
	maxPages  int64
	noteEvery time.Duration
	pause     func(context.Context, time.Duration)
}

// New returns a Sweeper. It does not connect.
func New(pool *pgxpool.Pool, opts Options) *Sweeper {
	if opts.Schema == "" {
		opts.Schema = "outbox"
	}
	if opts.Name == "" {
		opts.Name = leaseName
	}
	if opts.Worker == uuid.Nil {
		opts.Worker = uuid.New()
	}
	if opts.Ready == nil {
		opts.Ready = func() bool { return true }
	}
	if opts.Busy == nil {
		opts.Busy = func() bool { return false }
	}
	if opts.Removed == nil {
		opts.Removed = func(Counts) {}
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.PollEvery == 0 {
		opts.PollEvery = 30 * time.Second
	}
	return &Sweeper{pool: pool, opts: opts, sql: sqlfile.Reader(files, opts.Schema), maxPages: maxPages, noteEvery: noteEvery, pause: sleep}
}

// every is the time between two runs.
func (s *Sweeper) every() time.Duration {
	shortest := s.opts.DeadResolved
	for _, age := range []time.Duration{s.opts.Delivered, s.opts.DeadUnresolved} {
		if age > 0 && (age < shortest || shortest == 0) {
			shortest = age
		}
	}
	return min(max(shortest/24, minEvery), maxEvery)
}

// Run sweeps whenever a run is due and no other process sweeps, until ctx ends. A failure is logged once, and the run
// tried again.
func (s *Sweeper) Run(ctx context.Context) {
	ofRun := false // the last failure is a run's, which counts until a run has ended
	for shortened := false; ctx.Err() == nil; {
		if !s.opts.Ready() {
			sleep(ctx, min(time.Second, s.opts.PollEvery))
			continue
		}
		var err error
		var known bool
		if !shortened {
			err = s.write(ctx, s.sql("shorten"), s.opts.Name, s.opts.Delivered)
			shortened = err == nil
		}
		if shortened {
			_, known, err = s.attempt(ctx)
		}
		s.mu.Lock()
		refused := s.refused
		s.mu.Unlock()
		err = cmp.Or(err, refused)
		if known || refused != nil {
			ofRun = err != nil
		}
		if err != nil || !ofRun {
			s.report(ctx, err)
		}
		sleep(ctx, s.opts.PollEvery)
	}
}

// report logs a new failure, and its end.
func (s *Sweeper) report(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	s.mu.Lock()
	before := s.problem
	s.problem = text
	s.mu.Unlock()
	switch {
	case text != "" && before == "":
		s.opts.Logger.Warn("rows are not removed after their retention; trying again", "error", text)
	case text == "" && before != "":
		s.opts.Logger.Info("retention works again")
	}
}

// Problem says why the last check or run of this process failed; empty when neither did. A run's failure counts until one has
// ended, of whatever process.
func (s *Sweeper) Problem() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

//go:embed queries.sql
var files embed.FS

// Settings of a transaction. The statements have one good plan, and the planner must not think otherwise of a
// small table. A statement that waits for a lock of the table, as of ALTER TABLE, gives up soon: others queue behind it.
const (
	settings = `select set_config('statement_timeout', $1::text, true), set_config('lock_timeout', '500', true), set_config('jit', 'off', true),
		set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)`
	// relaxed transactions do not wait for the disk: what a crash of the database undoes is removed again.
	relaxed = settings + `, set_config('synchronous_commit', 'off', true)`
)

// one runs a statement in a transaction of its own and one round trip, and reads its one row. It reports
// whether there is a row.
func (s *Sweeper) one(ctx context.Context, sql string, args []any, into ...any) (found bool, err error) {
	var batch pgx.Batch
	batch.Queue(relaxed, timeout())
	batch.Queue(sql, args...).QueryRow(func(row pgx.Row) error {
		err := row.Scan(into...)
		found = err == nil
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return found, s.wrap(s.pool.SendBatch(ctx, &batch).Close())
}

// write runs a statement that returns nothing.
func (s *Sweeper) write(ctx context.Context, sql string, args ...any) error {
	var batch pgx.Batch
	batch.Queue(relaxed, timeout())
	batch.Queue(sql, args...)
	return s.wrap(s.pool.SendBatch(ctx, &batch).Close())
}

func timeout() string { return fmt.Sprint(statementTimeout.Milliseconds()) }

// wrap adds to an error what failed, and what to do where that is known.
func (s *Sweeper) wrap(err error) error {
	if err == nil {
		return nil
	}
	remedy := ""
	switch sqlState(err) {
	case "42501":
		remedy = `; have the owner run what "dispatcher migrate grants" prints`
	case "42P01", "3F000", "42703", "42883":
		remedy = `; run "dispatcher migrate up"`
	}
	return fmt.Errorf("retention in schema %q: %w%s", s.opts.Schema, err, remedy)
}

// sqlState returns the code of a PostgreSQL error, or "".
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
