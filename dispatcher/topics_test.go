package dispatcher

import (
	"fmt"
	"testing"
	"time"
)

func limits(shares []Share) map[string]int {
	out := map[string]int{}
	for _, s := range shares {
		out[s.Topic] = s.Limit
	}
	return out
}

func TestShares(t *testing.T) {
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
		{"quiet ones get an eighth", []string{"a", "b", "c"}, []string{"b"}, 100, "map[a:6 b:88 c:6]"},
		{"a quiet one gets a row at least", []string{"a", "b", "c"}, []string{"b"}, 4, "map[a:1 b:2 c:1]"},
		{"a busy one gets a row at least", []string{"a", "b", "c"}, []string{"a", "b"}, 3, "map[a:1 b:1 c:1]"},
		{"more topics than rows", []string{"a", "b", "c"}, []string{"a"}, 2, "map[a:1 b:1]"},
		{"no topics", nil, nil, 100, "map[]"},
	} {
		ts := newTopics(nil)
		ts.listed(test.topics, time.Now())
		for _, topic := range test.busy {
			ts.busy[topic] = true
		}
		got := limits(ts.shares(test.n))
		if fmt.Sprint(got) != test.want {
			t.Errorf("%s: shares are %v, want %s", test.name, got, test.want)
		}
	}
}

// Whatever is claimed and found, a claim is never larger than asked for, every share has a row, and
// a round looks at every topic.
func TestSharesLookAtEveryTopic(t *testing.T) {
	for topics := 1; topics <= 12; topics++ {
		var names []string
		for i := range topics {
			names = append(names, fmt.Sprint("topic-", i))
		}
		for n := 1; n <= 30; n++ {
			ts := newTopics(names)
			for round := range 20 {
				seen := map[string]bool{}
				for more := true; more; more = ts.left > 0 {
					shares, sum := ts.shares(n), 0
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
					ts.claimed(shares, byTopic, time.Now())
				}
				if len(seen) != topics {
					t.Fatalf("%d topics, %d rows: round %d looked at %d topics", topics, n, round, len(seen))
				}
			}
		}
	}
}

// A topic with a million rows leaves others their share, and gets what they do not use.
func TestSharesAreFair(t *testing.T) {
	rows := map[string]int{"huge": 1_000_000, "small": 40, "rare": 1}
	ts := newTopics([]string{"huge", "rare", "small"})
	claims, done := 0, map[string]int{}
	for more := true; more && claims < 50; claims++ {
		shares := ts.shares(100)
		byTopic := map[string]int{}
		for _, s := range shares {
			byTopic[s.Topic] = min(s.Limit, rows[s.Topic])
			rows[s.Topic] -= byTopic[s.Topic]
			if byTopic[s.Topic] > 0 && rows[s.Topic] == 0 {
				done[s.Topic] = claims + 1
			}
		}
		more = ts.claimed(shares, byTopic, time.Now())
	}
	if done["rare"] != 1 || done["small"] > 2 {
		t.Errorf("the small topics were done after claims %v, want 1 and at most 2", done)
	}
	if got := 1_000_000 - rows["huge"]; got < 85*claims {
		t.Errorf("the huge topic got %d rows in %d claims of 100; the others left more", got, claims)
	}
}

func TestTopicsMoreAtOnce(t *testing.T) {
	ts := newTopics([]string{"a", "b", "c"})
	shares := ts.shares(2)
	if !ts.claimed(shares, nil, time.Now()) {
		t.Error("the round has not looked at every topic, and the loop may rest")
	}
	shares = ts.shares(2)
	if ts.claimed(shares, nil, time.Now()) || ts.found != 0 {
		t.Error("a round without rows does not let the loop rest")
	}
	shares = ts.shares(100)
	if !ts.claimed(shares, limits(shares), time.Now()) {
		t.Error("a filled share does not make the loop claim at once")
	}
	shares = ts.shares(100)
	if ts.claimed(shares, map[string]int{"a": 1}, time.Now()) || ts.found != 1 {
		t.Error("a claim that nothing filled does not let the loop rest, or is not counted")
	}
}

// A listed topic is remembered for a while after its last row: its next one does not wait for a listing.
func TestTopicsAreRemembered(t *testing.T) {
	ts, start := newTopics(nil), time.Now()
	ts.listed([]string{"a", "b"}, start)
	for _, step := range []struct {
		after time.Duration
		do    func(now time.Time)
		want  string
	}{
		{time.Second, func(now time.Time) { ts.listed(nil, now) }, "[a b]"},
		{rememberFor, func(now time.Time) { ts.claimed(ts.shares(10), map[string]int{"b": 1}, now) }, "[a b]"},
		{rememberFor + time.Second, func(now time.Time) { ts.listed([]string{"c"}, now) }, "[b c]"},
		{2*rememberFor + time.Second, func(now time.Time) { ts.listed(nil, now) }, "[c]"},
		{3 * rememberFor, func(now time.Time) { ts.listed(nil, now) }, "[]"},
	} {
		now := start.Add(step.after)
		if step.do(now); fmt.Sprint(ts.names) != step.want {
			t.Errorf("after %v the topics are %v, want %s", step.after, ts.names, step.want)
		}
		if len(ts.shares(10)) != len(ts.names) {
			t.Errorf("after %v the shares are not those of %v", step.after, ts.names)
		}
	}
}
