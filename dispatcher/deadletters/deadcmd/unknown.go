package deadcmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

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
