package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/client/producer"
)

// Bounds of the events of standard input that travel together: their number, and the bytes of all but the last.
const (
	enqueueBatch = 500
	enqueueBytes = 16 << 20
)

// line is an event as the command line and standard input give it: the names are the columns'.
type line struct {
	Namespace     string            `json:"namespace"`
	Topic         string            `json:"topic"`
	Payload       json.RawMessage   `json:"payload"`
	EventType     string            `json:"event_type"`
	AggregateType string            `json:"aggregate_type"`
	AggregateID   string            `json:"aggregate_id"`
	PartitionKey  string            `json:"partition_key"`
	LockKey       bool              `json:"lock_key"`
	TenantID      string            `json:"tenant_id"`
	DedupeKey     string            `json:"dedupe_key"`
	Headers       map[string]string `json:"headers"`
	Delay         spec.Duration     `json:"delay"`
	Expires       string            `json:"expires"`
	Numbered      bool              `json:"aggregate_sequence"`
	MaxAttempts   int               `json:"max_attempts"`
	Retry         *producer.Retry   `json:"retry"`
	ID            string            `json:"id"`
}

func (l line) event(namespace string) (e producer.Event, err error) {
	e = producer.Event{
		Namespace: l.Namespace, Topic: l.Topic, Payload: l.Payload,
		EventType: l.EventType, AggregateType: l.AggregateType, AggregateID: l.AggregateID,
		PartitionKey: l.PartitionKey, LockKey: l.LockKey, DedupeKey: l.DedupeKey, Headers: l.Headers, Delay: l.Delay.D(),
		AggregateSequence: l.Numbered, MaxAttempts: l.MaxAttempts, Retry: l.Retry,
	}
	if e.ExpiresAt, err = time.Parse(time.RFC3339, l.Expires); err != nil && l.Expires != "" {
		if e.Expires, err = time.ParseDuration(l.Expires); err != nil || e.Expires <= 0 {
			return e, fmt.Errorf("expires %q is neither a duration nor a time; write it such as 36h or 2030-01-31T18:00:00Z", l.Expires)
		}
	}
	if e.Namespace == "" {
		e.Namespace = namespace
	}
	if l.TenantID != "" {
		if e.TenantID, err = uuid.Parse(l.TenantID); err != nil {
			return e, fmt.Errorf("tenant %q is not a UUID; correct it", l.TenantID)
		}
	}
	if l.ID != "" {
		if e.ID, err = uuid.Parse(l.ID); err != nil {
			return e, fmt.Errorf("id %q is not a UUID; correct it", l.ID)
		}
	}
	return e, nil
}

func enqueueCommand() *cobra.Command {
	var file source
	var payload string
	var one line
	var delay time.Duration
	cmd := &cobra.Command{
		Use: "enqueue -f FILE --topic TOPIC --payload JSON | enqueue -f FILE < LINES", Args: cobra.NoArgs,
		Short: "Enqueue an event, or those on standard input",
		Long: `Enqueue the event of the flags, or with no --topic those on standard input: JSON objects, one a line, with the
fields namespace, topic, payload, event_type, aggregate_type, aggregate_id, partition_key, lock_key,
aggregate_sequence, tenant_id, dedupe_key, headers, delay, expires, max_attempts, retry and id. Everything is
enqueued in one transaction, or nothing. retry is a backoff, such as {"strategy": "Linear", "base": "10s"}. For each
event it prints the id, and whether it was enqueued or was there already. The namespace defaults to the file's. The
login needs what "dispatcher migrate grants --for producer" prints.`,
		RunE: work(func(cmd *cobra.Command) error {
			next := linesOf(cmd.InOrStdin())
			topic, has := cmd.Flags().Changed("topic"), cmd.Flags().Changed("payload")
			switch {
			case topic != has && has:
				return errors.New("--topic is missing; name the topic of the event, or leave out --payload to read events from standard input")
			case topic != has:
				return errors.New("--payload is missing; give the event's payload as JSON, or leave out --topic to read events from standard input")
			}
			if topic {
				one.Payload, one.Delay = json.RawMessage(payload), spec.Duration(delay)
				next = only(one)
			} else if err := onlyFlags(cmd, "is for the event of --topic, which is missing; write it into the lines, or give --topic and --payload", "file", "namespace"); err != nil {
				return err
			}
			return enqueue(cmd, file, one.Namespace, next)
		}),
	}
	fileFlag(cmd, &file)
	flags := cmd.Flags()
	flags.StringVar(&one.Namespace, "namespace", "", "the outbox namespace (default: the file's)")
	flags.StringVar(&one.Topic, "topic", "", "the topic")
	flags.StringVar(&payload, "payload", "", "the payload, as JSON")
	flags.StringVar(&one.EventType, "event-type", "", "what happened")
	flags.StringVar(&one.AggregateType, "aggregate-type", "", "the kind of thing that it happened to")
	flags.StringVar(&one.AggregateID, "aggregate-id", "", "the thing that it happened to")
	flags.StringVar(&one.PartitionKey, "partition-key", "", "what messages are partitioned by (default: the aggregate id)")
	flags.BoolVar(&one.LockKey, "lock-key", false, "wait for transactions that enqueue for the same key: the order per key is that of the commits")
	flags.BoolVar(&one.Numbered, "aggregate-sequence", false, "give the event the next number of its aggregate, and wait for transactions that do the same")
	flags.StringVar(&one.TenantID, "tenant-id", "", "the tenant, a UUID")
	flags.StringVar(&one.DedupeKey, "dedupe-key", "", "a second event with the same key is not enqueued")
	flags.StringToStringVar(&one.Headers, "header", nil, "a header, as name=value; may be repeated")
	flags.Lookup("header").DefValue = "" // of an empty map, pflag shows []
	flags.IntVar(&one.MaxAttempts, "max-attempts", 0, "the retry budget of this event, 1 to 1000 (default: the dispatcher's)")
	flags.StringVar(&one.Expires, "expires", "", "the event is not sent after this duration since it was due, or this time, such as 36h (default: the dispatcher's)")
	flags.StringVar(&one.ID, "id", "", "the event's id, a UUID: one that is there already is not enqueued again (default: a new one)")
	flags.DurationVar(&delay, "delay", 0, "how long to hold the event back, such as 10m")
	return cmd
}

