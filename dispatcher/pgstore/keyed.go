package pgstore

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// searchFor is by default how long a claim continues to search for rows behind those that wait for others.
const searchFor = 50 * time.Millisecond

// claimKeyed is Claim in order per key (CONTRACT C-50). Why the order holds is said in
// claim_keyed.sql; nothing in this file matters for it.
func (s *Store) claimKeyed(ctx context.Context, c claiming) (out dispatcher.Claimed, err error) {
	began, tries := time.Now(), 0 // tries are the scans from a floor that found nothing
	for {
		scan := s.keyed.next(c.Shares, c.Keys.PerKey, tries, time.Now())
		known := s.frontier.known()
		found, err := s.fetch(ctx, c, func(batch *pgx.Batch) {
			if known.due {
				batch.Queue(s.sql["writers"]).QueryRow(func(row pgx.Row) error { return s.frontier.readWriters(known, row) })
			}
		}, s.statements(c, scan, known)...)
		if err != nil {
			return out, err
		}
		report, err := reportOf(found.reports)
		if err != nil {
			return out, err
		}
		s.frontier.add(known, found.rows)
		found.sort()
		if report.Followed {
			sortKeys(found.rows)
		}
		all := s.keyed.update(scan, report, found, began, time.Now())
		found.split(&out)
		if out.Leased()+len(out.Expired) > 0 || len(found.rows) == 0 && (all || time.Since(began) > s.searchFor) {
			out.KeysWaiting, out.Unfinished = s.keyed.keysWaiting(c.Shares), len(found.rows) == 0 && !all
			return out, nil
		}
		if slices.Contains(scan.steps, false) {
			tries++
		}
	}
}

// statements are those that look at it. Where ranges are dense, keys are read by one of their own: rows of
// ranges cost half as much again in one for both. It gets the same part of the bytes as of the rows.
func (s *Store) statements(c claiming, l scan, known known) (all []statement) {
	c.limits = l.limits
	ordered := func(name string, more ...any) statement {
		return s.statement(name, c, l.from, append([]any{c.Keys.BlockOnDead, known.keys, known.floors, known.run}, more...)...)
	}
	keyed := func(rows []int32) statement {
		return ordered("claim_keyed", rows, int32(c.Keys.PerKey), l.keyRanges, l.keys, l.keyRows, l.steps)
	}
	if !l.dense {
		return []statement{keyed(l.rows)}
	}
	if len(l.keys) > 0 {
		whole := c.MaxBytes
		c.limits, c.MaxBytes = make([]int32, len(c.topics)), whole/recallPart
		all = append(all, keyed(c.limits))
		c.limits, c.MaxBytes = l.limits, whole-c.MaxBytes
	}
	return append(all, ordered("claim_dense"))
}

// sortKeys puts the rows of each key in order of seq, in the places that they have. A row that was
// retried comes with a later position than those behind it.
func sortKeys(rows []row) {
	keys := map[int64][]row{}
	for _, r := range rows {
		keys[r.key] = append(keys[r.key], r)
	}
	delete(keys, 0) // rows without a key
	for _, ofKey := range keys {
		slices.SortFunc(ofKey, func(a, b row) int { return cmp.Compare(a.event.Seq, b.event.Seq) })
	}
	for i, r := range rows {
		if r.key != 0 {
			rows[i], keys[r.key] = keys[r.key][0], keys[r.key][1:]
		}
	}
}

// scanReport is what the statement returns in addition to the rows.
type scanReport struct {
	Reached []struct {
		Range   int       `json:"range"`
		Scanned int       `json:"looked"` // how many rows there were up to here
		At      *int64    `json:"at"`     // as timeOf takes it; nil for the end of what is due
		ID      uuid.UUID `json:"id"`
	} `json:"reached"`
	Followed bool          `json:"followed"` // of some key several rows were taken
	Passed   []reportedKey `json:"passed"`
	Recalled []reportedKey `json:"recalled"`
}

// reportedKey is a key of the topic whose range has the number, from 1.
type reportedKey struct {
	Range int   `json:"range"`
	Hash  int64 `json:"key_hash"`
}

// reportOf is what the statements of a claim report. The last one reads the ranges.
func reportOf(texts [][]byte) (all scanReport, err error) {
	for _, text := range texts {
		next := scanReport{}
		err = cmp.Or(err, json.Unmarshal(text, &next))
		all.Reached, all.Followed = next.Reached, all.Followed || next.Followed
		all.Passed, all.Recalled = append(all.Passed, next.Passed...), append(all.Recalled, next.Recalled...)
	}
	return all, err
}

// scan is what one statement reads: a range of each topic, and keys.
type scan struct {
	topics []string
	limits []int32
	from   []position // where ranges begin; zero values for the front
	rows   []int32    // how many rows are looked at
	steps  []bool     // the range is a step of a pass
	dense  bool       // nearly all rows are to be had, and fill the claim: no other rows of the ranges are looked at
	at     time.Time

	keyRanges []int64 // the topics of keys, from 1
	keys      []int64
	keyRows   []int32
}

// blocked adds the keys that have rows behind a dead letter to a depth, and reads about so many dead letters of these topics, up
// to 1,000 of each.
func (s *Store) blocked(ctx context.Context, topics []string, records int, depth *dispatcher.Depth) error {
	type key struct {
		dispatcher.BlockedKey
		N         int64 // of all
		Estimated bool
	}
	all, err := collect(ctx, s, "find the blocked keys", lookSettings, s.sql["blocked"], pgx.RowToStructByPos[key],
		s.opts.Namespace, topics, max(1, min(1000, records/len(topics))), dispatcher.BlockedListed)
	for _, k := range all {
		depth.Blocked, depth.BlockedKeys = append(depth.Blocked, k.BlockedKey), dispatcher.Count{N: k.N, Estimated: k.Estimated}
	}
	return err
}
