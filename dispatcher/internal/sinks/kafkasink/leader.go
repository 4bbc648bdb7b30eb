package kafkasink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// leaderWait is how often a session looks at the leaders while deliveries wait. A partition that is seen
// without one twice in a row is given up; an election is over by then.
const leaderWait = time.Second

// noLeader is the response of a record whose partition has no leader.
type noLeader struct {
	partition int32
	// taken is false when kgo never had the record, so that it was surely not sent.
	taken bool
}

func (e *noLeader) Error() string {
	if e.taken {
		return fmt.Sprintf("partition %d lost its leader before the record was confirmed", e.partition)
	}
	return fmt.Sprintf("partition %d has no leader", e.partition)
}

// partitioner chooses a record's partition as the Java client does. Of one without a leader it refuses
// the record: kgo would keep it, and try any broker. The records that a partition takes have a context of
// their own, by which kgo can give them up, and with them those of no other partition.
type partitioner struct {
	kgo.Partitioner
	session *session
}

func (p partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	return topicPartitioner{p.Partitioner.ForTopic(topic), p.session}
}

type topicPartitioner struct {
	kgo.TopicPartitioner
	session *session
}

// Partition returns -1 for a record that is refused, whose result kgo gives at once.
func (t topicPartitioner) Partition(r *kgo.Record, n int) int {
	p := place{r.Topic, int32(t.TopicPartitioner.Partition(r, n))}
	if !t.session.hasLeader(p) {
		r.Context = refusal{context.Background(), p.partition}
		return -1
	}
	r.Context = t.session.taking(p)
	return int(p.partition)
}

// refusal is the context of a record that was refused.
type refusal struct {
	context.Context
	partition int32
}

// place is a partition of a topic.
type place struct {
	topic     string
	partition int32
}

// leadership is what a session knows of a place that takes records.
type leadership struct {
	// records ends when those that the place has are to be given up.
	records context.Context
	giveUp  context.CancelFunc
	// missed is true when the place had no leader at the last review.
	missed bool
}

// hasLeader queries kgo, which knows no leaders before a topic's first records have partitions.
func (s *session) hasLeader(p place) bool {
	leader, _, err := s.client.PartitionLeader(p.topic, p.partition)
	if err != nil { // others are kgo's to deal with
		return !errors.Is(err, kerr.LeaderNotAvailable) && !errors.Is(err, kerr.ListenerNotFound)
	}
	return leader >= 0
}

// taking returns the context of the records that a place takes.
func (s *session) taking(p place) context.Context {
	s.leading.Lock()
	defer s.leading.Unlock()
	l, ok := s.leaders[p]
	if !ok {
		l = &leadership{}
		l.records, l.giveUp = context.WithCancel(context.Background())
		s.leaders[p] = l
	}
	return l.records
}

// review gives up the records of places that lost their leaders, and has kgo request the leaders again:
// it does not while it waits for a response of a broker that is gone.
func (s *session) review() {
	s.leading.Lock()
	defer s.leading.Unlock()
	if time.Since(s.reviewed) < leaderWait/2 {
		return // another delivery did
	}
	s.reviewed = time.Now()
	for p, l := range s.leaders {
		led := s.hasLeader(p)
		if !led && l.missed {
			l.giveUp() // kgo gives their results when it learns of the leaders again
			delete(s.leaders, p)
		}
		l.missed = !led
	}
	s.client.ForceMetadataRefresh()
}

// hand gives a record to kgo, which gives one result. One that is refused is handed over again if it may be
// of a topic's first: then the leaders are known.
func (s *session) hand(r *kgo.Record, again bool, response func(error)) {
	// Not the delivery's context: kgo would also end records of other deliveries that share a batch with it.
	s.client.Produce(context.Background(), r, func(r *kgo.Record, err error) {
		refused, is := r.Context.(refusal)
		switch {
		case is && again:
			s.hand(unused(r), false, response)
		case is:
			response(&noLeader{partition: refused.partition})
		case err != nil && r.Context.Err() != nil:
			response(&noLeader{partition: r.Partition, taken: true})
		default:
			response(err)
		}
	})
}

// unused is a copy of a record without what kgo has written into it.
func unused(r *kgo.Record) *kgo.Record {
	return &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers}
}
