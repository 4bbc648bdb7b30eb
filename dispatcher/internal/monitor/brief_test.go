package monitor

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// huge is a snapshot and a depth with as much as they can hold, in texts that JSON writes as long as it can.
func huge() (dispatcher.Snapshot, *dispatcher.Depth) {
	long := strings.Repeat(strings.Repeat("\x01", 100)+"\"\\<\u2028", 250) // a control character is six bytes of JSON
	depth := &dispatcher.Depth{ObservedAt: started, BlockedKeys: dispatcher.Count{N: 21}}
	s := healthy(func(s *dispatcher.Snapshot) {
		s.Outcomes, s.Schema.Message, s.LastError = down(errors.New(long)), long, long
		s.StuckCalls, s.Stuck = 1, []dispatcher.StuckCall{{Topic: "a", EventID: uuid.Max}}
	})
	for i := range 100 {
		topic := fmt.Sprintf("topic-%03d%s", i, long)
		s.PausedTopics = append(s.PausedTopics, dispatcher.PausedTopic{Topic: topic, Breaker: dispatcher.BreakerRefusing, Err: errors.New(long)})
		depth.Topics = append(depth.Topics, dispatcher.TopicDepth{Topic: topic, Pending: dispatcher.Count{N: 1}})
		depth.Blocked = append(depth.Blocked, dispatcher.BlockedKey{Topic: topic, Key: "customer-17", EventID: uuid.Max})
		depth.Groups = append(depth.Groups, dispatcher.DeadGroup{Topic: topic, Cause: dispatcher.Cause{Code: long, Place: long}, Sample: uuid.Max, Error: "customer-17"})
	}
	return s, depth
}

func TestBriefStatusFitsItsBound(t *testing.T) {
	s, depth := huge()
	for name, c := range map[string]struct {
		caller, host, path string
		brief              bool
	}{
		"port-forward":           {"127.0.0.1:4711", "localhost:8080", status.Path, false},
		"port-forward over IPv6": {"[::1]:4711", "[::1]:8080", status.Path, false},
		"a page in a browser":    {"127.0.0.1:4711", "evil.example", status.Path, true},
		"the operator":           {"10.0.0.7:4711", "10.0.0.9:8080", status.BriefPath, true},
		"a stranger":             {"10.0.0.7:4711", "localhost", status.Path, true},
		"a stranger over IPv6":   {"[fd00::7]:4711", "localhost", status.Path, true},
		"a mesh's proxy":         {"127.0.0.6:4711", "localhost", status.Path, true},
		"brief path":             {"127.0.0.1:4711", "localhost", status.BriefPath, true},
		"unknown caller":         {"", "localhost", status.Path, true},
	} {
		_, body := getFrom(t, c.caller, c.host, c.path, s, depth)
		if secret := strings.Contains(body, "customer-17") || strings.Contains(body, uuid.Max.String()) || strings.Contains(body, "lastError"); secret == c.brief {
			t.Errorf("%s: keys, ids and errors of single deliveries are shown: %v", name, secret)
		}
		if c.brief && len(body) > status.MaxBrief {
			t.Errorf("%s: %d bytes, want %d at most", name, len(body), status.MaxBrief)
		}
	}

	_, body := get(t, status.BriefPath, s, depth)
	var got status.Status
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if got.Name != "orders" || got.Sink.State != status.Reachable || got.Source.Reason != status.OutcomesRefused || got.Schema.Version != 1 || got.StuckCalls != 1 {
		t.Errorf("what it is, links and schema: %+v", got)
	}
	if got.PausedTopicCount != 100 || !got.AllTopicsPaused || len(got.PausedTopics) != 8 || !strings.HasPrefix(got.PausedTopics[7].Topic, "topic-007") || !strings.HasSuffix(got.PausedTopics[7].Message, "…") {
		t.Errorf("paused topics: %d, all: %v, %+v", got.PausedTopicCount, got.AllTopicsPaused, got.PausedTopics)
	}
	if b := got.Backlog; b == nil || b.Pending != 100 || b.BlockedKeys != 21 || b.Topics != nil || b.Blocked != nil || !b.ObservedAt.Equal(started) {
		t.Errorf("totals: %+v", b)
	}
	if tx := got.OldestTransaction; tx == nil || tx.Kind != status.Standby || tx.Seconds != 9 {
		t.Errorf("oldest transaction: %+v", tx)
	}
	if before := (status.Status{}).Brief(); before.Backlog != nil || before.OldestTransaction != nil || before.PausedTopics != nil {
		t.Errorf("before anything is known: %+v", before)
	}
}

func TestAllTopicsPausedOnlyWithoutAnotherWaiting(t *testing.T) {
	waits := func(topics ...string) (counts []status.TopicCounts) {
		for _, topic := range topics {
			counts = append(counts, status.TopicCounts{Topic: topic, Counts: status.Counts{Scheduled: 1}})
		}
		return append(counts, status.TopicCounts{Topic: "idle", Counts: status.Counts{Dead: 3}})
	}
	paused := []status.PausedTopic{{Topic: "a"}, {Topic: "b"}}
	for name, c := range map[string]struct {
		paused []status.PausedTopic
		gated  []status.GatedTopic
		topics []status.TopicCounts
		want   bool
	}{
		"all that have events":      {paused, nil, waits("a", "b"), true},
		"one of them":               {paused, nil, waits("b"), true},
		"another is delivered":      {paused, nil, waits("a", "b", "c"), false},
		"no events":                 {paused, nil, waits(), false},
		"none paused":               {nil, nil, waits("a"), false},
		"all gated":                 {nil, []status.GatedTopic{{Topic: "a"}}, waits("a"), true},
		"some paused, others gated": {paused, []status.GatedTopic{{Topic: "c"}}, waits("a", "c"), true},
	} {
		if got := allTopicsPaused(c.paused, c.gated, c.topics); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
