// Package cli is the dispatcher command.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/document"
)

// Exit codes of the commands.
const (
	exitOK      = 0
	exitFailed  = 1
	exitDiffers = 3
	exitRefused = 78 // EX_CONFIG of sysexits.h
)

const long = `Dispatcher delivers the events of a transactional outbox.

Every command but "dispatcher verify-consumer" reads one file with objects, as the operator writes it for its pods.
"dispatcher migrate", "dispatcher adopt" and "dispatcher enqueue" need its database section alone; "dispatcher dead"
and "dispatcher events" need the outbox namespace too.

Exit codes:
  0   success
  1   any other failure
  3   "dispatcher try", "dispatcher verify" or "dispatcher adopt status" found a difference, "dispatcher check --data" a
      problem, or "dispatcher verify-consumer" a broken rule
  78  the configuration is refused

The last line of standard error gives the reason, in at most 1,000 bytes. The file that TERMINATION_LOG names (by
default /dev/termination-log, if it exists) gets the same line, and Kubernetes reads it there.`

// Main runs the command and returns its exit code.
func Main(ctx context.Context, version string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := rootCommand(version)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	text := brief(err)
	fmt.Fprintln(stderr, "dispatcher:", text)
	writeTerminationMessage(text)
	switch {
	case errors.As(err, &refused{}):
		return exitRefused
	case errors.As(err, &differs{}):
		return exitDiffers
	}
	return exitFailed
}

func rootCommand(version string) *cobra.Command {
	root := &cobra.Command{
		Use: "dispatcher", Short: "Deliver the events of a transactional outbox", Long: long,
		SilenceUsage: true, SilenceErrors: true, Version: version,
	}
	root.SetUsageFunc(usage)
	root.AddCommand(runCommand(version), onceCommand(version), migrateCommand(), adoptCommand(), checkCommand(), copyCommand(), enqueueCommand(), tryCommand(),
		withOperations(deadCommand(), version), eventsCommand(), unservedCommand(), uiCommand(), verifyCommand(), verifyConsumerCommand(), versionCommand(version))
	deadcmd.RefuseUnknown(root)
	return root
}

// refused is an error of the configuration: the same file fails again.
type refused struct{ error }

func (r refused) Unwrap() error { return r.error }

// work makes a command's function.
func work(do func(*cobra.Command) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error { return do(cmd) }
}

// maxReason is the most bytes of the line that says why a command failed.
const maxReason = 1000

// brief makes one bounded line of an error: as many of its lines as there is place for, but the first one
// in any case.
func brief(err error) string {
	const more = " (and %d more)"
	var all string
	lines := slices.DeleteFunc(strings.Split(err.Error(), "\n"), func(line string) bool { return strings.TrimSpace(line) == "" })
	for i, line := range lines {
		line = strings.Join(strings.Fields(line), " ")
		if i > 0 {
			line = "; " + line
		}
		if i > 0 && len(all)+len(line)+len(more) > maxReason {
			return all + fmt.Sprintf(more, len(lines)-i)
		}
		all += line
		if limit := maxReason - len(more) - len("…"); len(all) > limit {
			all = strings.ToValidUTF8(all[:limit], "") + "…"
		}
	}
	return all
}

// writeTerminationMessage reports to Kubernetes why the container ended.
func writeTerminationMessage(text string) {
	path := os.Getenv("TERMINATION_LOG")
	if path == "" {
		path = "/dev/termination-log"
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return // not in a pod
	}
	defer file.Close()
	_, _ = io.WriteString(file, text)
}

// source is where a command reads its settings.
type source struct {
	// file has the objects.
	file string
	document.Options
}

// fileFlag adds -f, and what says more of the file.
func fileFlag(cmd *cobra.Command, s *source) {
	cmd.Flags().StringVarP(&s.file, "file", "f", "", "the file with the OutboxDispatcher, as kubectl apply takes it (required)")
	s.flags(cmd)
}

// owners is the source with the login that owns the schema, where there is one.
func (s source) owners() source {
	s.Login = spec.LoginMigration
	return s
}

func (s *source) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.Name, "object", "", "the OutboxDispatcher, when the file has several")
	cmd.Flags().StringVar(&s.Secrets, "secrets", "", "the folder with the keys of Secrets and ConfigMaps, each as NAME/KEY; by default secrets in the file's folder")
}

// load reads the file. Commands that are about events need the OutboxDispatcher that says which.
func load(s source, events bool) (spec.Config, error) {
	if s.file == "" {
		return spec.Config{}, errors.New("no configuration; name its file with -f")
	}
	cfg, err := document.Load(s.file, s.Options)
	if err == nil && events && cfg.Namespace == "" {
		err = fmt.Errorf("%s has no OutboxDispatcher, whose spec.namespace says whose events these are; write one there", s.file)
	}
	if err != nil {
		return cfg, refused{err}
	}
	return cfg, nil
}

// connect opens the one connection of a command.
func connect(ctx context.Context, cfg spec.Config) (*pgx.Conn, error) {
	conn, err := database.Connect(ctx, cfg.Database, cfg.Name)
	return conn, sentence(err)
}

// disconnect ends politely, also when the command was interrupted.
func disconnect(ctx context.Context, conn *pgx.Conn) { _ = conn.Close(context.WithoutCancel(ctx)) }

func versionCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), version) },
	}
}

// reportWriter returns the function that writes a report as table, json or yaml. It fails for another output.
func reportWriter[Report any](form string, table func(io.Writer, Report) error) (func(io.Writer, Report) error, error) {
	encoded := func(encode func(any) ([]byte, error)) func(io.Writer, Report) error {
		return func(w io.Writer, r Report) error {
			text, err := encode(r)
			if err == nil {
				_, err = w.Write(text)
			}
			return err
		}
	}
	write, ok := map[string]func(io.Writer, Report) error{
		"table": table,
		"json":  encoded(deadcmd.JSON),
		"yaml":  encoded(spec.YAML),
	}[form]
	if !ok {
		return nil, fmt.Errorf("--output is %q; set it to table, json or yaml", form)
	}
	return func(w io.Writer, r Report) error {
		if err := write(w, r); err != nil {
			return fmt.Errorf("write the report: %w; check what reads it", err)
		}
		return nil
	}, nil
}

// onlyFlags refuses each flag that was given, but for those of these names: the error is "--FLAG " and the problem.
func onlyFlags(cmd *cobra.Command, problem string, names ...string) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains(names, f.Name) {
			err = fmt.Errorf("--%s %s", f.Name, problem)
		}
	})
	return err
}

// oneLine replaces line breaks of a topic or a route, which would break the table.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '\uFFFD'
		}
		return r
	}, text)
}

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
