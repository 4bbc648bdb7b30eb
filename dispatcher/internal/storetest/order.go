package storetest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// keyed makes events of the topic, one for each key; an empty one is none. Their order is that of seq.
func (r rig) keyed(keys ...string) []uuid.UUID {
	r.Helper()
	events := make([]Event, len(keys))
	ids := make([]uuid.UUID, len(keys))
	for i, key := range keys {
		events[i] = event(topic)
		events[i].AggregateID = key
		ids[i] = events[i].ID
	}
	r.Enqueue(events...)
	return ids
}

// inOrder claims up to limit rows in order per key, as many of a key.
func (r rig) inOrder(store dispatcher.Store, limit int) []*dispatcher.Event {
	r.Helper()
	return r.ordered(store, limit, dispatcher.KeyOrder{PerKey: limit}, lease).Events
}

func (r rig) ordered(store dispatcher.Store, limit int, keys dispatcher.KeyOrder, lease time.Duration) dispatcher.Claimed {
	r.Helper()
	return r.request(store, dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: topic, Limit: limit}}, Lease: lease, MaxAttempts: maxAttempts, Keys: &keys,
	})
}

func (r rig) acked(events ...*dispatcher.Event) {
	r.Helper()
	lost, err := r.store.Ack(r.Context(), leases(events))
	r.wantLost("ack", lost, err)
}

func (r rig) failed(e *dispatcher.Event, delay time.Duration) {
	r.Helper()
	lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: e.Lease(), Delay: delay}})
	r.wantLost("nack", lost, err)
}

// A claim takes the first rows of a key and no more than PerKey, and leaves the key alone until they are
// done; other keys, and rows without one, continue.
// CONTRACT: C-50
func orderHeads(r rig) {
	a := r.keyed("a", "a", "a", "a", "a")
	rest := r.keyed("b", "", "")
	first := r.ordered(r.store, 10, dispatcher.KeyOrder{PerKey: 2}, lease)
	r.wantIDs("first claim", first.Events, a[0], a[1], rest[0], rest[1], rest[2])
	if len(first.KeysWaiting) == 0 {
		r.Error("the claim does not report that rows of a wait")
	}
	for _, store := range []dispatcher.Store{r.store, r.other} {
		r.wantIDs("claimed while the key is held", r.inOrder(store, 10))
	}
	r.acked(first.Events[0])
	r.wantIDs("claimed while its second row is held", r.inOrder(r.other, 10))
	r.acked(first.Events[1:]...)
	r.wantIDs("claimed when all before is done", r.inOrder(patient{r.other}, 10), a[2], a[3], a[4])
}

// What its first row waits for, a key waits for, and no other key does.
// CONTRACT: C-50
func orderWaits(r rig) {
	for name, hold := range map[string]func(){
		"retried":   func() { r.failed(r.inOrder(r.store, 1)[0], time.Hour) },
		"leased":    func() { r.inOrder(r.store, 1) },
		"by others": func() { r.inOrder(r.other, 1) },
	} {
		first := r.keyed(name)[0]
		hold()
		if row := r.Row(first); row.Attempts != 1 {
			r.Fatalf("%s: row is %+v, want it claimed once", name, row)
		}
		r.keyed(name, name)
		free := r.keyed(name+"'s neighbour", "")
		r.wantIDs(name, r.inOrder(r.store, 10), free...)
	}
	scheduled := event(topic)
	scheduled.AggregateID, scheduled.Delay = "scheduled", time.Hour
	r.Enqueue(scheduled)
	r.keyed("scheduled")
	r.wantIDs("scheduled", r.inOrder(r.store, 10))
}

