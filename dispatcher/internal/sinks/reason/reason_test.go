package reason_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
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
		if got := reason.Of(test.err); got != test.want {
			t.Errorf("the reason of %v is %q, want %q", test.err, got, test.want)
		}
	}
	if err := reason.With(reason.Refusing, io.EOF); !errors.Is(err, io.EOF) || err.Error() != "EOF" {
		t.Errorf("With changed the error to %v", err)
	}
}

func TestIsTimeout(t *testing.T) {
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
		if got := reason.IsTimeout(test.err); got != test.want {
			t.Errorf("that %v is a timeout: %t, want %t", test.err, got, test.want)
		}
	}
}
