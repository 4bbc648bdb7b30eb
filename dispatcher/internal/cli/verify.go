package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/journal"
)

// verifyFlags are what to compare, and how to report it.
type verifyFlags struct {
	file   source
	output string
	since  time.Duration
	limit  int
}

func verifyCommand() *cobra.Command {
	var f verifyFlags
	cmd := &cobra.Command{
		Use: "verify -f FILE [--since TIME]", Args: cobra.NoArgs,
		Short: "Compare the journal with the rows, and name each difference",
		Long: `Compare the journal with the rows of the outbox, and name each difference. Nothing is written; the login needs to
read outbox_events, outbox_dead_letters, outbox_journal, outbox_journal_settings and outbox_replays. Events of the
file's namespace and topics are compared, and all of them when the file has no namespace.

  StateDiffers    the row is not as its last record says: it was changed or removed past the journal. Or it is dead
                  without a dead letter, leased for more than a day or put off for two, or an operation counts what the
                  records do not have
  NotRecorded     the row's last change has no record
  Gap             a record does not begin where the one before ended: a change, or a record, is missing
  Illegal         a change that no engine makes: it was made by hand, and the record has the login. So are a removal
                  that no retention made, another payload, topic or key, and a dead letter that no operation resolved
  TokenFell       the lease number, which is the fencing token, is lower than before
  Truncated       all rows were removed at once
  TriggerMissing  a trigger that writes the journal is missing or disabled

It reads the journal some thousand records at a time, and may run while producers and dispatchers work. With --since it
looks at what changed since, and its work depends on that. An acknowledgement by hand is found by its login alone:
"select * from outbox.outbox_journal where login <> 'orders'".

Exit codes: 0 for no difference, 3 for some, 78 when the configuration is refused, 1 for any other failure, such as
that the journal is off.`,
		Example: `  dispatcher verify -f orders.yaml
  dispatcher verify -f orders.yaml --since 24h --output json`,
		RunE: work(func(cmd *cobra.Command) error { return verify(cmd, f) }),
	}
	fileFlag(cmd, &f.file)
	flags := cmd.Flags()
	flags.DurationVar(&f.since, "since", 0, "only events that changed so long ago at most, such as 24h (default: all that the journal has)")
	flags.IntVar(&f.limit, "limit", journal.DefaultLimit, "how many differences to name; the others are counted")
	flags.StringVarP(&f.output, "output", "o", "table", "table, json or yaml")
	return cmd
}

func verify(cmd *cobra.Command, f verifyFlags) error {
	switch {
	case f.since < 0:
		return fmt.Errorf("--since is %s; set it to a time such as 24h", f.since)
	case f.limit < 1 || f.limit > 100_000:
		return fmt.Errorf("--limit is %d; set it to 1 to 100000", f.limit)
	}
	write, err := reportWriter(f.output, verifyTable)
	if err != nil {
		return err
	}
	return withDatabase(cmd, f.file, func(ctx context.Context, conn *pgx.Conn, cfg spec.Config) error {
		report, err := journal.Check(ctx, conn, journal.Options{
			Schema: cfg.Database.Schema, Namespace: cfg.Namespace, Topics: cfg.Topics, Since: f.since, Limit: f.limit,
		})
		if err != nil {
			return err
		}
		if err := write(cmd.OutOrStdout(), report); err != nil {
			return err
		}
		if report.Found > 0 {
			return differs{fmt.Errorf("journal and rows differ in %d places", report.Found)}
		}
		return nil
	})
}

// verifyTable is a report for people.
func verifyTable(w io.Writer, r journal.Report) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%d records of %d events, and %d pages of rows, from %s to %s: ", r.Records, r.Events, r.Pages,
		r.From.Format(time.RFC3339), r.Until.Format(time.RFC3339))
	if r.Found == 0 {
		text.WriteString("no difference\n")
	} else {
		fmt.Fprintf(&text, "%d differences\n\n", r.Found)
		table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
		fmt.Fprint(table, "KIND\tEVENT\tTOPIC\tAT\tLOGIN\tWHAT\n")
		for _, d := range r.Differences {
			at := ""
			if !d.At.IsZero() {
				at = d.At.Format(time.RFC3339)
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", d.Kind, d.Event, oneLine(d.Topic), at, oneLine(d.Login), oneLine(d.What))
		}
		if err := table.Flush(); err != nil {
			return err
		}
		if more := r.Found - int64(len(r.Differences)); more > 0 {
			fmt.Fprintf(&text, "%d more; --limit names more of them\n", more)
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}
