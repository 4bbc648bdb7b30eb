package engine

import (
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pacer"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func limits(shares []dispatcher.Share) map[string]int {
	out := map[string]int{}
	for _, s := range shares {
		out[s.Topic] = s.Limit
	}
	return out
}

// free is the load of an idle process.
var free = load{alone: true}

func testTopics(configured ...string) *topics {
	ts := newTopics(dispatcher.Config{Logger: slog.New(slog.DiscardHandler), Topics: configured})
	return &ts
}

// turnOf is the names of the topics that are claimed from.
func turnOf(ts *topics) []string {
	names := []string{}
	for _, t := range ts.round.topics {
		names = append(names, t.name)
	}
	return names
}

func TestSharesFavorBusyTopics(t *testing.T) {
	for _, test := range []struct {
		name   string
		topics []string
		busy   []string
		n      int
		want   string // of the first claim
	}{
		{"one topic has all", []string{"a"}, nil, 100, "map[a:100]"},
		{"one busy topic has all", []string{"a"}, []string{"a"}, 100, "map[a:100]"},
		{"quiet topics share", []string{"a", "b", "c"}, nil, 100, "map[a:34 b:33 c:33]"},
		{"busy topics share", []string{"a", "b", "c"}, []string{"a", "b", "c"}, 10, "map[a:4 b:3 c:3]"},
		{"quiet ones get a few", []string{"a", "b", "c"}, []string{"b"}, 100, "map[a:8 b:84 c:8]"},
		{"quiet ones get an eighth of many", []string{"a", "b", "c"}, []string{"b"}, 800, "map[a:50 b:700 c:50]"},
		{"quiet ones get half of a few", []string{"a", "b", "c"}, []string{"b"}, 4, "map[a:1 b:2 c:1]"},
		{"quiet ones have their turn", []string{"a", "b", "c", "d"}, []string{"d"}, 4, "map[a:1 b:1 d:2]"},
		{"busy ones have their turn", []string{"a", "b", "c", "d"}, []string{"a", "b", "c", "d"}, 3, "map[a:2 b:1]"},
		{"a busy one gets a row at least", []string{"a", "b", "c"}, []string{"a", "b"}, 3, "map[a:1 b:1 c:1]"},
		{"more topics than rows", []string{"a", "b", "c"}, []string{"a"}, 2, "map[a:1 b:1]"},
		{"no topics", nil, nil, 100, "map[]"},
	} {
		ts := testTopics()
		ts.listed(test.topics, time.Now())
		for _, topic := range test.busy {
			ts.get(topic).turn.expected = 1000
		}
		got := limits(ts.shares(test.n, free))
		need.That(t, fmt.Sprint(got) == test.want, "%s: shares are %v, want %s", test.name, got, test.want)
	}
}

// Whatever is claimed and found, a claim is never larger than requested, every share has a row, and
// a round looks at every topic.
func TestSharesLookAtEveryTopic(t *testing.T) {
	for topics := 1; topics <= 12; topics++ {
		var names []string
		for i := range topics {
			names = append(names, fmt.Sprint("topic-", i))
		}
		for n := 1; n <= 30; n++ {
			ts := testTopics(names...)
			for round := range 20 {
				seen := map[string]bool{}
				for more := true; more; more = ts.round.left > 0 {
					shares, sum := ts.shares(n, free), 0
					byTopic := map[string]int{}
					for i, s := range shares {
						seen[s.Topic] = true
						sum += s.Limit
						if s.Limit < 1 {
							t.Fatalf("%d topics, %d rows: %s gets no row in %v", topics, n, s.Topic, shares)
						}
						if (i+round)%3 == 0 {
							byTopic[s.Topic] = s.Limit // is busy next time
						}
					}
					if sum > n || (topics <= n && sum < n) {
						t.Fatalf("%d topics, %d rows: the shares %v make %d", topics, n, shares, sum)
					}
					ts.claimed(shares, byTopic, nil, time.Now())
				}
				if len(seen) != topics {
					t.Fatalf("%d topics, %d rows: round %d looked at %d topics", topics, n, round, len(seen))
				}
			}
		}
	}
}

