package kafkasink

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// errBatchTooLarge is a record's, or that of the batch that it was in.
var errBatchTooLarge = errors.New("the message is too large")

// endsSession reports whether no more can be had of the session: a record is without a response, or
// kgo holds on to what the broker refuses: its producer id, or the id of a topic that was since made
// again. Where every record goes to a topic that the session's user may not write, auth's files may name another user by
// now.
func (s *sink) endsSession(err error) bool {
	var response *kerr.Error
	var leaderless *noLeader
	switch {
	case err == nil, errors.As(err, &leaderless):
		return false
	case errors.As(err, &response):
		return response == kerr.ClusterAuthorizationFailed || response == kerr.UnknownTopicID || response == kerr.TransactionalIDAuthorizationFailed ||
			response == kerr.InvalidProducerEpoch || response == kerr.ProducerFenced || response == kerr.TopicAuthorizationFailed && s.topic.Only != ""
	default:
		return true
	}
}

// outcome says what a record's response means. unsent is true when no record left this process.
func (s *sink) outcome(ctx context.Context, ses *session, r *kgo.Record, err error, unsent bool) error {
	var response *kerr.Error
	var leaderless *noLeader
	switch {
	case err == nil:
		return nil
	case errors.As(err, &leaderless):
		return s.leaderless(r, leaderless)
	case errors.As(err, &response) && response == kerr.ClusterAuthorizationFailed && unsent:
		return dispatcher.Unavailable(s.refused(r, response))
	case errors.As(err, &response):
		return s.refused(r, response)
	case ctx.Err() != nil:
		return s.Interrupted(ctx)
	}
	var cause error = reason.TimedOut(fmt.Sprintf("no confirmation within %s", s.timeout))
	if !errors.Is(err, base.ErrPending) {
		cause = errors.New("the connection was given up with that of another delivery")
	}
	trouble := ses.trouble.Load()
	if unsent && trouble != nil {
		return s.Unreachable(ctx, *trouble)
	}
	if unsent {
		return dispatcher.Unavailable(reason.With(reason.ConnectionFailed, fmt.Errorf(
			"topic %s at %s took no record: %w; check that its partitions have leaders, and that the brokers respond", r.Topic, s.At, cause)))
	}
	err = fmt.Errorf("topic %s at %s: %w; check that the brokers run and that its partitions have enough in-sync replicas, or raise timeout. The record may have been written", r.Topic, s.At, cause)
	if trouble != nil {
		err = fmt.Errorf("%w. Then: %w", err, s.ConnectFailure(*trouble))
	}
	// No record makes a broker silent: what it does not take, it refuses.
	return dispatcher.DestinationFault(reason.With(reason.ConnectionFailed, err))
}

// leaderless is what became of a record whose partition has no leader.
func (s *sink) leaderless(r *kgo.Record, err *noLeader) error {
	failure := fmt.Errorf("topic %s at %s: %w; bring the brokers that have it back, or give the topic more replicas", r.Topic, s.At, err)
	if !err.taken {
		return dispatcher.Unavailable(reason.With(reason.ConnectionFailed, failure))
	}
	return dispatcher.DestinationFault(reason.With(reason.ConnectionFailed, fmt.Errorf("%w. The record may have been written", failure)))
}

// refused is a broker's response, with the name of its code.
func (s *sink) refused(r *kgo.Record, response *kerr.Error) error {
	return reason.Coded(response.Message, s.explain(r, response))
}

// explain says what a response means. Only Kafka's own words for its error codes are quoted.
func (s *sink) explain(r *kgo.Record, response *kerr.Error) error {
	say := func(format string, args ...any) error {
		return fmt.Errorf("topic %s at %s: %w", r.Topic, s.At, fmt.Errorf(format, args...))
	}
	switch response {
	case kerr.MessageTooLarge, kerr.RecordListTooLarge:
		return say("%w: about %d bytes; raise maxMessageBytes and the topic's max.message.bytes, or make smaller events", errBatchTooLarge, size(r))
	case kerr.UnknownTopicOrPartition, kerr.UnknownTopicID:
		return reason.NoDestination(r.Topic == s.topic.Only, reason.With(reason.Refusing, say("%w; create it, as with kafka-topics.sh --create --topic %s, or set topic to one that exists", response, r.Topic)))
	case kerr.TopicAuthorizationFailed:
		return reason.NoDestination(r.Topic == s.topic.Only, reason.With(reason.AuthenticationFailed, say("%w; allow the dispatcher's user to Describe and Write it, as with kafka-acls.sh --add --producer --topic %s", response, r.Topic)))
	case kerr.ClusterAuthorizationFailed:
		return dispatcher.DestinationFault(reason.With(reason.AuthenticationFailed, say("%w; allow the dispatcher's user to Write a topic, and before Kafka 2.8 also IdempotentWrite on the cluster", response)))
	case kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend:
		return dispatcher.DestinationFault(say("%w; bring its brokers back, or lower the topic's min.insync.replicas", response))
	default:
		err := say("%w; the broker's log says more", response)
		if ofBroker(response) {
			return dispatcher.DestinationFault(err)
		}
		return err
	}
}

// ofBroker reports whether a response is about the broker, not the record. CORRUPT_MESSAGE is said of a record.
func ofBroker(response *kerr.Error) bool {
	return response == kerr.UnknownServerError || response.Retriable && response != kerr.CorruptMessage
}

// size is about what the record takes in a batch.
func size(r *kgo.Record) int {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// peer is who connections are made to.
var peer = reason.Peer{Name: "the broker", Hosts: "brokers, and in the brokers' advertised.listeners,", TLS: "tls", Plain: "remove tls"}

// explainLogin is [base.Server].Explain. Of a login, only Kafka's own words for its error codes
// are quoted.
func explainLogin(err error) error {
	var response *kerr.Error
	var eof *kgo.ErrFirstReadEOF
	switch {
	case errors.As(err, &response):
		err = reason.With(reason.AuthenticationFailed, fmt.Errorf("%w; %s", response, loginRemedy(response)))
	case errors.Is(err, errLogin):
		err = reason.With(reason.AuthenticationFailed, fmt.Errorf("%w; %s", errLogin, loginRemedy(nil)))
	case errors.As(err, &eof):
		err = reason.With(reason.ConnectionFailed, errors.New("closed without a response; the port may want TLS, in tls, or a login, in auth"))
	}
	return err
}

func loginRemedy(response *kerr.Error) string {
	switch response {
	case kerr.UnsupportedSaslMechanism:
		return "set auth.type to one that is enabled at this port, and check the port in brokers"
	case kerr.IllegalSaslState:
		return "no login is wanted there: remove auth, or use the port that wants one"
	default:
		return "check auth.type, and the user and password or token in auth's files"
	}
}
