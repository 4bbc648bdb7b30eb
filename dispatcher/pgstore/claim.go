package pgstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Claim implements [dispatcher.Store]. When it fails after rows have become dead, it returns them in Claimed.Dead
// with the error.
func (s *Store) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	c := newClaiming(req)
	if req.Keys != nil {
		return s.claimKeyed(ctx, c)
	}
	if req.Fair {
		return s.claimFair(ctx, c)
	}
	var out dispatcher.Claimed
	for {
		found, err := s.claim(ctx, c)
		if err != nil {
			return out, err
		}
		found.split(&out)
		// Nothing found must mean that nothing is due: neither rows without an attempt nor a floor
		// may hide others.
		if out.Leased()+len(out.Expired) > 0 || len(found.rows) == 0 && (!found.floored || !s.floors.lift(req.Shares)) {
			return out, nil
		}
	}
}

// claiming is a request as the statements take it.
type claiming struct {
	dispatcher.ClaimRequest
	topics []string
	limits []int32
	skip   string // the ids of ClaimRequest.Skip, as claimSettings takes them
}

func newClaiming(req dispatcher.ClaimRequest) claiming {
	ids := make([]string, len(req.Skip))
	for i, id := range req.Skip {
		ids[i] = id.String()
	}
	c := claiming{req, make([]string, len(req.Shares)), make([]int32, len(req.Shares)), strings.Join(ids, ",")}
	c.MaxBytes, c.MaxRowBytes = cmp.Or(req.MaxBytes, math.MaxInt64), cmp.Or(req.MaxRowBytes, math.MaxInt64)
	for i, share := range req.Shares {
		c.topics[i], c.limits[i] = share.Topic, int32(share.Limit)
	}
	return c
}

// statement is one that claims.
type statement struct {
	sql, look string // look locks the rows that sql would lease, and returns their ids and times
	args      []any
}

// statement makes one from the file with the name, from where each topic's range begins, and from arguments behind those that all
// have (claim_parts.sql).
func (s *Store) statement(name string, c claiming, from []position, more ...any) statement {
	times, ids := pgPositions(from)
	return statement{s.sql[name], s.sql[name+"_look"], append([]any{s.opts.Namespace, c.topics, c.limits, times, ids, int32(c.MaxAttempts), c.MaxBytes,
		pgUUID(s.opts.Worker), c.Lease, c.Fit, c.MaxRowBytes, s.expireAfter}, more...)}
}

// found is what one claim statement returned.
type found struct {
	rows    []row     // in order: topic by topic as in the request, each by position
	floored bool      // some topic's range was not read from its front
	at      time.Time // the database's time
	cut     bool      // rows were found that MaxBytes had no room for
	reports [][]byte  // what each statement says in addition, with Keys and Fair
}

// row is a claimed row and where it stands in its topic's range: many are sorted, so it is small.
type row struct {
	event *dispatcher.Event
	share int    // index of the topic in the request
	due   int64  // next_attempt_at, as timeOf takes it
	ended ending // set when it became dead or expired in place of leased; then the payload is its last failure
	// unreadable is why the event could not be decoded, nil when it was.
	unreadable error
	key        int64 // key_hash, in order per key; 0 for none
}

func (r row) position() position { return position{timeOf(r.due), r.event.ID} }

// ending says why a claim has leased no row that it took: its [dispatcher.DeadReason], or that its time is over.
type ending string

const expired ending = "expired"

// split adds the claimed rows, those that cannot be read, and those that became dead or expired.
func (f found) split(out *dispatcher.Claimed) {
	out.At = f.at
	out.Events = make([]*dispatcher.Event, 0, len(f.rows))
	for _, r := range f.rows {
		switch e := r.event; {
		case r.ended == expired:
			out.Expired = append(out.Expired, e)
		case r.ended != "":
			out.Dead = append(out.Dead, r.deadEvent())
		case r.unreadable != nil:
			out.Unreadable = append(out.Unreadable, dispatcher.Unreadable{Event: e, Err: r.unreadable})
		default:
			out.Events = append(out.Events, e)
		}
	}
}

