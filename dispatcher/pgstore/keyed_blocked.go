package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// blockedLetters is how many open deaths of a topic are looked at for the keys that they block.
const blockedLetters = 1000

// blocked adds the keys that have rows behind a death to a depth. Most of the time there are no deaths,
// and it asks nothing.
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
	args := []any{s.namespace, topics, blockedLetters, dispatcher.BlockedListed}
	return s.run(ctx, durable, s.sql.blocked, args, func(rows pgx.Rows) error {
		depth.Blocked = nil
		var k dispatcher.BlockedKey
		count := &depth.BlockedKeys
		_, err := pgx.ForEachRow(rows, []any{&k.Topic, &k.Key, (*[16]byte)(&k.EventID), &k.DiedAt, &count.N, &count.Estimated}, func() error {
			depth.Blocked = append(depth.Blocked, k)
			return nil
		})
		return err
	})
}
