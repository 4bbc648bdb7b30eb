package kafkasink

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// CONTRACT: C-29, C-32
func TestMissingTopicIsItsOwnEventsFault(t *testing.T) {
	topic := newTopic(t, 1)
	need.OK(t, need.Err(admin.DeleteTopics(t.Context(), topic)))
	// Probe does not check the topics of events: one that is missing does not pause the others.
	several := open(t, plainConfig(t, ""))
	missing := sinktest.NewEvent()
	missing.Topic = topic
	err := several.Deliver(t.Context(), []*dispatcher.Event{missing})[0]
	sinktest.Outcome(t, "Deliver to the event's own topic", err, sinktest.Fault, reason.Refusing, "; create it")
	need.Want(t, nil, "Probe checks the brokers alone: %v", several.Probe(t.Context()))
	need.OK(t, need.Err(admin.CreateTopic(t.Context(), 1, 1, nil, topic)))
	ends(t, topic)
	several = open(t, plainConfig(t, ""))
	e := sinktest.NewEvent()
	e.Topic = "shop/orders"
	good := sinktest.NewEvent()
	good.Topic = topic
	for _, batch := range [][]*dispatcher.Event{{e}, {e, good}} {
		for i, err := range several.Deliver(t.Context(), batch) {
			if i == 0 {
				sinktest.Want(t, "a name that Kafka does not take", err, false, reason.Refusing, "; set topic to one of A-Z")
			} else if err != nil {
				t.Errorf("an event next to one with a bad topic: %v", err)
			}
		}
	}
}

// An event that is too large is dead. Those that were in a batch with it are not.
//
// CONTRACT: C-32, C-73
func TestOnlyTheTooLargeEventIsDead(t *testing.T) {
	for name, test := range map[string]struct {
		topicLimit string
		ours       int32
	}{
		"for the sink's limit":         {"1048588", 20_000},
		"for the topic's limit":        {"20000", 1_000_000},
		"with others, for the topic's": {"3000", 1_000_000},
	} {
		t.Run(name, func(t *testing.T) {
			topic := newTopic(t, 1, "max.message.bytes="+test.topicLimit)
			cfg := plainConfig(t, topic)
			cfg.MaxMessageBytes, cfg.Compression = test.ours, spec.CompressionNone
			s := open(t, cfg)
			batch := make([]*dispatcher.Event, 50)
			for i := range batch {
				batch[i] = sinktest.Sized(100)
			}
			batch[20] = sinktest.Sized(50_000)
			for i, err := range s.Deliver(t.Context(), batch) {
				if i != 20 {
					need.Want(t, nil, "event %d, of 100 bytes: %v", err, i)
					continue
				}
				sinktest.Dead(t, "the large event", err, "; raise maxMessageBytes and the topic's max.message.bytes")
			}
			need.Want(t, 49, "%d records arrived, want 49", len(consume(t, topic)))
		})
	}
}

// CONTRACT: C-32
func TestForbiddenTopicIsUnavailable(t *testing.T) {
	topic := newTopic(t, 1)
	cfg := plainConfig(t, topic)
	cfg.Brokers = []string{broker(t).Address("SASL")}
	cfg.Auth = passwordLogin(t, spec.AuthScramSHA256, mallory, sinktest.PasswordSecret)
	acl := kadm.NewACLs().Topics(topic).ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpWrite)
	if created, err := admin.CreateACLs(t.Context(), acl.Deny("User:"+mallory).DenyHosts().Allow("User:"+alice).AllowHosts()); err != nil || created[0].Err != nil {
		t.Fatal(err, created)
	}
	// It may describe the topic, and the broker says that it may not write it.
	cfg.Auth.Username, cfg.Auth.UsernameFile = "", sinktest.File(t, "username", mallory)
	s := open(t, cfg)
	sinktest.Reaches(t, s, reason.AuthenticationFailed, "; allow the dispatcher's user to Describe and Write it, as with kafka-acls.sh")
	sinktest.Write(t, cfg.Auth.UsernameFile, alice)
	need.Want(t, nil, "another user is in the file, who may: %v", sinktest.Send(t, s))
}

// CONTRACT: C-27, C-31, C-32
func TestKafkaSinkSurvivesServerFaults(t *testing.T) {
	sinktest.Faults{
		Server: broker(t),
		Open: func(t *testing.T, timeout time.Duration) sinktest.Destination {
			return destination(t, spec.KafkaSink{Access: spec.Access{Timeout: spec.Duration(timeout)}})
		},
		Unconfirmed: "no confirmation within %s; check that the brokers run", Unconnected: "no response within %s; check that it runs",
	}.Run(t)
}

// The outage is over before the timeout: the record is confirmed, and there once.
func TestRestartWithinTheTimeoutConfirmsOnce(t *testing.T) {
	topic := newTopic(t, 1)
	cfg := plainConfig(t, topic)
	cfg.Timeout = spec.Duration(2 * time.Minute)
	s := open(t, cfg)
	need.OK(t, sinktest.Send(t, s))
	restart := sinktest.Kill(t, theBroker.Server)
	result := make(chan error)
	go func() { result <- s.Deliver(t.Context(), sinktest.NewEvents(1))[0] }()
	restart()
	if err := <-result; err != nil && !dispatcher.IsUnavailable(err) {
		t.Errorf("the broker came back, and the delivery failed: %v", err)
	} else if n, confirmed := len(consume(t, topic)), err == nil; confirmed != (n == 2) {
		t.Errorf("%d records arrived, and the second delivery ended with %v", n, err)
	}
}

// Of two brokers one goes, with the only replica of one of two partitions. Events for the other partition
// are delivered all the time, in the same batches and over the same session. The timeout is longer than
// the test: no result comes from it.
//
// CONTRACT: C-27, C-32
func TestOtherPartitionsDeliverWithoutThatLeader(t *testing.T) {
	second := secondBroker(t)
	topic := split(t, theBroker.Server.Node(), second.Node())
	cfg := plainConfig(t, topic)
	cfg.Timeout = spec.Duration(10 * time.Minute)
	s := open(t, cfg)
	produced := sinktest.Watch((*sinktest.Dial)(&s.dial), isProduce)
	ctx, cancel := context.WithTimeout(t.Context(), need.Install) // a broker starts twice
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
	need.OK(t, deliver(s, 0, 1))
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

	need.OK(t, second.Restart(ctx))
	for err := deliver(s, 0, 1); err != nil; err = deliver(s, 0, 1) {
		sinktest.Want(t, "until the leader has recovered", err, true, reason.ConnectionFailed, refused)
	}
	need.Want(t, nil, "the leader has recovered: %v", deliver(s, 0, 1))
	need.Want(t, first, "the session was retired for one partition's sake", s.shared.current)
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err != nil || ends.Error() != nil {
		t.Fatal(err, ends.Error())
	}
	for p, want := range confirmed {
		end, _ := ends.Lookup(topic, int32(p))
		need.Want(t, want, "partition %d has %d records, and %d were confirmed", end.Offset, p)
	}
}

// secondBroker joins the cluster for the time of a test.
func secondBroker(t *testing.T) *kafka.Broker {
	t.Helper()
	b, err := kafka.Start(t.Context(), kafka.Options{ShortLived: true, Join: broker(t)})
	need.OK(t, err)
	t.Cleanup(func() {
		need.Want(t, nil, "%v", b.Stop(context.Background()))
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
	resp, err := req.RequestWith(t.Context(), clients)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	need.OK(t, err)
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
