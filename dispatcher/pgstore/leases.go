package pgstore

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Ack implements [dispatcher.Store].
func (s *Store) Ack(ctx context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	return s.write(ctx, "ack", relaxed, s.sql.ack, leases)
}

// Extend implements [dispatcher.Store].
func (s *Store) Extend(ctx context.Context, leases []dispatcher.Lease, lease time.Duration) ([]dispatcher.Lease, error) {
	return s.write(ctx, "extend", relaxed, s.sql.extend, leases, lease)
}

// Release implements [dispatcher.Store].
func (s *Store) Release(ctx context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	return s.write(ctx, "release", durable, s.sql.release, leases)
}

// write runs a statement on leases, all in one transaction, and returns those that it did not find
// held. The statement takes leases of one attempt number, and most have the same. They are sorted, as
// Nack's are: every transaction locks its rows in one order, so no two wait for each other.
func (s *Store) write(ctx context.Context, verb, settings, sql string, leases []dispatcher.Lease, args ...any) (lost []dispatcher.Lease, err error) {
	if len(leases) == 0 {
		return nil, nil
	}
	leases = slices.Clone(leases)
	slices.SortFunc(leases, compare)
	ids := make(pgtype.FlatArray[pgtype.UUID], len(leases)) // encoded without reflection
	for i, l := range leases {
		ids[i] = pgUUID(l.ID)
	}
	var batch pgx.Batch
	batch.Queue(settings)
	for from, to := 0, 0; from < len(leases); from = to {
		for to = from; to < len(leases) && leases[to].Attempt == leases[from].Attempt; to++ {
		}
		group := leases[from:to]
		batch.Queue(sql, append([]any{ids[from:to], int32(group[0].Attempt), pgUUID(s.worker)}, args...)...).Query(func(rows pgx.Rows) error {
			l := group[0]
			_, err := pgx.ForEachRow(rows, []any{(*[16]byte)(&l.ID)}, func() error { lost = append(lost, l); return nil })
			return err
		})
	}
	if err := s.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, s.wrap(verb, err)
	}
	return lost, nil
}

// Nack implements [dispatcher.Store].
func (s *Store) Nack(ctx context.Context, failures []dispatcher.Failure) (lost []dispatcher.Lease, err error) {
	if len(failures) == 0 {
		return nil, nil
	}
	failures = slices.Clone(failures)
	slices.SortFunc(failures, func(a, b dispatcher.Failure) int { return compare(a.Lease, b.Lease) })
	var (
		ids      = make([]pgtype.UUID, len(failures))
		attempts = make([]int32, len(failures))
		texts    = make([]string, len(failures))
		delays   = make([]time.Duration, len(failures))
		reasons  = make([]string, len(failures))
		unspent  = make([]bool, len(failures))
		settings = relaxed
	)
	for i, f := range failures {
		ids[i], attempts[i] = pgUUID(f.Lease.ID), int32(f.Lease.Attempt)
		texts[i], delays[i], reasons[i] = errorText(f.Error), f.Delay, string(f.Reason)
		unspent[i] = f.Unspent
		if f.Reason != "" || f.Unspent {
			settings = durable
		}
	}
	args := []any{ids, attempts, pgUUID(s.worker), texts, delays, reasons, unspent}
	err = s.run(ctx, settings, s.sql.nack, args, func(rows pgx.Rows) error {
		var l dispatcher.Lease
		_, err := pgx.ForEachRow(rows, []any{(*[16]byte)(&l.ID), &l.Attempt}, func() error { lost = append(lost, l); return nil })
		return err
	})
	if err != nil {
		return nil, s.wrap("nack", err)
	}
	return lost, nil
}

// compare orders leases by attempt and id.
func compare(a, b dispatcher.Lease) int {
	if a.Attempt != b.Attempt {
		return cmp.Compare(a.Attempt, b.Attempt)
	}
	return bytes.Compare(a.ID[:], b.ID[:])
}

// pgUUID is id as a type that pgx knows without asking the server for the type of the parameter.
func pgUUID(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// maxError is the length in bytes to which last_error is cut.
const maxError = 2000

// errorText makes a text storable: PostgreSQL's is valid UTF-8 without NUL.
func errorText(text string) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "\uFFFD")
	if len(text) <= maxError {
		return text
	}
	end := maxError
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}