// A retried row comes before those behind it again, though it is due later than they are.
// CONTRACT: C-50
func orderRetry(r rig) {
	ids := r.keyed("a", "a", "a")
	events := r.inOrder(r.store, 3)
	r.wantIDs("first claim", events, ids...)
	lost, err := r.store.Release(r.Context(), returns(leases(events[1:])...))
	r.wantLost("release", lost, err)
	r.failed(events[0], time.Hour)
	r.wantIDs("while the first waits", r.inOrder(r.store, 10))
	r.Due(ids[0])
	r.wantIDs("when it is due", r.inOrder(patient{r.store}, 10), ids...)
}

// A key is claimed up to the first row that is not to be had, wherever that is.
// CONTRACT: C-50
func orderGap(r rig) {
	ids := r.keyed("a", "a", "a", "a")
	events := r.ordered(r.store, 9, dispatcher.KeyOrder{PerKey: 9}, gone).Events
	r.wantIDs("first claim", events, ids...)
	lost, err := r.store.Extend(r.Context(), []dispatcher.Lease{events[2].Lease()}, lease)
	r.wantLost("extend", lost, err)
	r.wantIDs("up to the third, which is held", r.inOrder(r.other, 9), ids[:2]...)
}

// An expired key is taken over from its first row on.
// CONTRACT: C-50
func orderExpired(r rig) {
	ids := r.keyed("a", "a", "a")
	r.wantIDs("first claim", r.ordered(r.store, 2, dispatcher.KeyOrder{PerKey: 2}, gone).Events, ids[:2]...)
	r.wantIDs("after expiry", r.inOrder(r.other, 10), ids...)
}

// Keys are of their topic, and the partition key comes before the aggregate.
// CONTRACT: C-50, C-71
func orderKey(r rig) {
	one, two, other := event(topic), event(topic), event("refunds")
	one.AggregateID, one.PartitionKey = "a", "p"
	two.AggregateID, two.PartitionKey = "b", "p"
	other.PartitionKey = "p"
	apart := event(topic)
	apart.AggregateID, apart.PartitionKey = "a", "q"
	r.Enqueue(one, two, other, apart)
	claimed := r.request(r.store, dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: topic, Limit: 9}, {Topic: "refunds", Limit: 9}},
		Lease:  lease, MaxAttempts: maxAttempts, Keys: &dispatcher.KeyOrder{PerKey: 1},
	})
	r.wantIDs("claimed", claimed.Events, one.ID, apart.ID, other.ID)
}

// Bytes end a key, and do not break it.
// CONTRACT: C-50
func orderBytes(r rig) {
	var ids []uuid.UUID
	for _, size := range []int{900, 5000, 10, 10} {
		e := event(topic)
		e.AggregateID, e.Payload = "a", json.RawMessage(`"`+strings.Repeat("x", size)+`"`)
		r.Enqueue(e)
		ids = append(ids, e.ID)
	}
	for _, want := range [][]uuid.UUID{ids[:1], ids[1:2], ids[2:]} {
		claimed := r.request(r.store, dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: topic, Limit: 9}}, Lease: lease, MaxAttempts: maxAttempts, MaxBytes: 1000,
			Keys: &dispatcher.KeyOrder{PerKey: 9},
		})
		r.wantIDs("claimed", claimed.Events, want...)
		r.acked(claimed.Events...)
	}
}