func TestFilledShareMakesTheNextClaimComeAtOnce(t *testing.T) {
	ts := testTopics("a", "b", "c")
	shares := ts.shares(2, free)
	need.That(t, ts.claimed(shares, nil, nil, time.Now()), "the round has not looked at every topic, and the loop may rest")
	shares = ts.shares(2, free)
	need.That(t, !ts.claimed(shares, nil, nil, time.Now()), "a round without rows does not let the loop rest")
	shares = ts.shares(100, free)
	need.That(t, ts.claimed(shares, limits(shares), nil, time.Now()), "a filled share does not make the loop claim at once")
	shares = ts.shares(100, free)
	need.That(t, !ts.claimed(shares, map[string]int{"a": 1}, nil, time.Now()), "a claim that nothing filled does not let the loop rest")
}

// A listed topic is remembered for a while after its last row: its next one does not wait for a listing.
func TestTopicsAreRemembered(t *testing.T) {
	ts, start := testTopics(), time.Now()
	ts.listed([]string{"a", "b"}, start)
	for _, step := range []struct {
		after time.Duration
		do    func(now time.Time)
		want  string
	}{
		{time.Second, func(now time.Time) { ts.listed(nil, now) }, "[a b]"},
		{rememberFor, func(now time.Time) { ts.claimed(ts.shares(10, free), map[string]int{"b": 1}, nil, now) }, "[a b]"},
		{rememberFor + time.Second, func(now time.Time) { ts.listed([]string{"c"}, now) }, "[b c]"},
		{2*rememberFor + time.Second, func(now time.Time) { ts.listed(nil, now) }, "[c]"},
		{3 * rememberFor, func(now time.Time) { ts.listed(nil, now) }, "[]"},
	} {
		now := start.Add(step.after)
		if step.do(now); fmt.Sprint(turnOf(ts)) != step.want {
			t.Errorf("after %v the topics are %v, want %s", step.after, turnOf(ts), step.want)
		}
		if len(ts.shares(10, free)) != len(ts.round.topics) {
			t.Errorf("after %v the shares are not those of %v", step.after, turnOf(ts))
		}
	}
}

// A topic that is held gets nothing, and one that is tried no more than it may; the others get the rest.
//
// CONTRACT: C-32
func TestPausedTopicsGetNoShare(t *testing.T) {
	ts := testTopics("a", "b", "c")
	now := time.Now()
	l := load{now: now, alone: true, successes: 1}
	pause := func(topic string, until time.Time) {
		t := ts.get(topic)
		t.breaker.state, t.breaker.next = dispatcher.BreakerRefusing, until
		t.breaker.refusing.failures = 1
	}
	pause("b", now.Add(time.Second))
	for range 5 {
		shares := ts.shares(100, l)
		if got := fmt.Sprint(limits(shares)); got != "map[a:50 c:50]" {
			t.Fatalf("shares are %s", got)
		}
		ts.claimed(shares, nil, nil, now)
	}
	pause("b", now)
	pause("c", now.Add(time.Second))
	shares := ts.shares(100, l)
	need.Want(t, "map[a:50 b:5]", "shares with a half-open probe are %s", fmt.Sprint(limits(shares)))
	pause("a", now.Add(time.Second))
	pause("b", now.Add(time.Second))
	if shares := ts.shares(100, l); len(shares) != 0 || ts.round.left != 0 {
		t.Errorf("all are held, and the shares are %v", shares)
	}
}

