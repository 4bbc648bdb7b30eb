// Package journal compares the journal of an outbox with its rows (CONTRACT C-61): the records that triggers in the
// database write for each change of a row, while the journal is on. It needs PostgreSQL and nothing else of this module.
//
// [Check] only reads. It reports each row that is not as its last record says, each record that does not follow from the
// previous one, and each change that no engine makes. It works in short statements of some thousand records, so it holds
// no snapshot for long, and keeps only the differences in memory.
package journal

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sqlfile"
)

//go:embed queries.sql
var files embed.FS

// Bounds of a check.
const (
	// DefaultLimit is how many differences a report has.
	DefaultLimit = 100
	// pageRecords is how many records a statement reads to find the events of a page, boundedRecords how many with MaxRecords, so that
	// a page of large payloads takes no second; and pageBlocks how many pages of the table.
	pageRecords, boundedRecords, pageBlocks = 5000, 500, 1000
	// statementTimeout ends a statement.
	statementTimeout = 30 * time.Second
	// longestLease is longer than any lease that an engine gives: those of a configuration are an hour at most.
	longestLease = 24 * time.Hour
)

// triggers are those that write the journal.
var triggers = []string{"outbox_journal_added", "outbox_journal_changed", "outbox_journal_edited", "outbox_journal_forgotten", "outbox_journal_removed", "outbox_journal_resolved", "outbox_journal_truncated"}

// ErrOff means that the journal is off, so there is nothing to compare.
var ErrOff = errors.New("the journal is off")

// Kind says what differs.
type Kind string

// The kinds of differences.
const (
	// StateDiffers is a row that is not as its last record says: it is gone, exists again, or has another status, attempt,
	// lease or worker. So is a dead row without a dead letter, a lease that does not end, and an operation that counts more than
	// the records have.
	StateDiffers Kind = "StateDiffers"
	// NotRecorded is a row whose last change has no record.
	NotRecorded Kind = "NotRecorded"
	// Gap is a record that does not begin where the previous one ended, or a first one that is not an insert.
	Gap Kind = "Gap"
	// Illegal is a change that no engine makes: it was made by hand.
	Illegal Kind = "Illegal"
	// TokenFell is a record with a lower lease number than an earlier one of its event.
	TokenFell Kind = "TokenFell"
	// Truncated is a removal of all rows at once.
	Truncated Kind = "Truncated"
	// TriggerMissing is a trigger that does not write the journal although it is on.
	TriggerMissing Kind = "TriggerMissing"
)

