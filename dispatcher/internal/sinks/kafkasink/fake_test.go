package kafkasink

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// These faults cannot be had of one real broker. kfake is the client's author's fake of one.

// The API keys of Kafka's protocol.
const (
	apiProduce        = 0
	apiMetadata       = 3
	apiInitProducerID = 22
)

func fake(t *testing.T, timeout time.Duration) (*kfake.Cluster, *sink) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, open(t, config.KafkaSink{Brokers: c.ListenAddrs(), Access: config.Access{Timeout: config.Duration(timeout)}})
}

// refuse responds to produce requests with a code, the first n of them.
func refuse(c *kfake.Cluster, code *kerr.Error, n int) {
	c.ControlKey(apiProduce, func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if n--; n < 0 {
			return nil, nil, false
		}
		req := r.(*kmsg.ProduceRequest)
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, topic := range req.Topics {
			response := kmsg.NewProduceResponseTopic()
			response.Topic, response.TopicID = topic.Topic, topic.TopicID
			for _, p := range topic.Partitions {
				partition := kmsg.NewProduceResponseTopicPartition()
				partition.Partition, partition.ErrorCode = p.Partition, code.Code
				response.Partitions = append(response.Partitions, partition)
			}
			resp.Topics = append(resp.Topics, response)
		}
		return resp, nil, true
	})
}

func count(t *testing.T, c *kfake.Cluster) int64 {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup("orders", 0)
	return end.Offset
}

// CONTRACT: C-32
func TestResponsesOfBrokers(t *testing.T) {
	const all = 1 << 30
	for _, test := range []struct {
		code       *kerr.Error
		times      int
		fault      bool
		word, text string // "" means delivered
	}{
		{kerr.NotLeaderForPartition, 1, false, "", ""},
		{kerr.LeaderNotAvailable, 2, false, "", ""},
		{kerr.NotEnoughReplicas, 1, false, "", ""},
		{kerr.RequestTimedOut, 1, false, "", ""},
		{kerr.NotEnoughReplicas, all, true, reason.ConnectionFailed, "; check that the brokers run and that its partitions have enough in-sync replicas"},
		{kerr.NotLeaderForPartition, all, true, reason.ConnectionFailed, "no confirmation within 3s; "},
		{kerr.UnknownServerError, 1, true, reason.Refusing, "; the broker's log says more"},
		{kerr.InvalidRecord, 1, false, reason.Refusing, "INVALID_RECORD"},
		{kerr.PolicyViolation, 1, false, reason.Refusing, "; the broker's log says more"},
		{kerr.TopicAuthorizationFailed, 1, true, reason.AuthenticationFailed, "; allow the dispatcher's user to Describe and Write it"},
		{kerr.UnknownTopicID, all, true, reason.Refusing, "; create it"},
	} {
		t.Run(test.code.Message, func(t *testing.T) {
			timeout := 20 * time.Second
			if test.times == all {
				timeout = 3 * time.Second // to connect too
			}
			c, s := fake(t, timeout)
			refuse(c, test.code, test.times)
			err := sinktest.Send(t, s)
			if test.word == "" {
				if err != nil || count(t, c) != 1 {
					t.Errorf("%d records arrived, and the delivery ended with %v", count(t, c), err)
				}
				return
			}
			sinktest.Want(t, "Deliver", err, false, test.word, test.text)
			sinktest.Fault(t, "Deliver", err, test.fault)
			if _, permanent := dispatcher.PermanentReason(err); permanent {
				t.Errorf("only an event that is too large is dead at once: %v", err)
			}
		})
	}
}

// A producer that may not be one. kgo would say so for ever; the sink requests an id again.
//
// CONTRACT: C-32
func TestClusterNotAuthorized(t *testing.T) {
	c, s := fake(t, 20*time.Second)
	c.ControlKey(apiInitProducerID, func(r kmsg.Request) (kmsg.Response, error, bool) {
		resp := r.ResponseKind().(*kmsg.InitProducerIDResponse)
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp, nil, true
	})
	sinktest.Want(t, "Deliver", sinktest.Send(t, s), true, reason.AuthenticationFailed, "; allow the dispatcher's user to Write a topic, and before Kafka 2.8 also IdempotentWrite")
	if err := sinktest.Send(t, s); err != nil {
		t.Errorf("the right was granted: %v", err)
	}
}

// Brokers that respond, and no partition with a leader: nothing was sent.
//
// CONTRACT: C-32
func TestNoLeader(t *testing.T) {
	c, s := fake(t, time.Second)
	c.ControlKey(apiMetadata, func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.MetadataRequest)
		if len(req.Topics) == 0 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		for _, requested := range req.Topics {
			topic := kmsg.NewMetadataResponseTopic()
			topic.Topic, topic.ErrorCode = requested.Topic, kerr.LeaderNotAvailable.Code
			resp.Topics = append(resp.Topics, topic)
		}
		return resp, nil, true
	})
	sinktest.Want(t, "Deliver", sinktest.Send(t, s), true, reason.ConnectionFailed, "took no record: no confirmation within 1s; check that its partitions have leaders")
}

