package adopt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/migrations"
)

// Layout is the shape of their table.
type Layout string

// Values of [Layout].
const (
	// ModKit is the shared table of modkit-db: namespaces, topics, tenants and dedupe keys of each row.
	ModKit Layout = "modkit"
	// M10 is the table of the M10 outbox contract, with publish_outbox as an insert or as an upsert.
	M10 Layout = "m10"
	// Overview is a table of events with a topic, a payload and a status, polled by one consumer.
	Overview Layout = "overview"
	// Storage is the storage service's table, with sequence numbers and a retry policy in each row.
	Storage Layout = "storage"
	// Debezium is a table of Debezium's outbox event router. What of it was sent, the connector's replication slot says:
	// see the limits in the package's documentation.
	Debezium Layout = "debezium"
	// Columns is any other table, by a mapping of its columns.
	Columns Layout = "columns"
)

// State is how far an adoption is.
type State string

// Values of [State].
const (
	// None is before a shadow, and after the way back.
	None State = ""
	// Shadow notes what producers insert, and sends nothing.
	Shadow State = "Shadow"
	// Live is after the cut-over: the outbox delivers what producers insert.
	Live State = "Live"
	// Returning is on the way back, while deliveries of the outbox are under way.
	Returning State = "Returning"
)

// Step is what [Apply] does.
type Step string

// Values of [Step].
const (
	// ToShadow begins the shadow.
	ToShadow Step = "shadow"
	// Cutover has the outbox deliver instead of their worker.
	Cutover Step = "cutover"
	// Back has their worker deliver again, or ends the shadow. Where their table was dropped it removes what is kept of the
	// adoption, and events that are not delivered stay.
	Back Step = "back"
)

// Defaults of [Options].
const (
	DefaultMaxRows = 10_000
	DefaultWait    = time.Minute
)

// Defaults of [Spec], which are those of a Debezium connector.
const (
	DefaultSlot        = "debezium"
	DefaultPublication = "dbz_publication"
)

// Spec is what is adopted. Every step but [ToShadow] reads all but the name from the database.
type Spec struct {
	// Name of the adoption, and of its trigger: a character a to z, then up to 39 more, digits and underscores. Defaults
	// to the layout for ToShadow, and to the only adoption that there is for other steps.
	Name string
	// Layout is required for ToShadow.
	Layout Layout
	// Table is theirs, as schema.table; without a schema it is in public. Defaults to that of the layout's document: public.modkit_outbox_events, m10_recovery.outbox, outbox.events,
	// public.storage_outbox, public.outboxevent. Required for Columns.
	Table string
	// Namespace of the events. 1 to 255 characters, no quote, backslash, dollar sign, brace or control character.
	// Required for ToShadow, unless the rows have one: then it chooses those of this namespace, and others stay with
	// their worker. Empty takes all, each with its own.
	Namespace string
	// Topic of the events, with the limits of Namespace. Defaults to that of each row, which layout M10 does not
	// have.
	Topic string
	// Columns are, for the layout Columns, columns of theirs by our names: id and payload; completed (a time, null while the
	// row is to be sent), status ("COLUMN:OPEN:COMPLETE") or sent ("delete": the worker deletes what it has sent); topic,
	// type, aggregateType, aggregateId, key, headers, created, due, attempts, dedupeKey, tenantId, namespace.
	Columns map[string]string
	// Open is the condition of rows that are to be sent, in SQL over the row r, where one column cannot say it. What it does not hold of
	// stays with their worker. Not for Debezium. Defaults to what completed, status or sent says.
	Open string
	// Slot and Publication are, for the layout Debezium, slot.name and publication.name of the connector. The slot's plugin
	// is pgoutput. Default to DefaultSlot and DefaultPublication.
	Slot, Publication string
}

// Options of [Apply].
type Options struct {
	// DryRun changes nothing: the result says what would run.
	DryRun bool
	// MaxRows is how many open rows Cutover moves at most: producers wait for as long. Defaults to DefaultMaxRows.
	MaxRows int
	// Wait is how long Back waits for deliveries that are under way. Defaults to DefaultWait.
	Wait time.Duration
}

// Result is what a step did, or would do.
type Result struct {
	Name  string
	State State
	// Changed is false when everything was as wanted.
	Changed bool
	// SQL are the statements in their order.
	SQL []string
	// Moved are the open rows of theirs that Cutover made events; of a dry run, those that are open. Returned are the
	// events that Back made open rows again. Refused are the rows that the outbox does not take.
	Moved, Returned, Refused int64
	// Values of the status column, and Warnings what may not be meant as it is: of ToShadow.
	Values   []Value
	Warnings []string
	// Next says what to do next, in a sentence.
	Next string
}

