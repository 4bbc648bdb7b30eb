package main

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

// destinations are the topics that the shop's are copied to, each with a dispatcher of its own. The last is down half of the time.
var destinations = []string{"warehouse", "billing", "audit"}

// down is not a fault of the schedule: the last destination responds with 503 for a while.
const down kind = "down"

// downFor is longer than a lease.
const downFor = 4 * time.Second

// shopTopics are the topics of the producers, each once.
var shopTopics = topics[2:]

// sent are the topics whose events the consumer gets, but for those of odd rows.
func (o options) sent() []string {
	if o.copies > 0 {
		return destinations[:o.copies]
	}
	return shopTopics
}

// takeDown has the last destination be down half of the time, until up is called.
func (w *world) takeDown(ctx context.Context) (up func()) {
	ctx, cancel := context.WithCancel(ctx)
	topic := destinations[len(destinations)-1]
	say := func(ctx context.Context, status string) {
		for instruct(ctx, "http://"+w.address, "status."+topic+"="+status) != nil && sleep(ctx, 100*time.Millisecond) {
		}
	}
	var half sync.WaitGroup
	half.Go(func() {
		for slices.Contains(w.sent(), topic) && sleep(ctx, downFor) {
			end := w.beginFault(injected{kind: down, status: http.StatusServiceUnavailable, topic: topic}, "of topic %q for %s", topic, downFor)
			say(ctx, "503")
			sleep(ctx, downFor)
			healing, healed := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			say(healing, "0")
			healed()
			end()
		}
	})
	return func() { cancel(); half.Wait() }
}

// linkCopies gives each copy what its producer said of its original, and its place among those of its key.
func (h *history) linkCopies() {
	for _, e := range h.events {
		if o := h.events[e.originalID]; o != nil {
			e.original, o.copies = o, append(o.copies, e)
			e.known, e.committed, e.committedAt, e.seq = o.known, o.committed, o.committedAt, o.seq
		}
	}
}

// isCopied reports whether an event is to be copied to each destination, in place of being sent.
func (h *history) isCopied(e *event) bool {
	return len(h.copies) > 0 && slices.Contains(shopTopics, e.topic)
}

// isHalfDown reports whether an event is of the destination that is down half of the time.
func (h *history) isHalfDown(e *event) bool {
	return slices.ContainsFunc(h.faults, func(f injected) bool { return f.kind == down && f.topic == e.topic })
}

// checkCopies checks that an event was copied to each destination once, in the transaction that marked it delivered, and that
// one which was not delivered was not copied (CONTRACT C-19).
func (l *ledger) checkCopies(h *history, e *event) {
	acked, is := e.first(ack)
	var want, got []string
	if is && h.isCopied(e) {
		want = slices.Sorted(slices.Values(h.copies))
	}
	for _, c := range e.copies {
		for _, m := range c.moves {
			if m.verb != insert {
				continue
			}
			if got = append(got, c.topic); m.tx != acked.tx {
				l.violate(miscopied, c, "copied by transaction %d, and its original %s was delivered by %d", m.tx, e.id, acked.tx)
			}
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		l.violate(miscopied, e, "copied to %q, want %q", got, want)
	}
}
