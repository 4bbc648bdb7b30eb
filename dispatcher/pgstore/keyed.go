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

// searchFor is how long a claim goes on looking for rows behind those that wait for others.
const searchFor = 50 * time.Millisecond

// claimKeyed is Claim in order per key (CONTRACT C-50). Why the order holds is said in
// claim_keyed.sql; nothing in this file matters for it.
func (s *Store) claimKeyed(ctx context.Context, req dispatcher.ClaimRequest) (out dispatcher.Claimed, err error) {
	for c := (claiming{began: time.Now()}); ; c.tries++ {
		found, all, err := s.lookKeyed(ctx, req, c)
		if err != nil {
			return out, s.wrap("claim", err)
		}
		events, deaths := found.split()
		out.Dead = append(out.Dead, deaths...)
		if len(events) > 0 || len(deaths) == 0 && (all || time.Since(c.began) > searchFor) {
			out.Events, out.At, out.Behind = events, found.at, s.keyed.behind(req.Shares)
			return out, nil
		}
	}
}

// lookKeyed runs the statement once, and reports whether the claim has looked at all that is due.
func (s *Store) lookKeyed(ctx context.Context, req dispatcher.ClaimRequest, c claiming) (f found, all bool, err error) {
	maxBytes := byteLimit(req)
	look := s.keyed.next(req.Shares, req.Keys.PerKey, c, time.Now())
	sql, args := s.sql.claimKeyed, []any{
		s.namespace, look.topics, look.limits, look.times, look.ids, look.rows, int32(req.MaxAttempts), maxBytes,
		pgUUID(s.worker), req.Lease, int32(req.Keys.PerKey), req.Keys.BlockOnDead,
		look.keyRanges, look.keys, look.keyRows, look.steps, look.near, look.except,
	}
	if look.dense {
		sql, args = s.sql.claimDense, []any{
			s.namespace, look.topics, look.limits, look.times, look.ids, int32(req.MaxAttempts), maxBytes,
			pgUUID(s.worker), req.Lease, req.Keys.BlockOnDead, look.except,
		}
	}
	f, told, err := s.fetchKeyed(ctx, sql, args, look.topics)
	if err != nil {
		return found{}, false, err
	}
	f.sort()
	if told.Followed {
		sortKeys(f.rows)
	}
	return f, s.keyed.update(look, told, f, time.Now()), nil
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

// told is what the statement says beside the rows.
type told struct {
	Reached []struct {
		Range  int        `json:"range"`
		Looked int        `json:"looked"` // how many rows there were up to here
		At     *time.Time `json:"at"`     // nil for the end of what is due
		ID     uuid.UUID  `json:"id"`
	} `json:"reached"`
	Followed bool      `json:"followed"` // of some key several rows were taken
	Passed   []toldKey `json:"passed"`
	Recalled []toldKey `json:"recalled"`
}

// toldKey is a key of the topic whose range has the number, from 1.
type toldKey struct {
	Range int   `json:"range"`
	Hash  int64 `json:"key_hash"`
}

// fetchKeyed runs claim_keyed.sql or claim_dense.sql. What they say beside the rows is in a setting of the
// transaction: to put it into the rows would make the server keep all of them once more.
func (s *Store) fetchKeyed(ctx context.Context, sql string, args []any, topics []string) (f found, told told, err error) {
	var batch pgx.Batch
	batch.Queue(relaxed)
	d := newDecoder(s.namespace, topics)
	batch.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		f.rows, f.cut, err = d.decode(rows)
		return err
	})
	batch.Queue(`select now(), current_setting('outbox.told')`).QueryRow(func(row pgx.Row) error {
		var text string
		if err := row.Scan(&f.at, &text); err != nil {
			return err
		}
		return json.Unmarshal([]byte(text), &told)
	})
	return f, told, s.pool.SendBatch(ctx, &batch).Close()
}

// looking is what one statement looks at: a range of each topic, and keys.
type looking struct {
	claiming
	topics []string
	limits []int32
	times  []time.Time // where ranges begin, with ids; zero values for the front
	ids    []pgtype.UUID
	rows   []int32 // how many rows are looked at
	steps  []bool  // the range is a step of a pass
	near   bool    // many of these rows are to be had
	dense  bool    // nearly all are, and fill the claim: no other rows are looked at
	at     time.Time

	keyRanges []int64 // the topics of keys, from 1
	keys      []int64
	keyRows   []int32
	each      []int   // rows of a key, by topic
	except    []int64 // keys whose rows the ranges leave out
}