// One delivery is interrupted while another waits on the same connection: that one ends too,
// and as an attempt, because its record may have arrived.
//
// CONTRACT: C-27
func TestInterruptedDuringAnotherDelivery(t *testing.T) {
	c, s := fake(t, time.Minute)
	sent := sinktest.Watch((*sinktest.Dial)(&s.dial), isProduce)
	if err := sinktest.Send(t, s); err != nil {
		t.Fatal(err)
	}
	<-sent
	hold := make(chan struct{})
	c.ControlKey(apiProduce, func(kmsg.Request) (kmsg.Response, error, bool) {
		c.SleepControl(func() { <-hold })
		return nil, nil, false
	})
	ctx, cancel := context.WithCancel(t.Context())
	interrupted, other := make(chan error), make(chan error)
	go func() { interrupted <- s.Deliver(ctx, []*dispatcher.Event{sinktest.NewEvent()})[0] }()
	<-sent
	go func() { other <- sinktest.Send(t, s) }()
	<-sent
	cancel()
	if err := <-interrupted; !errors.Is(err, context.Canceled) || dispatcher.IsUnavailable(err) {
		t.Errorf("the interrupted delivery: %v", err)
	}
	sinktest.Want(t, "the other delivery", <-other, false, reason.ConnectionFailed, "given up with that of another delivery; ")
	close(hold)
	if err := sinktest.Send(t, s); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// A port that takes connections and says nothing must not delay a sink that is closed.
func TestInterruptedWhileConnecting(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	cfg := config.KafkaSink{Brokers: []string{listener.Addr().String()}}
	for what, call := range map[string]func(context.Context, *sink) error{
		"Deliver": func(ctx context.Context, s *sink) error {
			return s.Deliver(ctx, []*dispatcher.Event{sinktest.NewEvent()})[0]
		},
		"Probe": func(ctx context.Context, s *sink) error { return s.Probe(ctx) },
	} {
		s := open(t, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- call(ctx, s) }()
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		select {
		case err := <-result:
			if !errors.Is(err, context.Canceled) || dispatcher.IsUnavailable(err) {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(5 * time.Second): // kgo's own limit is 10
			t.Errorf("%s does not return", what)
		}
		conn.Close()
	}
}

// What is retired sends nothing, whatever the client still wants to.
//
// CONTRACT: C-27
func TestRetiredSendsNothing(t *testing.T) {
	c, s := fake(t, time.Second)
	ses, err := s.newSession()
	if err != nil {
		t.Fatal(err)
	}
	defer ses.client.Close()
	if err := ses.ready(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	ses.retired.Store(true)
	r, err := s.record(t.Context(), time.Now(), sinktest.NewEvent())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		for range time.Tick(time.Millisecond) {
			if ses.sent.Load() >= 2 || ctx.Err() != nil { // the first was refused, and is tried again
				break
			}
		}
		cancel()
	}()
	if err := ses.produce(ctx, []*kgo.Record{r})[0]; !errors.Is(err, errPending) {
		t.Errorf("the record got %v", err)
	}
	if n := count(t, c); n != 0 || ses.sent.Load() == 0 {
		t.Errorf("%d records arrived, after %d tries to send", n, ses.sent.Load())
	}
}

// The end of a session cuts connections short. That is not why its records failed.
func TestEndOfASessionIsNotItsTrouble(t *testing.T) {
	for _, retired := range []bool{false, true} {
		s := &session{}
		s.retired.Store(retired)
		s.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, context.Canceled)
		if trouble := s.trouble.Load() != nil; trouble == retired {
			t.Errorf("retired is %v, and a connection that failed is its trouble = %v", retired, trouble)
		}
	}
}

// A call that has ended has its own result, also when no goroutine waited for it at that moment.
func TestBoundedCallHasItsOwnResult(t *testing.T) {
	for n := range 20_000 {
		if err := bounded(t.Context(), time.Minute, func(context.Context) error { return nil }); err != nil {
			t.Fatalf("call %d succeeded, and the result is %v", n, err)
		}
	}
}

// A connection that was cut short does not hide why the one before it failed.
func TestCanceledConnectionKeepsTheTrouble(t *testing.T) {
	s, refused := &session{}, errors.New("connection refused")
	s.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, refused)
	s.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, context.Canceled)
	if trouble := s.trouble.Load(); trouble == nil || !errors.Is(*trouble, refused) {
		t.Errorf("the trouble is %v, want that of the first connection", trouble)
	}
}
