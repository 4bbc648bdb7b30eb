package pgstore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// mostPages is about how many pages one look at the backlog reads, whatever the number of topics (CONTRACT C-96): each row
	// that is counted is one, and topicPages lead to the rows of a topic. An estimate reads samplePages of a table. Where a
	// statement takes longer than in lookSettings, a look reads fewer, leastPages at least.
	mostPages    = 20_000
	leastPages   = mostPages / 16
	topicPages   = 16
	samplePages  = mostPages / 40
	lookSettings = durable + `, set_config('statement_timeout', '3000', true)`
)

// Topics implements [dispatcher.Store]. The error is the database's.
func (s *Store) Topics(ctx context.Context) ([]string, error) {
	topics, err := s.topics(ctx, nil, false)
	if err == nil {
		forget(&s.floors.mu, s.floors.byTopic, topics)
		forget(&s.keyed.mu, s.keyed.byTopic, topics)
		forget(&s.turns.mu, s.turns.after, topics)
	}
	return topics, err
}

// topics are those that are named, or where none are all that have live rows, and with open dead letters perhaps.
func (s *Store) topics(ctx context.Context, named []string, withDead bool) ([]string, error) {
	if len(named) > 0 {
		return named, nil
	}
	return collect(ctx, s, "list topics", durable, s.sql["topics"], pgx.RowTo[string], s.opts.Namespace, withDead)
}

// Depth implements [dispatcher.Store]. The error is the database's.
func (s *Store) Depth(ctx context.Context, topics []string) (depth dispatcher.Depth, err error) {
	if topics, err = s.topics(ctx, topics, true); err != nil {
		return depth, err
	}
	if len(topics) == 0 {
		err = s.wrap("count the backlog", s.pool.QueryRow(ctx, "select now()").Scan(&depth.ObservedAt))
		return depth, err
	}
	for pages := cmp.Or(s.pages.Load(), mostPages); ; pages /= 4 {
		if depth, err = s.depthWithin(ctx, topics, int(pages)); err == nil {
			s.pages.Store(min(mostPages, pages+pages/8))
		}
		if !dispatcher.IsTooSlow(err) || ctx.Err() != nil || pages/4 < leastPages {
			return depth, err
		}
		s.pages.Store(pages / 4)
	}
}

// depthWithin is a Depth that reads so many pages.
func (s *Store) depthWithin(ctx context.Context, topics []string, pages int) (depth dispatcher.Depth, err error) {
	left, err := s.count(ctx, topics, pages, &depth)
	var withDead []string // mostly none
	for _, t := range depth.Topics {
		if t.Dead.N > 0 {
			withDead = append(withDead, t.Topic)
		}
	}
	if err == nil && len(withDead) > 0 {
		err = s.groups(ctx, withDead, max(left, pages/10), &depth)
	}
	if err == nil {
		err = s.estimate(ctx, pages*samplePages/mostPages, &depth)
	}
	if err == nil && len(withDead) > 0 {
		err = s.blocked(ctx, withDead, pages/10, &depth)
	}
	return depth, err
}

// count counts some rows of each topic, and then those that have more: each count has an equal part of the pages that are left,
// up to the cap. It returns how many are left in the end.
func (s *Store) count(ctx context.Context, topics []string, pages int, depth *dispatcher.Depth) (left int, err error) {
	left = pages - 2*topicPages*len(topics)
	depth.Topics = make([]dispatcher.TopicDepth, len(topics))
	more, part, most := topics, max(1, left/(16*len(topics))), int64(0)
	for err == nil && len(more) > 0 && min(part, dispatcher.DepthCap) > int(most) {
		most = min(int64(part), dispatcher.DepthCap)
		cuts, again := 0, 0
		err = s.run(ctx, "count the backlog", lookSettings, s.sql["depth"], []any{s.opts.Namespace, more, most}, func(rows pgx.Rows) error {
			more, cuts, again = nil, 0, 0
			var t dispatcher.TopicDepth
			var due, later, dead int64
			var first pgtype.Timestamptz
			_, err := pgx.ForEachRow(rows, []any{&t.Topic, &due, &later, &dead, &t.Processing.N, &t.Scheduled.N, &first, &depth.ObservedAt}, func() error {
				t.Retrying.N, t.Dead.N, t.OldestPending = later-t.Scheduled.N, dead, first.Time
				t.Pending.N = due - t.Processing.N + t.Retrying.N
				t.Processing.Estimated, t.Retrying.Estimated, t.Dead.Estimated = due > most, later > most, dead > most
				t.Scheduled.Estimated, t.Pending.Estimated = later > most, due > most || later > most
				depth.Topics[slices.Index(topics, t.Topic)] = t
				left -= int(due + later + dead)
				if max(due, later, dead) > most {
					more, again = append(more, t.Topic), again+int(due+later+dead)
				}
				cuts += int(due/(most+1) + later/(most+1) + dead/(most+1))
				return nil
			})
			return err
		})
		part = (left - again) / max(1, cuts)
	}
	return left, err
}

