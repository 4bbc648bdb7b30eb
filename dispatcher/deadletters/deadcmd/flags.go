package deadcmd

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

// FilterFlags adds the flags of a filter to a command that works on open dead letters. The function that it returns makes
// the filter of the parsed flags, and fails for one that is not valid. No flag is named reason: a replay or a discard has
// its own.
func FilterFlags(cmd *cobra.Command) func(now time.Time) (deadletters.Filter, error) {
	f := &filterFlags{}
	f.add(cmd, false)
	return f.filter
}

type filterFlags struct {
	deadletters.Filter
	cmd          *cobra.Command
	since, until string
}

func (f *filterFlags) add(cmd *cobra.Command, resolved bool) {
	f.cmd = cmd
	flags := cmd.Flags()
	flags.StringSliceVar(&f.IDs, "id", nil, "only these: ids of events, or numbers of dead letters; may be repeated")
	flags.StringVar(&f.Topic, "topic", "", "only those of this topic")
	flags.StringVar(&f.Type, "type", "", "only those of this event type")
	flags.StringVar(&f.Aggregate, "aggregate", "", "only those of this aggregate: its id, or TYPE/ID")
	flags.StringVar(&f.Tenant, "tenant", "", "only those of this tenant, a UUID")
	flags.StringVar(&f.Reason, "dead-reason", "", "only those dead for this reason, such as "+string(dispatcher.ReasonMaxRetriesExceeded))
	flags.StringVar(&f.Group, "group", "", "only those of this group: 8 hex digits")
	flags.StringVar(&f.ErrorContains, "error", "", "only those whose last error has this text, in upper or lower case")
	flags.StringVar(&f.since, "since", "", "only those dead since then: a time such as 2026-03-01T02:00:00Z, or how long ago, such as 2h")
	flags.StringVar(&f.until, "until", "", "only those dead before then, in the same form")
	if resolved {
		flags.StringVar(&f.Operation, "operation", "", "only those of this replay, discard or reopen, by its id")
		flags.BoolVar(&f.Resolved, "resolved", false, "those that were replayed, discarded or have expired, instead of the open ones")
	}
	var reasons []string
	for _, r := range deadletters.Reasons {
		reasons = append(reasons, string(r))
	}
	if err := cmd.RegisterFlagCompletionFunc("dead-reason", cobra.FixedCompletions(reasons, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is there
	}
}

func (f *filterFlags) filter(now time.Time) (filter deadletters.Filter, err error) {
	filter = f.Filter
	if err := refuseEmpty(f.cmd); err != nil {
		return filter, err
	}
	if filter.Since, err = parseTime("since", f.since, now); err != nil {
		return filter, err
	}
	if filter.Until, err = parseTime("until", f.until, now); err != nil {
		return filter, err
	}
	if err := filter.Validate(); err != nil {
		return filter, fmt.Errorf("the filter is wrong: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return filter, nil
}

// refuseEmpty refuses a flag that has no value, as of a variable of the shell that is not set: without that flag the command
// would choose more.
func refuseEmpty(cmd *cobra.Command) (err error) {
	cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		if value := flag.Value.String(); flag.Changed && (value == "" || value == "[]") {
			err = fmt.Errorf("--%s is empty; give it a value, or leave it out", flag.Name)
		}
	})
	return err
}

// parseTime reads a time, or how long ago it was.
func parseTime(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("--%s is %q; write a time such as 2026-03-01T02:00:00Z, or how long ago, such as 2h or 90m", flag, text)
	}
	return at, nil
}

// RefuseUnknown makes a command, and all below it, fail when it has subcommands and none of them is named: by itself cobra
// prints the help and succeeds, and a script that misspells a subcommand does nothing. The root alone still prints its help.
func RefuseUnknown(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		RefuseUnknown(sub)
	}
	if !cmd.HasSubCommands() {
		return
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.FParseErrWhitelist.UnknownFlags = true // the flags are those of the command that was meant
	cmd.SuggestionsMinimumDistance = 2
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 && !cmd.HasParent() {
			return cmd.Help()
		}
		if len(args) == 0 {
			return fmt.Errorf("%s does nothing by itself; name one of its commands: %s", cmd.CommandPath(), names(cmd))
		}
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			return fmt.Errorf("%s has no command %q; did you mean %s?", cmd.CommandPath(), args[0], strings.Join(near, " or "))
		}
		return fmt.Errorf("%s has no command %q; name one of these: %s", cmd.CommandPath(), args[0], names(cmd))
	}
}

// names are the commands below a command.
func names(cmd *cobra.Command) string {
	var all []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			all = append(all, sub.Name())
		}
	}
	return strings.Join(all, ", ")
}
