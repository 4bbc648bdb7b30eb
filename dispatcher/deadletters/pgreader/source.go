package pgreader

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

var _ deadletters.Source = (*Reader)(nil)

// Groups implements [deadletters.Source]. It fails as that says, and when the database does.
func (r *Reader) Groups(ctx context.Context, f deadletters.Filter) (deadletters.Groups, error) {
	out := deadletters.Groups{Groups: []deadletters.Group{}}
	if err := errors.Join(f.Validate(), f.Open()); err != nil {
		return out, deadletters.Invalid(err)
	}
	err := r.read(ctx, "count the groups of dead letters", func(tx pgx.Tx) error {
		sql, args := r.groups(f)
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		var g deadletters.Group
		var since, last *time.Time
		var reason *string
		var more bool
		var large []string
		_, err = pgx.ForEachRow(rows, []any{&g.Group, &g.Topic, &reason, &g.Class, &g.Code, &g.Place, &g.Count, &g.AtLeast, &since, &last, &g.DeadLetter, &g.Event, &g.Error, &more}, func() error {
			if more {
				out.More = true
				return nil
			}
			g.Since, g.Last = since.UTC(), last.UTC()
			g.Reason = dispatcher.DeadReason(*reason)
			g.Advice = dispatcher.Recovery(g.Reason, g.Class)
			if g.AtLeast {
				large = append(large, g.Group)
			}
			out.Groups = append(out.Groups, g)
			return nil
		})
		if err != nil || len(large) == 0 {
			return err
		}
		return r.estimate(ctx, tx, f, large, out.Groups)
	})
	return out, err
}

// groups is the statement that counts by group, one row for each.
func (r *Reader) groups(f deadletters.Filter) (string, []any) {
	if f.Indexed() {
		return r.where("groups", f, r.namespace, deadletters.MaxGroups, deadletters.GroupCap, groupsCap)
	}
	return r.where("matching", f, deadletters.MaxGroups)
}

// estimate says how many dead letters large groups have: exactly, where the table is small enough to read it whole.
func (r *Reader) estimate(ctx context.Context, tx pgx.Tx, f deadletters.Filter, large []string, groups []deadletters.Group) error {
	sql, args := r.where("sampled", f, large, r.pages)
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	var group string
	var n int64
	var whole bool
	_, err = pgx.ForEachRow(rows, []any{&group, &n, &whole}, func() error {
		for i := range groups {
			if g := &groups[i]; g.Group == group && g.AtLeast && (whole || n > g.Count) {
				g.Count, g.AtLeast, g.Estimated = n, false, !whole
			}
		}
		return nil
	})
	slices.SortStableFunc(groups, func(a, b deadletters.Group) int { return cmp.Compare(b.Count, a.Count) })
	return err
}

// CountBy implements [deadletters.Source]. It fails as that says, and when the database does.
func (r *Reader) CountBy(ctx context.Context, f deadletters.Filter, by deadletters.By) (deadletters.Counts, error) {
	out := deadletters.Counts{By: by, Counts: []deadletters.Count{}}
	if err := errors.Join(f.Validate(), f.Open(), by.Validate()); err != nil {
		return out, deadletters.Invalid(err)
	}
	err := r.read(ctx, "count dead letters by "+string(by), func(tx pgx.Tx) error {
		sql, args := r.counts(f, by)
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		var c deadletters.Count
		_, err = pgx.ForEachRow(rows, []any{&c.Value, &c.Count, &c.Groups, &c.Since, &c.Last, &c.AtLeast}, func() error {
			c.Since, c.Last = c.Since.UTC(), c.Last.UTC()
			out.Counts = append(out.Counts, c)
			return nil
		})
		return err
	})
	if len(out.Counts) > deadletters.MaxGroups {
		out.Counts, out.More = out.Counts[:deadletters.MaxGroups], true
	}
	return out, err
}

// counts is the statement that counts by what the dead letters are about.
func (r *Reader) counts(f deadletters.Filter, by deadletters.By) (string, []any) {
	if f.Indexed() {
		return r.where("counts", f, string(by), r.namespace, deadletters.MaxGroups, deadletters.CountCap, deadletters.MaxGroups+1)
	}
	return r.where("matching_counts", f, string(by), deadletters.MaxGroups+1)
}

