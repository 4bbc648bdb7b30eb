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
	return s.write(ctx, "ack", relaxed, s.sql.ack, sorted(leases))
}

// Extend implements [dispatcher.Store].
func (s *Store) Extend(ctx context.Context, leases []dispatcher.Lease, lease time.Duration) ([]dispatcher.Lease, error) {
	return s.write(ctx, "extend", relaxed, s.sql.extend, sorted(leases), lease)
}

// Release implements [dispatcher.Store].
func (s *Store) Release(ctx context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	return s.write(ctx, "release", durable, s.sql.release, sorted(leases))
}

// Nack implements [dispatcher.Store].
func (s *Store) Nack(ctx context.Context, failures []dispatcher.Failure) ([]dispatcher.Lease, error) {
	failures = slices.Clone(failures)
	slices.SortFunc(failures, func(a, b dispatcher.Failure) int { return compare(a.Lease, b.Lease) })
	var (
		leases   = make([]dispatcher.Lease, len(failures))
		texts    = make([]string, len(failures))
		delays   = make([]time.Duration, len(failures))
		reasons  = make([]string, len(failures))
		settings = relaxed
	)
	for i, f := range failures {
		leases[i], texts[i], delays[i], reasons[i] = f.Lease, errorText(f.Error), f.Delay, string(f.Reason)
		if f.Reason != "" {
			settings = durable
		}
	}
	return s.write(ctx, "nack", settings, s.sql.nack, leases, texts, delays, reasons)
}

// write runs a statement on leases and returns those that it did not find held. The leases are
// sorted: every statement locks its rows in one order, so no two wait for each other.
func (s *Store) write(ctx context.Context, verb, settings, sql string, leases []dispatcher.Lease, args ...any) ([]dispatcher.Lease, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	ids := make([]pgtype.UUID, len(leases))
	attempts := make([]int32, len(leases))
	for i, l := range leases {
		ids[i], attempts[i] = pgUUID(l.ID), int32(l.Attempt)
	}
	args = append([]any{ids, attempts, pgUUID(s.worker)}, args...)
	held := make(map[dispatcher.Lease]bool, len(leases))
	err := s.run(ctx, settings, sql, args, func(rows pgx.Rows) error {
		var l dispatcher.Lease
		_, err := pgx.ForEachRow(rows, []any{(*[16]byte)(&l.ID), &l.Attempt}, func() error {
			held[l] = true
			return nil
		})
		return err
	})
	if err != nil {
		return nil, s.wrap(verb, err)
	}
	return slices.DeleteFunc(leases, func(l dispatcher.Lease) bool { return held[l] }), nil
}

func sorted(leases []dispatcher.Lease) []dispatcher.Lease {
	return slices.SortedFunc(slices.Values(leases), compare)
}

func compare(a, b dispatcher.Lease) int {
	return cmp.Or(bytes.Compare(a.ID[:], b.ID[:]), cmp.Compare(a.Attempt, b.Attempt))
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
