package pgstore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// samplePages is how many pages of a table an estimate reads.
const samplePages = 500

// Topics implements [dispatcher.Store]. The error is the database's.
func (s *Store) Topics(ctx context.Context) ([]string, error) {
	topics, err := s.topics(ctx, false)
	if err == nil {
		forget(&s.floors.mu, s.floors.byTopic, topics)
		forget(&s.keyed.mu, s.keyed.byTopic, topics)
		forget(&s.turns.mu, s.turns.after, topics)
	}
	return topics, err
}

func (s *Store) topics(ctx context.Context, withDead bool) (topics []string, err error) {
	err = s.run(ctx, "list topics", durable, s.sql["topics"], []any{s.namespace, withDead}, func(rows pgx.Rows) (err error) {
		topics, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return topics, err
}

// Depth implements [dispatcher.Store]. The error is the database's.
func (s *Store) Depth(ctx context.Context, topics []string) (depth dispatcher.Depth, err error) {
	if len(topics) == 0 {
		if topics, err = s.topics(ctx, true); err != nil {
			return depth, err
		}
	}
	if len(topics) == 0 {
		err = s.wrap("count the backlog", s.pool.QueryRow(ctx, "select now()").Scan(&depth.ObservedAt))
		return depth, err
	}
	for _, add := range []func(context.Context, *dispatcher.Depth) error{
		func(ctx context.Context, depth *dispatcher.Depth) error { return s.count(ctx, topics, depth) },
		s.groups, s.estimate, s.blocked,
	} {
		if err := add(ctx, &depth); err != nil {
			return dispatcher.Depth{}, err
		}
	}
	return depth, nil
}

// count counts each topic up to the cap and one.
func (s *Store) count(ctx context.Context, topics []string, depth *dispatcher.Depth) error {
	args := []any{s.namespace, topics, dispatcher.DepthCap}
	return s.run(ctx, "count the backlog", durable, s.sql["depth"], args, func(rows pgx.Rows) error {
		depth.Topics = nil
		var t dispatcher.TopicDepth
		var oldest, dueSince *time.Time
		_, err := pgx.ForEachRow(rows, []any{&t.Topic, &t.Pending.N, &t.Processing.N, &t.Scheduled.N, &t.Retrying.N, &t.Dead.N, &oldest, &dueSince, &depth.ObservedAt}, func() error {
			t.OldestPending, t.DueSince = time.Time{}, time.Time{}
			if oldest != nil {
				t.OldestPending, t.DueSince = *oldest, *dueSince
			}
			depth.Topics = append(depth.Topics, t)
			return nil
		})
		return err
	})
}

// estimate replaces the counts that ran into the cap. What was counted is their lower bound.
func (s *Store) estimate(ctx context.Context, depth *dispatcher.Depth) error {
	events, dead := map[string]*dispatcher.TopicDepth{}, map[string]*dispatcher.TopicDepth{}
	for i := range depth.Topics {
		d := &depth.Topics[i]
		if d.Pending.N+d.Processing.N > dispatcher.DepthCap {
			d.Pending.Estimated, d.Processing.Estimated = true, true
			events[d.Topic] = d
		}
		if d.Scheduled.N > dispatcher.DepthCap {
			d.Scheduled.Estimated, d.Retrying.Estimated = true, true
			events[d.Topic] = d
		}
		if d.Dead.N > dispatcher.DepthCap {
			d.Dead.Estimated = true
			dead[d.Topic] = d
		}
		if slices.ContainsFunc(depth.Groups, func(g dispatcher.DeadGroup) bool { return g.Topic == d.Topic && g.Count.Estimated }) {
			dead[d.Topic] = d
		}
	}
	var topic string
	var n, scheduled, retrying int64
	err := s.sample(ctx, s.sql["sample_events"], events, []any{&topic, &n, &scheduled, &retrying}, func() {
		d := events[topic]
		raise(&d.Pending, n-d.Processing.N)
		raise(&d.Scheduled, scheduled)
		raise(&d.Retrying, retrying)
	})
	if err != nil {
		return err
	}
	return s.estimateDead(ctx, depth, dead)
}

// estimateDead does so for dead letters: those of topics, and of their groups.
func (s *Store) estimateDead(ctx context.Context, depth *dispatcher.Depth, dead map[string]*dispatcher.TopicDepth) error {
	type group struct{ topic, fingerprint string }
	var one group
	var n int64
	topics, groups := map[string]int64{}, map[group]int64{}
	err := s.sample(ctx, s.sql["sample_dead"], dead, []any{&one.topic, &one.fingerprint, &n}, func() {
		topics[one.topic] += n
		groups[one] = n
	})
	if err != nil {
		return err
	}
	for topic, n := range topics {
		raise(&dead[topic].Dead, n)
	}
	for i := range depth.Groups {
		g := &depth.Groups[i]
		raise(&g.Count, twoDigits(groups[group{g.Topic, g.Fingerprint}]))
	}
	slices.SortStableFunc(depth.Groups, func(a, b dispatcher.DeadGroup) int { return cmp.Compare(b.Count.N, a.Count.N) })
	return nil
}

// sample runs a sampling statement for the topics, if there are any.
func (s *Store) sample(ctx context.Context, sql string, depths map[string]*dispatcher.TopicDepth, targets []any, each func()) error {
	if len(depths) == 0 {
		return nil
	}
	topics := slices.Collect(maps.Keys(depths))
	return s.run(ctx, "estimate the backlog", durable, sql, []any{s.namespace, topics, samplePages}, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, targets, func() error {
			each()
			return nil
		})
		return err
	})
}

