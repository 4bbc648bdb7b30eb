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
			gone, err := missing(group, rows)
			lost = append(lost, gone...)
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
		leases   = make([]dispatcher.Lease, len(failures))
		ids      = make([]pgtype.UUID, len(failures))
		attempts = make([]int32, len(failures))
		texts    = make([]string, len(failures))
		delays   = make([]time.Duration, len(failures))
		reasons  = make([]string, len(failures))
		unspent  = make([]bool, len(failures))
		settings = relaxed
	)
	for i, f := range failures {
		leases[i], ids[i], attempts[i] = f.Lease, pgUUID(f.Lease.ID), int32(f.Lease.Attempt)
		texts[i], delays[i], reasons[i] = errorText(f.Error), f.Delay, string(f.Reason)
		unspent[i] = f.Unspent
		if f.Reason != "" || f.Unspent {
			settings = durable
		}
	}
	args := []any{ids, attempts, pgUUID(s.worker), texts, delays, reasons, unspent}
	err = s.run(ctx, settings, s.sql.nack, args, func(rows pgx.Rows) (err error) {
		lost, err = missing(leases, rows)
		return err
	})
	if err != nil {
		return nil, s.wrap("nack", err)
	}
	return lost, nil
}

// missing returns the leases whose ids are not among the rows. A single column is read, so that an answer
// costs little: leases of several attempts come as (id, attempt).
func missing(leases []dispatcher.Lease, rows pgx.Rows) ([]dispatcher.Lease, error) {
	held := make([]dispatcher.Lease, 0, len(leases))
	l := dispatcher.Lease{Attempt: leases[0].Attempt}
	targets := []any{(*[16]byte)(&l.ID), &l.Attempt}
	for rows.Next() {
		if v := rows.RawValues(); len(v) == 1 && len(v[0]) == 16 {
			l.ID = uuid.UUID(v[0])
		} else if err := rows.Scan(targets[:len(v)]...); err != nil {
			return nil, err
		}
		held = append(held, l)
	}
	if rows.Err() != nil || len(held) == len(leases) {
		return nil, rows.Err()
	}
	isHeld := make(map[dispatcher.Lease]bool, len(held))
	for _, l := range held {
		isHeld[l] = true
	}
	return slices.DeleteFunc(slices.Clone(leases), func(l dispatcher.Lease) bool { return isHeld[l] }), nil
}

func compare(a, b dispatcher.Lease) int {
	return cmp.Or(cmp.Compare(a.Attempt, b.Attempt), bytes.Compare(a.ID[:], b.ID[:]))
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