// estimate replaces the counts that were cut. What was counted is their lower bound.
func (s *Store) estimate(ctx context.Context, pages int, depth *dispatcher.Depth) error {
	events, dead := map[string]*dispatcher.TopicDepth{}, map[string]*dispatcher.TopicDepth{}
	for i := range depth.Topics {
		d := &depth.Topics[i]
		if d.Pending.Estimated {
			events[d.Topic] = d
		}
		if d.Dead.Estimated || slices.ContainsFunc(depth.Groups, func(g dispatcher.DeadGroup) bool { return g.Topic == d.Topic && g.Count.Estimated }) {
			dead[d.Topic] = d
		}
	}
	type rows struct {
		Topic                        string
		Waiting, Scheduled, Retrying int64
		First                        *time.Time
	}
	all, err := sample[rows](ctx, s, "sample_events", pages, events)
	for _, r := range all {
		d := events[r.Topic]
		raise(&d.Pending, r.Waiting-d.Processing.N)
		raise(&d.Scheduled, r.Scheduled)
		raise(&d.Retrying, r.Retrying)
		if r.First != nil && (d.OldestPending.IsZero() || r.First.Before(d.OldestPending)) {
			d.OldestPending = *r.First
		}
	}
	if err != nil {
		return err
	}
	return s.estimateDead(ctx, pages, depth, dead)
}

// estimateDead does so for dead letters: those of topics, and of their groups.
func (s *Store) estimateDead(ctx context.Context, pages int, depth *dispatcher.Depth, dead map[string]*dispatcher.TopicDepth) error {
	type records struct {
		Topic, Fingerprint string
		N                  int64
	}
	all, err := sample[records](ctx, s, "sample_dead", pages, dead)
	if err != nil {
		return err
	}
	topics, groups := map[string]int64{}, map[[2]string]int64{}
	for _, r := range all {
		topics[r.Topic] += r.N
		groups[[2]string{r.Topic, r.Fingerprint}] = r.N
	}
	for topic, n := range topics {
		raise(&dead[topic].Dead, n)
	}
	for i := range depth.Groups {
		g := &depth.Groups[i]
		raise(&g.Count, twoDigits(groups[[2]string{g.Topic, g.Fingerprint}]))
	}
	slices.SortStableFunc(depth.Groups, func(a, b dispatcher.DeadGroup) int { return cmp.Compare(b.Count.N, a.Count.N) })
	return nil
}

// sample runs a sampling statement for the topics, if there are any.
func sample[T any](ctx context.Context, s *Store, name string, pages int, depths map[string]*dispatcher.TopicDepth) ([]T, error) {
	if len(depths) == 0 {
		return nil, nil
	}
	return collect(ctx, s, "estimate the backlog", lookSettings, s.sql[name], pgx.RowToStructByPos[T], s.opts.Namespace, slices.Collect(maps.Keys(depths)), pages)
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
	all, err := collect(ctx, s, "read the tables' sizes", "", s.sql["sizes"], pgx.RowToStructByPos[size])
	sizes := map[string]int64{}
	for _, t := range all {
		sizes[t.Table] = t.Bytes
	}
	return sizes, err
}

const (
	// mostGroups is how many groups of dead letters are looked at.
	mostGroups = 1000
	// maxSample is the length in bytes to which the error of a group's sample is cut.
	maxSample = 200
)

// groups finds the groups of dead letters of the topics, and counts about so many records.
func (s *Store) groups(ctx context.Context, topics []string, records int, depth *dispatcher.Depth) error {
	args := []any{s.opts.Namespace, topics, mostGroups, dispatcher.DepthCap, records, dispatcher.GroupsListed}
	return s.run(ctx, "find the groups of dead letters", lookSettings, s.sql["groups"], args, func(rows pgx.Rows) error {
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
	found, err := collect(ctx, s, "look for the oldest transaction", "", s.sql["oldest_transaction"], pgx.RowToStructByPos[holder])
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