// List implements [deadletters.Source]. It fails as that says, and when the database does.
func (r *Reader) List(ctx context.Context, req deadletters.ListRequest) (deadletters.Page, error) {
	page := deadletters.Page{DeadLetters: []deadletters.DeadLetter{}}
	if err := req.Validate(); err != nil {
		return page, deadletters.Invalid(err)
	}
	limit, before := req.Limit, req.After
	if limit == 0 {
		limit = deadletters.DefaultLimit
	}
	if before == 0 {
		before = math.MaxInt64
	}
	err := r.read(ctx, "list dead letters", func(tx pgx.Tx) (err error) {
		sql, args := r.where("dead_letters", req.Filter, before, limit+1, false)
		page.DeadLetters, err = deadLetters(ctx, tx, sql, args)
		return err
	})
	if len(page.DeadLetters) > limit {
		page.DeadLetters = page.DeadLetters[:limit]
		page.Next = page.DeadLetters[limit-1].ID
	}
	return page, err
}

// Show implements [deadletters.Source]. It fails as that says, and when the database does.
func (r *Reader) Show(ctx context.Context, id string, payload bool) (deadLetter deadletters.DeadLetter, err error) {
	if err := (deadletters.Filter{IDs: []string{id}}).Validate(); err != nil {
		return deadLetter, deadletters.Invalid(err)
	}
	err = r.read(ctx, "show a dead letter", func(tx pgx.Tx) error {
		found, err := r.deadLettersOf(ctx, tx, id, 1)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return fmt.Errorf("no dead letter %s in the namespace %s%s: %w; `dead list` has those that are there", id, r.namespace, r.ofTopics(), deadletters.ErrNotFound)
		}
		deadLetter = found[0]
		deadLetter.Advice = dispatcher.Recovery(deadLetter.Reason, deadLetter.Class)
		return r.addEvent(ctx, tx, &deadLetter, payload)
	})
	return deadLetter, err
}

// addEvent adds to a dead letter the present state of its event. A replay login may read the status, but not the row.
func (r *Reader) addEvent(ctx context.Context, tx pgx.Tx, deadLetter *deadletters.DeadLetter, payload bool) error {
	var event *deadletters.Event
	err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) (err error) {
		event, err = r.event(ctx, tx, deadLetter.Event, payload)
		return err
	})
	switch {
	case errors.Is(err, errRow):
		if payload {
			deadLetter.PayloadOmitted = "this login may not read it; use one that may select on outbox_events, such as the dispatcher's"
		}
		err := tx.QueryRow(ctx, r.sql("status"), deadLetter.Event, r.namespace, r.topics).Scan(&deadLetter.Status)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	case err != nil:
		return err
	case event != nil:
		deadLetter.Status, deadLetter.Content = event.Status, event.Content
	case payload:
		deadLetter.PayloadOmitted = "the event's row is gone"
	}
	return nil
}

// Event implements [deadletters.Source]. It fails as that says, and when the database does.
func (r *Reader) Event(ctx context.Context, id string, payload bool) (history deadletters.History, err error) {
	err = r.read(ctx, "show an event", func(tx pgx.Tx) error {
		load := func(id string) (err error) {
			r := *r
			if r.topics, err = r.related(ctx, tx, id, &history); err != nil {
				return err
			}
			if history.Event, err = r.event(ctx, tx, id, payload); err != nil {
				return err
			}
			if history.DeadLetters, err = r.deadLettersOf(ctx, tx, id, deadletters.MaxHistory); err != nil {
				return err
			}
			history.Journal, err = r.journal(ctx, tx, id)
			return err
		}
		if _, err := uuid.Parse(id); err == nil && len(id) == 36 {
			if err := load(id); err != nil || history.Event != nil || len(history.DeadLetters) > 0 || len(history.Journal)+len(history.Copies) > 0 {
				return err
			}
		}
		event, err := r.byKey(ctx, tx, id)
		if err != nil {
			return err
		}
		return load(event)
	})
	return history, err
}

// journal reads the records of an event, the oldest first.
func (r *Reader) journal(ctx context.Context, tx pgx.Tx, id string) ([]deadletters.Record, error) {
	rows, err := tx.Query(ctx, r.sql("journal"), id, r.namespace, r.topics, deadletters.MaxRecords)
	if err != nil {
		return nil, err
	}
	records, err := pgx.CollectRows(rows, pgx.RowToStructByPos[deadletters.Record])
	for i := range records {
		records[i].At = records[i].At.UTC()
	}
	slices.Reverse(records)
	return records, err
}

