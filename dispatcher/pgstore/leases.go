package pgstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Ack implements [dispatcher.Store]. The error is the database's.
func (s *Store) Ack(ctx context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	lost, err := s.write(ctx, "ack", s.sql["ack"], s.copied.others(leases))
	if err == nil {
		s.keyed.written(leases)
		s.copied.forget(leases)
	}
	return lost, err
}

// Extend implements [dispatcher.Store]. The error is the database's.
func (s *Store) Extend(ctx context.Context, leases []dispatcher.Lease, lease time.Duration) ([]dispatcher.Lease, error) {
	lost, err := s.write(ctx, "extend", s.sql["extend"], s.copied.others(leases), lease)
	s.keyed.written(lost)
	return lost, err
}

// Begin implements [dispatcher.Store]. The error is the database's.
func (s *Store) Begin(ctx context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	return s.write(ctx, "begin", s.sql["begin"], leases, true)
}

// Outlive implements [dispatcher.Store]. The error is the database's.
func (s *Store) Outlive(ctx context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	return s.write(ctx, "outlive", s.sql["begin"], leases, false)
}

// Release implements [dispatcher.Store]. The error is the database's.
func (s *Store) Release(ctx context.Context, returns []dispatcher.Return) (lost []dispatcher.Lease, err error) {
	if len(returns) == 0 {
		return nil, nil
	}
	returns, held := inOrder(returns, func(r dispatcher.Return) dispatcher.Lease { return r.Lease })
	texts, delays := make([]string, len(returns)), make([]time.Duration, len(returns))
	for i, r := range returns {
		texts[i], delays[i] = storable(r.Error, maxError), r.Delay
	}
	lost, err = s.writeEach(ctx, "release", relaxed, s.sql["release"], []any{held.ids, held.numbers, pgUUID(s.opts.Worker), delays, texts})
	if err == nil {
		s.keyed.written(held.leases)
	}
	return lost, err
}

// write runs a statement on leases, all in one transaction, and returns those that it did not find
// held. The statement takes leases of one number, which is that of their claim.
func (s *Store) write(ctx context.Context, verb, sql string, leases []dispatcher.Lease, args ...any) (lost []dispatcher.Lease, err error) {
	if len(leases) == 0 {
		return nil, nil
	}
	leases, held := inOrder(leases, func(l dispatcher.Lease) dispatcher.Lease { return l })
	err = s.send(ctx, func(batch *pgx.Batch) {
		lost = nil
		batch.Queue(relaxed)
		for from, to := 0, 0; from < len(leases); from = to {
			for to = from; to < len(leases) && leases[to].Number == leases[from].Number; to++ {
			}
			group := leases[from:to]
			batch.Queue(sql, append([]any{held.ids[from:to], group[0].Number, pgUUID(s.opts.Worker)}, args...)...).Query(func(rows pgx.Rows) error {
				l := group[0]
				_, err := pgx.ForEachRow(rows, []any{(*[16]byte)(&l.ID)}, func() error { lost = append(lost, l); return nil })
				return err
			})
		}
	})
	return lost, s.wrap(verb, err)
}

// Nack implements [dispatcher.Store]. The error is the database's.
func (s *Store) Nack(ctx context.Context, failures []dispatcher.Failure) (lost []dispatcher.Lease, err error) {
	if len(failures) == 0 {
		return nil, nil
	}
	failures, held := inOrder(failures, func(f dispatcher.Failure) dispatcher.Lease { return f.Lease })
	var (
		texts     = make([]string, len(failures))
		delays    = make([]time.Duration, len(failures))
		reasons   = make([]string, len(failures))
		causes    = make([]string, len(failures))
		responses = make([]string, len(failures))
		settings  = relaxed
	)
	for i, f := range failures {
		texts[i], delays[i], reasons[i] = storable(f.Error, maxError), f.Delay, string(f.Reason)
		causes[i] = failed(f)
		if f.Reason != "" {
			settings, responses[i] = durable+s.notify, storable(f.Response, maxResponse)
		}
	}
	lost, err = s.writeEach(ctx, "nack", settings, s.sql["nack"], []any{held.ids, held.numbers, pgUUID(s.opts.Worker), texts, delays, reasons, causes, responses})
	if err == nil {
		s.keyed.written(held.leases)
	}
	if len(lost) > 0 && settings != relaxed {
		return s.reallyLost(ctx, lost, failures), nil
	}
	return lost, err
}