// raise sets an estimated count to n, if that is more than was counted.
func raise(c *dispatcher.Count, n int64) {
	if c.Estimated {
		c.N = max(c.N, n)
	}
}

// Sizes returns the bytes on disk of each table by its name, with indexes (CONTRACT C-95). It queries the
// file system for a file for each GiB, and reads no table. The error is the database's.
func (s *Store) Sizes(ctx context.Context) (map[string]int64, error) {
	type size struct {
		Table string
		Bytes int64
	}
	all, err := collect(ctx, s, "read the tables' sizes", s.sql["sizes"], pgx.RowToStructByPos[size])
	sizes := map[string]int64{}
	for _, t := range all {
		sizes[t.Table] = t.Bytes
	}
	return sizes, err
}

const (
	// mostGroups is how many groups of dead letters are looked at, and groupRecords about how many of their
	// records are counted: the count is repeated every few seconds.
	mostGroups   = 1000
	groupRecords = 2 * dispatcher.DepthCap
	// maxSample is the length in bytes to which the error of a group's sample is cut.
	maxSample = 200
)

// groups finds the groups of the topics that have dead letters, if there are any.
func (s *Store) groups(ctx context.Context, depth *dispatcher.Depth) error {
	var topics []string
	for _, t := range depth.Topics {
		if t.Dead.N > 0 {
			topics = append(topics, t.Topic)
		}
	}
	if len(topics) == 0 {
		return nil
	}
	args := []any{s.namespace, topics, mostGroups, dispatcher.DepthCap, groupRecords, dispatcher.GroupsListed}
	return s.run(ctx, "find the groups of dead letters", durable, s.sql["groups"], args, func(rows pgx.Rows) error {
		depth.Groups = nil
		var g dispatcher.DeadGroup
		_, err := pgx.ForEachRow(rows, []any{&g.Topic, &g.Fingerprint, &g.Count.N, &g.Count.Estimated, &g.Since, &g.Last, (*string)(&g.Reason),
			&g.Cause.Class, &g.Cause.Code, &g.Cause.Place, &g.Error, (*[16]byte)(&g.Sample)}, func() error {
			g.Error = storable(g.Error, maxSample)
			depth.Groups = append(depth.Groups, g)
			return nil
		})
		return err
	})
}

// twoDigits rounds a number to two digits that count: an estimate by random pages differs each time.
func twoDigits(n int64) int64 {
	unit := int64(1)
	for n/unit >= 100 {
		unit *= 10
	}
	return (n + unit/2) / unit * unit
}

// OldestTransaction returns what has held vacuum back for longest, or nil when nothing does. It reads
// no table, and is meant to be called every quarter of a minute or so. Short transactions are reported like long ones.
//
// A dispatcher's rights are enough to see everything. Since when a session of another role has had its
// transaction is visible only to members of pg_read_all_stats; for others it is when this process first saw it.
// The error is the database's.
func (s *Store) OldestTransaction(ctx context.Context) (*dispatcher.OldestTransaction, error) {
	found, err := collect(ctx, s, "look for the oldest transaction", s.sql["oldest_transaction"], pgx.RowToStructByPos[holder])
	if err != nil {
		return nil, err
	}
	return s.holders.oldest(found), nil
}

// holder is a row of the statement oldest_transaction.
type holder struct {
	Kind, Name string
	Since      *time.Time
	Mark       string
	Now        time.Time
}

// holders remembers when the holders whose beginning the server does not show were seen first.
type holders struct {
	mu   sync.Mutex
	seen map[holder]time.Time // Since and Now are not set
}

// oldest returns the holder that began first.
func (h *holders) oldest(found []holder) (oldest *dispatcher.OldestTransaction) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := map[holder]time.Time{}
	for _, f := range found {
		since := f.Now
		if f.Since != nil {
			since = *f.Since
		} else {
			same := holder{Kind: f.Kind, Name: f.Name, Mark: f.Mark}
			if before, ok := h.seen[same]; ok {
				since = before
			}
			seen[same] = since
		}
		if oldest == nil || since.Before(oldest.Since) {
			oldest = &dispatcher.OldestTransaction{
				Kind: dispatcher.HolderKind(f.Kind), Name: f.Name, Since: since, Age: max(0, f.Now.Sub(since)),
			}
		}
	}
	h.seen = seen
	return oldest
}
