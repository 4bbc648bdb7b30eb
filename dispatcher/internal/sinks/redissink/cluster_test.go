package redissink

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"

	goredis "github.com/redis/go-redis/v9"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/hack/servers/redis"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// A batch for many streams goes to all nodes of a cluster, also while slots move between them.
//
// CONTRACT: C-32, C-70
func TestClusterTakesBatchesWhileSlotsMove(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	nodes, err := redis.StartCluster(ctx, 3, redis.Options{Settings: map[string]string{"cluster-require-full-coverage": "no"}})
	need.Server(t, err, redis.ErrMissing)
	for _, node := range nodes {
		t.Cleanup(func() {
			if err := node.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	reader := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{nodes[0].Address}})
	defer func() { _ = reader.Close() }()

	single := open(t, config.RedisSink{Addresses: []string{nodes[0].Address}})
	for _, err = range single.Deliver(t.Context(), inStreams(30)) {
		if err != nil {
			break
		}
	}
	sinktest.Want(t, "without cluster", err, false, reason.Refusing, "; the server is a node of a cluster: set topology to Cluster")

	s := open(t, config.RedisSink{Addresses: []string{nodes[0].Address}, Topology: config.RedisCluster})
	if err := s.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	round := func(what string) {
		t.Helper()
		batch := inStreams(30)
		for i, err := range s.Deliver(t.Context(), batch) {
			if err != nil {
				t.Errorf("%s: stream %s: %v", what, batch[i].PartitionKey, err)
			}
		}
	}
	s.destination = func(e *dispatcher.Event) (string, error) { return e.PartitionKey, nil }
	round("at rest")

	// The slot of one stream moves: first both nodes have it, then it has moved.
	const stream = "stream-7"
	from, err := reader.MasterForKey(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	slot := reader.ClusterKeySlot(t.Context(), stream).Val()
	var to *redis.Server
	for _, node := range nodes {
		if node.Address != from.Options().Addr {
			to = node
		}
	}
	target := client(t, to)
	fromID, toID := from.Do(t.Context(), "cluster", "myid").Val().(string), target.Do(t.Context(), "cluster", "myid").Val().(string)
	run := func(c *goredis.Client, args ...any) {
		t.Helper()
		if err := c.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	before := len(entries(t, from, stream))
	run(from, "del", stream)
	run(target, "cluster", "setslot", slot, "importing", fromID)
	run(from, "cluster", "setslot", slot, "migrating", toID)
	round("while a slot moves")
	run(target, "cluster", "setslot", slot, "node", toID)
	run(from, "cluster", "setslot", slot, "node", toID)
	round("after a slot has moved")
	if got := len(entries(t, target, stream)); before == 0 || got != 2 {
		t.Errorf("%d and %d entries are in the stream before and after it moved, want some and 2", before, got)
	}

	to.Kill()
	unavailable := 0
	batch := inStreams(30)
	for i, err := range s.Deliver(t.Context(), batch) {
		node, _ := reader.MasterForKey(t.Context(), batch[i].PartitionKey)
		switch {
		case err == nil && batch[i].PartitionKey == stream:
			t.Errorf("%s was delivered to a node that is gone", batch[i].PartitionKey)
		case err != nil:
			sinktest.Want(t, fmt.Sprintf("%s at %s", batch[i].PartitionKey, node.Options().Addr), err, true, reason.ConnectionFailed, "; ")
			unavailable++
		}
	}
	if unavailable == 0 || unavailable == len(batch) {
		t.Errorf("%d of %d events are unavailable, want those of one node of three", unavailable, len(batch))
	}
	sinktest.Want(t, "Probe", s.Probe(t.Context()), true, reason.ConnectionFailed, "; check that it runs")

	for _, node := range nodes {
		node.Kill()
	}
	for _, s := range []*sink{s, open(t, config.RedisSink{Addresses: []string{nodes[0].Address}, Topology: config.RedisCluster})} {
		for _, err := range s.Deliver(t.Context(), inStreams(30)) {
			sinktest.Want(t, "no cluster", err, true, reason.ConnectionFailed, "; check that it runs")
		}
	}
}

// inStreams are new events, each for a stream of its own.
func inStreams(n int) []*dispatcher.Event {
	batch := sinktest.NewEvents(n)
	for i, e := range batch {
		e.PartitionKey = fmt.Sprintf("stream-%d", i)
		e.Topic = e.PartitionKey
	}
	return batch
}
