package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

func adoptCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "adopt", Short: "Take over a service's outbox table of another layout",
		Long: `Take over a service's outbox table of another layout, without a change of its producers and consumers.

  shadow   put a trigger on their table, which records what producers insert; nothing is sent
  status   compare the notes with their table
  cutover  make what is open in their table events of the outbox, and what producers insert from then on
  back     make what is not delivered open in their table again; or end the shadow

The login is the owner of the outbox's schema, and of their table or a member of its owner. Each step can be repeated,
and with --dry-run it prints the SQL that it would run and changes nothing.

No error of the trigger reaches a producer: a row that the outbox does not take, such as one that is too large, is
noted as refused with the reason, and stays open in their table. "dispatcher adopt cutover" tries it again.`,
	}
	cmd.AddCommand(adoptShadowCommand(), adoptStatusCommand(), adoptCutoverCommand(), adoptBackCommand())
	return cmd
}

// adoptFlags of the steps.
type adoptFlags struct {
	file    source
	layout  string
	columns []string
	spec    adopt.Spec
	options adopt.Options
}

// step makes the command of a step.
func (f *adoptFlags) step(step adopt.Step, cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.RunE = work(func(cmd *cobra.Command) error { return f.run(cmd, step) })
	fileFlag(cmd, &f.file)
	cmd.Flags().StringVar(&f.spec.Name, "name", "", "the adoption (default: the layout for shadow, and the only one for other steps)")
	cmd.Flags().BoolVar(&f.options.DryRun, "dry-run", false, "print the SQL, and change nothing")
	return cmd
}

func adoptShadowCommand() *cobra.Command {
	var f adoptFlags
	cmd := f.step(adopt.ToShadow, &cobra.Command{
		Use:   "shadow -f FILE --layout LAYOUT [--table SCHEMA.TABLE] [--topic TOPIC] [--column OURS=THEIRS]",
		Short: "Record what producers insert; nothing is sent",
		Long: `Put a trigger on their table. At the end of the producer's transaction it does with each row that was inserted what
it will do after the cut-over, undoes that, and records whether it works. Nothing is sent, and their worker continues.
It locks their table for a moment.

With layout columns their columns are named by --column: id and payload; completed, a time that is null while the
row is to be sent, status=COLUMN:OPEN:COMPLETE, or sent=delete for a worker that deletes what it has sent; topic,
type, aggregateType, aggregateId, key, headers, created, due, attempts, dedupeKey, tenantId, namespace. Where one
column cannot say which rows are to be sent, --open is the condition, in SQL over the row r.

Of layout modkit, or with a column namespace, --namespace chooses the rows of that namespace. Without it each row
becomes an event of its own namespace.

Layout debezium is a table of Debezium's outbox event router. The trigger checks each row, and notes those that the
outbox does not take. What was sent is read from the connector's replication slot, so the login has the attribute
REPLICATION.`,
		Example: `  dispatcher adopt shadow -f owner.yaml --layout m10 --namespace shop --topic orders
  dispatcher adopt shadow -f owner.yaml --layout columns --table public.outbox_event --namespace shop --topic orders \
    --column id=id --column payload=data --column aggregateId=order_id --column created=occurred_on \
    --column status=state:NEW:SENT --open "r.state in ('NEW', 'SENDING')" --dry-run`,
	})
	flags := cmd.Flags()
	flags.StringVar(&f.layout, "layout", "", "modkit, m10, overview, storage, debezium or columns (required)")
	flags.StringVar(&f.spec.Table, "table", "", "their table (default: that of the layout: public.modkit_outbox_events, m10_recovery.outbox, outbox.events, public.storage_outbox, public.outboxevent)")
	flags.StringVar(&f.spec.Namespace, "namespace", "", "the namespace of the events (default: that of the file, or of each row where it has one)")
	flags.StringVar(&f.spec.Topic, "topic", "", "the topic of the events (default: that of each row; m10 has none)")
	flags.StringVar(&f.spec.Open, "open", "", "the condition of rows that are to be sent, in SQL over r (default: what completed, status or sent says)")
	flags.StringVar(&f.spec.Slot, "slot", "", "for layout debezium, slot.name of the connector (default \""+adopt.DefaultSlot+"\")")
	flags.StringVar(&f.spec.Publication, "publication", "", "for layout debezium, publication.name of the connector (default \""+adopt.DefaultPublication+"\")")
	flags.StringArrayVar(&f.columns, "column", nil, "a column of theirs by our name, OURS=THEIRS; for layout columns")
	return cmd
}

