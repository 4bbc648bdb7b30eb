package pgstore

import (
	"cmp"
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// orphanTopics is how many topics of the database are looked at for orphaned rows, and orphanRows about how
	// many of their rows.
	orphanTopics = 1000
	orphanRows   = 2 * dispatcher.DepthCap
	// oddRows is how many rows of a topic are looked at from each end for odd times, and oddNamed how many are named.
	oddRows  = 1000
	oddNamed = 5
	// aheadRows is how many rows of all topics are looked at from each end for those that a clock which was ahead made late.
	aheadRows = 5000
)

// Data looks at the data of the outbox: how the deliveries of a dispatcher end, and rows that no worker serves. Of
// the dispatcher, w says the name and the topics. It reads a bounded number of rows, by indexes alone
// (CONTRACT C-96), but for the tables that are adopted, every five minutes at most. The error is the database's.
func (s *Store) Data(ctx context.Context, w WorkerInfo) (data dispatcher.Data, err error) {
	if err = s.outcomes(ctx, w, &data); err == nil {
		err = s.orphans(ctx, &data.Orphans)
	}
	if err == nil {
		data.Adoptions, err = collect(ctx, s, "count the rows of adoptions", relaxed+`, set_config('statement_timeout', '5000', true)`, s.sql["adoptions"], pgx.RowToStructByPos[dispatcher.AdoptionRows], s.opts.Namespace)
	}
	return data, err
}

func (s *Store) outcomes(ctx context.Context, w WorkerInfo, data *dispatcher.Data) error {
	return s.run(ctx, "count the outcomes of late", durable, s.sql["outcomes"], []any{s.opts.Namespace, w.Dispatcher, w.Topics, dispatcher.DepthCap}, func(rows pgx.Rows) error {
		var of [len(dispatcher.Windows)]dispatcher.Outcomes
		var looked int64
		short, long := &of[0], &of[1]
		_, err := pgx.ForEachRow(rows, []any{&short.Delivered, &short.Failed, &long.Delivered, &long.Failed,
			&short.Dead.N, &long.Dead.N, &looked, &data.ObservedAt}, func() error { return nil })
		for i := range of {
			of[i].Window, of[i].Dead.Estimated = dispatcher.Windows[i], looked > dispatcher.DepthCap
		}
		data.Windows = of[:]
		return err
	})
}

func (s *Store) orphans(ctx context.Context, orphans *dispatcher.Orphans) error {
	return s.run(ctx, "look for orphaned rows", durable, s.sql["orphans"], []any{orphanTopics, orphanRows}, func(rows pgx.Rows) error {
		*orphans = dispatcher.Orphans{}
		var t dispatcher.OrphanTopic
		var cut, more bool
		_, err := pgx.ForEachRow(rows, []any{&t.Namespace, &t.Topic, &t.Unserved.N, &t.Abandoned.N, &cut, &more}, func() error {
			t.Unserved.Estimated, t.Abandoned.Estimated = cut && t.Unserved.N > 0, cut && t.Abandoned.N > 0
			add(&orphans.Unserved, t.Unserved, more)
			add(&orphans.Abandoned, t.Abandoned, more)
			orphans.Topics = append(orphans.Topics, t)
			return nil
		})
		slices.SortFunc(orphans.Topics, func(a, b dispatcher.OrphanTopic) int {
			if own := a.Namespace == s.opts.Namespace; own != (b.Namespace == s.opts.Namespace) { // its own first, which it is judged by
				return map[bool]int{true: -1, false: 1}[own]
			}
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Topic, b.Topic))
		})
		orphans.Topics = orphans.Topics[:min(len(orphans.Topics), dispatcher.OrphanTopicsListed)]
		return err
	})
}

// add adds a topic's count to that of all. more says that not all topics were looked at.
func add(all *dispatcher.Count, topic dispatcher.Count, more bool) {
	all.N += topic.N
	all.Estimated = all.Estimated || topic.Estimated || more && topic.N > 0
}

// OddTime is a live row whose times cannot be right: a clock was ahead when it was enqueued or leased, or an adoption
// brought them.
type OddTime struct {
	Topic string
	ID    uuid.UUID
	// What is odd, in words, and when the row is due, as PostgreSQL writes it.
	What, Due string
}

// OddTimes finds live rows of the topics, none for all, whose times cannot be right. It returns the first of them, and
// how many there are among the rows that it looked at: those that are due first and last. The error is the database's.
func (s *Store) OddTimes(ctx context.Context, topics []string) (odd []OddTime, n int64, err error) {
	if topics, err = s.topics(ctx, topics, false); err != nil {
		return nil, 0, err
	}
	type one struct {
		OddTime
		N int64
	}
	all, err := collect(ctx, s, "look for odd times", durable, s.sql["odd_times"], pgx.RowToStructByPos[one], s.opts.Namespace, topics, oddRows, oddNamed)
	for _, o := range all {
		odd, n = append(odd, o.OddTime), o.N
	}
	return odd, n, err
}

// SetRight has rows of the topics, none for all, due now that were enqueued without a delay by a clock which was ahead (CONTRACT
// C-3). It looks at a bounded number of rows that are due later: those that are due first and last. The error is the database's.
func (s *Store) SetRight(ctx context.Context, topics []string) (err error) {
	if topics, err = s.topics(ctx, topics, false); err == nil {
		_, err = collect(ctx, s, "set right what a clock made late", relaxed, s.sql["set_right"], pgx.RowToMap, s.opts.Namespace, topics, aheadRows/max(1, min(len(topics), 100)))
	}
	return err
}
