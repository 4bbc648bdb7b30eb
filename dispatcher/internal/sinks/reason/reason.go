// Package reason names, in one word, why a destination takes no events. The words are those of
// /status and of the SinkReachable condition's reasons.
package reason

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// The words.
const (
	// ConnectionFailed: no connection, or one that broke or stayed silent.
	ConnectionFailed = "ConnectionFailed"
	// CertificateInvalid: one side does not accept the other's certificate, or a certificate's
	// file cannot be used.
	CertificateInvalid = "CertificateInvalid"
	// AuthenticationFailed: the destination does not accept the credentials, or their file cannot
	// be used.
	AuthenticationFailed = "AuthenticationFailed"
	// Refusing: the destination responds, and refuses.
	Refusing = "Refusing"
)

// With marks err with a word, for a sink that knows better than [Of] could guess.
// The error wraps err, and is never nil.
func With(word string, err error) error { return &marked{word, err} }

// NoDestination marks err as the response that the place is missing, or closed to the dispatcher, which
// speaks of no event. Where every event goes to that place, and so Probe checks it, the destination is
// unavailable. Where routes or topics choose the place, it is the destination's fault (CONTRACT C-32).
// The error wraps err, and is never nil.
func NoDestination(every bool, err error) error {
	if every {
		return dispatcher.Unavailable(err)
	}
	return dispatcher.DestinationFault(err)
}

// Of returns the word for a failure of Deliver or Probe: the one given to [With], else one
// guessed from the kind of error. It returns "" for nil.
func Of(err error) string {
	var m *marked
	switch {
	case err == nil:
		return ""
	case errors.As(err, &m):
		return m.word
	case IsCertificate(err):
		return CertificateInvalid
	case dispatcher.IsUnavailable(err):
		return ConnectionFailed
	default:
		return Refusing
	}
}

// IsCertificate reports whether err says that one side did not accept the other's certificate.
func IsCertificate(err error) bool {
	var verification *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var host x509.HostnameError
	return errors.As(err, &verification) || errors.As(err, &unknown) || errors.As(err, &invalid) ||
		errors.As(err, &host) || IsCertificateRefused(err)
}

// IsCertificateRefused reports whether err is the other side's TLS alert about our certificate, or
// the lack of one. Such an alert ends a handshake: nothing that was sent on the connection was read.
func IsCertificateRefused(err error) bool {
	// crypto/tls has no exported type for an alert: it is known by Op and by its fixed texts.
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error" && strings.Contains(op.Err.Error(), "certificate")
}

type marked struct {
	word string
	err  error
}

func (m *marked) Error() string { return m.err.Error() }
func (m *marked) Unwrap() error { return m.err }

// Codes of causes that no destination gives itself. The words of [Of] are codes too, where there was no response.
const (
	// TooLarge: the message is larger than what is taken.
	TooLarge = "TooLarge"
	// Unwritable: no message can be made of the event.
	Unwritable = "Unwritable"
)

// Coded marks err with the destination's own code for it. The error wraps err.
func Coded(code string, err error) error {
	return dispatcher.WithCause(dispatcher.Cause{Code: code}, err)
}

// Routed marks err as the failure of a route, or of what takes its place, to name a place for the event.
// The error wraps err.
func Routed(err error) error {
	return dispatcher.WithCause(dispatcher.Cause{Class: dispatcher.ClassRoute}, err)
}

// Classify is what each sink defers in Deliver: it gives the errors their cause's class, which is the sink's
// kind, and a code where the destination gave none.
func Classify(class string, errs *[]error) {
	for i, err := range *errs {
		if err != nil {
			(*errs)[i] = dispatcher.WithCause(dispatcher.Cause{Class: class, Code: code(err)}, err)
		}
	}
}

// code is the code of a failure without a response of the destination.
func code(err error) string {
	var m *marked
	switch {
	case IsTimeout(err):
		return dispatcher.CodeTimeout
	case errors.As(err, &m) && m.word == Refusing:
		return ""
	case errors.As(err, &m):
		return m.word
	case IsCertificate(err):
		return CertificateInvalid
	case dispatcher.IsUnavailable(err):
		return ConnectionFailed
	default:
		return ""
	}
}

// TimedOut is a failure because something took too long, with its text. Metrics and spans distinguish it from
// others by its method Timeout.
type TimedOut string

func (t TimedOut) Error() string { return string(t) }

// Timeout is true.
func (TimedOut) Timeout() bool { return true }

// IsTimeout reports whether err says that something took too long: a [TimedOut], a context's deadline, or
// an error of package net.
func IsTimeout(err error) bool {
	var slow interface{ Timeout() bool }
	return errors.As(err, &slow) && slow.Timeout()
}

// Peer is the other end of a sink's connections, and the fields that say how to connect, as errors name
// them.
type Peer struct {
	// Name is what it is, such as "the broker".
	Name string
	// Hosts is the field with its hosts, such as "brokers".
	Hosts string
	// TLS is the field that has the certificates' files, such as "tls".
	TLS string
	// Plain is what to do about a port that speaks no TLS, such as "remove tls".
	Plain string
}

// Unreachable is the error for a connection to place that could not be made within limit: its word, its
// cause and a remedy. An error that [With] gave a word has its remedy already. The texts of dial and
// handshake errors name addresses and certificates, and nothing of a message.
func (p Peer) Unreachable(place string, limit time.Duration, err error) error {
	var known *marked
	if errors.As(err, &known) {
		return With(known.word, fmt.Errorf("cannot connect to %s: %w", place, known.err))
	}
	word, remedy := ConnectionFailed, p.remedy(err)
	var dns *net.DNSError
	switch {
	case IsCertificate(err):
		word = CertificateInvalid
	case errors.As(err, &dns): // its text says whether it took too long
	case IsTimeout(err):
		err = TimedOut(fmt.Sprintf("no response within %s", limit))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("closed without a response")
	}
	return With(word, fmt.Errorf("cannot connect to %s: %w; %s", place, err, remedy))
}

func (p Peer) remedy(err error) string {
	var dns *net.DNSError
	var remote *net.OpError
	var notTLS tls.RecordHeaderError
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var host x509.HostnameError
	client := fmt.Sprintf("%[1]s.clientCertSecretRef", p.TLS)
	switch {
	case errors.As(err, &dns):
		return "check the hosts in " + p.Hosts + ", and the dispatcher's DNS"
	case errors.As(err, &notTLS):
		return "no TLS is spoken there: " + p.Plain + ", or use the port that speaks TLS"
	case errors.As(err, &authority):
		return fmt.Sprintf("set %[1]s.caSecretRef or caConfigMapRef to the certificate of its authority: none that is there (of the system, where neither is set) has signed it", p.TLS)
	case errors.As(err, &host):
		return fmt.Sprintf("use hosts in %s that the certificate names, or set %s.serverName to one", p.Hosts, p.TLS)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "renew " + p.Name + "'s certificate, and check the dispatcher's clock"
	case IsCertificateRefused(err):
		return p.Name + " does not accept the client certificate: set " + client + " to one that it trusts"
	case IsCertificate(err):
		return "give " + p.Name + " a valid certificate"
	case errors.As(err, &remote) && remote.Op == "remote error":
		return p.Name + " refuses the TLS handshake: it may want a client certificate, in " + client + ", and its log says more"
	default:
		return "check that it runs, that the network lets the dispatcher reach it, and whether the port wants TLS"
	}
}
