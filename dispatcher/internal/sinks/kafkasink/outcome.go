package kafkasink

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

var (
	// errPending is the answer of a record without one.
	errPending = errors.New("not confirmed")
	// errBatchTooLarge is a record's, or that of the batch that it was in.
	errBatchTooLarge = errors.New("the message is too large")
)

// endsSession reports whether no more can be had of the session: a record is without an answer, or
// kgo holds on to what the broker refuses: its producer id, or the id of a topic that was since made
// anew.
func endsSession(err error) bool {
	var answer *kerr.Error
	var leaderless *noLeader
	switch {
	case err == nil, errors.As(err, &leaderless):
		return false
	case errors.As(err, &answer):
		return answer == kerr.ClusterAuthorizationFailed || answer == kerr.UnknownTopicID || answer == kerr.TransactionalIDAuthorizationFailed ||
			answer == kerr.InvalidProducerEpoch || answer == kerr.ProducerFenced
	default:
		return true
	}
}

// outcome says what a record's answer means. unsent is true when no record left this process.
func (s *sink) outcome(ctx context.Context, ses *session, r *kgo.Record, err error, unsent bool) error {
	var answer *kerr.Error
	var leaderless *noLeader
	switch {
	case err == nil:
		return nil
	case errors.As(err, &leaderless):
		return s.leaderless(r, leaderless)
	case errors.As(err, &answer) && answer == kerr.ClusterAuthorizationFailed && unsent:
		return dispatcher.Unavailable(s.refused(r, answer))
	case errors.As(err, &answer):
		return s.refused(r, answer)
	case ctx.Err() != nil:
		return s.interrupted(ctx)
	}
	var cause error = reason.TimedOut(fmt.Sprintf("no confirmation within %s", s.timeout))
	if !errors.Is(err, errPending) {
		cause = errors.New("the connection was given up with that of another delivery")
	}
	trouble := ses.trouble.Load()
	if unsent && trouble != nil {
		return s.unreachable(ctx, *trouble)
	}
	if unsent {
		return dispatcher.Unavailable(reason.With(reason.ConnectionFailed, fmt.Errorf(
			"topic %s at %s took no record: %w; check that its partitions have leaders, and that the brokers answer", r.Topic, s.brokers, cause)))
	}
	err = fmt.Errorf("topic %s at %s: %w; check that the brokers run and that its partitions have enough in-sync replicas, or raise timeout. The record may have been written", r.Topic, s.brokers, cause)
	if trouble != nil {
		err = fmt.Errorf("%w. Then: %w", err, s.connectFailure(*trouble))
	}
	// No record makes a broker silent: what it does not take, it refuses.
	return dispatcher.DestinationFault(reason.With(reason.ConnectionFailed, err))
}

// leaderless is what became of a record whose partition has no leader.
func (s *sink) leaderless(r *kgo.Record, err *noLeader) error {
	failure := fmt.Errorf("topic %s at %s: %w; bring the brokers that have it back, or give the topic more replicas", r.Topic, s.brokers, err)
	if !err.taken {
		return dispatcher.Unavailable(reason.With(reason.ConnectionFailed, failure))
	}
	return dispatcher.DestinationFault(reason.With(reason.ConnectionFailed, fmt.Errorf("%w. The record may have been written", failure)))
}

// refused is a broker's answer, with the name of its code.
func (s *sink) refused(r *kgo.Record, answer *kerr.Error) error {
	return reason.Coded(answer.Message, s.answered(r, answer))
}

// answered says what an answer means. Only Kafka's own words for its error codes are quoted.
func (s *sink) answered(r *kgo.Record, answer *kerr.Error) error {
	say := func(format string, args ...any) error {
		return fmt.Errorf("topic %s at %s: %w", r.Topic, s.brokers, fmt.Errorf(format, args...))
	}
	switch answer {
	case kerr.MessageTooLarge, kerr.RecordListTooLarge:
		return say("%w: about %d bytes; raise maxMessageBytes and the topic's max.message.bytes, or make smaller events", errBatchTooLarge, size(r))
	case kerr.UnknownTopicOrPartition, kerr.UnknownTopicID:
		return reason.NoDestination(r.Topic == s.topic, reason.With(reason.Refusing, say("%w; create it, as with kafka-topics.sh --create --topic %s, or set topic to one that exists", answer, r.Topic)))
	case kerr.TopicAuthorizationFailed:
		return reason.NoDestination(r.Topic == s.topic, reason.With(reason.AuthenticationFailed, say("%w; allow the dispatcher's user to Describe and Write it, as with kafka-acls.sh --add --producer --topic %s", answer, r.Topic)))
	case kerr.ClusterAuthorizationFailed:
		return dispatcher.DestinationFault(reason.With(reason.AuthenticationFailed, say("%w; allow the dispatcher's user to Write a topic, and before Kafka 2.8 also IdempotentWrite on the cluster", answer)))
	case kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend:
		return dispatcher.DestinationFault(say("%w; bring its brokers back, or lower the topic's min.insync.replicas", answer))
	default:
		err := say("%w; the broker's log says more", answer)
		if ofBroker(answer) {
			return dispatcher.DestinationFault(err)
		}
		return err
	}
}

// ofBroker reports whether an answer speaks of the broker's moment. CORRUPT_MESSAGE is said of a record.
func ofBroker(answer *kerr.Error) bool {
	return answer == kerr.UnknownServerError || answer.Retriable && answer != kerr.CorruptMessage
}

// size is about what the record takes in a batch.
func size(r *kgo.Record) int {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// unreachable is a failure before any record was sent.
func (s *sink) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return s.interrupted(ctx)
	}
	return dispatcher.Unavailable(s.connectFailure(err))
}

// peer is who connections are made to.
var peer = reason.Peer{Name: "the broker", Hosts: "brokers, and in the brokers' advertised.listeners,", TLS: "tls", Plain: "remove tls"}

// connectFailure says why there is no connection. Of a login, only Kafka's own words for its error codes
// are quoted.
func (s *sink) connectFailure(err error) error {
	var answer *kerr.Error
	var eof *kgo.ErrFirstReadEOF
	switch {
	case errors.As(err, &answer):
		err = reason.With(reason.AuthenticationFailed, fmt.Errorf("%w; %s", answer, loginRemedy(answer)))
	case errors.Is(err, errLogin):
		err = reason.With(reason.AuthenticationFailed, fmt.Errorf("%w; %s", errLogin, loginRemedy(nil)))
	case errors.As(err, &eof):
		err = reason.With(reason.ConnectionFailed, errors.New("closed without an answer; the port may want TLS, in tls, or a login, in auth"))
	}
	return peer.Unreachable("Kafka at "+s.brokers, min(s.timeout, connectTimeout), err)
}

func loginRemedy(answer *kerr.Error) string {
	switch answer {
	case kerr.UnsupportedSaslMechanism:
		return "set auth.mechanism to one that is enabled at this port, and check the port in brokers"
	case kerr.IllegalSaslState:
		return "no login is wanted there: remove auth, or use the port that wants one"
	default:
		return "check auth.mechanism, and the user and password or token in auth's files"
	}
}

func (s *sink) interrupted(ctx context.Context) error {
	return fmt.Errorf("producing to %s was interrupted: %w", s.brokers, ctx.Err())
}
