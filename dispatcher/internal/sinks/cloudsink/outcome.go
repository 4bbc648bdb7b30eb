package cloudsink

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// refusal is the service's response that it did not take what was sent.
type refusal struct {
	word string
	// code is the service's own for it.
	code string
	// what is the response in the service's own fixed words, and the remedy.
	what string
	// unauthenticated: the service knows no identity by these credentials, whatever is sent.
	unauthenticated bool
	// noPlace: the queue or topic is missing, or closed to the dispatcher.
	noPlace bool
	// fault: it speaks of the service's own trouble.
	fault bool
	// tooLarge: the message will never be taken.
	tooLarge bool
	// perMessage: it may be about one message of several.
	perMessage bool
	// endsLink: the link may have ended with it.
	endsLink bool
}

func (r *refusal) Error() string { return r.what }

// unsent is a failure before anything was sent. Its text has no remedy yet.
type unsent struct{ err error }

func (u *unsent) Error() string { return oneLine(u.err) }
func (u *unsent) Unwrap() error { return u.err }

// noCredentials is the failure to get credentials. Nothing was sent.
type noCredentials struct{ err error }

func (n *noCredentials) Error() string { return oneLine(n.err) }
func (n *noCredentials) Unwrap() error { return n.err }

// unauthenticated reports whether the service refused the credentials.
func unauthenticated(err error) bool {
	var refused *refusal
	return errors.As(err, &refused) && refused.unauthenticated
}

// outcome says what a service's error means. limited is the sink's own limit within ctx.
func (s *sink) outcome(ctx, limited context.Context, to string, err error) error {
	var refused *refusal
	var nothing *unsent
	fault := dispatcher.IsDestinationFault(err)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused) && refused.tooLarge:
		return s.tooLarge(to, reason.Coded(refused.code, refused))
	case errors.As(err, &refused):
		err = reason.Coded(refused.code, reason.With(refused.word, fmt.Errorf("%s: %w", s.name(to), refused)))
		switch {
		case refused.unauthenticated:
			return dispatcher.Unavailable(err)
		case refused.noPlace:
			return reason.NoDestination(to == "" || to == s.place.Only, err) // "" is a probe's
		case refused.fault:
			return dispatcher.DestinationFault(err)
		}
		return err
	case ctx.Err() != nil:
		return s.interrupted(ctx, to)
	case errors.As(err, &nothing):
		return dispatcher.Unavailable(s.unreachable(limited, to, nothing))
	case expired(limited):
		fault = false
		err = reason.TimedOut(fmt.Sprintf("gave no response within %s; raise timeout, or look whether the service is slow", s.timeout))
	default:
		err = fmt.Errorf("%w; look whether the service has trouble", noResponse(err))
	}
	err = reason.With(reason.ConnectionFailed, fmt.Errorf("%s %w. It may have taken the event", s.name(to), err))
	if fault {
		return dispatcher.DestinationFault(err)
	}
	return fmt.Errorf("%w, so this counts as an attempt", err)
}

// heldBack is for messages that were not sent, for others of the batch had no response.
func (s *sink) heldBack(to string) error {
	return dispatcher.Unavailable(reason.With(reason.ConnectionFailed, fmt.Errorf(
		"%s gave no response to others of the batch, so this was not sent; raise timeout, or look whether the service is slow", s.name(to))))
}

// noResponse says that no response could be read, by its HTTP status alone: what came may echo the message.
func noResponse(err error) error {
	var response interface{ HTTPStatusCode() int }
	if errors.As(err, &response) && response.HTTPStatusCode() != 0 { // 0: none came
		return fmt.Errorf("gave no valid response, and the HTTP status %d", response.HTTPStatusCode())
	}
	return errors.New("broke off, or gave no valid response")
}

// unreachable is a failure before anything was sent. The texts of credential errors name roles and files.
func (s *sink) unreachable(limited context.Context, to string, err error) error {
	var credentials *noCredentials
	var authority x509.UnknownAuthorityError
	switch {
	case errors.As(err, &credentials):
		err = reason.With(reason.AuthenticationFailed, errors.New("no credentials: "+credentials.Error()+"; give the pods an identity, as by spec.pods.serviceAccount, or credentials in their environment"))
	case expired(limited):
		err = context.DeadlineExceeded
	case errors.As(err, &authority):
		err = reason.With(reason.CertificateInvalid, fmt.Errorf("%w; put the certificate of its authority into a file, and the file's path into the environment as SSL_CERT_FILE", err))
	case reason.IsCertificate(err):
		err = reason.With(reason.CertificateInvalid, fmt.Errorf("%w; check endpoint, and the service's certificate", err))
	}
	return reason.Peer{Hosts: "endpoint"}.Unreachable(s.name(to), s.timeout, err)
}

// expired reports whether the sink's own limit is over. A connection's deadline, which is the same time,
// may be reported before the context's end.
func expired(limited context.Context) bool {
	deadline, ok := limited.Deadline()
	return limited.Err() != nil || ok && !time.Now().Before(deadline)
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func (s *sink) interrupted(ctx context.Context, to string) error {
	return base.Interrupted(ctx, "sending to "+s.name(to))
}