// Difference is a disagreement between journal and rows.
type Difference struct {
	Kind Kind `json:"kind"`
	// Event, Namespace and Topic are empty for what is about all of them.
	Event     string `json:"event,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Topic     string `json:"topic,omitempty"`
	// What is a sentence.
	What string `json:"what"`
	// At, LSN, Transaction and Login are those of the record; of a row without one, At is its updated_at.
	At          time.Time `json:"at,omitzero"`
	LSN         string    `json:"lsn,omitempty"`
	Transaction string    `json:"transaction,omitempty"`
	Login       string    `json:"login,omitempty"`
}

// Options say what is compared.
type Options struct {
	// Schema has the tables. Defaults to outbox.
	Schema string
	// Namespace is the outbox namespace, and Topics those of it. Default to all.
	Namespace string
	Topics    []string
	// Since leaves out events that did not change for so long. Defaults to none.
	Since time.Duration
	// Limit is how many differences the report has; the others are only counted. Defaults to DefaultLimit.
	Limit int
	// MaxRecords ends the check after about that number of records, of other namespaces and topics too, and then the pages of the table are
	// not read. Defaults to no bound.
	MaxRecords int64
	// MaxTime ends a check with MaxRecords after the page in which so much time has passed. Defaults to no bound.
	MaxTime time.Duration
	// From is the first event that is compared, the Next of a report that was Partial. Defaults to the first of all.
	From uuid.UUID
}

// Report is the result of a check.
type Report struct {
	// From and Until are the time that was checked, on the database's clock.
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
	// Events and Records are how many of the journal were checked, and Pages how many of the table.
	Events  int64 `json:"events"`
	Records int64 `json:"records"`
	Pages   int64 `json:"pages"`
	// Partial is true when the check ended at MaxRecords or MaxTime, and Next is where it continues.
	Partial bool      `json:"partial,omitempty"`
	Next    uuid.UUID `json:"-"`
	// Found counts all differences. Differences has the first of them.
	Found       int64        `json:"found"`
	Differences []Difference `json:"differences"`
}

// DB is a connection or a pool.
type DB interface {
	// BeginTx starts a transaction, or returns an error.
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Check compares the journal with the rows. It fails when the database does, and wraps ErrOff while the journal is off.
// It may run at any time, as often as wanted: with Since, its work depends on what changed since.
func Check(ctx context.Context, db DB, o Options) (Report, error) {
	o.Schema = cmp.Or(o.Schema, "outbox")
	o.Limit = cmp.Or(o.Limit, DefaultLimit)
	c := &check{db: db, o: o, page: pageRecords, reported: map[string]bool{}, report: Report{Differences: []Difference{}}}
	if o.MaxRecords > 0 {
		c.page = boundedRecords
	}
	if err := c.run(ctx); err != nil {
		return Report{}, fmt.Errorf("compare the journal with the rows of schema %q: %w%s", o.Schema, err, remedy(err))
	}
	return c.report, nil
}

// check is a Check that runs.
type check struct {
	db     DB
	o      Options
	report Report
	// page is how many records a page has.
	page int64
	// scanned is how many records were read to find the events, also of other namespaces.
	scanned int64
	// ended are the operations that had ended when the check began.
	ended []string
	// reported are the events of the differences in the report.
	reported map[string]bool
}

func (c *check) add(d Difference) {
	c.report.Found++
	if len(c.report.Differences) < c.o.Limit {
		c.report.Differences = append(c.report.Differences, d)
		c.reported[d.Event] = true
	}
}

func (c *check) run(ctx context.Context) error {
	pages, err := c.settings(ctx)
	if err != nil {
		return err
	}
	chain, began := chain{report: c.add, resolves: map[uuid.UUID]int64{}, acks: map[uuid.UUID]int64{}}, time.Now()
	for next, more := c.o.From, true; more && !c.report.Partial; {
		if next, more, err = c.chains(ctx, &chain, next); err != nil {
			return err
		}
		c.report.Next = next
		c.report.Partial = more && c.o.MaxRecords > 0 && (c.scanned >= c.o.MaxRecords || c.o.MaxTime > 0 && time.Since(began) >= c.o.MaxTime)
	}
	if c.o.MaxRecords == 0 && c.o.Since == 0 && c.o.From == uuid.Nil && len(c.o.Topics) == 0 {
		if err := c.operations(ctx, chain); err != nil {
			return err
		}
	}
	for page := int64(0); page < pages && c.o.MaxRecords == 0; page += pageBlocks {
		if err := c.rows(ctx, page, min(page+pageBlocks, pages)); err != nil {
			return err
		}
	}
	return nil
}

// settings reads the journal's settings, and reports what is wrong with it as a whole.
func (c *check) settings(ctx context.Context) (pages int64, err error) {
	err = c.read(ctx, func(tx pgx.Tx) error {
		var enabled bool
		var there []string
		if err := tx.QueryRow(ctx, c.sql("settings")).Scan(&enabled, &c.report.From, &c.report.Until, &pages, &there, &c.ended); err != nil {
			return err
		}
		if !enabled {
			return fmt.Errorf("%w; set journal.mode to Enabled, and run `dispatcher migrate up`", ErrOff)
		}
		for _, name := range triggers {
			if c.o.From == uuid.Nil && !slices.Contains(there, name) {
				c.add(Difference{Kind: TriggerMissing, What: "the trigger " + name + " is missing or disabled, so changes are not recorded; run `dispatcher migrate up` with journal in its file"})
			}
		}
		c.report.From, c.report.Until = c.report.From.UTC(), c.report.Until.UTC()
		if from := c.report.Until.Add(-c.o.Since); c.o.Since > 0 && from.After(c.report.From) {
			c.report.From = from
		}
		if c.o.From != uuid.Nil {
			return nil // the part from the first event on has what is about all of them
		}
		rows, err := tx.Query(ctx, c.sql("truncates"), c.report.From, c.o.Limit)
		if err != nil {
			return err
		}
		d := Difference{Kind: Truncated, What: "all rows were removed at once: truncate"}
		_, err = pgx.ForEachRow(rows, []any{&d.At, &d.LSN, &d.Transaction, &d.Login}, func() error {
			d.At = d.At.UTC()
			c.add(d)
			return nil
		})
		return err
	})
	return pages, err
}

// chains checks the events of a page, from the id on, and returns the id of the next one.
func (c *check) chains(ctx context.Context, chain *chain, from uuid.UUID) (next uuid.UUID, more bool, err error) {
	err = c.read(ctx, func(tx pgx.Tx) error {
		var last [16]byte
		var scanned int64
		var events []string
		err := tx.QueryRow(ctx, c.sql("page"), from.String(), c.page, c.report.From, c.o.Namespace, c.o.Topics).Scan(&last, &scanned, &events)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		next, more = after(last), scanned == c.page && last != uuid.Max
		c.scanned += scanned
		c.report.Events += int64(len(events))
		if len(events) == 0 {
			return nil
		}
		return c.records(ctx, tx, chain, events)
	})
	return next, more, err
}

// records checks the records of events.
func (c *check) records(ctx context.Context, tx pgx.Tx, chain *chain, events []string) error {
	rows, err := tx.Query(ctx, c.sql("chains"), events, longestLease)
	if err != nil {
		return err
	}
	var r record
	var is row
	var event, replay [16]byte
	_, err = pgx.ForEachRow(rows, []any{
		&event, &r.at, &r.lsn, &r.xid, &r.operation, &r.before, &r.after, &r.lease, &r.leaseBefore, &r.attempts, &r.attemptsBefore,
		&r.worker, &r.namespace, &r.topic, &r.login, &is.status, &is.lease, &is.attempts, &is.worker, &is.young,
		&r.reason, &r.otherContent, &r.operated, &replay, &is.silent, &is.closed, &is.held, &is.late,
	}, func() error {
		r.event, r.replay = event, replay
		c.report.Records++
		chain.add(r, is)
		return nil
	})
	chain.end()
	return err
}

// operations compares what operations count with what their records have. All records were read.
func (c *check) operations(ctx context.Context, have chain) error {
	return c.read(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, c.sql("operations"), c.ended, c.o.Namespace)
		if err != nil {
			return err
		}
		var id [16]byte
		var resolved, delivered int64
		d := Difference{Kind: StateDiffers}
		_, err = pgx.ForEachRow(rows, []any{&id, &d.Namespace, &d.At, &d.Login, &resolved, &delivered}, func() error {
			if resolved != have.resolves[id] || delivered > have.acks[id] {
				d.At = d.At.UTC()
				d.What = fmt.Sprintf("operation %s counts %d dead letters and %d delivered, and the journal has %d and %d", uuid.UUID(id), resolved, delivered, have.resolves[id], have.acks[id])
				c.add(d)
			}
			return nil
		})
		return err
	})
}

// rows finds the rows of some pages whose last change is not recorded.
func (c *check) rows(ctx context.Context, from, to int64) error {
	return c.read(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, c.sql("rows"), fmt.Sprintf("(%d,0)", from), fmt.Sprintf("(%d,0)", to), c.report.From, c.o.Namespace, c.o.Topics,
			2*c.o.Limit) // at most half of them are reported already
		if err != nil {
			return err
		}
		c.report.Pages += to - from
		var event [16]byte
		var status string
		d := Difference{Kind: NotRecorded}
		_, err = pgx.ForEachRow(rows, []any{&event, &d.Namespace, &d.Topic, &status, &d.At}, func() error {
			d.Event, d.At = uuid.UUID(event).String(), d.At.UTC()
			d.What = "the row is " + status + ", and its last change is not recorded"
			if !c.reported[d.Event] {
				c.add(d)
			}
			return nil
		})
		return err
	})
}

// read runs do in a read-only transaction. Its statements have one good plan, by the indexes, whatever the
// planner knows of the tables.
func (c *check) read(ctx context.Context, do func(pgx.Tx) error) error {
	tx, err := c.db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // it wrote nothing
	const settings = `select set_config('statement_timeout', $1::text, true), set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
		set_config('enable_bitmapscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)`
	if _, err := tx.Exec(ctx, settings, fmt.Sprint(statementTimeout.Milliseconds())); err != nil {
		return err
	}
	return do(tx)
}

// sql is a statement for the schema.
func (c *check) sql(name string) string { return sqlfile.Reader(files, c.o.Schema)(name) }

// after is the id that follows.
func after(id uuid.UUID) uuid.UUID {
	for i := len(id) - 1; i >= 0; i-- {
		if id[i]++; id[i] != 0 {
			break
		}
	}
	return id
}

// remedy returns what to do about an error of the database.
func remedy(err error) string {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return ""
	}
	switch pg.Code {
	case "42501":
		return "; have the owner run what `dispatcher migrate grants` prints"
	case "42P01", "42703", "3F000":
		return "; the schema is missing, or older than this command: run `dispatcher migrate up`"
	case "57014":
		return fmt.Sprintf("; a statement took longer than %s: try again in a quieter hour", statementTimeout)
	}
	return ""
}