// byKey finds an event by its dedupe key.
func (r *Reader) byKey(ctx context.Context, tx pgx.Tx, key string) (string, error) {
	rows, err := tx.Query(ctx, r.sql("dedupe"), key, r.namespace, r.topics)
	if err != nil {
		return "", err
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	switch {
	case err != nil:
		return "", ofRow(err)
	case len(found) == 0:
		return "", fmt.Errorf("no event has this id or dedupe key in the namespace %s%s: %w; it was never enqueued there, or it was delivered and its retention is over", r.namespace, r.ofTopics(), deadletters.ErrNotFound)
	case len(found) > 1:
		return "", deadletters.Invalid(fmt.Errorf("events of several topics have this dedupe key; give the id of one, such as %s or %s", found[0], found[1]))
	}
	return found[0], nil
}

// errRow means that the login may not read events' rows.
var errRow = errors.New("this login may not read the row of an event")

// ofRow marks a refusal as errRow.
func ofRow(err error) error {
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == "42501" {
		return fmt.Errorf("%w: %w", errRow, err)
	}
	return err
}

// event reads a row; nil when it is gone.
func (r *Reader) event(ctx context.Context, tx pgx.Tx, id string, content bool) (*deadletters.Event, error) {
	var e deadletters.Event
	var due, leased *time.Time
	var failures, headers, payload []byte
	var reason string
	err := tx.QueryRow(ctx, r.sql("event"), id, r.namespace, r.topics, content, deadletters.MaxPayload).Scan(
		&e.ID, &e.Topic, &e.Seq, &e.AggregateSequence, &e.Type, &e.AggregateType, &e.AggregateID, &e.PartitionKey, &e.DedupeKey, &e.Tenant, &e.SizeBytes,
		&e.CreatedAt, &e.UpdatedAt, &e.Status, &e.Attempts, &e.Lease, &due, &e.Worker, &leased, &reason, &e.LastError, &failures,
		&headers, &payload)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, ofRow(err)
	}
	e.Reason = dispatcher.DeadReason(reason)
	e.CreatedAt, e.UpdatedAt, e.NextAttemptAt, e.LeasedUntil = e.CreatedAt.UTC(), e.UpdatedAt.UTC(), utc(due), utc(leased)
	e.Headers, e.Payload = headers, payload
	if content && payload == nil {
		e.PayloadOmitted = fmt.Sprintf("it has %d bytes, and at most %d are shown; read it in the database", e.SizeBytes, deadletters.MaxPayload)
	}
	e.Failures, err = decode(failures)
	return &e, err
}

// deadLettersOf reads the dead letters of an event, or the dead letter with the number, with all of their columns.
func (r *Reader) deadLettersOf(ctx context.Context, tx pgx.Tx, id string, limit int) ([]deadletters.DeadLetter, error) {
	args := []any{int64(math.MaxInt64), limit, true, r.namespace, r.topics}
	term := "l.event_id = $6::text::uuid"
	if number, err := strconv.ParseInt(id, 10, 64); err == nil {
		args, term = append(args, number), "l.id = $6::bigint"
	} else {
		args = append(args, id)
	}
	return deadLetters(ctx, tx, replace(r.sql("dead_letters"), "l.namespace = $4::text and ($5::text[] is null or l.topic = any ($5::text[])) and "+term), args)
}

func deadLetters(ctx context.Context, tx pgx.Tx, sql string, args []any) ([]deadletters.DeadLetter, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	out := []deadletters.DeadLetter{}
	var l deadletters.DeadLetter
	var s deadletters.Resolution
	var what *string
	var reason string
	var failures []byte
	_, err = pgx.ForEachRow(rows, []any{
		&l.ID, &l.Event, &l.Group, &l.Topic, &l.Seq, &l.Type, &l.AggregateType, &l.AggregateID, &l.Tenant, &reason, &l.Class, &l.Code,
		&l.Place, &l.Error, &l.Attempts, &l.DeadAt, &what, &s.At, &s.By, &s.Reason, &s.Replay, &s.Outcome, &l.Worker, &failures, &l.Response,
	}, func() (err error) {
		one := l
		one.DeadAt, one.Reason = l.DeadAt.UTC(), dispatcher.DeadReason(reason)
		if what != nil {
			resolution := s
			resolution.What, resolution.At = *what, s.At.UTC()
			one.Resolution = &resolution
		}
		one.Failures, err = decode(failures)
		out = append(out, one)
		return err
	})
	return out, err
}

// decode reads the column failures, which nack writes.
func decode(failures []byte) ([]deadletters.Failure, error) {
	var out []deadletters.Failure
	if err := json.Unmarshal(failures, &out); err != nil {
		return nil, fmt.Errorf("the column failures is not as nack writes it: %w; it was changed by hand: set it to null", err)
	}
	for i := range out {
		out[i].At = out[i].At.UTC()
	}
	if len(out) == 0 {
		return nil, nil
	}
	return out, nil
}

func utc(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// ofTopics names the topics of the reader in an error.
func (r *Reader) ofTopics() string {
	if len(r.topics) == 0 {
		return ""
	}
	return fmt.Sprintf(" and the topics %q", r.topics)
}
