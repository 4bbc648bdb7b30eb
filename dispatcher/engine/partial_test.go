package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// One event finds its destination unreachable, and the others of its topic are delivered: a partition without a leader. It waits
// longer and longer, spends no attempt, delays no other, and arrives once the destination recovers.
//
// CONTRACT: C-27, C-32
func TestOutageOfOneEvent(t *testing.T) {
	const waves = 40
	r := newRig(t)
	bad := uuid.New()
	back := make(chan struct{})
	sink := &book{respond: func(_ context.Context, e *dispatcher.Event) error {
		select {
		case <-back:
			return nil
		default:
		}
		if e.ID == bad {
			return errUnreachable
		}
		return nil
	}}
	d := r.start(r.store(), sink, dispatcher.Config{})
	began := time.Now()
	for n := range waves { // one after the other: each is an occasion to claim the bad one
		if n == 1 {
			pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, payload) values ($1, 'shop', 'orders', '{}')`, bad)
		}
		r.enqueue("orders", 10)
		r.eventually("the others are delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == 10*(n+1) })
	}
	pgtest.Exec(r, `update outbox.outbox_events set created_at = now() - interval '1 hour' where id = $1`, bad)
	r.eventually("it waits with its attempt", func() bool {
		return r.count("status = 'pending' and attempts = 0 and next_attempt_at > now() + interval '10 seconds' and last_error <> ''") == 1
	})
	tries := len(sink.begun()[bad])
	if most := 60 + waited(began); tries > most {
		t.Errorf("it was tried %d times, want at most %d", tries, most)
	}
	if held := d.Snapshot().PausedTopics; len(held) != 0 {
		t.Errorf("held: %v", held)
	}
	began = time.Now()
	r.enqueue("orders", 1000)
	r.eventually("the others are delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == 10*waves+1000 })
	if more := len(sink.begun()[bad]) - tries; more > 1+waited(began) {
		t.Errorf("while 1000 others were delivered it was tried %d times more", more)
	}
	close(back)
	r.makeDue()
	r.eventually("it arrives with its first attempt", func() bool { return r.count("status = 'delivered' and attempts = 1") == 10*waves+1001 })
}

// waited is how often an event may wait for as long as one can that keeps its attempt.
func waited(since time.Time) int { return int(time.Since(since) / (15 * time.Second)) }
