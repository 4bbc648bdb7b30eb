package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/spec"
)

// keptCopy is what the command copy does.
type keptCopy struct {
	from, to string
	since    time.Duration
	rate     int
}

func copyCommand() *cobra.Command {
	var file source
	var k keptCopy
	cmd := &cobra.Command{
		Use: "copy -f FILE --from TOPIC --to TOPIC --since DURATION", Short: "Copy the kept events of a topic to another, for a late subscriber", Args: cobra.NoArgs,
		Long: `Copy the events of a topic that are delivered and still kept to another topic of the namespace, in their order: for a
destination that is added later. Each is copied once: what is there already is passed over, so the command can run
again after it was ended, and while the dispatcher copies new events. A copy that was delivered, and removed by
its retention since, comes again.`,
		Example: `  dispatcher copy -f dispatcher.yaml --from orders --to orders.billing --since 72h --rate 500`,
		RunE: work(func(cmd *cobra.Command) error {
			switch {
			case k.from == "" || k.to == "" || k.from == k.to:
				return errors.New("--from and --to are not two topics; name the one with the events, and the one of the late subscriber")
			case k.since <= 0:
				return errors.New("--since is not above 0; say how far back the first event was created, such as 72h")
			case k.rate < 1:
				return errors.New("--rate is below 1; set it to the events to copy in a second")
			}
			if _, err := load(file, true); err != nil {
				return err
			}
			return withDatabase(cmd, file, func(ctx context.Context, conn *pgx.Conn, cfg spec.Config) error {
				said, err := k.run(ctx, conn, cfg)
				fmt.Fprintln(cmd.OutOrStdout(), said)
				return err
			})
		}),
	}
	fileFlag(cmd, &file)
	flags := cmd.Flags()
	flags.StringVar(&k.from, "from", "", "the topic with the events (required)")
	flags.StringVar(&k.to, "to", "", "the topic to copy to (required)")
	flags.DurationVar(&k.since, "since", 0, "how long ago the first event was created, at most (required)")
	flags.IntVar(&k.rate, "rate", 500, "the most events to copy in a second")
	return cmd
}

// run copies in portions, each in a transaction, and says what it did.
func (k keptCopy) run(ctx context.Context, conn *pgx.Conn, cfg spec.Config) (said string, err error) {
	in := pgx.Identifier{cfg.Database.Schema}.Sanitize()
	rows, err := conn.Query(ctx, `select id from `+in+`.outbox_events where namespace = $1 and topic = $2 and status = 'delivered' and created_at >= now() - $3::interval order by seq`,
		cfg.Namespace, k.from, k.since)
	if err != nil {
		return "nothing was copied", fmt.Errorf("copy: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[pgtype.UUID])
	began, copied, there, gone := time.Now(), 0, 0, 0
	for from := 0; from < len(ids) && err == nil; {
		part := ids[from:min(from+min(500, max(1, k.rate/4)), len(ids))]
		var added, kept int
		err = conn.QueryRow(ctx, `select copied, coalesce(cardinality(originals), 0) from `+in+`.outbox_copy(array[$1::text], $2::uuid[])`, k.to, part).Scan(&added, &kept)
		if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.ConstraintName == "outbox_events_pkey" {
			err = ctx.Err() // another one has just copied some of them
			continue
		}
		if err == nil {
			from, copied, there, gone = from+len(part), copied+added, there+kept-added, gone+len(part)-kept
			select {
			case <-time.After(time.Until(began.Add(time.Duration(copied) * time.Second / time.Duration(k.rate)))):
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
	}
	if err != nil {
		err = fmt.Errorf("copy: %w; run it again, it continues", err)
	}
	return fmt.Sprintf("copied %d of %d events of %q to %q; %d were there already, and %d were removed meanwhile", copied, len(ids), k.from, k.to, there, gone), err
}
