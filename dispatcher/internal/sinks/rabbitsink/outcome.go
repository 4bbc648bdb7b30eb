package rabbitsink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// refusedMessage is the broker's refusal of one message, for which it closed the channel.
type refusedMessage struct {
	error
	permanent bool // the message will never be taken
}

func (r *refusedMessage) Unwrap() error { return r.error }

// ofChannel reports whether the broker closed a channel, and not the connection with it.
func ofChannel(e *amqp.Error) bool { return e.Server && e.Recover }

// ofUser reports whether the broker refuses whatever the user sends, and not only a routing key.
func ofUser(e *amqp.Error) bool {
	return e.Code == amqp.AccessRefused && !strings.Contains(e.Reason, "to topic")
}

// at begins an error about a message.
func (s *sink) at(key string) string {
	if s.cfg.Exchange == amqp.DefaultExchange {
		return fmt.Sprintf("queue %q at %s", key, s.At)
	}
	return fmt.Sprintf("exchange %q, routing key %q at %s", s.cfg.Exchange, key, s.At)
}

// destinationMissing is the error when the exchange, or with the default exchange the queue, does not exist.
func (s *sink) destinationMissing() error {
	err := fmt.Errorf("exchange %q at %s does not exist; declare it, or correct exchange", s.cfg.Exchange, s.At)
	if s.cfg.Exchange == amqp.DefaultExchange {
		err = s.noQueue(s.key.Only)
	}
	return dispatcher.Unavailable(reason.With(reason.Refusing, err))
}

func (s *sink) noQueue(name string) error {
	return fmt.Errorf("%s does not exist; declare it, or set routingKey to the name of a queue, or exchange to one that has queues", s.at(name))
}

func (s *sink) notTaken(m *message) error {
	return reason.Coded("NACK", dispatcher.DestinationFault(fmt.Errorf("%s: the broker did not take the message (basic.nack); a queue is full or has failed: make room in it, raise its max-length, or look into the broker's log", s.at(m.key))))
}

func (s *sink) unroutable(m *message) error {
	if s.cfg.Exchange == amqp.DefaultExchange {
		return reason.Coded("NO_ROUTE", reason.NoDestination(m.key == s.key.Only, reason.With(reason.Refusing, s.noQueue(m.key))))
	}
	// Which queues are bound cannot be queried.
	return reason.Coded("NO_ROUTE", dispatcher.DestinationFault(fmt.Errorf("%s: no queue is bound for it; bind one, or correct routingKey", s.at(m.key))))
}

// outcome says what became of a message.
func (s *sink) outcome(ctx context.Context, e end, a *attempt) error {
	switch {
	case a.responded:
		return a.err
	case e.refusal != nil:
		return reason.Coded(name(e.refusal.Code), s.refused(a.message, e.refusal))
	case ctx.Err() != nil:
		return s.Interrupted(ctx)
	case e.blocked != nil && !a.sent:
		return s.isBlocked(*e.blocked)
	case !a.sent:
		return dispatcher.Unavailable(reason.With(reason.ConnectionFailed, fmt.Errorf("%s: %w; check that the broker runs and the network is well", s.at(a.key), s.silence(e))))
	}
	// No message makes a broker silent: what it does not take, it refuses.
	err := fmt.Errorf("%s: %w; check that the broker runs and keeps up, or raise timeout. The message may have been written", s.at(a.key), s.silence(e))
	word := reason.ConnectionFailed
	if e.blocked != nil {
		word, err = reason.Refusing, fmt.Errorf("%s: %w. The message may have been written. %w", s.at(a.key), s.silence(e), s.isBlocked(*e.blocked))
	}
	return dispatcher.DestinationFault(reason.With(word, err))
}

// silence is why there is no response, when the broker did not refuse.
func (s *sink) silence(e end) error {
	var response *amqp.Error
	switch {
	case errors.As(e.lostBy, &response) && response.Server:
		return fmt.Errorf("the broker closed the connection (%s)", name(response.Code))
	case e.lost:
		return errors.New("the connection was lost")
	default:
		return reason.TimedOut(fmt.Sprintf("no confirmation within %s", s.timeout))
	}
}

// refused is the broker's reason to close the channel. Its text names users: it is read, not quoted.
func (s *sink) refused(m *message, e *amqp.Error) error {
	say := func(format string, args ...any) error {
		return fmt.Errorf("%s: %s: %w", s.at(m.key), name(e.Code), fmt.Errorf(format, args...))
	}
	switch {
	case e.Code == amqp.NotFound:
		return s.destinationMissing()
	case e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "size"):
		return &refusedMessage{error: say("the message is too large: %d bytes; raise the broker's max_message_size, or make smaller events", len(m.Body)), permanent: true}
	case e.Code == amqp.AccessRefused && !ofUser(e):
		return &refusedMessage{error: dispatcher.DestinationFault(reason.With(reason.AuthenticationFailed, say("the dispatcher's user may not write with this routing key; allow it, as with rabbitmqctl set_topic_permissions")))}
	case e.Code == amqp.AccessRefused:
		return dispatcher.Unavailable(reason.With(reason.AuthenticationFailed, say("the dispatcher's user may not write to the exchange, or it is internal; allow the user to write, as with rabbitmqctl set_permissions -p %s USER '' '^%s$' ''", s.cfg.VHost, s.cfg.Exchange)))
	case e.Code == amqp.InternalError, e.Code == amqp.ResourceError, e.Code == amqp.ResourceLocked:
		return dispatcher.DestinationFault(say("the broker has trouble; its log says more"))
	default:
		return &refusedMessage{error: say("the broker refuses a message; its log says more")}
	}
}

