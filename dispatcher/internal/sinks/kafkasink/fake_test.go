package kafkasink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
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
	need.OK(t, err)
	t.Cleanup(c.Close)
	return c, open(t, spec.KafkaSink{Brokers: c.ListenAddrs(), Access: spec.Access{Timeout: spec.Duration(timeout)}})
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
	need.OK(t, err)
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(t.Context(), "orders")
	need.OK(t, err)
	end, _ := ends.Lookup("orders", 0)
	return end.Offset
}

// CONTRACT: C-32
func TestBrokerResponsesDecideTheOutcome(t *testing.T) {
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
			sinktest.IsFault(t, "Deliver", err, test.fault)
			_, permanent := dispatcher.PermanentReason(err)
			need.That(t, !permanent, "only an event that is too large is dead at once: %v", err)
		})
	}
}

// A producer that may not be one. kgo would say so for ever; the sink requests an id again.
//
// CONTRACT: C-32
func TestRefusedProducerRequestsAnIDAgain(t *testing.T) {
	c, s := fake(t, 20*time.Second)
	c.ControlKey(apiInitProducerID, func(r kmsg.Request) (kmsg.Response, error, bool) {
		resp := r.ResponseKind().(*kmsg.InitProducerIDResponse)
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp, nil, true
	})
	sinktest.Want(t, "Deliver", sinktest.Send(t, s), true, reason.AuthenticationFailed, "; allow the dispatcher's user to Write a topic, and before Kafka 2.8 also IdempotentWrite")
	need.Want(t, nil, "the right was granted: %v", sinktest.Send(t, s))
}

// Brokers that respond, and no partition with a leader: nothing was sent.
//
// CONTRACT: C-32
func TestNothingIsSentWithoutALeader(t *testing.T) {
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
func TestInterruptionEndsTheSessionsOtherDelivery(t *testing.T) {
	c, s := fake(t, time.Minute)
	sent := sinktest.Watch((*sinktest.Dial)(&s.dial), isProduce)
	need.OK(t, sinktest.Send(t, s))
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
	err := <-interrupted
	need.That(t, errors.Is(err, context.Canceled) && !dispatcher.IsUnavailable(err), "the interrupted delivery: %v", err)
	sinktest.Want(t, "the other delivery", <-other, false, reason.ConnectionFailed, "given up with that of another delivery; ")
	close(hold)
	need.Want(t, nil, "after that: %v", sinktest.Send(t, s))
}

// A port that takes connections and says nothing must not delay a sink that is closed.
func TestInterruptionEndsAConnectionBeingMade(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	need.OK(t, err)
	defer listener.Close()
	cfg := spec.KafkaSink{Brokers: []string{listener.Addr().String()}}
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
		need.OK(t, err)
		cancel()
		select {
		case err := <-result:
			need.That(t, errors.Is(err, context.Canceled) && !dispatcher.IsUnavailable(err), "%s: %v", what, err)
		case <-time.After(need.Wait): // kgo's own limit gives another error
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
	need.OK(t, err)
	defer ses.client.Close()
	need.OK(t, ses.ready(t.Context(), time.Minute))
	ses.retired.Store(true)
	r, err := s.record(t.Context(), time.Now(), sinktest.NewEvent())
	need.OK(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), need.Wait)
	defer cancel()
	go func() {
		for range time.Tick(time.Millisecond) {
			if ses.sent.Load() >= 2 || ctx.Err() != nil { // the first was refused, and is tried again
				break
			}
		}
		cancel()
	}()
	if err := ses.produce(ctx, []*kgo.Record{r})[0]; !errors.Is(err, base.ErrPending) {
		t.Errorf("the record got %v", err)
	}
	n := count(t, c)
	need.That(t, n == 0 && ses.sent.Load() != 0, "%d records arrived, after %d tries to send", n, ses.sent.Load())
}

// The end of a session cuts connections short. That is not why its records failed.
func TestEndOfASessionIsNotItsTrouble(t *testing.T) {
	for _, retired := range []bool{false, true} {
		s := &session{}
		s.retired.Store(retired)
		s.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, context.Canceled)
		trouble := s.trouble.Load() != nil
		need.That(t, trouble != retired, "retired is %v, and a connection that failed is its trouble = %v", retired, trouble)
	}
}

