package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/document"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/try"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
)

// maxLast bounds the rows of one try, and defaultLast is how many it has unless --last says otherwise.
const maxLast, defaultLast = 100_000, 1000

// differs is the end of a command that worked, and found a difference or trouble.
type differs struct{ error }

// tryFlags are what to try, and how to report it.
type tryFlags struct {
	file            source
	against, output string
	past            pgstore.Past
}

func tryCommand() *cobra.Command {
	var f tryFlags
	cmd := &cobra.Command{
		Use: "try -f NEW [--against OLD] [--last N]", Args: cobra.NoArgs,
		Short: "Put past events through a configuration, and say what would come out otherwise",
		Long: `Put the newest rows of the outbox, of any status, through the validation, transformations and routes of a
configuration, and make the messages that its sink would send. Nothing is sent and nothing is written: rows are
read in READ ONLY transactions, and no connection is made to the destination. The login needs to read
outbox_events and outbox_migrations. Schemas are read from the registry that the file names.

With --against it says how many events come out the same with both configurations, and groups the others:
  dead      a schema or a rule refuses them, or the message is too large
  paused    a rule, a transformation or a route cannot be computed, which pauses the topic
  failed    they fail until no attempt is left: no route takes them, or they have no place to go
  notTaken  the dispatcher does not have their topic
  moved     they go elsewhere
  changed   they go to the same place with another body, other headers or another key
  sent      they are sent, and were not
Without it, the new configuration is compared with the rows' status, which knows no destinations: a dead row is
dead, and of any other it is assumed that it was, or would be, sent.

Groups have counts, ids and the places in schemas and rules, never a payload or a header's value. Destinations are
shown as the routes make them. Only rows that are still there are tried: what retention removed is not.

Exit codes: 0 for no difference, 3 for some, 78 when a configuration is refused, 1 for any other failure, such as
that there is no row to try.`,
		Example: `  dispatcher try -f new.yaml --against old.yaml --last 1000
  dispatcher try -f new.yaml --since 24h --topic orders --output json`,
		RunE: work(func(cmd *cobra.Command) error { return tryOut(cmd, f) }),
	}
	fileFlag(cmd, &f.file)
	flags := cmd.Flags()
	flags.StringVar(&f.against, "against", "", "the configuration file to compare with (default: what the rows' status says)")
	flags.IntVar(&f.past.Last, "last", defaultLast, fmt.Sprintf("how many rows to try at most, the newest first, up to %d", maxLast))
	flags.DurationVar(&f.past.Since, "since", 0, "only rows that were created so long ago at most, such as 24h (default: any time)")
	flags.StringSliceVar(&f.past.Topics, "topic", nil, "only rows of this topic; may be repeated (default: the topics that the files have)")
	flags.StringVarP(&f.output, "output", "o", "table", "table, json or yaml")
	return cmd
}

func tryOut(cmd *cobra.Command, f tryFlags) error {
	switch {
	case f.past.Last < 1 || f.past.Last > maxLast:
		return fmt.Errorf("--last is %d; set it to 1 to %d", f.past.Last, maxLast)
	case f.past.Since < 0:
		return fmt.Errorf("--since is %s; set it to a time such as 24h", f.past.Since)
	}
	write, err := reportWriter(f.output, tryTable)
	if err != nil {
		return err
	}
	tuneMemory()
	report, err := tryRun(cmd.Context(), f)
	if err != nil {
		return err
	}
	if err := write(cmd.OutOrStdout(), report); err != nil {
		return err
	}
	if report.Different > 0 {
		return differs{fmt.Errorf("%d of %d events come out otherwise", report.Different, report.Rows)}
	}
	return nil
}

// tryRun does the work over one connection.
func tryRun(ctx context.Context, f tryFlags) (*try.Report, error) {
	cfg, err := load(f.file, true)
	if err != nil {
		return nil, err
	}
	request := try.Request{New: cfg, Past: f.past, OldName: f.against}
	if f.against != "" {
		old, err := load(source{f.against, document.Options{Secrets: f.file.Secrets}}, true)
		if err != nil {
			return nil, err
		}
		request.Old = &old
	}
	pool, store, err := readyStore(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	report, err := try.Run(ctx, store, request)
	var wrong *try.ConfigError
	switch {
	case errors.As(err, &wrong):
		err = refused{err}
	case err == nil && report.Rows == 0:
		err = fmt.Errorf("no row of namespace %q was found to try (%d rows were looked at); correct namespace, --topic and --since, or lengthen the retention", report.Namespace, report.LookedAt)
	}
	return report, err
}

// against is what a report compares with, and incomplete why it has fewer events than were requested.
func against(r *try.Report) string {
	if r.Against != try.ByStatus {
		return r.Against
	}
	return "the rows' status, which knows no destinations"
}

func incomplete(r *try.Report) string {
	return fmt.Sprintf("The search ended after %d rows: most are of other topics or namespaces.", r.LookedAt)
}

// tryTable is a report for people.
func tryTable(w io.Writer, r *try.Report) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%d events of namespace %s, created from %s to %s, compared with %s. Nothing was sent.\n",
		r.Rows, r.Namespace, r.Oldest.Format(time.RFC3339), r.Newest.Format(time.RFC3339), against(r))
	if r.Incomplete {
		fmt.Fprintln(&text, incomplete(r))
	}
	text.WriteByte('\n')
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, outcome := range try.Outcomes() {
		if n := r.Outcomes[outcome]; n > 0 || outcome == try.Same {
			fmt.Fprintf(table, "%s\t%d\n", outcome, n)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(r.Groups) > 0 {
		fmt.Fprint(table, "\nOUTCOME\tCOUNT\tTOPIC\tWHAT\n")
		for _, g := range r.Groups {
			fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", g.Outcome, g.Count, oneLine(g.Topic), oneLine(g.Text()))
			for _, id := range g.Samples {
				fmt.Fprintf(table, "\t\t\t  event %s\n", id)
			}
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	if r.Ungrouped > 0 {
		fmt.Fprintf(&text, "%d more in further groups\n", r.Ungrouped)
	}
	_, err := io.WriteString(w, text.String())
	return err
}
