package engine

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// rememberFor is how long a listed topic is claimed from without being listed again. Most of the time a topic with
// few events has none, and the next one must not wait for a listing.
const rememberFor = time.Minute

// quietRows is how many rows of a claim are left to quiet topics, within an eighth and a half of it. Claims are small
// while deliveries are slow. Then the busy topics do not need the rows, and the quiet ones should not wait for many
// claims.
const quietRows = 16

// listShare bounds the time that listing topics takes: one part in so many. A listing takes seconds while an old
// snapshot keeps vacuum from removing millions of delivered rows.
const listShare = 20

// topics decides how much of a claim each topic gets. A topic that had rows last time is busy. Every
// claim has shares for the busy ones, which divide most of it, and for a few of the quiet ones in turn. A round has
// every topic, in several claims when there are many. So a million rows of one topic delay no event of another for
// longer than a round, and a hundred quiet topics leave the busy one its share.
type topics struct {
	fixed    bool // the configuration names them
	names    []string
	listedAt time.Time
	took     time.Duration        // the last listing
	seen     map[string]time.Time // when a listed topic had rows last
	busy     map[string]int       // of each busy topic, the rows that it is expected to have now: twice what it had last
	first    int                  // index of the busy topic that is first in the next claim
	next     int                  // index of the topic that this round looks at next
	left     int                  // topics that it has not looked at yet
}

func newTopics(configured []string) topics {
	return topics{fixed: len(configured) > 0, names: configured, seen: map[string]time.Time{}, busy: map[string]int{}}
}

// stale reports whether the topics are to be listed again.
func (t *topics) stale(now time.Time, after time.Duration) bool {
	return !t.fixed && now.Sub(t.listedAt) >= max(after, listShare*t.took)
}

// listed notes the topics that have rows. A change begins a new round.
func (t *topics) listed(found []string, now time.Time) {
	t.listedAt = now
	for _, topic := range found {
		t.seen[topic] = now
	}
	maps.DeleteFunc(t.seen, func(_ string, at time.Time) bool { return now.Sub(at) > max(rememberFor, 2*listShare*t.took) })
	if names := slices.Sorted(maps.Keys(t.seen)); !slices.Equal(t.names, names) {
		t.names, t.first, t.next, t.left = names, 0, 0, 0
		maps.DeleteFunc(t.busy, func(topic string, _ int) bool { _, known := t.seen[topic]; return !known })
	}
}

// shares divides a claim of n rows among the topics whose turn it is, within their limits.
func (t *topics) shares(n int, limits map[string]int) []dispatcher.Share {
	if len(t.names) == 0 {
		return nil
	}
	if t.left == 0 {
		t.left = len(t.names)
	}
	forQuiet := n
	var shares []dispatcher.Share
	if len(t.busy) > 0 && n > 1 {
		forQuiet = max(n/8, min(n/2, quietRows))
		shares = t.takeBusy(n-forQuiet, limits)
	}
	busy := len(shares)
	shares = t.takeTurns(shares, forQuiet, n > 1, limits)
	quiet := len(shares) - busy
	switch {
	case busy == 0:
		forQuiet = n
	case quiet == 0:
		forQuiet = 0
	}
	t.divide(shares[:busy], n-forQuiet)
	t.divide(shares[busy:], forQuiet)
	for i, share := range shares {
		if rows, is := limits[share.Topic]; is {
			shares[i].Limit = min(share.Limit, rows)
		}
	}
	return shares
}

// takeBusy takes up to n of the busy topics. The first is another one each time, since it gets the odd
// rows and, when bytes are short, the bytes.
func (t *topics) takeBusy(n int, limits map[string]int) (shares []dispatcher.Share) {
	passed := 0
	for ; passed < len(t.names) && len(shares) < n; passed++ {
		topic := t.names[(t.first+passed)%len(t.names)]
		if rows, is := limits[topic]; t.busy[topic] > 0 && (!is || rows > 0) {
			shares = append(shares, dispatcher.Share{Topic: topic})
		}
	}
	t.first = (t.first + max(1, passed%len(t.names))) % len(t.names)
	return shares
}

// takeTurns adds up to n of the topics that this round has not looked at, without the busy ones unless
// they have no shares of their own.
func (t *topics) takeTurns(shares []dispatcher.Share, n int, exceptBusy bool, limits map[string]int) []dispatcher.Share {
	passed := 0
	for taken := 0; passed < t.left && taken < n; passed++ {
		topic := t.names[(t.next+passed)%len(t.names)]
		if rows, is := limits[topic]; is && rows == 0 || exceptBusy && t.busy[topic] > 0 {
			continue
		}
		shares = append(shares, dispatcher.Share{Topic: topic})
		taken++
	}
	t.left -= passed
	t.next = (t.next + max(1, passed%len(t.names))) % len(t.names)
	return shares
}

// divide gives n rows to the shares: none gets less than an equal part while another gets more than its topic is
// expected to have.
func (t *topics) divide(shares []dispatcher.Share, n int) {
	slices.SortStableFunc(shares, func(a, b dispatcher.Share) int { return cmp.Compare(t.busy[a.Topic], t.busy[b.Topic]) })
	for i := range shares {
		left := len(shares) - i
		part := (n + left - 1) / left
		if expected := t.busy[shares[i].Topic]; expected > 0 && left > 1 {
			part = min(part, expected)
		}
		shares[i].Limit = part
		n -= part
	}
}

// claimed notes how many rows of each topic a claim brought. more says to claim again at once: a
// share was filled, or the round has not looked at every topic yet.
func (t *topics) claimed(shares []dispatcher.Share, byTopic map[string]int, now time.Time) (more bool) {
	for _, s := range shares {
		n := byTopic[s.Topic]
		if n > 0 && !t.fixed {
			t.seen[s.Topic] = now
		}
		if n > 0 {
			t.busy[s.Topic] = 2 * n
		} else {
			delete(t.busy, s.Topic)
		}
		more = more || n >= s.Limit
	}
	return more || t.left > 0
}
