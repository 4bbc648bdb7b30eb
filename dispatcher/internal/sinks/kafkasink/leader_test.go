package kafkasink

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
)

// Of two brokers one goes, with the only replica of one of two partitions. Events for the other partition
// are delivered all the time, in the same batches and over the same session. The timeout is longer than
// the test: no result comes from it.
//
// CONTRACT: C-27, C-32
func TestOnePartitionWithoutLeader(t *testing.T) {
	second := secondBroker(t)
	topic := split(t, theBroker.Node(), second.Node())
	cfg := plainConfig(t, topic)
	cfg.Timeout = config.Duration(10 * time.Minute)
	s := open(t, cfg)
	produced := sinktest.Watch((*sinktest.Dial)(&s.dial), isProduce)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // a broker starts twice
	defer cancel()
	confirmed := [2]int64{}
	// deliver has one event for each of the partitions, and returns the last one's outcome. That of others is nil.
	deliver := func(s *sink, partitions ...int) (last error) {
		t.Helper()
		batch := make([]*dispatcher.Event, len(partitions))
		for i, p := range partitions {
			batch[i] = eventFor(p)
		}
		for i, err := range s.Deliver(ctx, batch) {
			if last = err; err == nil {
				confirmed[partitions[i]]++
			} else if i < len(partitions)-1 {
				t.Errorf("event %d, for partition %d: %v", i, partitions[i], err)
			}
		}
		return last
	}
	if err := deliver(s, 0, 1); err != nil {
		t.Fatal(err)
	}
	<-produced
	first := s.shared.current

	// A record is sent, and its broker is killed before it reads it.
	second.Pause()
	lost := make(chan error, 1)
	go func() { lost <- sinktest.Verify(t, s.Deliver(ctx, []*dispatcher.Event{eventFor(1)})[0]) }()
	<-produced
	second.Kill()
	for waits := true; waits; {
		if err := deliver(s, 0); err != nil {
			t.Fatalf("next to one that waits for the lost broker: %v", err)
		}
		select {
		case err := <-lost:
			sinktest.Want(t, "the record that was sent", err, false, reason.ConnectionFailed, "partition 1 lost its leader before the record was confirmed; bring the brokers that have it back, or give the topic more replicas. The record may have been written")
			waits = false
		default:
		}
	}

	const refused = "partition 1 has no leader; bring the brokers that have it back"
	for range 3 {
		sinktest.Want(t, "after that", deliver(s, 0, 0, 1), true, reason.ConnectionFailed, refused)
	}
	sinktest.Want(t, "a session that never knew the leader", deliver(open(t, cfg), 0, 1), true, reason.ConnectionFailed, refused)

	if err := second.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	for err := deliver(s, 0, 1); err != nil; err = deliver(s, 0, 1) {
		sinktest.Want(t, "until the leader has recovered", err, true, reason.ConnectionFailed, refused)
	}
	if err := deliver(s, 0, 1); err != nil {
		t.Errorf("the leader has recovered: %v", err)
	}
	if s.shared.current != first {
		t.Error("the session was retired for one partition's sake")
	}
	ends, err := theBroker.admin.ListEndOffsets(ctx, topic)
	if err != nil || ends.Error() != nil {
		t.Fatal(err, ends.Error())
	}
	for p, want := range confirmed {
		if end, _ := ends.Lookup(topic, int32(p)); end.Offset != want {
			t.Errorf("partition %d has %d records, and %d were confirmed", p, end.Offset, want)
		}
	}
}

// secondBroker joins the cluster for the time of a test.
func secondBroker(t *testing.T) *kafka.Broker {
	t.Helper()
	b, err := kafka.Start(t.Context(), kafka.Options{ShortLived: true, Join: broker(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// split makes a topic of which each of the nodes has a partition.
func split(t *testing.T, nodes ...int32) string {
	t.Helper()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "topic-"+uuid.NewString(), -1, -1
	for i, node := range nodes {
		p := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		p.Partition, p.Replicas = int32(i), []int32{node}
		topic.ReplicaAssignment = append(topic.ReplicaAssignment, p)
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(t.Context(), theBroker.clients)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
	return topic.Topic
}

// eventFor is an event whose key goes to one of two partitions.
func eventFor(partition int) *dispatcher.Event {
	for {
		e := sinktest.NewEvent()
		if kgo.StickyKeyPartitioner(nil).ForTopic("").Partition(&kgo.Record{Key: []byte(e.Key())}, 2) == partition {
			return e
		}
	}
}
