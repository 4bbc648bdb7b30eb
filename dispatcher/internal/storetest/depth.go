package storetest

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// A topic is listed while it has rows that are pending, scheduled or leased.
func topics(r rig) {
	r.wantTopics()
	scheduled := event("scheduled")
	scheduled.Delay = time.Hour
	foreign := event("foreign")
	foreign.Namespace = "bank"
	r.Enqueue(scheduled, foreign, event("b"), event("b"), event("a"))
	r.wantTopics("a", "b", "scheduled")
	claimed := r.request(r.store, dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: "a", Limit: 1}, {Topic: "b", Limit: 2}}, Lease: lease, MaxAttempts: maxAttempts,
	})
	r.wantTopics("a", "b", "scheduled")
	lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{
		{Lease: claimed.Events[0].Lease(), Reason: dispatcher.ReasonPoisonMessage},
	})
	r.wantLost("nack", lost, err)
	lost, err = r.store.Ack(r.Context(), leases(claimed.Events[1:]))
	r.wantLost("ack", lost, err)
	r.wantTopics("scheduled")
}

func (r rig) wantTopics(want ...string) {
	r.Helper()
	got, err := r.store.Topics(r.Context())
	if err != nil {
		r.Fatalf("Topics: %v", err)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		r.Errorf("topics are %q, want %q", got, want)
	}
}

// Small counts are exact, whatever state the rows are in.
// CONTRACT: C-96
func depth(r rig) {
	var events []Event
	for _, delay := range []time.Duration{-4 * time.Minute, -3 * time.Minute, -2 * time.Minute, -time.Minute, -time.Minute, -time.Minute, 0, time.Hour, time.Hour} {
		e := event(topic)
		e.Delay = delay
		events = append(events, e)
	}
	r.Enqueue(append(events, event("unasked"))...)
	claimed := r.claim(r.store, 5, lease)
	lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: claimed[0].Lease(), Reason: dispatcher.ReasonPoisonMessage}})
	r.wantLost("nack", lost, err)
	lost, err = r.store.Ack(r.Context(), []dispatcher.Lease{claimed[1].Lease()})
	r.wantLost("ack", lost, err)

	lost, err = r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: claimed[3].Lease(), Error: "500", Delay: time.Hour}})
	r.wantLost("nack", lost, err)
	lost, err = r.store.Release(r.Context(), []dispatcher.Return{{Lease: claimed[4].Lease(), Error: "503", Delay: time.Hour}})
	r.wantLost("release", lost, err)

	exactly := func(n int64) dispatcher.Count { return dispatcher.Count{N: n} }
	want := dispatcher.TopicDepth{Topic: topic, Pending: exactly(4), Scheduled: exactly(2), Retrying: exactly(2), Processing: exactly(1), Dead: exactly(1)}
	from := r.Now()
	for _, test := range []struct {
		topics []string
		n      int
	}{{[]string{topic}, 1}, {[]string{topic, "empty"}, 2}, {nil, 2}} {
		got, err := r.store.Depth(r.Context(), test.topics)
		if err != nil {
			r.Fatalf("Depth: %v", err)
		}
		r.wantBetween("ObservedAt", got.ObservedAt, from, r.Now())
		byTopic := map[string]dispatcher.TopicDepth{}
		for _, d := range got.Topics {
			if none := d.Topic == "empty"; none != d.OldestPending.IsZero() || d.OldestPending.After(r.Now()) {
				r.Errorf("OldestPending of %q is %v, want a time: %t", d.Topic, d.OldestPending, !none)
			}
			d.OldestPending = time.Time{}
			byTopic[d.Topic] = d
		}
		if byTopic[topic] != want {
			r.Errorf("Depth(%q) is %+v, want %+v", test.topics, byTopic[topic], want)
		}
		if len(got.Topics) != test.n {
			r.Errorf("Depth(%q) has %d topics, want %d: %+v", test.topics, len(got.Topics), test.n, got.Topics)
		}
	}
}

