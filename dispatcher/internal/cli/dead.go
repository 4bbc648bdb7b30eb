package cli

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/pgreader"
)

// podTimeout bounds a statement that a dispatcher runs for a client of its server.
const podTimeout = 5 * time.Second

// deadCommand shows and resolves dead letters.
func deadCommand() *cobra.Command { return reading().Dead() }

// eventsCommand shows events.
func eventsCommand() *cobra.Command { return reading().Events() }

// reading makes the commands that read from the database of a file, with its login.
func reading() deadcmd.Commands {
	var file string
	return deadcmd.Commands{
		Program: "dispatcher", Whose: "-f FILE", Example: "-f orders.yaml",
		Flags: func(cmd *cobra.Command) { fileFlag(cmd, &file) },
		Open: func(*cobra.Command, string) (deadletters.Source, func(), error) {
			cfg, err := load(file, validateReading)
			if err != nil {
				return nil, nil, err
			}
			return reader(cfg, 0), func() {}, nil
		},
	}
}

// validateReading checks the part of a file that readers need.
func validateReading(cfg config.Config) error {
	err := cfg.ValidateDatabase()
	if cfg.Namespace == "" {
		err = errors.Join(err, errors.New("namespace is missing; set it to the outbox namespace whose events are read"))
	}
	return err
}

// reader reads the dispatcher's own events, each query over a connection of its own. Timeout 0 is the reader's default.
func reader(cfg config.Config, timeout time.Duration) *pgreader.Reader {
	return pgreader.New(func(ctx context.Context) (*pgx.Conn, error) { return connect(ctx, cfg) }, pgreader.Options{
		Schema: cfg.Database.Schema, Namespace: cfg.Namespace, Topics: cfg.Topics, Timeout: timeout,
	})
}
