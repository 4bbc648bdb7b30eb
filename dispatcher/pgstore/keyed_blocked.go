package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

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