// A hundred topics of unequal load, a few of them busy, and then one more that floods: an event of any
// topic waits no more than twice as many claims as one of the median topic, at 99 of 100, and the flood
// gets what the others leave.
func TestTopicsWaitAlike(t *testing.T) {
	for _, test := range []struct {
		name  string
		n     int  // rows of a claim
		flood bool // of a topic of its own
		rest  int  // percent that the flood gets at least
	}{{"batch 100", 100, false, 0}, {"batch 100 and a flood", 100, true, 30}, {"batch 500 and a flood", 500, true, 33}, {"batch 16 and a flood", 16, true, 15}} {
		const topics, claims = 100, 5000
		var names []string
		load, sum := make([]float64, topics), 0.0
		for i := range topics {
			names = append(names, fmt.Sprintf("topic-%03d", i))
			load[i] = 1 / float64(i+1) // the first has a fifth of all, the last a thousandth of that
			sum += load[i]
		}
		if test.flood {
			names = append(names, "flood")
		}
		ts, chance := testTopics(names...), rand.New(rand.NewPCG(1, 2))
		queues, waits, flood := map[string][]int{}, map[string][]int{}, 0
		for claim := range claims {
			for i, l := range load {
				// Together they bring a quarter of what a claim can take.
				for rows := l / sum * float64(test.n) / 4; rows > 0 && chance.Float64() < rows; rows-- {
					queues[names[i]] = append(queues[names[i]], claim)
				}
			}
			shares, byTopic := ts.shares(test.n, free), map[string]int{}
			for _, s := range shares {
				if s.Topic == "flood" {
					byTopic[s.Topic] = s.Limit
					flood += s.Limit
					continue
				}
				queue := queues[s.Topic]
				byTopic[s.Topic] = min(s.Limit, len(queue))
				for _, since := range queue[:byTopic[s.Topic]] {
					waits[s.Topic] = append(waits[s.Topic], claim-since+1)
				}
				queues[s.Topic] = queue[byTopic[s.Topic]:]
			}
			ts.claimed(shares, byTopic, nil, time.Now())
		}
		var p99s []int
		for topic := range waits {
			slices.Sort(waits[topic])
			p99s = append(p99s, waits[topic][len(waits[topic])*99/100])
		}
		slices.Sort(p99s)
		if len(p99s) != topics {
			t.Fatalf("%s: only %d topics had events", test.name, len(p99s))
		}
		median, worst := p99s[topics/2], p99s[topics-1]
		t.Logf("%s: the median topic's events wait for %d claims, the worst topic's for %d; the flood gets %.0f%%",
			test.name, median, worst, float64(flood)*100/float64(claims*test.n))
		need.That(t, worst <= 2*median, "%s: the worst topic's events wait for %d claims, the median topic's for %d", test.name, worst, median)
		need.That(t, flood >= claims*test.n*test.rest/100, "%s: the flood got %d rows in %d claims of %d", test.name, flood, claims, test.n)
	}
}