// linesOf reads the JSON objects of a stream, until io.EOF.
func linesOf(in io.Reader) func() (line, error) {
	decoder := json.NewDecoder(in)
	decoder.DisallowUnknownFields()
	return func() (l line, err error) {
		err = decoder.Decode(&l)
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			err = fmt.Errorf("%s holds a %s; give a %s", wrong.Field, wrong.Value, wrong.Type)
		}
		return l, err
	}
}

func only(l line) func() (line, error) {
	done := false
	return func() (line, error) {
		if done {
			return l, io.EOF
		}
		done = true
		return l, nil
	}
}

// enqueue enqueues events. Those without a namespace get this one, or else the file's.
func enqueue(cmd *cobra.Command, file source, namespace string, next func() (line, error)) error {
	var receipts []producer.Receipt
	err := withDatabase(cmd, file.owners(), func(ctx context.Context, conn *pgx.Conn, cfg spec.Config) error {
		outbox := producer.New(producer.Options{Schema: cfg.Database.Schema})
		committing := false
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
			if _, err := tx.Exec(ctx, "set local outbox.require_data = off"); err != nil { // here the events are the data
				return err
			}
			receipts, err = enqueueAll(ctx, outbox, tx, cmp.Or(namespace, cfg.Namespace), next)
			committing = err == nil && len(receipts) > 0
			return err
		})
		switch {
		case err == nil:
			return nil
		case committing && !rolledBack(err):
			return fmt.Errorf("%w; the connection was lost during the commit, so whether anything was enqueued is unknown: look for the first of the %d events, %s, before you enqueue them again", err, len(receipts), receipts[0].ID)
		}
		return fmt.Errorf("%w; nothing was enqueued", err)
	})
	if err != nil {
		return err
	}
	for _, r := range receipts {
		what := "enqueued"
		if !r.Enqueued {
			what = "already enqueued"
		}
		fmt.Fprintln(cmd.OutOrStdout(), r.ID, what)
	}
	return nil
}

// rolledBack reports whether the server responded that it did not commit.
func rolledBack(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.SeverityUnlocalized == "ERROR" || errors.Is(err, pgx.ErrTxCommitRollback)
}

func enqueueAll(ctx context.Context, outbox *producer.Producer[producer.PGX], tx pgx.Tx, namespace string, next func() (line, error)) (all []producer.Receipt, err error) {
	var batch []producer.Event
	size := 0
	flush := func() error {
		receipts, err := outbox.EnqueueBatch(ctx, tx, batch)
		if err != nil && len(all) > 0 {
			err = fmt.Errorf("events %d to %d: %w", len(all)+1, len(all)+len(batch), err)
		}
		all, batch, size = append(all, receipts...), batch[:0], 0
		return err
	}
	for n := 1; ; n++ {
		l, err := next()
		if errors.Is(err, io.EOF) {
			return all, flush()
		}
		var event producer.Event
		if err == nil {
			event, err = l.event(namespace)
		}
		if err != nil {
			return nil, fmt.Errorf("event %d: %w", n, err)
		}
		size += len(l.Payload)
		for name, value := range l.Headers {
			size += len(name) + len(value)
		}
		if batch = append(batch, event); len(batch) == enqueueBatch || size >= enqueueBytes {
			if err := flush(); err != nil {
				return nil, err
			}
		}
	}
}
