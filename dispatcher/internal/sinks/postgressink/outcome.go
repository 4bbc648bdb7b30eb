package postgressink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// The SQLSTATEs that this sink has its own words for.
const (
	undefinedTable   = "42P01"
	undefinedSchema  = "3F000"
	undefinedColumn  = "42703"
	noUniqueID       = "42P10"
	permissionDenied = "42501"
	readOnly         = "25006"
	diskFull         = "53100"
	resources        = "53"  // class: disk, memory, connections
	systemError      = "58"  // class: such as one of input and output
	programLimit     = "54"  // class: a row that is too large for an index, and the like
	shuttingDown     = "57P" // the statement may have been committed, as behind a synchronous standby
)

// isOfOneEvent reports whether one event may be to blame for the batch's failure: its data, a constraint,
// a trigger, a limit, or a deadlock with another transaction. Nothing of the batch was inserted then.
func isOfOneEvent(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	switch class(pg) {
	case "22", "23", "40", "44", programLimit, "P0":
		return true
	}
	return inside(pg)
}

// inside reports whether a code that else is about the table comes from inside of it: from a trigger, a function or
// a row-level-security policy.
func inside(pg *pgconn.PgError) bool {
	c := class(pg)
	return (c == "42" || c == "3F") && (pg.Where != "" || pg.Routine == "ExecWithCheckOptions")
}

// class is the first part of a SQLSTATE.
func class(pg *pgconn.PgError) string { return pg.Code[:min(2, len(pg.Code))] }

// outcome says what the end of a statement means for its events.
func (s *sink) outcome(ctx context.Context, err error) error {
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return s.interrupted(ctx)
	case pgconn.SafeToRetry(err):
		return s.unreachable(ctx, err)
	case errors.As(err, &pg) && !strings.HasPrefix(pg.Code, shuttingDown):
		return reason.Coded(pg.Code, s.refused(pg))
	}
	word, message := classify(err)
	if errors.Is(err, context.DeadlineExceeded) {
		message = fmt.Sprintf("no response within %s; see what the statement waits for (pg_stat_activity, pg_locks), or raise timeout", s.cfg.Timeout)
	}
	return reason.With(wordOf(word), timeoutOf(err, fmt.Errorf("table %s: no confirmation: %s. The event may have been inserted, so this counts as an attempt; the next one does no harm then", s.cfg.Table, message)))
}

// fields are the sink's where package database names those of the outbox's database.
var fields = strings.NewReplacer(
	"the DSN", "sink.postgres.secretRef", "the database's secretRef", "sink.postgres.secretRef", "database.iam", "sink.postgres.iam",
	"the database's tls.caSecretRef or caConfigMapRef", "sink.tls.caSecretRef or caConfigMapRef", "database.client", "sink.tls.client", "the database's tls.clientCertSecretRef", "sink.tls.clientCertSecretRef",
	"the database's tls.caSecretRef or tls.caConfigMapRef", "sink.tls.caSecretRef or sink.tls.caConfigMapRef",
	"or set the database's tls.mode to Disable", "or remove sink.tls and set sslmode=disable in the connection string",
	"set the database's tls.mode to VerifyFull with an authority, or to Require", "set sslmode=verify-full in the connection string",
)

// classify is [database.Classify] with the names of the sink's fields.
func classify(err error) (word, message string) {
	word, message = database.Classify(err)
	return word, fields.Replace(message)
}

// refused is what the server says of a statement. Only its first line is quoted: the details hold values
// of the row.
func (s *sink) refused(pg *pgconn.PgError) error {
	say := func(remedy string, args ...any) error {
		return fmt.Errorf("table %s: %s (SQLSTATE %s); %s", s.cfg.Table, cause(pg), pg.Code, fmt.Sprintf(remedy, args...))
	}
	unavailable := func(word string, err error) error { return dispatcher.Unavailable(reason.With(word, err)) }
	if inside(pg) { // if it is so for all events, none becomes dead by it
		return dispatcher.DestinationFault(say("a trigger, a function or a policy of the table fails for the event: correct it, or what the producer writes"))
	}
	switch pg.Code {
	case undefinedTable, undefinedSchema:
		return unavailable(reason.Refusing, say("create it, as the postgres sink's documentation says, or correct table"))
	case undefinedColumn:
		return unavailable(reason.Refusing, say("add the column, as the postgres sink's documentation says"))
	case noUniqueID:
		return unavailable(reason.Refusing, say("make id its primary key: without it, events would be inserted twice"))
	case permissionDenied:
		return unavailable(reason.AuthenticationFailed, say("have its owner run: grant insert, select (id) on %s to <the sink's user>; and grant usage on its schema", s.cfg.Table))
	case readOnly:
		return unavailable(reason.ConnectionFailed, say("name all servers with commas in the connection's host, of which the one that takes writes is used; if none does, promote one"))
	case diskFull:
		return dispatcher.DestinationFault(say("free space on the server's disk, or enlarge it"))
	}
	switch class(pg) {
	case programLimit:
		return dispatcher.Permanent(dispatcher.ReasonPermanentFailure, say("the event is too large for the table: drop the index that it does not fit into, or make smaller events"))
	case "22", "23", "44":
		return say("drop the table's constraint, or correct what the producer writes")
	case "P0":
		return say("a trigger of the table refuses the event: change the trigger, or correct what the producer writes")
	}
	_, message := classify(pg)
	err := fmt.Errorf("table %s: %s", s.cfg.Table, message)
	if c := class(pg); c == resources || c == systemError {
		return dispatcher.DestinationFault(err)
	}
	return err
}

// cause is the server's message where it names objects and no values. Messages of data, and of triggers,
// may quote the payload (CONTRACT C-73).
func cause(pg *pgconn.PgError) string {
	switch c := class(pg); {
	case c == "23":
		return fmt.Sprintf("the constraint %q refuses the event", pg.ConstraintName+pg.ColumnName)
	case slices.Contains([]string{"22", "44", "P0", programLimit}, c), inside(pg) && pg.Where != "":
		return "the server refuses the event"
	default:
		return strings.Join(strings.Fields(pg.Message), " ")
	}
}

// unreachable is a failure before the statement was sent, or one of a probe.
func (s *sink) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return s.interrupted(ctx)
	}
	word, message := classify(err)
	return dispatcher.Unavailable(reason.With(wordOf(word), timeoutOf(err, fmt.Errorf("postgres sink: %s", message))))
}

// wordOf is a sink's word for one of package database.
func wordOf(word string) string {
	switch word {
	case database.AuthenticationFailed, database.PermissionDenied:
		return reason.AuthenticationFailed
	case database.CertificateInvalid:
		return reason.CertificateInvalid
	case database.DatabaseNotFound:
		return reason.Refusing
	default:
		return reason.ConnectionFailed
	}
}

// timeoutOf keeps of err whether it was a timeout, which metrics count. What err wraps is left behind: it
// would say that the caller gave up, and may quote a connection string.
func timeoutOf(err, named error) error {
	if reason.IsTimeout(err) {
		return timedOut{named}
	}
	return named
}

type timedOut struct{ error }

func (t timedOut) Unwrap() error { return t.error }
func (timedOut) Timeout() bool   { return true }

func (s *sink) interrupted(ctx context.Context) error {
	return base.Interrupted(ctx, "inserting into table "+s.cfg.Table)
}
