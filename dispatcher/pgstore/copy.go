package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Copy adds copies of leased events to topics of their namespace, and marks the events delivered as Ack does, in one
// transaction (CONTRACT C-19). A later Ack of them does nothing. It returns the leases that this worker no longer held, whose events are
// unchanged and not copied. A copy that is there already stays as it is. The error is the database's; then nothing was copied, unless the
// connection was lost.
func (s *Store) Copy(ctx context.Context, topics []string, leases []dispatcher.Lease) (lost []dispatcher.Lease, err error) {
	leases, held := inOrder(leases, func(l dispatcher.Lease) dispatcher.Lease { return l })
	lost, err = s.writeEach(ctx, "copy", relaxed, s.sql["copy"], []any{topics, held.ids, held.numbers, pgUUID(s.opts.Worker), s.opts.DeleteDelivered})
	if err == nil && ctx.Err() == nil { // else no Ack may follow
		s.copied.add(leases)
		s.copied.forget(lost)
	}
	return lost, err
}

// copied are leases whose rows Copy has marked delivered, until Ack is called for them.
type copied struct {
	mu     sync.Mutex
	leases map[dispatcher.Lease]bool
}

func (c *copied) add(leases []dispatcher.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range leases {
		c.leases[l] = true
	}
}

// others are the leases that are not copied.
func (c *copied) others(leases []dispatcher.Lease) []dispatcher.Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.leases) == 0 {
		return leases
	}
	return slices.DeleteFunc(slices.Clone(leases), func(l dispatcher.Lease) bool { return c.leases[l] })
}

func (c *copied) forget(leases []dispatcher.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range leases {
		delete(c.leases, l)
	}
}

// CopyProblem returns why events of the topics from must not be copied to the topics to: the login lacks a right, or dispatchers of the
// namespace that were seen a moment ago copy them back. nil means that they can be. It fails too when the store cannot be reached.
func (s *Store) CopyProblem(ctx context.Context, from, to []string) error {
	if _, err := collect(ctx, s, "copy", "", s.sql["copy"], pgx.RowToMap, to, []pgtype.UUID{}, []int64{}, pgUUID(s.opts.Worker), false); err != nil {
		return err
	}
	all, err := collect(ctx, s, "look for dispatchers that copy", "", s.sql["copiers"], pgx.RowToStructByPos[copier], s.opts.Namespace, s.opts.Dispatcher)
	if err != nil {
		return err
	}
	if way := circle(all, from, to); way != "" {
		return errors.New(way)
	}
	return nil
}

// CopyWarnings says which of the topics no dispatcher has delivered in the last minute, and which another one copies to as well. It fails when
// the store cannot be reached.
func (s *Store) CopyWarnings(ctx context.Context, topics []string) ([]string, error) {
	return collect(ctx, s, "look for the dispatchers of copies", "", s.sql["copy_warnings"], pgx.RowTo[string], s.opts.Namespace, s.opts.Dispatcher, topics)
}

// copier is a dispatcher that copies.
type copier struct {
	Dispatcher string
	From, To   []string
}

// circle says which way leads from the topics to back to the topics from, or is empty.
func circle(all []copier, from, to []string) string {
	type step struct{ topic, way string }
	seen := map[string]bool{}
	var next []step
	add := func(topics []string, way string) {
		for _, topic := range topics {
			if !seen[topic] {
				seen[topic] = true
				next = append(next, step{topic, way + fmt.Sprintf(" to %q", topic)})
			}
		}
	}
	for add(to, "this one copies"); len(next) > 0; {
		at := next[0]
		if next = next[1:]; slices.Contains(from, at.topic) {
			return fmt.Sprintf("the topics are copied in a circle: %s, which it copies itself; leave a topic out of one of them", strings.TrimSpace(at.way))
		}
		for _, c := range all {
			if slices.Contains(c.From, at.topic) {
				add(c.To, fmt.Sprintf("%s, dispatcher %q from there", at.way, c.Dispatcher))
			}
		}
	}
	return ""
}
