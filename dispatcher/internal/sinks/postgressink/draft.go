package postgressink

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
)

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink]. The columns are the headers.
func (s *sink) Draft(_ context.Context, e *dispatcher.Event) (draft.Message, error) {
	return draft.Message{To: "table " + s.cfg.Table, At: where(s.cfg), Key: e.Key(), Body: e.Payload, Headers: e.Headers}, nil
}

// where says which database a configuration means, without its login: a file stands for what it holds.
func where(cfg config.PostgresSink) string {
	if cfg.DSNFile != "" {
		return "the database of " + cfg.DSNFile
	}
	if parsed, err := pgconn.ParseConfig(cfg.DSN); err == nil {
		return fmt.Sprintf("database %s of %s", parsed.Database, parsed.Host)
	}
	return "the database of dsn"
}
