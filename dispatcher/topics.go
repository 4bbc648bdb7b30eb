package dispatcher

import (
	"maps"
	"slices"
	"time"
)

// rememberFor is how long a topic that was found is claimed from without being found again. Most of
// the time a topic with a trickle of events has none, and the next one must not wait for a listing.
const rememberFor = time.Minute

// topics decides how much of a claim each topic gets. A topic that filled its last share is busy;
// the busy ones divide the claim, and the quiet ones get an eighth of it among them, at least a row
// each. A round looks at every topic, in several claims when there are more topics than rows to
// claim, so a million rows of one topic keep no event of another waiting for longer than a round.
type topics struct {
	fixed    bool // the configuration names them
	names    []string
	listedAt time.Time
	seen     map[string]time.Time // when a listed topic had rows last
	busy     map[string]bool
	next     int // index of the topic that is first in the next claim
	left     int // topics that this round has not looked at yet
	found    int // rows that this round has found
}

func newTopics(configured []string) topics {
	return topics{fixed: len(configured) > 0, names: configured, seen: map[string]time.Time{}, busy: map[string]bool{}}
}

// stale reports whether the topics are to be listed again.
func (t *topics) stale(now time.Time, after time.Duration) bool {
	return !t.fixed && now.Sub(t.listedAt) >= after
}

// listed takes note of the topics that have rows. A change begins a new round.
func (t *topics) listed(found []string, now time.Time) {
	t.listedAt = now
	for _, topic := range found {
		t.seen[topic] = now
	}
	maps.DeleteFunc(t.seen, func(_ string, at time.Time) bool { return now.Sub(at) > rememberFor })
	if names := slices.Sorted(maps.Keys(t.seen)); !slices.Equal(t.names, names) {
		t.names, t.next, t.left, t.found = names, 0, 0, 0
		maps.DeleteFunc(t.busy, func(topic string, _ bool) bool { _, known := t.seen[topic]; return !known })
	}
}

// shares divides a claim of n rows among the topics whose turn it is. The first in order is another
// one each time, since it gets the odd rows and, when bytes are short, the bytes.
func (t *topics) shares(n int) []Share {
	if len(t.names) == 0 {
		return nil
	}
	if t.left == 0 {
		t.left, t.found = len(t.names), 0
	}
	k := min(n, t.left)
	shares := make([]Share, k)
	busy := 0
	for i := range shares {
		shares[i].Topic = t.names[(t.next+i)%len(t.names)]
		if t.busy[shares[i].Topic] {
			busy++
		}
	}
	t.left -= k
	t.next = (t.next + max(1, k%len(t.names))) % len(t.names)
	forBusy, forQuiet := n, n
	if quiet := k - busy; busy > 0 && quiet > 0 {
		forQuiet = min(max(n/8, quiet), n-busy)
		forBusy = n - forQuiet
	}
	t.divide(shares, true, forBusy, busy)
	t.divide(shares, false, forQuiet, k-busy)
	return shares
}

// divide gives n rows to the shares of those topics, of which there are count, that are busy or not.
func (t *topics) divide(shares []Share, busy bool, n, count int) {
	for i := range shares {
		if t.busy[shares[i].Topic] == busy {
			shares[i].Limit = (n + count - 1) / count
			n, count = n-shares[i].Limit, count-1
		}
	}
}

// claimed notes how many rows of each topic a claim brought. more says to claim again at once: a
// share was filled, or the round has not looked at every topic yet.
func (t *topics) claimed(shares []Share, byTopic map[string]int, now time.Time) (more bool) {
	for _, s := range shares {
		n := byTopic[s.Topic]
		t.found += n
		if n > 0 && !t.fixed {
			t.seen[s.Topic] = now
		}
		if n >= s.Limit {
			t.busy[s.Topic] = true
			more = true
		} else {
			delete(t.busy, s.Topic)
		}
	}
	return more || t.left > 0
}
