// Package deadcmd has the commands that read dead letters, for any [deadletters.Source]: those of the dispatcher,
// which reads the database, and of kubectl outbox, which reads from a pod.
package deadcmd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

// Commands makes the commands of one program.
type Commands struct {
	// Whose is what comes before other arguments in the help: "-f FILE" or "NAME". Example is the same in examples.
	Whose, Example string
	// Program is the program's command in examples.
	Program string
	// Pages says that people see dead letters in a browser: then list, show and events show write YAML or JSON, and no table.
	Pages bool
	// Named says that the first argument is a name, which Open gets.
	Named bool
	// Flags adds what Open needs to a command.
	Flags func(*cobra.Command)
	// Open returns the source and a function that closes it.
	Open func(cmd *cobra.Command, name string) (deadletters.Source, func(), error)
	// Complete completes the name. Optional.
	Complete cobra.CompletionFunc
	// Now is the time from which ages count. Defaults to time.Now.
	Now func() time.Time
}

// Dead is the command dead, with groups, list and show.
func (c Commands) Dead() *cobra.Command {
	dead := &cobra.Command{Use: "dead", Short: "Find dead letters, and see why the events are dead", Args: cobra.NoArgs}
	dead.AddCommand(c.groups(), c.list(), c.show())
	return dead
}

// Events is the command events, with show.
func (c Commands) Events() *cobra.Command {
	events := &cobra.Command{Use: "events", Short: "See what happened to an event", Args: cobra.NoArgs}
	events.AddCommand(c.event())
	return events
}

func (c Commands) groups() *cobra.Command {
	var f filterFlags
	var by string
	cmd := &cobra.Command{
		Use: "groups " + c.Whose, Short: "Count the open dead letters by their cause, or by tenant, type or aggregate",
		Long: `Count the open dead letters by their cause: topic, reason, what failed, its code, and the place in the event.
The largest group comes first, with the newest error. A count is exact up to 10,000, with many large groups up to an
equal part of 100,000; above it an estimate is marked: ~60000. --by counts by tenant, type or aggregate instead, the
newest 50,000 in all, of each group an equal part: a count with older ones is marked too.`,
		Example: c.examples("dead groups", "", "--topic orders --since 2h", "--group 7f3a9c21 --by tenant"),
	}
	f.add(cmd, false)
	cmd.Flags().StringVar(&by, "by", "", "count by tenant, type or aggregate, and not by cause")
	if err := cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions([]string{"tenant", "type", "aggregate"}, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is there
	}
	return c.command(cmd, 0, tables, func(ctx context.Context, source deadletters.Source, _ string) (any, error) {
		filter, err := f.filter(c.now())
		if err != nil {
			return nil, err
		}
		if by != "" {
			if err := deadletters.By(by).Validate(); err != nil {
				return nil, fmt.Errorf("--%w", err)
			}
			return source.CountBy(ctx, filter, deadletters.By(by))
		}
		return source.Groups(ctx, filter)
	})
}

func (c Commands) list() *cobra.Command {
	var f filterFlags
	var r deadletters.ListRequest
	cmd := &cobra.Command{
		Use: "list " + c.Whose, Short: "List dead letters, the newest first",
		Long: `List dead letters, the newest first: the open ones, or with --resolved those that were replayed
or discarded, or have expired. When there are more than --limit, the last line of standard error has the --after that
continues the list; in JSON it is "next".`,
		Example: c.examples("dead list", "--group 7f3a9c21", `--error "duplicate key" --since 2h --limit 500 --output json`),
	}
	f.add(cmd, true)
	cmd.Flags().IntVar(&r.Limit, "limit", deadletters.DefaultLimit, fmt.Sprintf("how many dead letters at most, up to %d", deadletters.MaxLimit))
	cmd.Flags().Int64Var(&r.After, "after", 0, "continue after the dead letter with this number")
	return c.command(cmd, 0, c.formats(), func(ctx context.Context, source deadletters.Source, _ string) (_ any, err error) {
		if r.Limit < 1 {
			return nil, fmt.Errorf("--limit is %d; set it from 1 to %d", r.Limit, deadletters.MaxLimit)
		}
		if r.Filter, err = f.filter(c.now()); err != nil {
			return nil, err
		}
		return source.List(ctx, r)
	})
}

