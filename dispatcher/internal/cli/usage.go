package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// usage prints what cobra prints by default, with flags wrapped for 120 columns. Cobra takes a template for that; but
// templates call methods by name, with which the linker keeps every method of every type: 16 MB of the binary.
func usage(c *cobra.Command) error {
	var text strings.Builder
	text.WriteString("Usage:")
	if c.Runnable() {
		text.WriteString("\n  " + c.UseLine())
	}
	if c.HasAvailableSubCommands() {
		text.WriteString("\n  " + c.CommandPath() + " [command]")
	}
	if c.HasExample() {
		text.WriteString("\n\nExamples:\n" + c.Example)
	}
	if c.HasAvailableSubCommands() {
		text.WriteString("\n\nAvailable Commands:")
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() || sub.Name() == "help" {
				fmt.Fprintf(&text, "\n  %-*s %s", sub.NamePadding(), sub.Name(), sub.Short)
			}
		}
	}
	if c.HasAvailableLocalFlags() {
		text.WriteString("\n\nFlags:\n" + strings.TrimRight(c.LocalFlags().FlagUsagesWrapped(120), "\n"))
	}
	if c.HasAvailableInheritedFlags() {
		text.WriteString("\n\nGlobal Flags:\n" + strings.TrimRight(c.InheritedFlags().FlagUsagesWrapped(120), "\n"))
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&text, "\n\nUse \"%s [command] --help\" for more information about a command.", c.CommandPath())
	}
	_, err := fmt.Fprintln(c.OutOrStderr(), text.String())
	return err
}
