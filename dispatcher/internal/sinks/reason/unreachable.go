package reason

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

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
	client := fmt.Sprintf("%[1]s.clientCertSecretRef (in a dispatcher's file: %[1]s.clientCertFile and %[1]s.clientKeyFile)", p.TLS)
	switch {
	case errors.As(err, &dns):
		return "check the hosts in " + p.Hosts + ", and the dispatcher's DNS"
	case errors.As(err, &notTLS):
		return "no TLS is spoken there: " + p.Plain + ", or use the port that speaks TLS"
	case errors.As(err, &authority):
		return fmt.Sprintf("set %[1]s.caSecretRef or caConfigMapRef (in a dispatcher's file: %[1]s.caFile) to the certificate of its authority", p.TLS)
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
