package pgstore

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// searchFor is by default how long a claim continues to search for rows behind those that wait for others.
const searchFor = 50 * time.Millisecond

// claimKeyed is Claim in order per key (CONTRACT C-50). Why the order holds is said in
// claim_keyed.sql; nothing in this file matters for it.
func (s *Store) claimKeyed(ctx context.Context, c claiming) (out dispatcher.Claimed, err error) {
	for scans := (search{began: time.Now()}); ; {
		scan := s.keyed.next(c.Shares, c.Keys.PerKey, scans, time.Now())
		known := s.frontier.known()
		found, report, err := s.fetchKeyed(ctx, c, s.statements(c, scan, known))
		if err != nil {
			return out, err
		}
		s.frontier.add(known, report.first, found.rows)
		found.sort()
		if report.Followed {
			sortKeys(found.rows)
		}
		all := s.keyed.update(scan, report, found, time.Now())
		found.split(&out)
		if out.Leased() > 0 || len(found.rows) == 0 && (all || time.Since(scans.began) > s.searchFor) {
			out.KeysWaiting, out.Unfinished = s.keyed.keysWaiting(c.Shares), len(found.rows) == 0 && !all
			return out, nil
		}
		scans = scan.then()
	}
}

// statements are those that look at it. Where ranges are dense, keys are read by one of their own: rows of
// ranges cost half as much again in one for both. It gets the same part of the bytes as of the rows.
func (s *Store) statements(c claiming, l scan, known known) (all []statement) {
	c.limits = l.limits
	ordered := func(name string, more ...any) statement {
		return s.statement(name, c, l.times, l.ids, append([]any{c.Keys.BlockOnDead, known.keys, known.floors, known.run}, more...)...)
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
	type key struct {
		share int
		key   string
	}
	places := make(map[key][]int, len(rows))
	for i, r := range rows {
		if name := cmp.Or(r.event.PartitionKey, r.event.AggregateID); name != "" {
			places[key{r.share, name}] = append(places[key{r.share, name}], i)
		}
	}
	for _, places := range places {
		bySeq := make([]row, len(places))
		for n, i := range places {
			bySeq[n] = rows[i]
		}
		slices.SortFunc(bySeq, func(a, b row) int { return cmp.Compare(a.event.Seq, b.event.Seq) })
		for n, i := range places {
			rows[i] = bySeq[n]
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

	first firstOfKeys
}

// reportedKey is a key of the topic whose range has the number, from 1.
type reportedKey struct {
	Range int   `json:"range"`
	Hash  int64 `json:"key_hash"`
}

// add adds the report of the next statement. The last one reads the ranges.
func (r *scanReport) add(next scanReport) {
	r.Reached = next.Reached
	r.Followed = r.Followed || next.Followed
	r.Passed = append(r.Passed, next.Passed...)
	r.Recalled = append(r.Recalled, next.Recalled...)
}

// fetchKeyed runs the statements, and reads their rows and reports.
func (s *Store) fetchKeyed(ctx context.Context, c claiming, statements []statement) (f found, all scanReport, err error) {
	d := newDecoder(s.namespace, c)
	f, err = s.fetch(ctx, c, d, statements, func(batch *pgx.Batch) {
		all = scanReport{first: firstOfKeys{}}
		d.first = all.first
		if s.frontier.due() {
			batch.Queue(s.sql["writers"]).QueryRow(s.frontier.readWriters())
		}
	}, func(text []byte) error {
		var next scanReport
		err := json.Unmarshal(text, &next)
		all.add(next)
		return err
	})
	return f, all, err
}

// scan is what one statement reads: a range of each topic, and keys.
type scan struct {
	search
	topics []string
	limits []int32
	times  []time.Time // where ranges begin, with ids; zero values for the front
	ids    []pgtype.UUID
	rows   []int32 // how many rows are looked at
	steps  []bool  // the range is a step of a pass
	dense  bool    // nearly all rows are to be had, and fill the claim: no other rows of the ranges are looked at
	at     time.Time

	keyRanges []int64 // the topics of keys, from 1
	keys      []int64
	keyRows   []int32
}

// then is the claim after a statement that found nothing.
func (l scan) then() search {
	if slices.Contains(l.steps, false) {
		l.tries++
	}
	return l.search
}

// blocked adds the keys that have rows behind a dead letter to a depth, and reads about so many dead letters, up to 1,000 of a
// topic. It runs no query when there is no dead letter, which is most of the time.
func (s *Store) blocked(ctx context.Context, records int, depth *dispatcher.Depth) error {
	var topics []string
	for _, d := range depth.Topics {
		if d.Dead.N > 0 {
			topics = append(topics, d.Topic)
		}
	}
	if len(topics) == 0 {
		return nil
	}
	args := []any{s.namespace, topics, max(1, min(1000, records/len(topics))), dispatcher.BlockedListed}
	return s.run(ctx, "find the blocked keys", lookSettings, s.sql["blocked"], args, func(rows pgx.Rows) error {
		depth.Blocked = nil
		var k dispatcher.BlockedKey
		count := &depth.BlockedKeys
		_, err := pgx.ForEachRow(rows, []any{&k.Topic, &k.Key, (*[16]byte)(&k.EventID), &k.DeadAt, &count.N, &count.Estimated}, func() error {
			depth.Blocked = append(depth.Blocked, k)
			return nil
		})
		return err
	})
}
