// Package cli is the dispatcher command.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

const long = `Dispatcher delivers the events of a transactional outbox.

Every command reads one file, the same that the operator renders for its pods. migrate, enqueue and
grants need no more of it than the database section.

Exit codes: 0 for success, 1 when the work failed or a check did, 2 when the command line or the file
is wrong. Errors go to standard error, and to the file that TERMINATION_LOG names (by default
/dev/termination-log, if there is one), where Kubernetes finds them.`

// Main runs the command and returns its exit code.
func Main(ctx context.Context, version string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use: "dispatcher", Short: "Deliver the events of a transactional outbox", Long: long,
		SilenceUsage: true, SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(runCommand(version), onceCommand(version), migrateCommand(), checkCommand(), enqueueCommand(), versionCommand(version))
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	text := strings.TrimSpace(err.Error())
	fmt.Fprintln(stderr, "dispatcher:", text)
	leaveTerminationMessage(text)
	var failed failure
	if errors.As(err, &failed) {
		return exitFailed
	}
	return exitUsage // cobra's own errors are about the command line
}

// failure is an error of the work, as against one of the command line or the file.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// work makes a command's function whose errors are failures, unless it says [wrong].
func work(do func(*cobra.Command) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		err := do(cmd)
		var w wrong
		if err == nil || errors.As(err, &w) {
			return err
		}
		return failure{err}
	}
}

// wrong is an error of the command line or the file.
type wrong struct{ error }

func (w wrong) Unwrap() error { return w.error }

// leaveTerminationMessage tells Kubernetes why the container ended.
func leaveTerminationMessage(text string) {
	path := os.Getenv("TERMINATION_LOG")
	if path == "" {
		path = "/dev/termination-log"
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return // not in a pod
	}
	defer file.Close()
	const limit = 4096 // Kubernetes keeps no more
	_, _ = io.WriteString(file, text[:min(len(text), limit)])
}

// fileFlag adds -f.
func fileFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVarP(path, "file", "f", "", "the configuration file (required)")
}

// load reads the file and checks the part of it that validate looks at.
func load(path string, validate func(config.Config) error) (config.Config, error) {
	cfg, err := config.Load(path)
	if err != nil {
		return cfg, wrong{err}
	}
	if err := validate(cfg); err != nil {
		return cfg, wrong{fmt.Errorf("configuration %s: %w", path, err)}
	}
	return cfg, nil
}

// connect opens the one connection of a command.
func connect(ctx context.Context, cfg config.Config) (*pgx.Conn, error) {
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
