package files

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/reason"
)

// Error is a file of the configuration that cannot be used. Its text has the remedy, so that a sink adds
// nothing to it.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Credential is Read for what a login takes: it fails with an [Error] and the word
// [reason.AuthenticationFailed].
func Credential(field, path string) (string, error) {
	content, err := Read(field, path)
	if err != nil {
		return "", reason.With(reason.AuthenticationFailed, &Error{err})
	}
	return string(content), nil
}

// Dial connects to host:port, with TLS unless cfg is nil; its files are read for each connection. One
// that cannot be used is an [Error] with the word [reason.CertificateInvalid]. raw is the connection
// below TLS, or conn itself.
func Dial(ctx context.Context, cfg *config.TLS, address string) (conn, raw net.Conn, err error) {
	var c *tls.Config
	if cfg != nil {
		if c, err = TLS(cfg); err == nil && c.ServerName == "" {
			c.ServerName, _, err = net.SplitHostPort(address)
		}
		if err != nil {
			return nil, nil, reason.With(reason.CertificateInvalid, &Error{err})
		}
	}
	raw, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil || c == nil {
		return raw, raw, err
	}
	secure := tls.Client(raw, c)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, nil, err
	}
	return secure, raw, nil
}