// name is the code as AMQP names it.
func name(code int) string {
	if known, ok := map[int]string{
		amqp.ContentTooLarge: "CONTENT_TOO_LARGE", amqp.ConnectionForced: "CONNECTION_FORCED",
		amqp.AccessRefused: "ACCESS_REFUSED", amqp.NotFound: "NOT_FOUND", amqp.ResourceLocked: "RESOURCE_LOCKED",
		amqp.PreconditionFailed: "PRECONDITION_FAILED", amqp.FrameError: "FRAME_ERROR", amqp.NotAllowed: "NOT_ALLOWED",
		amqp.ResourceError: "RESOURCE_ERROR", amqp.InternalError: "INTERNAL_ERROR",
	}[code]; ok {
		return known
	}
	return fmt.Sprintf("CODE_%d", code)
}

// isBlocked is for a message that was not sent while the broker takes none. The text is the broker's:
// low on memory, low on disk.
func (s *sink) isBlocked(why string) error {
	return dispatcher.Unavailable(reason.With(reason.Refusing, fmt.Errorf(
		"RabbitMQ at %s has blocked publishers: %s; free some, or change its vm_memory_high_watermark or disk_free_limit", s.At, why)))
}

// heldBack is for messages that were not sent, for the first one on the connection had no response.
func (s *sink) heldBack(ctx context.Context, ses *session) error {
	if ctx.Err() != nil {
		return s.Interrupted(ctx)
	}
	if why := ses.reason.Load(); why != nil {
		return s.isBlocked(*why)
	}
	return dispatcher.Unavailable(reason.With(reason.ConnectionFailed, fmt.Errorf(
		"RabbitMQ at %s did not confirm the first message on a connection, so no more were sent; check that the broker runs and keeps up, or raise timeout", s.At)))
}

// isLogin reports whether the broker refuses the user or the vhost, which another node would refuse too.
func isLogin(err error) bool {
	var e *amqp.Error
	return errors.As(err, &e) && (e.Code == amqp.AccessRefused || e.Code == amqp.NotAllowed && !isFullNode(e))
}

// isFullNode reports whether this node has as many connections as it takes. Another one may have fewer.
func isFullNode(e *amqp.Error) bool {
	return e.Code == amqp.NotAllowed && strings.Contains(e.Reason, "refused: node connection limit")
}

// peer is who connections are made to.
var peer = reason.Peer{Name: "the broker", Hosts: "addresses", TLS: "tls", Plain: "remove tls"}

// explainLogin is [base.Server].Explain.
func (s *sink) explainLogin(err error) error {
	var response *amqp.Error
	switch {
	case errors.As(err, &response):
		word, remedy, cause := s.loginRefusal(response)
		err = reason.With(word, fmt.Errorf("%w; %s", cause, remedy))
	case errors.Is(err, io.EOF):
		err = reason.With(reason.ConnectionFailed, errors.New("closed without a response; the port may want TLS, in tls, or be no port for AMQP"))
	}
	return err
}

// loginRefusal is why the login fails. The broker's own text names users, and is not quoted.
func (s *sink) loginRefusal(e *amqp.Error) (word, remedy string, err error) {
	text := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", name(e.Code), fmt.Errorf(format, args...))
	}
	switch {
	case errors.Is(e, amqp.ErrSASL):
		return reason.AuthenticationFailed, "enable it, with the plugin rabbitmq_auth_mechanism_ssl for EXTERNAL, or set auth.type to another",
			fmt.Errorf("it does not offer the login of type %s", s.cfg.Auth.Type)
	case e.Code == amqp.AccessRefused:
		return reason.AuthenticationFailed, "check the user and the password in auth's files, or that a user has the certificate's name; the user guest may come from the broker's own host only",
			text("the login is refused")
	case e.Code == amqp.NotAllowed && strings.Contains(e.Reason, "not found"):
		return reason.Refusing, "create it, as with rabbitmqctl add_vhost, or correct vhost", text("vhost %q does not exist", s.cfg.VHost)
	case isFullNode(e):
		return reason.Refusing, "raise its connection_max, or list more nodes in addresses", text("the node has as many connections as it takes")
	case e.Code == amqp.NotAllowed && strings.HasSuffix(e.Reason, ") is reached"):
		return reason.Refusing, "raise the limit, as with rabbitmqctl set_vhost_limits or set_user_limits",
			text("vhost %q, or the dispatcher's user, has as many connections as it may have", s.cfg.VHost)
	case e.Code == amqp.NotAllowed:
		return reason.AuthenticationFailed, "allow it, as with rabbitmqctl set_permissions",
			text("vhost %q is closed to the dispatcher's user", s.cfg.VHost)
	case e.Server:
		return reason.Refusing, "look into the broker's log", text("it rejects the dispatcher")
	default:
		return reason.ConnectionFailed, "check the port in addresses, and whether it wants TLS", errors.New("no AMQP is spoken there")
	}
}