// reallyLost leaves out the leases under which an earlier try made a row dead, whose response did not arrive: so such a
// row is reported as dead. It reads after the nack, which has waited for a try that was under way.
func (s *Store) reallyLost(ctx context.Context, lost []dispatcher.Lease, failures []dispatcher.Failure) []dispatcher.Lease {
	lost, held := inOrder(lost, func(l dispatcher.Lease) dispatcher.Lease { return l })
	reasons := make([]string, len(lost))
	for i, l := range lost {
		n, _ := slices.BinarySearchFunc(failures, l, func(f dispatcher.Failure, l dispatcher.Lease) int { return compare(f.Lease, l) })
		reasons[i] = string(failures[n].Reason)
	}
	still, err := s.writeEach(ctx, "nack", relaxed, s.sql["lost"], []any{held.ids, held.numbers, reasons})
	if err != nil {
		return lost // the others are written
	}
	return still
}

// held are leases, and the same as two arrays of a statement.
type held struct {
	leases  []dispatcher.Lease
	ids     pgtype.FlatArray[pgtype.UUID] // encoded without reflection
	numbers []int64
}

// inOrder sorts what has a lease each: every transaction locks its rows in one order, so no two wait for each other.
func inOrder[T any](all []T, of func(T) dispatcher.Lease) ([]T, held) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b T) int { return compare(of(a), of(b)) })
	h := held{make([]dispatcher.Lease, len(all)), make([]pgtype.UUID, len(all)), make([]int64, len(all))}
	for i, one := range all {
		h.leases[i], h.ids[i], h.numbers[i] = of(one), pgUUID(of(one).ID), of(one).Number
	}
	return all, h
}

// writeEach runs a statement that takes something else for each lease, and returns the leases that it did
// not find held.
func (s *Store) writeEach(ctx context.Context, verb, settings, sql string, args []any) (lost []dispatcher.Lease, err error) {
	err = s.run(ctx, verb, settings, sql, args, func(rows pgx.Rows) error {
		lost = nil
		var l dispatcher.Lease
		_, err := pgx.ForEachRow(rows, []any{(*[16]byte)(&l.ID), &l.Number}, func() error { lost = append(lost, l); return nil })
		return err
	})
	return lost, err
}

// compare orders leases by number and id.
func compare(a, b dispatcher.Lease) int {
	return cmp.Or(cmp.Compare(a.Number, b.Number), bytes.Compare(a.ID[:], b.ID[:]))
}

