package rabbitsink

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
)

// dial connects, with TLS unless cfg is nil. Its files are read each time.
func dial(ctx context.Context, cfg *config.TLS, address string) (*wire, error) {
	conn, raw, err := files.Dial(ctx, cfg, address)
	if err != nil {
		return nil, err
	}
	return newWire(conn, raw), nil
}

// newLogin reads the credentials.
func newLogin(cfg *config.RabbitMQAuth) (amqp.Authentication, error) {
	if cfg.Mechanism == config.RabbitMQExternal {
		return &amqp.ExternalAuth{}, nil
	}
	user, password, err := files.Basic("auth.basic", cfg.Basic)
	if err != nil {
		return nil, err
	}
	return &amqp.PlainAuth{Username: user, Password: password}, nil
}