func adoptCutoverCommand() *cobra.Command {
	var f adoptFlags
	cmd := f.step(adopt.Cutover, &cobra.Command{
		Use: "cutover -f FILE [--name NAME]", Short: "Have the outbox deliver instead of their worker",
		Long: `Have the outbox deliver instead of their worker. In one transaction, with their table locked, each row that is open
there becomes an event, with its due time and attempts and in their order, and is marked complete in their table.
From then on the trigger does the same with each row that a producer inserts or opens again.

Producers wait while the rows are moved, so let their worker catch up first. What it has in its hands at that moment
may be sent twice, with the same id; it is due when the five minutes of m10 are over, or a minute later for other
layouts. A worker that still runs finds nothing.

Of layout debezium, stop the connector first. Each row that its slot holds, whose transaction it has not confirmed,
becomes an event. What it has sent and not confirmed is sent twice, with the same id. It stays stopped: it would
send what producers insert. A slot without a reader keeps WAL.`,
		Example: `  dispatcher adopt cutover -f owner.yaml --dry-run
  dispatcher adopt cutover -f owner.yaml`,
	})
	cmd.Flags().IntVar(&f.options.MaxRows, "max-rows", adopt.DefaultMaxRows, "the most open rows to move")
	return cmd
}

func adoptBackCommand() *cobra.Command {
	var f adoptFlags
	cmd := f.step(adopt.Back, &cobra.Command{
		Use: "back -f FILE [--name NAME]", Short: "Have their worker deliver again, or end the shadow",
		Long: `Have their worker deliver again. The trigger is removed, and events that are not delivered become open rows of their
table, with their due time and attempts. Those that a dispatcher is delivering are waited for. Dead events stay
dead letters.

Where an index of theirs lets one row of an aggregate be open at a time, the newest is open, and has replaced the
others.

Of layout debezium, the slot is moved to the end of what is committed, and rows are inserted again, and deleted
again where their producers have done so: the connector sends these and what comes after. What it has not sent of
other tables is passed over. Before it starts, remove its stored offset, which may be older than the slot: DELETE
/connectors/NAME/offsets.

Before the cut-over it removes the trigger and the notes.`,
		Example: `  dispatcher adopt back -f owner.yaml --dry-run
  dispatcher adopt back -f owner.yaml --wait 5m`,
	})
	cmd.Flags().DurationVar(&f.options.Wait, "wait", adopt.DefaultWait, "how long to wait for deliveries that are under way")
	return cmd
}

func (f *adoptFlags) run(cmd *cobra.Command, step adopt.Step) error {
	f.spec.Layout = adopt.Layout(f.layout)
	for _, column := range f.columns {
		ours, theirs, ok := strings.Cut(column, "=")
		if !ok {
			return fmt.Errorf("--column is %q; write it OURS=THEIRS, such as aggregateId=order_id", column)
		}
		if f.spec.Columns == nil {
			f.spec.Columns = map[string]string{}
		}
		f.spec.Columns[ours] = theirs
	}
	if f.options.MaxRows < 0 || f.options.Wait < 0 {
		return errors.New("--max-rows or --wait is negative; give 1 or more")
	}
	return withDatabase(cmd, f.file.owners(), func(ctx context.Context, conn *pgx.Conn, cfg spec.Config) error {
		if f.spec.Namespace == "" && f.spec.Layout != adopt.ModKit && f.spec.Columns["namespace"] == "" {
			f.spec.Namespace = cfg.Namespace
		}
		result, err := adopt.Apply(ctx, conn, cfg.Database.Schema, step, f.spec, f.options)
		if err != nil {
			return err
		}
		_, err = io.WriteString(cmd.OutOrStdout(), adoptText(step, result, f.options.DryRun))
		return err
	})
}

// adoptText describes what a step did, or would do.
func adoptText(step adopt.Step, r adopt.Result, dry bool) string {
	var text strings.Builder
	if dry {
		fmt.Fprintf(&text, "-- adopt %s would run this in one transaction; nothing was changed.\n", step)
		if step == adopt.Cutover {
			fmt.Fprintf(&text, "-- %d rows are open now.\n", r.Moved)
		}
		text.WriteString(lookText("-- ", r.Values, r.Warnings))
		for _, sql := range r.SQL {
			text.WriteString(sql + ";\n")
		}
		return text.String()
	}
	state := "not adopted"
	if r.State != adopt.None {
		state = string(r.State)
	}
	if r.Name != "" {
		fmt.Fprintf(&text, "adoption %s: %s", r.Name, state)
		if !r.Changed {
			text.WriteString(", as it was")
		}
		switch step {
		case adopt.Cutover:
			fmt.Fprintf(&text, "; %d rows moved, %d refused", r.Moved, r.Refused)
		case adopt.Back:
			fmt.Fprintf(&text, "; %d events returned", r.Returned)
		}
		text.WriteString("\n")
	}
	text.WriteString(lookText("", r.Values, r.Warnings))
	fmt.Fprintln(&text, r.Next)
	return text.String()
}