// An outbox without rows has no topics, one with nothing but an open dead letter has one, and what was
// never due is not the oldest pending.
// CONTRACT: C-96
func depthEmpty(r rig) {
	from := r.Now()
	got, err := r.store.Depth(r.Context(), nil)
	if err != nil || len(got.Topics) != 0 {
		r.Errorf("Depth of an empty outbox is %+v, %v", got, err)
	}
	r.wantBetween("ObservedAt of an empty outbox", got.ObservedAt, from, r.Now())
	e := r.one(lease)
	lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: e.Lease(), Reason: dispatcher.ReasonPoisonMessage}})
	r.wantLost("nack", lost, err)
	got, err = r.store.Depth(r.Context(), nil)
	want := dispatcher.TopicDepth{Topic: topic, Dead: dispatcher.Count{N: 1}}
	if err != nil || len(got.Topics) != 1 || got.Topics[0] != want {
		r.Errorf("Depth is %+v, %v, want %+v", got.Topics, err, want)
	}
	later := event("later")
	later.Delay = time.Hour
	r.Enqueue(later)
	got, err = r.store.Depth(r.Context(), []string{"later"})
	want = dispatcher.TopicDepth{Topic: "later", Scheduled: dispatcher.Count{N: 1}}
	if err != nil || len(got.Topics) != 1 || got.Topics[0] != want {
		r.Errorf("Depth is %+v, %v, want %+v", got.Topics, err, want)
	}
}

func schema(r rig) {
	got, err := r.store.Schema(r.Context())
	if err != nil || got.State != dispatcher.SchemaReady || got.Message != "" || got.Version < got.Required || got.Required < 1 {
		r.Errorf("Schema is %+v, %v, want it ready", got, err)
	}
}

// Dead events of one topic, reason and cause are a group, until they are resolved. The largest comes first, and is
// listed with the newest of its events.
// CONTRACT: C-41, C-96
func depthGroups(r rig) {
	refused := dispatcher.Cause{Class: "http", Code: "422"}
	broken := dispatcher.Cause{Class: "rule", Code: "total", Place: "/items/*/price"}
	becomeDead := func(topic string, cause dispatcher.Cause, reason dispatcher.DeadReason, n int) (ids []uuid.UUID) {
		for range n {
			id := r.enqueue(topic, 1)[0]
			claimed := r.request(r.store, dispatcher.ClaimRequest{Shares: []dispatcher.Share{{Topic: topic, Limit: 1}}, Lease: lease, MaxAttempts: maxAttempts})
			r.wantIDs("claimed", claimed.Events, id)
			lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{{
				Lease: claimed.Events[0].Lease(), Reason: reason, Cause: cause, Error: strings.Repeat("ä", 500),
			}})
			r.wantLost("nack", lost, err)
			ids = append(ids, id)
		}
		return ids
	}
	from := r.Now()
	two := becomeDead(topic, refused, dispatcher.ReasonPermanentFailure, 2)
	one := becomeDead("other", refused, dispatcher.ReasonPermanentFailure, 1)
	three := becomeDead(topic, broken, dispatcher.ReasonSchemaValidationFailed, 3)
	handled := append(becomeDead(topic, broken, dispatcher.ReasonPermanentFailure, 1), becomeDead(topic, broken, dispatcher.ReasonSchemaValidationFailed, 1)...)
	for _, id := range handled {
		r.Resolve(id)
	}
	group := func(topic string, cause dispatcher.Cause, reason dispatcher.DeadReason, ids []uuid.UUID) dispatcher.DeadGroup {
		return dispatcher.DeadGroup{
			Fingerprint: dispatcher.Fingerprint(topic, reason, cause), Topic: topic, Reason: reason, Cause: cause,
			Count: dispatcher.Count{N: int64(len(ids))}, Sample: ids[len(ids)-1], Error: strings.Repeat("ä", 100),
		}
	}
	want := []dispatcher.DeadGroup{
		group(topic, broken, dispatcher.ReasonSchemaValidationFailed, three),
		group(topic, refused, dispatcher.ReasonPermanentFailure, two),
		group("other", refused, dispatcher.ReasonPermanentFailure, one),
	}
	for _, test := range []struct {
		topics []string
		want   []dispatcher.DeadGroup
	}{{nil, want}, {[]string{topic, "other", "none"}, want}, {[]string{topic}, want[:2]}, {[]string{"none"}, nil}} {
		got, err := r.store.Depth(r.Context(), test.topics)
		if err != nil {
			r.Fatal(err)
		}
		for i := range got.Groups {
			g := &got.Groups[i]
			r.wantBetween("Since", g.Since, from, r.Now())
			r.wantBetween("Last", g.Last, from, r.Now())
			if several := g.Count.N > 1; g.Last.After(g.Since) != several {
				r.Errorf("a group of %d became dead from %v to %v", g.Count.N, g.Since, g.Last)
			}
			g.Since, g.Last = time.Time{}, time.Time{}
		}
		if !slices.Equal(got.Groups, test.want) {
			r.Errorf("the groups of %q are %+v, want %+v", test.topics, got.Groups, test.want)
		}
	}
}
