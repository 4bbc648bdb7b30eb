package rabbitsink

import (
	"context"
	"crypto/tls"
	"net"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/files"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/reason"
)

// fileError is a file of the configuration that cannot be used. Its text has the remedy.
type fileError struct{ error }

func (e *fileError) Unwrap() error { return e.error }

// dial connects, with TLS if cfg asks for it. Its files are read each time.
func dial(ctx context.Context, cfg *config.TLS, address string) (*wire, error) {
	var c *tls.Config
	if cfg != nil {
		var err error
		if c, err = tlsConfig(cfg, address); err != nil {
			return nil, reason.With(reason.CertificateInvalid, &fileError{err})
		}
	}
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil || c == nil {
		return newWire(raw, raw), err
	}
	secure := tls.Client(raw, c)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return newWire(secure, raw), nil
}

func tlsConfig(cfg *config.TLS, address string) (*tls.Config, error) {
	c, err := files.TLS(cfg)
	if err == nil && c.ServerName == "" {
		c.ServerName, _, err = net.SplitHostPort(address)
	}
	return c, err
}

// newLogin reads the credentials.
func newLogin(cfg *config.RabbitMQAuth) (amqp.Authentication, error) {
	if cfg.Mechanism == config.RabbitMQExternal {
		return &amqp.ExternalAuth{}, nil
	}
	user, err := files.Read("auth.usernameFile", cfg.UsernameFile)
	if err != nil {
		return nil, reason.With(reason.AuthenticationFailed, &fileError{err})
	}
	password, err := files.Read("auth.passwordFile", cfg.PasswordFile)
	if err != nil {
		return nil, reason.With(reason.AuthenticationFailed, &fileError{err})
	}
	return &amqp.PlainAuth{Username: string(user), Password: string(password)}, nil
}
