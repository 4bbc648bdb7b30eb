package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

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