// lookText is a line for each value of the status column, and for each warning.
func lookText(before string, values []adopt.Value, warnings []string) string {
	var text strings.Builder
	for _, v := range values {
		fmt.Fprintf(&text, "%sstatus %s\n", before, oneLine(v.String()))
	}
	for _, warning := range warnings {
		fmt.Fprintf(&text, "%swarning: %s\n", before, oneLine(warning))
	}
	return text.String()
}

func adoptStatusCommand() *cobra.Command {
	var file source
	var name, output string
	cmd := &cobra.Command{
		Use: "status -f FILE [--name NAME]", Short: "Compare the notes with their table", Args: cobra.NoArgs,
		Long: `Count the rows that their table has of those inserted since the shadow began, and the notes of them, in one snapshot.

Rows whose id (m10), or time of creation, is not after the greatest at the start are in neither count; nor are rows that
were deleted. The work depends on the rows since the start.

Exit codes: 0 when each row has its note, none is refused, each has a status that the mapping knows, and none waits in
their table after the cut-over; 3 when not; 1 for any other failure.`,
		Example: `  dispatcher adopt status -f owner.yaml
  dispatcher adopt status -f owner.yaml --output json`,
		RunE: work(func(cmd *cobra.Command) error { return adoptStatus(cmd, file, name, output) }),
	}
	fileFlag(cmd, &file)
	cmd.Flags().StringVar(&name, "name", "", "the adoption (default: all)")
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table, json or yaml")
	return cmd
}

// adoptions is the report of adopt status.
type adoptions struct {
	Adoptions []adopt.Status `json:"adoptions"`
}

func adoptStatus(cmd *cobra.Command, file source, name, output string) error {
	write, err := reportWriter(output, adoptTable)
	if err != nil {
		return err
	}
	return withDatabase(cmd, file.owners(), func(ctx context.Context, conn *pgx.Conn, cfg spec.Config) error {
		all, err := adopt.Read(ctx, conn, cfg.Database.Schema, name)
		if err != nil {
			return err
		}
		if name != "" && len(all) == 0 {
			return fmt.Errorf("there is no adoption %s; dispatcher adopt status without --name shows those that there are", name)
		}
		if err := write(cmd.OutOrStdout(), adoptions{all}); err != nil {
			return fmt.Errorf("write the status: %w; check what reads it", err)
		}
		var wrong []string
		for _, s := range all {
			if !s.OK() {
				wrong = append(wrong, fmt.Sprintf("adoption %s: theirs %d, ours %d; %d rows missing, %d refused, %d with an unknown status, %d waiting in their table", s.Name, s.Rows, s.Notes, s.Missing, s.Refused, s.Unknown(), s.OpenRows))
			}
		}
		if len(wrong) > 0 {
			return differs{errors.New(strings.Join(wrong, "; "))}
		}
		return nil
	})
}

// adoptTable is the status for people.
func adoptTable(w io.Writer, all adoptions) error {
	var text strings.Builder
	if len(all.Adoptions) == 0 {
		text.WriteString("no table is adopted; begin with dispatcher adopt shadow\n")
	}
	for _, s := range all.Adoptions {
		fmt.Fprintf(&text, "adoption %s: %s, layout %s, table %s, namespace %s\n", s.Name, s.State, s.Layout, s.Table, cmp.Or(s.Namespace, "of each row"))
		if s.Slot != nil {
			fmt.Fprintf(&text, "since %s: refused %s; %s\nwaiting: ours %s\n", s.Since.Format(time.RFC3339), thousands(s.Refused), slotText(*s.Slot), thousands(s.OpenEvents))
			adoptEnd(&text, s)
			continue
		}
		fmt.Fprintf(&text, "since %s: theirs %s, ours %s, missing %s, refused %s\n", s.Since.Format(time.RFC3339),
			thousands(s.Rows), thousands(s.Notes), thousands(s.Missing), thousands(s.Refused))
		fmt.Fprintf(&text, "waiting: theirs %s, ours %s\n", thousands(s.OpenRows), thousands(s.OpenEvents))
		adoptEnd(&text, s)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// adoptEnd is what each adoption ends with.
func adoptEnd(text *strings.Builder, s adopt.Status) {
	unknown := slices.DeleteFunc(slices.Clone(s.Values), func(v adopt.Value) bool { return v.Means != adopt.MeansUnknown })
	text.WriteString(lookText("", unknown, s.Warnings))
	for _, r := range s.Refusals {
		fmt.Fprintf(text, "refused %s: %s\n", oneLine(r.ID), oneLine(r.Reason))
	}
	fmt.Fprintln(text, s.Next)
}

func slotText(s adopt.Slot) string {
	switch {
	case s.Missing:
		return "slot " + s.Name + " is missing"
	case s.Active:
		return fmt.Sprintf("slot %s is read, and %s bytes are not confirmed", s.Name, thousands(s.Behind))
	}
	return fmt.Sprintf("slot %s is not read, and %s bytes are not confirmed", s.Name, thousands(s.Behind))
}

// thousands writes 12031 as 12,031.
func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}
