package redissink

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/files"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/reason"
)

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// newDialer returns a dialer that reads the files of cfg for each connection.
func newDialer(cfg *config.TLS) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		var c *tls.Config
		if cfg != nil {
			var err error
			if c, err = tlsConfig(cfg, address); err != nil {
				return nil, reason.With(reason.CertificateInvalid, &fileError{err})
			}
		}
		raw, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil || c == nil {
			return raw, err
		}
		secure := tls.Client(raw, c)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, err
		}
		return secure, nil
	}
}

// fileError is a file of the configuration that cannot be used. Its text has the remedy.
type fileError struct{ error }

func (e *fileError) Unwrap() error { return e.error }

func tlsConfig(cfg *config.TLS, address string) (*tls.Config, error) {
	c, err := files.TLS(cfg)
	if err == nil && c.ServerName == "" {
		c.ServerName, _, err = net.SplitHostPort(address)
	}
	return c, err
}

// credentials reads the login's files. go-redis asks for it at each connection.
func (s *sink) credentials(context.Context) (user, password string, err error) {
	for _, f := range []struct {
		field, path string
		value       *string
	}{{"usernameFile", s.cfg.UsernameFile, &user}, {"passwordFile", s.cfg.PasswordFile, &password}} {
		if f.path == "" {
			continue
		}
		content, err := files.Read(f.field, f.path)
		if err != nil {
			return "", "", reason.With(reason.AuthenticationFailed, &fileError{err})
		}
		*f.value = string(content)
	}
	return user, password, nil
}
