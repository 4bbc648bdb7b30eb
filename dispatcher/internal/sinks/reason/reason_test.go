package reason_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// What real connections return is tested by the sinks.
func TestOfNamesTheCause(t *testing.T) {
	alert := func(op, text string) error {
		return fmt.Errorf("posting: %w", &net.OpError{Op: op, Err: errors.New(text)})
	}
	for _, test := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{io.EOF, reason.Refusing},
		{dispatcher.Unavailable(io.EOF), reason.ConnectionFailed},
		{dispatcher.Unavailable(fmt.Errorf("dial: %w", x509.UnknownAuthorityError{})), reason.CertificateInvalid},
		{dispatcher.Unavailable(alert("remote error", "tls: bad certificate")), reason.CertificateInvalid},
		{dispatcher.Unavailable(alert("remote error", "tls: handshake failure")), reason.ConnectionFailed},
		{alert("read", "certificate"), reason.Refusing},
		{fmt.Errorf("batch: %w", reason.With(reason.AuthenticationFailed, io.EOF)), reason.AuthenticationFailed},
		{dispatcher.Unavailable(reason.With(reason.AuthenticationFailed, io.EOF)), reason.AuthenticationFailed},
	} {
		need.Want(t, test.want, "the reason of %v is %q, want %q", reason.Of(test.err), test.err)
	}
	if err := reason.With(reason.Refusing, io.EOF); !errors.Is(err, io.EOF) || err.Error() != "EOF" {
		t.Errorf("With changed the error to %v", err)
	}
}

func TestIsTimeoutFindsWrappedTimeouts(t *testing.T) {
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{io.EOF, false},
		{context.Canceled, false},
		{fmt.Errorf("posting: %w", context.DeadlineExceeded), true},
		{fmt.Errorf("posting: %w", &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}), true},
		{&net.OpError{Op: "read", Err: io.EOF}, false},
		{dispatcher.Unavailable(reason.TimedOut("the broker did not respond")), true},
	} {
		need.Want(t, test.want, "that %v is a timeout: %t, want %t", reason.IsTimeout(test.err), test.err)
	}
}

// Each cause has its word and its remedy, and who gave up waiting is never the caller.
//
// CONTRACT: C-32
func TestUnreachableNamesCauseAndRemedy(t *testing.T) {
	broker := reason.Peer{Name: "the broker", Hosts: "brokers", TLS: "tls", Plain: "remove tls"}
	alert := func(text string) error { return &net.OpError{Op: "remote error", Err: errors.New("tls: " + text)} }
	const failed, certificate = reason.ConnectionFailed, reason.CertificateInvalid
	const client = "tls.clientCertSecretRef"
	const other = "; check that it runs, that the network lets the dispatcher reach it, and whether the port wants TLS"
	for _, test := range []struct {
		err        error
		word, text string
	}{
		{errors.New("connection refused"), failed, "connection refused" + other},
		{context.DeadlineExceeded, failed, "no response within 2s" + other},
		{&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, failed, "no response within 2s" + other},
		{io.EOF, failed, "closed without a response" + other},
		{fmt.Errorf("reading: %w", io.ErrUnexpectedEOF), failed, "closed without a response" + other},
		{&net.DNSError{Err: "no such host", Name: "a"}, failed, "lookup a: no such host; check the hosts in brokers, and the dispatcher's DNS"},
		{&net.DNSError{Err: "i/o timeout", Name: "a", IsTimeout: true}, failed, "lookup a: i/o timeout; check the hosts in brokers, and the dispatcher's DNS"},
		{tls.RecordHeaderError{Msg: "no TLS"}, failed, "tls: no TLS; no TLS is spoken there: remove tls, or use the port that speaks TLS"},
		{alert("handshake failure"), failed, "remote error: tls: handshake failure; the broker refuses the TLS handshake: it may want a client certificate, in " + client + ", and its log says more"},
		{alert("bad certificate"), certificate, "remote error: tls: bad certificate; the broker does not accept the client certificate: set " + client + " to one that it trusts"},
		{x509.UnknownAuthorityError{}, certificate, "x509: certificate signed by unknown authority; set tls.caSecretRef or caConfigMapRef to the certificate of its authority: none that is there (of the system, where neither is set) has signed it"},
		{x509.HostnameError{Certificate: &x509.Certificate{DNSNames: []string{"b"}}, Host: "a"}, certificate,
			"x509: certificate is valid for b, not a; use hosts in brokers that the certificate names, or set tls.serverName to one"},
		{x509.CertificateInvalidError{Reason: x509.Expired, Detail: "now"}, certificate,
			"x509: certificate has expired or is not yet valid: now; renew the broker's certificate, and check the dispatcher's clock"},
		{x509.CertificateInvalidError{Reason: x509.NotAuthorizedToSign}, certificate,
			"x509: certificate is not authorized to sign other certificates; give the broker a valid certificate"},
		{fmt.Errorf("dialing: %w", reason.With(reason.AuthenticationFailed, errors.New("no password; write one"))), reason.AuthenticationFailed, "no password; write one"},
	} {
		err := broker.Unreachable("a:1", 2*time.Second, test.err)
		if want := "cannot connect to a:1: " + test.text; err.Error() != want || reason.Of(err) != test.word {
			t.Errorf("%v is explained as %s, %v; want %s, %s", test.err, reason.Of(err), err, test.word, want)
		}
		if errors.Is(err, context.DeadlineExceeded) || reason.IsTimeout(err) != reason.IsTimeout(test.err) || dispatcher.IsUnavailable(err) {
			t.Errorf("%v is explained as another kind of error: %#v", test.err, err)
		}
	}
}
