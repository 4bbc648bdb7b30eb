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
	return s.write(ctx, "ack", s.sql["ack"], leases)
}

// Extend implements [dispatcher.Store]. The error is the database's.
func (s *Store) Extend(ctx context.Context, leases []dispatcher.Lease, lease time.Duration) ([]dispatcher.Lease, error) {
	return s.write(ctx, "extend", s.sql["extend"], leases, lease)
}

// Begin implements [dispatcher.Store]. The error is the database's.
func (s *Store) Begin(ctx context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	return s.write(ctx, "begin", s.sql["begin"], leases)
}

// Release implements [dispatcher.Store]. The error is the database's.
func (s *Store) Release(ctx context.Context, returns []dispatcher.Return) (lost []dispatcher.Lease, err error) {
	if len(returns) == 0 {
		return nil, nil
	}
	returns = slices.Clone(returns)
	slices.SortFunc(returns, func(a, b dispatcher.Return) int { return compare(a.Lease, b.Lease) })
	texts, delays := make([]string, len(returns)), make([]time.Duration, len(returns))
	held := newHeld(len(returns))
	for i, r := range returns {
		held.set(i, r.Lease)
		texts[i], delays[i] = storable(r.Error, maxError), r.Delay
	}
	return s.writeEach(ctx, "release", relaxed, s.sql["release"], []any{held.ids, held.numbers, pgUUID(s.worker), delays, texts})
}

// write runs a statement on leases, all in one transaction, and returns those that it did not find
// held. The statement takes leases of one number, which is that of their claim. They are sorted, as
// Nack's are: every transaction locks its rows in one order, so no two wait for each other.
func (s *Store) write(ctx context.Context, verb, sql string, leases []dispatcher.Lease, args ...any) (lost []dispatcher.Lease, err error) {
	if len(leases) == 0 {
		return nil, nil
	}
	leases = slices.Clone(leases)
	slices.SortFunc(leases, compare)
	ids := make(pgtype.FlatArray[pgtype.UUID], len(leases)) // encoded without reflection
	for i, l := range leases {
		ids[i] = pgUUID(l.ID)
	}
	err = s.send(ctx, func(batch *pgx.Batch) {
		lost = nil
		batch.Queue(relaxed)
		for from, to := 0, 0; from < len(leases); from = to {
			for to = from; to < len(leases) && leases[to].Number == leases[from].Number; to++ {
			}
			group := leases[from:to]
			batch.Queue(sql, append([]any{ids[from:to], group[0].Number, pgUUID(s.worker)}, args...)...).Query(func(rows pgx.Rows) error {
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
	failures = slices.Clone(failures)
	slices.SortFunc(failures, func(a, b dispatcher.Failure) int { return compare(a.Lease, b.Lease) })
	var (
		held      = newHeld(len(failures))
		texts     = make([]string, len(failures))
		delays    = make([]time.Duration, len(failures))
		reasons   = make([]string, len(failures))
		causes    = make([]string, len(failures))
		responses = make([]string, len(failures))
		settings  = relaxed
	)
	for i, f := range failures {
		held.set(i, f.Lease)
		texts[i], delays[i], reasons[i] = storable(f.Error, maxError), f.Delay, string(f.Reason)
		causes[i] = failed(f)
		if f.Reason != "" {
			settings, responses[i] = durable+s.notify, storable(f.Response, maxResponse)
		}
	}
	lost, err = s.writeEach(ctx, "nack", settings, s.sql["nack"], []any{held.ids, held.numbers, pgUUID(s.worker), texts, delays, reasons, causes, responses})
	if len(lost) > 0 && settings != relaxed {
		return s.reallyLost(ctx, lost, failures), nil
	}
	return lost, err
}

// reallyLost leaves out the leases under which an earlier try made a row dead, whose response did not arrive: so such a
// row is reported as dead. It reads after the nack, which has waited for a try that was under way.
func (s *Store) reallyLost(ctx context.Context, lost []dispatcher.Lease, failures []dispatcher.Failure) []dispatcher.Lease {
	reasons := make([]string, len(lost))
	held := newHeld(len(lost))
	for i, l := range lost {
		held.set(i, l)
		n, _ := slices.BinarySearchFunc(failures, l, func(f dispatcher.Failure, l dispatcher.Lease) int { return compare(f.Lease, l) })
		reasons[i] = string(failures[n].Reason)
	}
	still, err := s.writeEach(ctx, "nack", relaxed, s.sql["lost"], []any{held.ids, held.numbers, reasons})
	if err != nil {
		return lost // the others are written
	}
	return still
}

// held are leases as two arrays of a statement.
type held struct {
	ids     []pgtype.UUID
	numbers []int64
}

func newHeld(n int) held { return held{make([]pgtype.UUID, n), make([]int64, n)} }

func (h held) set(i int, l dispatcher.Lease) { h.ids[i], h.numbers[i] = pgUUID(l.ID), l.Number }

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
	if a.Number != b.Number {
		return cmp.Compare(a.Number, b.Number)
	}
	return bytes.Compare(a.ID[:], b.ID[:])
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