// A dead row ends the wait of its key, or blocks it until it is resolved; with Block it does not
// matter how it became dead.
// CONTRACT: C-50
func orderDead(r rig) {
	keys := dispatcher.KeyOrder{PerKey: 9}
	blocking := dispatcher.KeyOrder{PerKey: 9, BlockOnDead: true}
	ids := r.keyed("a", "a", "a", "b", "b")
	events := r.ordered(r.store, 9, dispatcher.KeyOrder{PerKey: 1}, lease).Events
	r.wantIDs("heads", events, ids[0], ids[3])
	lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: events[0].Lease(), Reason: dispatcher.ReasonPermanentFailure}})
	r.wantLost("nack", lost, err)
	lost, err = r.store.Extend(r.Context(), leases(events[1:]), gone)
	r.wantLost("extend", lost, err)
	r.Suspect(ids[3])

	dead := r.request(patient{r.store}, dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: topic, Limit: 9}}, Lease: lease, MaxAttempts: 1, Keys: &blocking,
	})
	if len(dead.Events) != 0 || len(dead.Dead) != 1 || dead.Dead[0].ID != ids[3] {
		r.Fatalf("claimed %v and dead %v, want only the dead event of the second key's first row", dead.Events, dead.Dead)
	}
	fresh := r.keyed("a", "c")
	r.wantIDs("blocked", r.ordered(r.store, 9, blocking, lease).Events, fresh[1])
	r.Resolve(ids[3])
	r.wantIDs("the second key continues", r.ordered(patient{r.store}, 9, blocking, lease).Events, ids[4])
	r.wantIDs("with Continue the first does too", r.ordered(patient{r.store}, 9, keys, lease).Events, ids[1], ids[2], fresh[0])
}

// Rows before a dead one are not blocked by it, as after the replay of an earlier one.
// CONTRACT: C-50
func orderBeforeDead(r rig) {
	ids := r.keyed("a", "a", "a")
	for i := range 2 {
		e := r.ordered(patient{r.store}, 1, dispatcher.KeyOrder{PerKey: 1}, lease).Events
		r.wantIDs("one at a time", e, ids[i])
		lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: e[0].Lease(), Reason: dispatcher.ReasonPoisonMessage}})
		r.wantLost("nack", lost, err)
	}
	r.Resolve(ids[0])
	r.Revive(ids[0], 0)
	blocking := dispatcher.KeyOrder{PerKey: 9, BlockOnDead: true}
	r.wantIDs("the replayed one, and not those behind the second", r.ordered(patient{r.store}, 9, blocking, lease).Events, ids[0])
}

// Depth counts the keys that have rows behind an open dead letter, and names the oldest of them.
// CONTRACT: C-50
func orderBlocked(r rig) {
	ids := r.keyed("a", "b", "c", "", "a", "a", "c")
	for _, e := range r.ordered(r.store, 4, dispatcher.KeyOrder{PerKey: 1}, lease).Events {
		lost, err := r.store.Nack(r.Context(), []dispatcher.Failure{{Lease: e.Lease(), Reason: dispatcher.ReasonPoisonMessage}})
		r.wantLost("nack", lost, err)
	}
	for _, topics := range [][]string{nil, {topic}, {topic, "none"}} {
		got, err := r.store.Depth(r.Context(), topics)
		if err != nil {
			r.Fatal(err)
		}
		if got.BlockedKeys != (dispatcher.Count{N: 2}) || len(got.Blocked) != 2 {
			r.Fatalf("%+v keys are blocked, %+v, want a and c", got.BlockedKeys, got.Blocked)
		}
		for i, want := range []dispatcher.BlockedKey{{Topic: topic, Key: "a", EventID: ids[0]}, {Topic: topic, Key: "c", EventID: ids[2]}} {
			r.wantBetween("DeadAt", got.Blocked[i].DeadAt, r.Now().Add(-time.Hour), r.Now())
			want.DeadAt = got.Blocked[i].DeadAt
			if got.Blocked[i] != want {
				r.Errorf("blocked is %+v, want %+v", got.Blocked[i], want)
			}
		}
	}
	r.Resolve(ids[0])
	r.acked(r.inOrder(patient{r.store}, 9)...)
	got, err := r.store.Depth(r.Context(), nil)
	if err != nil || got.BlockedKeys.N != 0 || len(got.Blocked) != 0 {
		r.Errorf("with nothing behind, %+v keys are blocked, %v", got.BlockedKeys, err)
	}
}

