package natssink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// What a message's result can be other than nil and a streamError.
var (
	errUnsent   = errors.New("not sent")
	errNoStream = errors.New("no stream takes it")
	errNoAck    = errors.New("the response is not a confirmation of a stream")
	errDenied   = errors.New("the user may not publish to it")
	errTooLarge = errors.New("the message is too large")
)

// streamError is a stream's refusal.
type streamError struct {
	Status      int    `json:"code"` // as in HTTP
	Code        int    `json:"err_code"`
	Description string `json:"description"`
}

// Error quotes JetStream's own words, and no other client's that may respond on the subject.
func (e *streamError) Error() string {
	if e.Code < 10000 || e.Code > 10999 || strings.ContainsAny(e.Description, "\r\n") || len(e.Description) > 200 {
		return "the response is an error that is not JetStream's"
	}
	return fmt.Sprintf("%s (%d)", e.Description, e.Code)
}

// JetStream's codes of errors that have a remedy of their own.
const (
	accountResources    = 10002
	serverResources     = 10023
	memoryResources     = 10028
	notEnabledAccount   = 10039
	storageResources    = 10047
	messageTooLarge     = 10054
	otherStream         = 10060
	notEnabled          = 10076
	storeFailed         = 10077
	headersTooLarge     = 10097
	sealed              = 10109
	duplicateInProgress = 10158
	tooManyRequests     = 10167
)

// remedy says what to do about a stream's refusal.
func (e *streamError) remedy() string {
	switch e.Code {
	case accountResources, serverResources, memoryResources, storageResources:
		return "raise the limits of JetStream, of the account or of the server, or make room"
	case notEnabledAccount, notEnabled:
		return "enable JetStream for the dispatcher's account"
	case messageTooLarge:
		return "raise the stream's max_msg_size, or make smaller events"
	case headersTooLarge:
		return "use contentMode Structured, or fewer and shorter headers"
	case otherStream:
		return "set stream to the one that captures the subject, or correct the streams' subjects"
	case storeFailed:
		return "make room in the stream, raise its max_msgs and max_bytes, or let it discard old messages"
	case sealed:
		return "let another stream capture the subject"
	case duplicateInProgress:
		return "nothing is to be done: it is tried again"
	case tooManyRequests:
		return "give the stream's servers faster disks, or lower concurrency"
	default:
		return "the servers' log says more"
	}
}

// outcome says what a message's response means.
func (s *sink) outcome(ctx, limited context.Context, ses *session, m *nats.Msg, err error) error {
	say := func(format string, args ...any) error {
		return fmt.Errorf("subject %s at %s: %w", m.Subject, s.At, fmt.Errorf(format, args...))
	}
	var refusal *streamError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal):
		return reason.Coded(strconv.Itoa(refusal.Code), s.refused(m.Subject, refusal, say("%w; %s", refusal, refusal.remedy())))
	case errors.Is(err, errTooLarge):
		return reason.Coded(reason.TooLarge, dispatcher.Permanent(dispatcher.ReasonPermanentFailure, say("%w", err)))
	case errors.Is(err, errNoStream):
		if has, _ := ses.conn.ConnectedServerJetStream(); !has && !ses.over() {
			return s.noStream(m.Subject, say("%w, and the server has no JetStream; enable it, and create a stream that captures the subject", err))
		}
		return s.noStream(m.Subject, say("%w; create one that captures it, as with nats stream add --subjects %s, in an account with JetStream, or bring the servers of its stream back", err, m.Subject))
	case errors.Is(err, errNoAck):
		return s.noStream(m.Subject, say("%w; create one that captures it, and let nothing else respond there", err))
	case errors.Is(err, errDenied):
		return reason.NoDestination(m.Subject == s.subject.Only, reason.With(reason.AuthenticationFailed, say("%w; allow it in the permissions of the dispatcher's user, under publish", err)))
	case ctx.Err() != nil:
		return s.Interrupted(ctx)
	case errors.Is(err, errUnsent):
		return dispatcher.Unavailable(reason.With(reason.ConnectionFailed, say("the connection was lost before the message was sent; check that the servers run%s", ses.then())))
	case limited.Err() != nil:
		return silent(say("%w; check that the servers respond, that a stream captures the subject and that most of its servers run, or raise timeout. The message may have been stored",
			reason.TimedOut(fmt.Sprintf("no confirmation within %s", s.timeout))))
	default:
		return silent(say("the connection was lost before the confirmation; check that the servers run. The message may have been stored%s", ses.then()))
	}
}

// silent is for a message that was sent and not confirmed. No message makes a stream silent: what it does not
// take, it refuses.
func silent(err error) error {
	return dispatcher.DestinationFault(reason.With(reason.ConnectionFailed, err))
}

// noStream is for a subject that no stream takes events from, or not the one of the configuration.
func (s *sink) noStream(subject string, err error) error {
	return reason.NoDestination(subject == s.subject.Only, reason.With(reason.Refusing, reason.Coded("NoStream", err)))
}

// refused is a stream's response, as err says.
func (s *sink) refused(subject string, response *streamError, err error) error {
	switch response.Code {
	case messageTooLarge, headersTooLarge:
		return dispatcher.Permanent(dispatcher.ReasonPermanentFailure, err)
	case otherStream, sealed, notEnabledAccount, notEnabled:
		return s.noStream(subject, err)
	case accountResources, memoryResources, tooManyRequests:
		return dispatcher.DestinationFault(err)
	}
	if response.Status >= 500 { // full, without leader or resources, or in trouble of another kind
		return dispatcher.DestinationFault(err)
	}
	return err
}

// then adds the last that the server said. nats.go's texts for it name no credentials.
func (ses *session) then() string {
	if err := ses.troubled(); err != nil {
		return ". Before that: " + strings.TrimPrefix(err.Error(), "nats: ")
	}
	return ""
}

// peer is who connections are made to.
var peer = reason.Peer{Name: "the server", Hosts: "servers", TLS: "tls", Plain: "remove tls and use nats://"}

// explainLogin is [base.Server].Explain. The texts of a login's errors say only what kind of
// refusal it was.
func explainLogin(err error) error {
	word, remedy := reason.AuthenticationFailed, ""
	switch {
	case errors.Is(err, nats.ErrAuthorization):
		remedy = "add auth, or check what its files hold"
	case errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked), errors.Is(err, nats.ErrAccountAuthExpired):
		remedy = "write new credentials into auth's files"
	case errors.Is(err, nats.ErrNkeysNotSupported):
		remedy = "no NKey is known there: use what the servers want in auth"
	case errors.Is(err, errNoInbox):
		remedy = "allow _INBOX.> in the permissions of the dispatcher's user, under subscribe"
	case errors.Is(err, nats.ErrSecureConnWanted):
		word, remedy = reason.ConnectionFailed, "no TLS is spoken there: "+peer.Plain+", or use the port that speaks TLS"
	case errors.Is(err, nats.ErrNoInfoReceived):
		word, remedy = reason.ConnectionFailed, "no NATS is spoken there: correct the ports in servers"
	}
	if remedy != "" {
		err = reason.With(word, fmt.Errorf("%w; %s", err, remedy))
	}
	return err
}