// A call that has ended has its own result, also when no goroutine waited for it at that moment.
func TestBoundedCallHasItsOwnResult(t *testing.T) {
	for n := range 20_000 {
		err := bounded(t.Context(), time.Minute, func(context.Context) error { return nil })
		need.Must(t, err == nil, "call %d succeeded, and the result is %v", n, err)
	}
}

// A connection that was cut short does not hide why the one before it failed.
func TestCanceledConnectionKeepsTheTrouble(t *testing.T) {
	s, refused := &session{}, errors.New("connection refused")
	s.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, refused)
	s.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, context.Canceled)
	trouble := s.trouble.Load()
	need.That(t, trouble != nil && errors.Is(*trouble, refused), "the trouble is %v, want that of the first connection", trouble)
}

// What an operator reads when something is wrong with the real broker, word for word.
//
// CONTRACT: C-32, C-73
func TestBrokerErrorsNameTheRemedy(t *testing.T) {
	topic := newTopic(t, 1)
	trust := &spec.TLS{CAFile: sinktest.File(t, "ca.crt", certs.CA.PEM)}
	connect := func(t *testing.T, s *sink) {
		need.OK(t, sinktest.Send(t, s))
	}
	pause := func() { theBroker.Server.Pause(); t.Cleanup(theBroker.Server.Resume) }
	for _, test := range []struct {
		name     string
		listener string // Plain when empty
		change   func(*spec.KafkaSink)
		before   func(*testing.T, *sink) // the delivery
		after    func()
		event    *dispatcher.Event

		class      sinktest.Class
		word, text string
	}{
		{name: "wrong password", listener: "SASL",
			change: func(c *spec.KafkaSink) {
				c.Auth = passwordLogin(t, spec.AuthScramSHA512, alice, sinktest.WrongSecret)
			},
			class: sinktest.Unavailable, word: reason.AuthenticationFailed,
			text: "cannot connect to Kafka at {broker}: SASL_AUTHENTICATION_FAILED: SASL Authentication failed.; check auth.type, and the user and password or token in auth's files"},
		{name: "expired certificate", listener: "EXPIRED",
			change: func(c *spec.KafkaSink) { c.TLS = trust },
			class:  sinktest.Unavailable, word: reason.CertificateInvalid,
			text: "cannot connect to Kafka at {broker}: unable to dial: tls: failed to verify certificate: x509: certificate has expired or is not yet valid: {time}; renew the broker's certificate, and check the dispatcher's clock"},
		{name: "missing topic",
			change: func(c *spec.KafkaSink) { c.Topic = "missing-" + topic },
			class:  sinktest.Unavailable, word: reason.Refusing,
			text: "topic missing-{topic} at {broker}: UNKNOWN_TOPIC_OR_PARTITION: This server does not host this topic-partition.; create it, as with kafka-topics.sh --create --topic missing-{topic}, or set topic to one that exists"},
		{name: "too large", event: sinktest.Sized(1_100_000),
			class: sinktest.Permanent, word: reason.Refusing,
			text: "permanent_failure: topic {topic} at {broker}: the message is too large: about 1100415 bytes; raise maxMessageBytes and the topic's max.message.bytes, or make smaller events"},
		{name: "slow, and the record was sent",
			before: func(t *testing.T, s *sink) { connect(t, s); pause() }, after: func() { theBroker.Server.Resume() },
			class: sinktest.Fault, word: reason.ConnectionFailed,
			text: "topic {topic} at {broker}: no confirmation within 2s; check that the brokers run and that its partitions have enough in-sync replicas, or raise timeout. The record may have been written"},
		{name: "slow, and nothing was sent",
			before: func(*testing.T, *sink) { pause() }, after: func() { theBroker.Server.Resume() },
			class: sinktest.Unavailable, word: reason.ConnectionFailed,
			text: "cannot connect to Kafka at {broker}: no response within 2s; check that it runs, that the network lets the dispatcher reach it, and whether the port wants TLS"},
		{name: "gone",
			before: func(t *testing.T, _ *sink) { sinktest.Kill(t, theBroker.Server) },
			class:  sinktest.Unavailable, word: reason.ConnectionFailed,
			text: "cannot connect to Kafka at {broker}: unable to dial: dial tcp {broker}: connect: connection refused; check that it runs, that the network lets the dispatcher reach it, and whether the port wants TLS"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := plainConfig(t, topic)
			if strings.Contains(test.text, "within 2s") {
				cfg.Timeout = spec.Duration(2 * time.Second)
			}
			if test.listener != "" {
				cfg.Brokers = []string{theBroker.Server.Address(test.listener)}
			}
			if test.change != nil {
				test.change(&cfg)
			}
			s := open(t, cfg)
			if test.before != nil {
				test.before(t, s)
			}
			e := test.event
			if e == nil {
				e = sinktest.NewEvent()
			}
			err := sinktest.Verify(t, s.Deliver(t.Context(), []*dispatcher.Event{e})[0])
			if test.after != nil {
				test.after()
			}
			compare(t, err, test.class, test.word, strings.NewReplacer("{broker}", cfg.Brokers[0], "{topic}", topic).Replace(test.text))
		})
	}
}