// word is what can stand in a statement as it is, between quotes.
var (
	word  = regexp.MustCompile(`^[^'\\${}[:cntrl:]]{1,255}$`)
	names = regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`)
	slots = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
)

// Apply does a step of an adoption for the outbox in the schema, which migrations.Up has made. A step that is done already
// changes nothing. The login owns the outbox's schema and their table, or is a member of their owners; for the layout
// Debezium it has REPLICATION, and connects twice at a time.
//
// A step locks their table, as a migration does: it gives up a lock that it does not get within 2 seconds,
// and tries again for 5 minutes or until ctx ends.
// It fails with the remedy when the step cannot be done.
func Apply(ctx context.Context, conn *pgx.Conn, schema string, step Step, spec Spec, o Options) (Result, error) {
	o.MaxRows = cmp.Or(o.MaxRows, DefaultMaxRows)
	o.Wait = cmp.Or(o.Wait, DefaultWait)
	if spec.Table != "" && !strings.Contains(spec.Table, ".") {
		spec.Table = "public." + spec.Table
	}
	if err := spec.check(step); err != nil {
		return Result{}, fmt.Errorf("adopt %s: %w", step, err)
	}
	var result Result
	var last run
	var sum int64
	for until := time.Now().Add(o.Wait); ; {
		err := transact(ctx, conn, schema, o.DryRun, func(tx pgx.Tx) error {
			r := run{ctx: ctx, tx: tx, schema: schema, spec: spec, options: o}
			err := r.step(step)
			result, last = r.result, r
			return migrations.OnTable(r.waits, step == Back, err)
		})
		if err == nil && len(last.last) > 0 {
			err = transact(ctx, conn, schema, o.DryRun, func(tx pgx.Tx) error {
				r := last
				r.tx = tx
				err := r.end()
				result = r.result
				return err
			})
			if err != nil {
				return result, fmt.Errorf("adopt %s: table %s has gone back, and what is kept of adoption %s was not removed: %w%s; run back again",
					step, last.spec.Table, last.spec.Name, err, remedy(err, ""))
			}
		}
		if err = cmp.Or(err, last.failed); err != nil {
			return result, fmt.Errorf("adopt %s: %w%s", step, err, remedy(err, step))
		}
		sum += result.Returned
		result.Returned = sum
		result.Changed = result.Changed || sum > 0
		if result.State != Returning || o.DryRun {
			return result, nil
		}
		if time.Now().After(until) {
			return result, fmt.Errorf("adopt %s: events are being delivered by a dispatcher, longer than %s; stop the dispatcher, or wait until its leases end, and run back again", step, o.Wait)
		}
		select {
		case <-ctx.Done():
			return result, fmt.Errorf("adopt %s: %w; run back again", step, context.Cause(ctx))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// transact runs work; of a dry run, in a transaction that only reads.
func transact(ctx context.Context, conn *pgx.Conn, schema string, dry bool, work func(pgx.Tx) error) error {
	if dry {
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, work)
	}
	return migrations.Transact(ctx, conn, schema, work)
}

func (s Spec) check(step Step) error {
	if s.Name != "" && !names.MatchString(s.Name) {
		return fmt.Errorf("the name %.50q cannot be used; give a lower-case character a to z, then at most 39 of a to z, digits and underscores", s.Name)
	}
	switch step {
	case ToShadow:
	case Cutover, Back:
		return nil
	default:
		return fmt.Errorf("the step is unknown; choose %s, %s or %s", ToShadow, Cutover, Back)
	}
	l, err := s.layout()
	if err != nil {
		return err
	}
	if !word.MatchString(s.Namespace) && (s.Namespace != "" || l.namespace == "") {
		return fmt.Errorf("the namespace %.70q cannot be used; give 1 to 255 characters without quotes, backslashes, dollar signs, braces and control characters", s.Namespace)
	}
	if s.Topic != "" && !word.MatchString(s.Topic) {
		return fmt.Errorf("the topic %.70q cannot be used; give 1 to 255 characters without quotes, backslashes, dollar signs, braces and control characters", s.Topic)
	}
	for _, text := range append(slices.Collect(maps.Values(s.Columns)), cmp.Or(s.Table, l.table)) {
		if text != "" && !word.MatchString(text) {
			return fmt.Errorf("%.70q cannot be used as a table or a column; give 1 to 255 characters without quotes, backslashes, dollar signs, braces and control characters, or rename it", text)
		}
	}
	if s.Open != "" && (l.log || strings.Contains(s.Open, "$adopt$")) {
		return errors.New("the condition of open rows cannot be used: the layout debezium has none, and $adopt$ cannot be in it; leave it out, or write it otherwise")
	}
	if err := s.checkSlot(l); err != nil {
		return err
	}
	if s.Topic == "" && l.fields["topic"] == "" {
		return errors.New("no topic: the rows have none; give one")
	}
	if s.Table == "" && l.table == "" {
		return errors.New("no table; give it as schema.table")
	}
	return nil
}

// remedy is what to do about an error that the database returns to a step; "" is a look.
func remedy(err error, step Step) string {
	var known remedied
	if errors.As(err, &known) {
		return "; " + known.remedy
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return ""
	}
	switch pg.Code {
	case "42501":
		return "; log in as the owner of the outbox's schema, who is a member of the owner of their table"
	case "2BP01":
		return "; the table was renamed, with the trigger: name it back, and run it again"
	case "3F000":
		return "; the outbox's schema is missing: run `dispatcher migrate up`"
	case "57014":
		if step == "" {
			return ""
		}
		return "; it took longer than producers should wait, and was undone: " + map[Step]string{
			ToShadow: "create an index (concurrently) on the column that says when a row was created",
			Cutover:  "create an index (concurrently) on the column that says which rows are to be sent, or delete rows that were sent",
			Back:     "delete rows that were sent from their table, whose notes go with them",
		}[step] + ", and run it again"
	}
	return ""
}
