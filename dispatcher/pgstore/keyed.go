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

// searchFor is how long a claim continues to search for rows behind those that wait for others.
const searchFor = 50 * time.Millisecond

// claimKeyed is Claim in order per key (CONTRACT C-50). Why the order holds is said in
// claim_keyed.sql; nothing in this file matters for it.
func (s *Store) claimKeyed(ctx context.Context, req dispatcher.ClaimRequest, markDead bool) (out dispatcher.Claimed, err error) {
	for c := (claiming{began: time.Now()}); ; {
		scan := s.keyed.next(req.Shares, req.Keys.PerKey, c, time.Now())
		known := s.frontier.known()
		found, report, err := s.fetchKeyed(ctx, req.Lease, s.statements(req, scan, known, markDead), scan.topics)
		if err != nil {
			return out, s.wrap("claim", err)
		}
		s.frontier.add(known, report.first, found.rows)
		found.sort()
		if report.Followed {
			sortKeys(found.rows)
		}
		all := s.keyed.update(scan, report, found, time.Now())
		found.split(&out)
		if out.Leased() > 0 || len(found.rows) == 0 && (all || time.Since(c.began) > searchFor) {
			out.KeysWaiting = s.keyed.keysWaiting(req.Shares)
			return out, nil
		}
		c = scan.then()
	}
}

// statement is one of those that read rows, with its arguments.
type statement struct {
	sql  string
	args []any
}

// statements are those that look at it. Where ranges are dense, keys are read by one of their own: rows of
// ranges cost a quarter more in one for both. It gets the same part of the bytes as of the rows.
func (s *Store) statements(req dispatcher.ClaimRequest, l scan, known known, markDead bool) (all []statement) {
	keyed := func(limits, rows []int32, maxBytes int64) statement {
		return statement{s.sql.claimKeyed, []any{
			s.namespace, l.topics, limits, pgTimes(l.times), l.ids, rows, int32(req.MaxAttempts), maxBytes,
			pgUUID(s.worker), req.Lease, int32(req.Keys.PerKey), req.Keys.BlockOnDead,
			l.keyRanges, l.keys, l.keyRows, l.steps, l.near, l.except, markDead, known.keys, known.floors, known.run,
			byteLimit(req.MaxRowBytes),
		}}
	}
	maxBytes := byteLimit(req.MaxBytes)
	if !l.dense {
		return []statement{keyed(l.limits, l.rows, maxBytes)}
	}
	if len(l.keys) > 0 {
		none, part := make([]int32, len(l.topics)), maxBytes/recallPart
		all, maxBytes = append(all, keyed(none, none, part)), maxBytes-part
	}
	return append(all, statement{s.sql.claimDense, []any{
		s.namespace, l.topics, l.limits, pgTimes(l.times), l.ids, int32(req.MaxAttempts), maxBytes,
		pgUUID(s.worker), req.Lease, req.Keys.BlockOnDead, l.except, markDead, known.keys, known.floors, known.run, byteLimit(req.MaxRowBytes),
	}})
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
		Range  int        `json:"range"`
		Looked int        `json:"looked"` // how many rows there were up to here
		At     *time.Time `json:"at"`     // nil for the end of what is due
		ID     uuid.UUID  `json:"id"`
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

// fetchKeyed runs the statements, in one transaction: to the second, the rows of the first are leased. What
// they report in addition to the rows is in a setting of it: in the rows it would make the server keep all of them
// once more.
func (s *Store) fetchKeyed(ctx context.Context, lease time.Duration, statements []statement, topics []string) (f found, all scanReport, err error) {
	d := newDecoder(s.namespace, topics)
	err = s.send(ctx, func(batch *pgx.Batch) {
		f, all = found{}, scanReport{first: firstOfKeys{}}
		d.first = all.first
		batch.Queue(s.claims, frozenAfter(lease))
		if s.frontier.due() {
			batch.Queue(s.sql.writers).QueryRow(s.frontier.readWriters())
		}
		for _, st := range statements {
			batch.Queue(st.sql, st.args...).Query(func(rows pgx.Rows) error {
				more, cut, err := d.decode(rows)
				f.rows, f.cut = append(more, f.rows...), cut // the ranges are the last
				return err
			})
			batch.Queue(`select now(), current_setting('outbox.report')`).QueryRow(func(row pgx.Row) error {
				var text string
				if err := row.Scan(&f.at, &text); err != nil {
					return err
				}
				var next scanReport
				err := json.Unmarshal([]byte(text), &next)
				all.add(next)
				return err
			})
		}
	})
	return f, all, err
}

// scan is what one statement reads: a range of each topic, and keys.
type scan struct {
	claiming
	topics []string
	limits []int32
	times  []time.Time // where ranges begin, with ids; zero values for the front
	ids    []pgtype.UUID
	rows   []int32 // how many rows are looked at
	steps  []bool  // the range is a step of a pass
	near   bool    // many of these rows are to be had
	dense  bool    // nearly all are, and fill the claim: no other rows of the ranges are looked at
	at     time.Time

	keyRanges []int64 // the topics of keys, from 1
	keys      []int64
	keyRows   []int32
	each      []int   // rows of a key, by topic
	except    []int64 // keys whose rows the ranges leave out
}

// then is the claim after a statement that found nothing.
func (l scan) then() claiming {
	if slices.Contains(l.steps, false) {
		l.tries++
	}
	return l.claiming
}

// blockedDeadLetters is how many open dead letters of a topic are read for the keys that they block.
const blockedDeadLetters = 1000

// blocked adds the keys that have rows behind a dead letter to a depth. It runs no query when there is no
// dead letter, which is most of the time.
func (s *Store) blocked(ctx context.Context, depth *dispatcher.Depth) error {
	var topics []string
	for _, d := range depth.Topics {
		if d.Dead.N > 0 {
			topics = append(topics, d.Topic)
		}
	}
	if len(topics) == 0 {
		return nil
	}
	args := []any{s.namespace, topics, blockedDeadLetters, dispatcher.BlockedListed}
	return s.run(ctx, durable, s.sql.blocked, args, func(rows pgx.Rows) error {
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
