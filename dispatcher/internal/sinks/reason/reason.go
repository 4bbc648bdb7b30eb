// Package reason names, in one word, why a destination takes no events. The words are those of
// /status and of the SinkReachable condition's reasons.
package reason

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"

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