// How much of a topic may be claimed, and what limits it: the least of what the database, its destination, its next
// event and its share allow.
//
// CONTRACT: C-32, C-33
func TestAllotTakesTheLeastOfWhatLimits(t *testing.T) {
	now := time.Now()
	later, full := now.Add(time.Second), math.MaxInt
	paused := func(state dispatcher.BreakerState, next time.Time, failures int) func(*topic) {
		return func(t *topic) { t.breaker.state, t.breaker.next, t.breaker.refusing.failures = state, next, failures }
	}
	gated := func(next time.Time, open bool) func(*topic) {
		return func(t *topic) { t.gate = &gate{next: next, open: open} }
	}
	inFlight := func(rows int, bytes int64) func(*topic) {
		return func(t *topic) { t.rows.all, t.rows.bytes = rows, bytes }
	}
	slow := func(queued int) func(*topic) {
		return func(t *topic) { t.queue.slow, t.queue.rows = true, make([]*row, queued) }
	}
	doubtful := func(next time.Time) func(*topic) { return func(t *topic) { t.doubt = &doubt{next: next} } }
	for _, test := range []struct {
		name  string
		alone bool
		state []func(*topic)
		rows  int
		by    limit
		next  time.Time
	}{
		{"nothing is known", false, nil, full, unlimited, time.Time{}},
		{"unreachable", false, []func(*topic){paused(dispatcher.BreakerUnreachable, later, 0)}, 0, byBreaker, later},
		{"unreachable, due, and nothing was heard", false, []func(*topic){paused(dispatcher.BreakerUnreachable, now, 0), func(t *topic) { t.successes = 7 }}, 0, byProbe, time.Time{}},
		{"unreachable, due", false, []func(*topic){paused(dispatcher.BreakerUnreachable, now, 0)}, halfOpenRows, byBreaker, time.Time{}},
		{"refusing", true, []func(*topic){paused(dispatcher.BreakerRefusing, later, 1)}, 0, byBreaker, later},
		{"refusing, due", true, []func(*topic){paused(dispatcher.BreakerRefusing, now, 3)}, 4 * halfOpenRows, byBreaker, time.Time{}},
		{"gated", true, []func(*topic){gated(later, false)}, 0, byGate, later},
		{"gated, due", true, []func(*topic){gated(now, false)}, 1, byGate, time.Time{}},
		{"gate open", true, []func(*topic){gated(later, true)}, full, unlimited, time.Time{}},
		{"paused, due, and gated", false, []func(*topic){paused(dispatcher.BreakerRefusing, now, 1), gated(now, false)}, 1, byGate, time.Time{}},
		{"its claims fail", false, []func(*topic){doubtful(later)}, 0, byClaims, later},
		{"its claims fail, due", false, []func(*topic){doubtful(now)}, full, unlimited, time.Time{}},
		{"its outcomes are not written", true, []func(*topic){func(t *topic) { t.name = "unwritten" }}, 0, byOutcomes, time.Time{}},
		{"slow, with its share queued", false, []func(*topic){slow(10)}, 0, bySlowness, time.Time{}},
		{"slow, with less", false, []func(*topic){slow(9)}, full, unlimited, time.Time{}},
		{"slow and alone", true, []func(*topic){slow(100)}, full, unlimited, time.Time{}},
		{"as many rows as it leaves", false, []func(*topic){inFlight(100, 0)}, full, unlimited, time.Time{}},
		{"more rows than it leaves", false, []func(*topic){inFlight(101, 0)}, 0, byRows, time.Time{}},
		{"more bytes than it leaves", false, []func(*topic){inFlight(1, 1001)}, 0, byBytes, time.Time{}},
		{"alone with more than it leaves", true, []func(*topic){inFlight(200, 2000)}, full, unlimited, time.Time{}},
	} {
		topic := &topic{name: "orders", breaker: newBreaker()}
		for _, set := range test.state {
			set(topic)
		}
		l := load{now: now, alone: test.alone, rows: 100, bytes: 1000, lowShare: 10, successes: 7, unwritten: map[string]bool{"unwritten": true}}
		a := topic.allot(l)
		need.That(t, a == (allotment{test.rows, test.by, test.next}), "%s: a claim may take %+v, want %d rows by %q, more at %v", test.name, a, test.rows, test.by, test.next)
	}
	alone := &topic{breaker: newBreaker()}
	if a := alone.allot(load{now: now, alone: true, bytes: 99, spare: 100}); a.n != 0 || a.by != byBytes {
		t.Errorf("with no more than the spare bytes free a topic that is alone may take %+v", a)
	}
	large := &topic{breaker: newBreaker(), rows: topicRows{all: 1, bytes: 950}}
	if a := large.allot(load{now: now, rows: 100, bytes: 1000, spare: 100}); a.n != 0 || a.by != byBytes {
		t.Errorf("with more bytes than are free but for the spare ones a topic may take %+v", a)
	}
	alone.calls = topicCalls{running: 1, pacer: pacer.New(1, 1)}
	for stuck, calls := range []int{0, 1} {
		alone.calls.stuck = stuck
		need.Want(t, calls, "with one call by its limit and %d stuck ones it may have %d more, want %d",
			alone.allotCalls(callLoad{now: now, alone: true, free: 1, places: 1}).n, stuck)
	}
}

// A topic in doubt is claimed alone, in turn with the others. It is refused while a claim finds nothing but rows that are
// left alone.
//
// CONTRACT: C-33
func TestTopicInDoubtTakesTurns(t *testing.T) {
	now, rs := time.Now(), refusals{}
	o, bad, well := &round{}, &topic{doubt: &doubt{size: size{rows: 5}}}, &topic{}
	for i, want := range []*topic{bad, well, bad, well} {
		parts := o.apart([]part{{bad, 0, 10}, {well, 0, 10}}, now)
		need.That(t, len(parts) == 1 && parts[0].topic == want && (want == well || parts[0].max == 5), "claim %d has %+v", i, parts)
	}
	for range refusedRun {
		_ = rs.add(bad, errContent, now)
	}
	need.That(t, !rs.over(bad, 0, 10, now) && bad.doubt.stops, "nothing but what is left alone ends the refusal: %+v", bad.doubt)
	need.That(t, rs.over(bad, 1, 10, now) && !bad.doubt.stops, "a row does not end the refusal: %+v", bad.doubt)
}