// deadEvent is a row that had no attempt left. Its cause is that of the statement's record.
func (r row) deadEvent() dispatcher.DeadEvent {
	e, reason, cause := r.event, dispatcher.DeadReason(r.ended), dispatcher.Cause{Class: dispatcher.ClassLease}
	switch reason {
	case dispatcher.ReasonPoisonMessage:
		cause = dispatcher.Cause{Class: dispatcher.ClassDecode, Code: "size"}
	case dispatcher.ReasonMaxRetriesExceeded:
		cause = dispatcher.Cause{}
		_ = json.Unmarshal(e.Payload, &cause) // other than a failure it has no cause
	}
	return dispatcher.DeadEvent{
		ID: e.ID, Topic: e.Topic, Attempts: e.Attempt, Reason: reason,
		Cause: cause, Fingerprint: dispatcher.Fingerprint(e.Topic, reason, cause),
	}
}

// sort puts the rows in order.
func (f found) sort() {
	inOrder := func(a, b row) int {
		return cmp.Or(cmp.Compare(a.share, b.share), cmp.Compare(a.due, b.due), bytes.Compare(a.event.ID[:], b.event.ID[:]))
	}
	if !slices.IsSortedFunc(f.rows, inOrder) {
		slices.SortStableFunc(f.rows, inOrder) // they come in runs, and it makes half the work of these
	}
}

// claim runs the statement once.
func (s *Store) claim(ctx context.Context, c claiming) (found, error) {
	start := s.floors.next(c.topics)
	f, err := s.fetch(ctx, c, func(*pgx.Batch) {}, s.statement("claim", c, start.from))
	if err != nil {
		return found{}, err
	}
	f.floored = start.floored
	f.sort()
	s.floors.update(start, c.Shares, f)
	return f, nil
}

// fetch runs the statements of a claim in one transaction: to the second, the rows of the first are leased. What they
// report in addition to the rows is in a setting of it: in the rows it would make the server keep all of them once more. first
// adds what comes before them.
func (s *Store) fetch(ctx context.Context, c claiming, first func(*pgx.Batch), statements ...statement) (f found, err error) {
	d := newDecoder(s.opts.Namespace, c)
	err = s.send(ctx, func(batch *pgx.Batch) {
		f = found{}
		batch.Queue(s.claims, frozenAfter(c.Lease), c.skip).Query(func(rows pgx.Rows) error {
			settings, err := pgx.CollectExactlyOneRow(rows, pgx.RowToMap)
			f.at, _ = settings["now"].(time.Time)
			return err
		})
		first(batch)
		for _, st := range statements {
			batch.Queue(st.sql, st.args...).Query(func(rows pgx.Rows) error {
				more, cut, err := d.decode(rows)
				f.rows, f.cut = append(more, f.rows...), cut || c.Fit // the ranges are the last
				return err
			})
			if c.Keys == nil && !c.Fair {
				continue
			}
			batch.Queue(`select current_setting('outbox.report')`).QueryRow(func(row pgx.Row) error {
				var text []byte
				err := row.Scan(&text)
				f.reports = append(f.reports, text)
				return err
			})
		}
	})
	if err = s.wrap("claim", err); dispatcher.IsRefused(err) && len(c.limits) == 1 && c.limits[0] == 1 {
		if row, _ := s.refusedRow(ctx, c, statements...); row != nil {
			err = row
		}
	}
	return f, err
}

// position is where a row stands in its topic's range of the live index.
type position struct {
	at time.Time // next_attempt_at
	id uuid.UUID
}

func (p position) compare(q position) int {
	return cmp.Or(p.at.Compare(q.at), bytes.Compare(p.id[:], q.id[:]))
}