func (c Commands) show() *cobra.Command {
	var payload bool
	cmd := &cobra.Command{
		Use: "show " + c.Whose + " ID", Short: "Show a dead letter: why, the last attempts, and what to do",
		Long: `Show a dead letter: why the event is dead, its last five failed attempts, how it was resolved, and what to do.
ID is the dead letter's number, or the event's id for its newest dead letter.`,
		Example: c.examples("dead show", "42", "0190a5c8-5d1e-7000-8000-000000000001 --payload"),
	}
	payloadFlag(cmd, &payload)
	return c.command(cmd, 1, c.formats(), func(ctx context.Context, source deadletters.Source, id string) (any, error) {
		return source.Show(ctx, id, payload)
	})
}

func (c Commands) event() *cobra.Command {
	var payload bool
	cmd := &cobra.Command{
		Use: "show " + c.Whose + " ID", Short: "Show everything that is known of an event, in the order of time",
		Long: `Show everything that is known of an event, in the order of time: when it was enqueued, the last failed attempts,
its dead letters, who replayed or discarded it and why, its state now, its copies or its original, and each
change of its row, where the journal is on. ID is its id or its dedupe key; for an event whose row is gone, its id.`,
		Example: c.examples("events show", "0190a5c8-5d1e-7000-8000-000000000001", "order-42 --payload --output yaml"),
	}
	payloadFlag(cmd, &payload)
	return c.command(cmd, 1, c.formats(), func(ctx context.Context, source deadletters.Source, id string) (any, error) {
		return source.Event(ctx, id, payload)
	})
}

func payloadFlag(cmd *cobra.Command, payload *bool) {
	cmd.Flags().BoolVar(payload, "payload", false, "also print the payload and the headers, which may hold what others must not see; YAML rounds numbers of more than 17 digits")
}

// tables are the formats of a command that has one for people.
var tables = []string{"table", "json", "yaml"}

func (c Commands) formats() []string {
	if c.Pages {
		return []string{"yaml", "json"}
	}
	return tables
}

// command adds to a command its flags, its arguments (the name, then so many more) and its work.
func (c Commands) command(cmd *cobra.Command, more int, formats []string, read func(context.Context, deadletters.Source, string) (any, error)) *cobra.Command {
	output := AddOutput(cmd, formats...)
	if c.Flags != nil {
		c.Flags(cmd)
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if c.Named && len(args) == 0 && c.Complete != nil {
			return c.Complete(cmd, args, word)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	want := more
	if c.Named {
		want++
	}
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) != want {
			return fmt.Errorf("%d arguments, want %d: %s; see --help", len(args), want, strings.TrimSpace(c.Program+" "+cmd.Parent().Name()+" "+cmd.Use))
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := output.Validate(); err != nil {
			return err
		}
		name, id := "", ""
		if c.Named {
			name, args = args[0], args[1:]
		}
		if more > 0 {
			if id = args[0]; id == "" {
				return fmt.Errorf("the ID is empty; give the one that `%s` prints", c.Program+" dead list")
			}
		}
		source, end, err := c.Open(cmd, name)
		if err != nil {
			return err
		}
		defer end()
		result, err := read(cmd.Context(), source, id)
		if err != nil {
			return err
		}
		return output.Write(cmd.OutOrStdout(), result, func() error { return c.table(cmd, result) })
	}
	return cmd
}

// examples writes command lines.
func (c Commands) examples(command string, arguments ...string) string {
	var lines []string
	for _, a := range arguments {
		lines = append(lines, "  "+strings.TrimSpace(c.Program+" "+command+" "+c.Example+" "+a))
	}
	return strings.Join(lines, "\n")
}

func (c Commands) now() time.Time {
	if c.Now != nil {
		return c.Now()
	}
	return time.Now()
}