// compare checks an outcome; {time} stands for any time.
func compare(t *testing.T, err error, class sinktest.Class, word, text string) {
	t.Helper()
	sinktest.Outcome(t, "Deliver", err, class, word, "")
	front, back, _ := strings.Cut(text, "{time}")
	got := err.Error()
	need.That(t, strings.HasPrefix(got, front) && strings.HasSuffix(got, back), "the error says\n\t%s\nwant\n\t%s", got, text)
}

// A broker whose only disk is full ends. Nothing that it confirmed is lost, and when there is room again
// it takes the rest.
//
// CONTRACT: C-32
func TestFullDiskLosesNothingConfirmed(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk")
	need.OK(t, os.Mkdir(disk, 0o700))
	mount(t, "-t", "tmpfs", "-o", "size=32m", "tmpfs", disk)
	t.Cleanup(func() {
		if out, err := exec.Command("umount", disk).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	b, err := kafka.Start(t.Context(), kafka.Options{ShortLived: true, Settings: map[string]string{"log.dirs": filepath.Join(disk, "data")}})
	need.OK(t, err)
	t.Cleanup(func() {
		need.Want(t, nil, "%v", b.Stop(context.Background()))
	})
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Address(kafka.Plain)))
	need.OK(t, err)
	defer client.Close()
	admin := kadm.NewClient(client)
	need.OK(t, need.Err(admin.CreateTopic(t.Context(), 1, 1, nil, "orders")))
	s := open(t, spec.KafkaSink{Brokers: []string{b.Address(kafka.Plain)}, Topic: "orders", Compression: spec.CompressionNone, Access: spec.Access{Timeout: spec.Duration(3 * time.Second)}})
	deliver := func() error {
		return sinktest.Verify(t, s.Deliver(t.Context(), []*dispatcher.Event{sinktest.Sized(900_000)})[0])
	}
	confirmed := int64(0)
	for err = deliver(); err == nil && confirmed < 100; err = deliver() {
		confirmed++
	}
	sinktest.Want(t, "the first that finds no room", err, false, reason.ConnectionFailed, "no confirmation within 3s; check that the brokers run")
	sinktest.Want(t, "the next", deliver(), true, reason.ConnectionFailed, "connection refused; check that it runs")

	mount(t, "-o", "remount,size=256m", disk)
	need.OK(t, b.Restart(t.Context()))
	need.Want(t, nil, "there is room again: %v", deliver())
	ends, err := admin.ListEndOffsets(t.Context(), "orders")
	need.OK(t, err)
	end, _ := ends.Lookup("orders", 0)
	need.That(t, end.Offset >= confirmed+1, "%d records are there, and %d were confirmed", end.Offset, confirmed+1)
}

func mount(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
		need.Missing(t, fmt.Errorf("a small disk takes the right to mount one, which root has outside of most containers: %w: %s", err, out))
	}
}
