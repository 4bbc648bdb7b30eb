package engine

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// rememberFor is how long a topic is claimed from after it was listed last or had rows. Most of the time a topic
	// with few events has none, and the next one must not wait for a listing.
	rememberFor = time.Minute
	// listShare bounds the time that listing topics takes: one part in so many. A listing takes seconds while an old
	// snapshot keeps vacuum from removing millions of delivered rows.
	listShare = 20
)

// topic is what this process has of one topic of the outbox, and what it knows of it. How many rows of it may be claimed is
// decided in allot.go, and how many calls it may have in calls.go. It belongs to a flight, whose lock guards it.
type topic struct {
	name  string
	queue topicQueue
	calls topicCalls
	rows  topicRows

	// What its rate, its destination and its next event permit.
	rate      *bucket   // its own limit, nil for none
	rates     []*bucket // this, and the dispatcher's
	breaker   breaker
	successes int       // of the destination, when the wait for the next half-open probe began
	err       error     // the newest failure of the destination
	gate      *gate     // nil while the type of the next event is admitted
	doubt     *doubt    // nil while the database takes its claims
	tookAt    time.Time // when a claim had rows last
	saidAt    time.Time // when the log named a row of it that the database refuses to lease

	limits topicLimits
	turn   topicTurn
}

// topicRows counts the rows of a topic in flight.
type topicRows struct {
	all        int   // queued, waiting for others of their key, or in delivery
	inDelivery int   //
	bytes      int64 // of these rows, and those that stuck calls keep
}

// topicTurn is what is known of a topic's rows in the outbox.
type topicTurn struct {
	listed   bool      // it is claimed from
	seenAt   time.Time // when it was listed last or had rows
	expected int       // rows that the next claim may find: twice what the last one brought; 0 for a quiet topic
	halfOpen bool      // the claim under way is a half-open probe
}

// topics are those that this process claims from or has rows of. They belong to a flight, whose lock guards them.
type topics struct {
	dest    destination
	refused refusals
	rates   rates
	fair    bool // the tenants of each topic have their turns
	byName  map[string]*topic
	round   round
}

// round is the turn of the topics that are claimed from.
type round struct {
	fixed       bool     // the configuration names them
	topics      []*topic // by name
	listedAt    time.Time
	listingTook time.Duration   // the last listing
	firstBusy   int             // index of the busy topic that is first in the next claim
	next        int             // index of the topic that this round looks at next
	left        int             // topics that this round has not looked at yet
	full        []*topic        // those that this round passed over because they have their share in flight
	passedOver  bool            // the last claim passed over topics: those in doubt are claimed alone
	doubted     bool            // the last claim was of one in doubt
	foundAt     time.Time       // when a claim had rows last
	observedAt  time.Time       // when what limits each topic was noted last
	unwritten   map[string]bool // see load.unwritten
}

func newTopics(cfg dispatcher.Config) topics {
	ts := topics{
		dest: newDestination(cfg.Logger), rates: newRates(cfg), fair: cfg.Fairness == dispatcher.FairnessTenant,
		byName: map[string]*topic{}, round: round{fixed: len(cfg.Topics) > 0},
	}
	ts.listed(cfg.Topics, time.Time{})
	return ts
}

func newTopic(name string, fair bool) *topic {
	return &topic{name: name, breaker: newBreaker(), queue: topicQueue{fair: fair, ofTenant: map[uuid.UUID]int{}}}
}

// alone reports whether there is only one topic. Until the topics are listed there may be more.
func (ts *topics) alone() bool { return len(ts.round.topics) == 1 }

// get returns a topic, which may be new.
func (ts *topics) get(name string) *topic {
	t := ts.byName[name]
	if t == nil {
		t = newTopic(strings.Clone(name), ts.fair)
		ts.rates.limit(t)
		ts.byName[t.name] = t
	}
	return t
}

// stale reports whether the topics are to be listed again.
func (ts *topics) stale(now time.Time, after time.Duration) bool {
	return !ts.round.fixed && now.Sub(ts.round.listedAt) >= max(after, listShare*ts.round.listingTook)
}

// listed notes the topics that have rows. A change begins a new round.
func (ts *topics) listed(found []string, now time.Time) {
	ts.round.listedAt = now
	for _, name := range found {
		t := ts.get(name)
		t.turn.listed, t.turn.seenAt = true, now
	}
	var turn []*topic
	for _, t := range ts.byName {
		if t.turn.listed = t.turn.listed && now.Sub(t.turn.seenAt) <= max(rememberFor, 2*listShare*ts.round.listingTook); t.turn.listed {
			turn = append(turn, t)
		} else {
			ts.forgetIdle(t)
		}
	}
	slices.SortFunc(turn, func(a, b *topic) int { return strings.Compare(a.name, b.name) })
	if !slices.Equal(ts.round.topics, turn) {
		ts.round.topics, ts.round.firstBusy, ts.round.next, ts.round.left = turn, 0, 0, 0
	}
}

// forgetIdle forgets a topic that is not claimed from and has nothing in flight, with what was known of its
// destination.
func (ts *topics) forgetIdle(t *topic) {
	if t.turn.listed || t.rows.all > 0 || t.calls.running > 0 {
		return
	}
	delete(ts.byName, t.name)
	delete(ts.dest.gated, t.name)
	if ts.dest.paused[t.name] != nil {
		delete(ts.dest.paused, t.name)
		ts.review(nil)
	}
}

// claimed notes how many rows of each topic a claim brought, and the types of events that are not admitted, of those
// topics that have one. more says to claim again at once: a share was filled, or the round has not looked at every
// topic yet.
func (ts *topics) claimed(shares []dispatcher.Share, byTopic map[string]int, stops map[string]string, now time.Time) (more bool) {
	more = ts.round.passedOver || ts.round.left > 0
	for _, share := range shares {
		t, n := ts.get(share.Topic), byTopic[share.Topic]
		if n > 0 && !ts.round.fixed {
			t.turn.seenAt = now
		}
		if t.turn.expected = 2 * n; n > 0 {
			t.tookAt, ts.round.foundAt = now, now
		}
		if t.doubt != nil && ts.refused.over(t, n, share.Limit, now) {
			t.doubt = nil
		}
		more = more || n >= share.Limit
		if t.turn.halfOpen {
			t.turn.halfOpen = false
			ts.halfOpenBegan(t, n, now)
		}
		eventType, stopped := stops[share.Topic]
		ts.checked(t, n, eventType, stopped, now)
	}
	return more
}

// byName returns the topics of a map, by name.
func byName(of map[string]*topic) []*topic {
	names := slices.Sorted(maps.Keys(of))
	all := make([]*topic, len(names))
	for i, name := range names {
		all[i] = of[name]
	}
	return all
}

// topicPaused reports whether a topic is paused, or the destination as a whole.
func (ts *topics) topicPaused(t *topic) bool {
	return ts.dest.unreachable || t.breaker.state != dispatcher.BreakerClosed
}