// Whatever becomes of attempts, each key's rows are delivered for the first time in order, and none is
// forgotten: every row is found again without new ones coming.
// CONTRACT: C-50
func orderDrain(r rig) {
	const rows, keys = 120, 7
	names := make([]string, rows)
	for i := range names {
		names[i] = fmt.Sprint("k", rand.IntN(keys))
	}
	r.keyed(names...)
	delivered := map[uuid.UUID]bool{}
	last := map[string]int64{}
	for len(delivered) < rows {
		store := []dispatcher.Store{r.store, r.other}[rand.IntN(2)]
		claimed, err := patient{store}.Claim(r.Context(), dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: topic, Limit: 1 + rand.IntN(8)}}, Lease: lease, MaxAttempts: 1000,
			Keys: &dispatcher.KeyOrder{PerKey: 1 + rand.IntN(4)},
		})
		if err != nil {
			r.Fatal(err)
		}
		if len(claimed.Events) == 0 {
			r.Fatalf("%d of %d rows were delivered, and no more are found", len(delivered), rows)
		}
		broken := map[string]bool{}
		for _, e := range claimed.Events {
			switch {
			case broken[e.AggregateID]:
				_, err = store.Release(r.Context(), returns(e.Lease()))
			case rand.IntN(4) == 0:
				broken[e.AggregateID] = true
				_, err = store.Nack(r.Context(), []dispatcher.Failure{{Lease: e.Lease()}})
			default:
				if e.Seq <= last[e.AggregateID] {
					r.Fatalf("seq %d of %s was delivered after %d", e.Seq, e.AggregateID, last[e.AggregateID])
				}
				last[e.AggregateID], delivered[e.ID] = e.Seq, true
				_, err = store.Ack(r.Context(), []dispatcher.Lease{e.Lease()})
			}
			if err != nil {
				r.Fatal(err)
			}
		}
	}
}

// What is claimed after its time expires in place of that: pending, after a failure, or after a lease that ended. It has no
// dead letter, blocks no key, and the next claim finds what comes after it.
// CONTRACT: C-18
func claimLate(r rig) {
	for name, req := range map[string]dispatcher.ClaimRequest{
		"plain": {}, "keys": {Keys: &dispatcher.KeyOrder{PerKey: 3}}, "blocking": {Keys: &dispatcher.KeyOrder{PerKey: 3, BlockOnDead: true}},
	} {
		req.Shares, req.Lease, req.MaxAttempts = []dispatcher.Share{{Topic: topic + name, Limit: 10}}, gone, maxAttempts
		late, ends, stays := event(topic+name), event(topic+name), event(topic+name)
		late.Expires, ends.Expires, stays.Expires = r.Now().Add(-time.Second), r.Now().Add(time.Minute), r.Now().Add(time.Hour)
		late.AggregateID, ends.AggregateID, stays.AggregateID = "a", "a", "a"
		r.Enqueue(late, ends, stays)
		var events, overdue []*dispatcher.Event
		for began := time.Now(); len(events) == 0 && time.Since(began) < waitTimeout; {
			claimed := r.request(r.store, req)
			events, overdue = claimed.Events, append(overdue, claimed.Expired...)
		}
		r.wantIDs(name+": expired", overdue, late.ID)
		r.wantIDs(name+": claimed", events, ends.ID, stays.ID)
		if events[0].Expires.Sub(ends.Expires).Abs() > time.Microsecond {
			r.Errorf("%s: it expires at %v, want %v", name, events[0].Expires, ends.Expires)
		}
		row := r.wantFree(late.ID, "expired", 0)
		if len(r.DeadLetters(late.ID)) > 0 || row.DeadReason != "" || row.Lease != 0 {
			r.Errorf("%s: the row is %+v, with dead letters %+v", name, row, r.DeadLetters(late.ID))
		}
		if lost, err := r.store.Ack(r.Context(), []dispatcher.Lease{events[0].Lease()}); err != nil || len(lost) > 0 { // it was claimed in time
			r.Errorf("%s: lost %v, %v", name, lost, err)
		}
	}
}
