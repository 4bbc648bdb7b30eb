package consumer

import (
	"context"
	"fmt"
	"time"
)

// The least retentions of RULE-010-011. Under a legal hold records stay until it is released: see [Consumer.Hold].
const (
	Standard  = 7 * 24 * time.Hour
	Financial = 30 * 24 * time.Hour
)

// Policy says how long a consumer remembers what it has handled. An event that comes again after that is handled again, so
// it must be longer than any event can still come.
type Policy struct {
	// Retention of a record. Defaults to [Standard].
	Retention time.Duration
	// Minimum is the minimum for your kind of data: [Standard] or [Financial]. Defaults to [Standard].
	Minimum time.Duration
	// Outbox is the retention of delivered rows: spec.retention.delivered of the Outbox. Defaults to 7 days, as there.
	Outbox time.Duration
	// Replay is how long after its first delivery an event may still be sent again: the age of the oldest dead row that
	// people replay (deadUnresolved bounds it), or of the oldest message that the broker keeps, whichever is longer. Required.
	Replay time.Duration
}

// Check is nil when records are kept for long enough.
func (p Policy) Check() error {
	p.defaults()
	switch {
	case p.Replay <= 0:
		return invalid("the policy does not say how old an event may be that comes again; set Policy.Replay to the longer of: the age of the oldest dead row that is replayed (retention.deadUnresolved), the broker's retention")
	case p.Retention < p.Minimum:
		return invalid("records are kept for %s, and this kind of data needs %s; raise Policy.Retention", p.Retention, p.Minimum)
	case p.Retention < p.Outbox:
		return invalid("records are kept for %s, and the outbox keeps its rows for %s; raise Policy.Retention to that, or lower retention.delivered of the outbox", p.Retention, p.Outbox)
	case p.Retention < p.Replay:
		return invalid("records are kept for %s, and events may come again for %s, which would then be handled twice; raise Policy.Retention to that, or replay no older ones and lower Policy.Replay", p.Retention, p.Replay)
	}
	return nil
}

func (p *Policy) defaults() {
	if p.Retention == 0 {
		p.Retention = Standard
	}
	if p.Minimum == 0 {
		p.Minimum = Standard
	}
	if p.Outbox == 0 {
		p.Outbox = Standard
	}
}

// sweepBatch is how many records a transaction of [Consumer.Sweep] removes at most.
const sweepBatch = 2000

// Sweep removes this consumer's records that are older than the policy's retention, on the database's clock, in
// transactions of 2,000, and returns how many. It removes none while a legal hold is on the consumer, and none of other
// consumers. Call it now and then, such as daily; several processes may do so at once. A policy that keeps them for too short
// a time is refused by [Policy.Check]. It fails for such a policy and when the database does.
func (c *Consumer[DB, Tx]) Sweep(ctx context.Context, db DB, p Policy) (removed int64, err error) {
	if c.invalid != nil {
		return 0, c.invalid
	}
	if err := p.Check(); err != nil {
		return 0, fmt.Errorf("consumer %s: sweep: %w", c.options.ID, err)
	}
	p.defaults()
	for _, table := range []struct{ name, column string }{{"processed_events", "processed_at"}, {"event_tokens", "seen_at"}} {
		text := statement("sweep", c.options.Schema, "{table}", table.name, "{column}", table.column)
		for n := int64(sweepBatch); n == sweepBatch; { // what becomes due meanwhile is left to the next sweep
			err := c.driver.begin(ctx, db, func(tx Tx) (err error) {
				n, err = c.driver.exec(ctx, tx, text, c.options.ID, p.Retention.Seconds(), sweepBatch)
				return err
			})
			if err != nil {
				return removed, fmt.Errorf("consumer %s: sweep %s: %w%s", c.options.ID, table.name, err, remedy(err))
			}
			if table.name == "processed_events" {
				removed += n
			}
		}
	}
	return removed, nil
}

// Hold places a legal hold: until it is released, no record is removed (RULE-010-011), of this consumer, or of every one
// in the database with everyone. Holding again by the same name changes the reason.
// It fails when the name was released before or holds another consumer's records, and when the database does.
func (c *Consumer[DB, Tx]) Hold(ctx context.Context, db DB, hold, reason string, everyone bool) error {
	id := c.options.ID
	if everyone {
		id = ""
	}
	n, err := c.hold(ctx, db, "hold", hold, id, reason)
	if err == nil && n == 0 {
		return fmt.Errorf("consumer %s: %w", c.options.ID, invalid("the hold %q was released before, or holds another consumer's records; choose another name", hold))
	}
	return err
}

// Release ends a legal hold. Its row stays, with the time.
// It fails when there is no such hold, and when the database does.
func (c *Consumer[DB, Tx]) Release(ctx context.Context, db DB, hold string) error {
	n, err := c.hold(ctx, db, "release", hold)
	if err == nil && n == 0 {
		return fmt.Errorf("consumer %s: %w", c.options.ID, invalid("there is no hold %q that is not released; see table processed_event_holds", hold))
	}
	return err
}

func (c *Consumer[DB, Tx]) hold(ctx context.Context, db DB, file string, args ...any) (n int64, err error) {
	if c.invalid != nil {
		return 0, c.invalid
	}
	err = c.driver.begin(ctx, db, func(tx Tx) (err error) {
		n, err = c.driver.exec(ctx, tx, statement(file, c.options.Schema), args...)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("consumer %s: %s: %w%s", c.options.ID, file, err, remedy(err))
	}
	return n, nil
}
