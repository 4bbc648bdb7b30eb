package files

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// Credential is Read for what a login takes: it fails with the word [reason.AuthenticationFailed].
func Credential(field, path string) (string, error) {
	content, err := Read(field, path)
	if err != nil {
		return "", reason.With(reason.AuthenticationFailed, err)
	}
	return string(content), nil
}

// Dial connects to host:port, with TLS unless cfg is nil; its files are read for each connection. One
// that cannot be used is an error with the word [reason.CertificateInvalid]. raw is the connection below
// TLS, or conn itself.
func Dial(ctx context.Context, cfg *spec.TLS, address string) (conn, raw net.Conn, err error) {
	var c *tls.Config
	if cfg != nil {
		if c, err = TLS(cfg); err == nil && c.ServerName == "" {
			c.ServerName, _, err = net.SplitHostPort(address)
		}
		if err != nil {
			return nil, nil, reason.With(reason.CertificateInvalid, err)
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

// Dialer returns Dial within limit, as clients' libraries want it.
func Dialer(cfg *spec.TLS, limit time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, _, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		conn, _, err := Dial(ctx, cfg, address)
		return conn, err
	}
}