// pgUUID is id as a type that pgx knows without a query for the type of the parameter.
func pgUUID(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// The lengths in bytes to which texts are cut: last_error, the error of one of the last failures, and the
// destination's response.
const (
	maxError    = 2000
	maxFailure  = 300
	maxResponse = 1024
)

// failed is an entry of the column failures, without the time and the attempt.
func failed(f dispatcher.Failure) string {
	text, err := json.Marshal(struct {
		dispatcher.Cause
		Error string `json:"error,omitempty"`
	}{
		dispatcher.Cause{Class: storable(f.Cause.Class, maxFailure), Code: storable(f.Cause.Code, maxFailure), Place: storable(f.Cause.Place, maxFailure)},
		storable(f.Error, maxFailure),
	})
	if err != nil {
		panic(err) // texts alone
	}
	return string(text)
}

// storable makes a text one of PostgreSQL, which is valid UTF-8 without NUL, and cuts it to a length.
func storable(text string, most int) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "\uFFFD")
	if len(text) <= most {
		return text
	}
	end := most
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// WorkerInfo is what the table outbox_workers has of a worker in addition to its id, its namespace and the times.
type WorkerInfo struct {
	// Dispatcher is the name of the dispatcher that the worker belongs to.
	Dispatcher string
	// Topics are those that it delivers. Empty means all.
	Topics []string
	// Copies are the topics that it copies its events to. Empty for none.
	Copies []string
	// Version of the program.
	Version string
	// Ordered is true when events wait for earlier ones of their key: it claims with a KeyOrder.
	Ordered bool
	// Blocks is true when its keys wait behind a dead event: KeyOrder.BlockOnDead.
	Blocks bool
	// Paused is true while it claims nothing.
	Paused bool
	// Live is how long the worker is live after a heartbeat: then its part of the rate limits is free. Several times
	// as long as the wait between two. Defaults to 45s.
	Live time.Duration
	// RatePart is the part of the rate limits that it may still use, by the Peers of earlier heartbeats: 0 once the time of
	// that is over. No other worker gets it before the next heartbeat.
	RatePart float64
	// PausedTopics says why little or nothing of a topic is claimed, by the topic; an empty name is all of them. Nil for none.
	PausedTopics map[string]string
	// Delivered and Failed count how its deliveries ended over each of dispatcher.Windows.
	Delivered, Failed [len(dispatcher.Windows)]int64
}

// Heartbeat notes in the table outbox_workers that this worker runs: when it began, and that it was seen now,
// both on the database's clock. It also removes the rows of workers that were not seen for a day. Call it every
// few moments; without rate limits nothing in the delivery of events depends on it. The error is the database's.
func (s *Store) Heartbeat(ctx context.Context, w WorkerInfo) (seen Peers, err error) {
	paused, err := json.Marshal(w.PausedTopics)
	if err != nil || w.PausedTopics == nil {
		paused = []byte("{}") // texts have their JSON
	}
	args := []any{pgUUID(s.opts.Worker), w.Dispatcher, s.opts.Namespace, w.Topics, w.Version, w.Blocks,
		w.Delivered[0], w.Failed[0], w.Delivered[1], w.Failed[1], w.Paused, string(paused), cmp.Or(w.Live, 45*time.Second), w.Ordered, w.RatePart, w.Copies}
	err = s.run(ctx, "note that the worker runs", relaxed, s.sql["heartbeat"], args, func(rows pgx.Rows) (err error) {
		seen, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Peers])
		return err
	})
	return seen, err
}

// Peers are the live workers of one dispatcher.
type Peers struct {
	// Part is this worker's part of the dispatcher's rate limits, from 0 to 1, for as long as it is live. It is 1/n for
	// each of n live workers, but no more than the others leave: a new one has none until they were seen twice. The sum
	// of all is never above 1, whichever responses are lost (CONTRACT C-36).
	Part float64
	// Live is how many workers of the dispatcher are live and not paused, this one included.
	Live int
}

// Leave removes this worker's row, for a worker that stops. The error is the database's.
func (s *Store) Leave(ctx context.Context) error {
	_, err := collect(ctx, s, "remove the worker's row", relaxed, s.sql["leave"], pgx.RowToMap, pgUUID(s.opts.Worker))
	return err
}

// Sharing names the other dispatchers that claim the worker's namespace too, with topics in common, in whatever
// cluster they run: five at most, by name. They are those with a heartbeat in the last minute
// that are not paused.
// The error is the database's.
func (s *Store) Sharing(ctx context.Context, w WorkerInfo) ([]string, error) {
	return collect(ctx, s, "look for dispatchers of the same topics", "", s.sql["sharing"], pgx.RowTo[string], s.opts.Namespace, w.Dispatcher, w.Topics)
}
