package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/unserved"
)

func unservedCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "unserved", Short: "Find events of names that no dispatcher serves, and move or discard them",
		Long: `Find events of a namespace and topic that no dispatcher serves, such as a misspelt one, and move or discard them.

No dispatcher claims them, and retention removes no event that waits. The file is the owner's. A name is served
while a dispatcher of it has run in the last minute.`,
	}
	cmd.AddCommand(unservedListCommand(), unservedChangeCommand(true), unservedChangeCommand(false))
	return cmd
}

// unservedNames is the report of unserved list.
type unservedNames struct {
	Names []unservedName `json:"names"`
}

type unservedName struct {
	unserved.Name
	Pending int64 `json:"pending"`
}

func unservedListCommand() *cobra.Command {
	var file source
	var output string
	cmd := &cobra.Command{
		Use: "list -f FILE", Short: "List the names that no dispatcher serves", Args: cobra.NoArgs,
		Example: `  dispatcher unserved list -f owner.yaml`,
		RunE: work(func(cmd *cobra.Command) error {
			write, err := reportWriter(output, unservedTable)
			if err != nil {
				return err
			}
			return withDatabase(cmd, file.owners(), func(ctx context.Context, conn *pgx.Conn, cfg spec.Config) error {
				names, pending, err := unserved.Names(ctx, conn, cfg.Database.Schema)
				if err != nil {
					return fmt.Errorf("unserved list: %w%s", err, ownerHint(err))
				}
				all := unservedNames{Names: []unservedName{}}
				for i, name := range names {
					all.Names = append(all.Names, unservedName{name, pending[i]})
				}
				return write(cmd.OutOrStdout(), all)
			})
		}),
	}
	fileFlag(cmd, &file)
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table, json or yaml")
	return cmd
}

func unservedTable(w io.Writer, all unservedNames) error {
	if len(all.Names) == 0 {
		_, err := fmt.Fprintln(w, "each name with pending events is served")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tTOPIC\tPENDING")
	for _, n := range all.Names {
		fmt.Fprintf(table, "%s\t%s\t%d\n", oneLine(n.Namespace), oneLine(n.Topic), n.Pending)
	}
	return table.Flush()
}

// unservedChangeCommand makes the command that moves events, or the one that discards them.
func unservedChangeCommand(moves bool) *cobra.Command {
	var file source
	var dry bool
	var c unserved.Change
	var to unserved.Name
	cmd := &cobra.Command{
		Use: "discard -f FILE --namespace NAMESPACE --topic TOPIC --reason REASON", Short: "Discard the pending events of a name", Args: cobra.NoArgs,
		Long: `Discard the pending events of a namespace and topic that no dispatcher serves. Each becomes dead, with a dead letter
that is resolved as discarded, with the login and the reason.`,
		Example: `  dispatcher unserved discard -f owner.yaml --namespace shpo --topic orders --reason 'a test' --dry-run`,
	}
	if moves {
		cmd.Use = "move -f FILE --namespace NAMESPACE --topic TOPIC --to-namespace NAMESPACE --reason REASON"
		cmd.Short = "Move the pending events of a name to another"
		cmd.Long = `Move the pending events of a namespace and topic that no dispatcher serves to another. They keep their id, their order
and their due time, get a new seq, and last_error says from where, by whom and why they were moved. One whose dedupe
key another event of the new name has stays: it was enqueued there already, and can be discarded.`
		cmd.Example = `  dispatcher unserved move -f owner.yaml --namespace shpo --topic orders --to-namespace shop --reason 'misspelt'`
		cmd.Flags().StringVar(&to.Namespace, "to-namespace", "", "the new namespace (default: that of --namespace)")
		cmd.Flags().StringVar(&to.Topic, "to-topic", "", "the new topic (default: that of --topic)")
	}
	fileFlag(cmd, &file)
	flags := cmd.Flags()
	flags.StringVar(&c.From.Namespace, "namespace", "", "the namespace that no dispatcher serves (required)")
	flags.StringVar(&c.From.Topic, "topic", "", "the topic that no dispatcher serves (required)")
	flags.StringVar(&c.Reason, "reason", "", "why, in your words (required)")
	flags.BoolVar(&dry, "dry-run", false, "count, and change nothing")
	cmd.RunE = work(func(cmd *cobra.Command) error {
		did := "discarded"
		if moves {
			to.Namespace, to.Topic = cmp.Or(to.Namespace, c.From.Namespace), cmp.Or(to.Topic, c.From.Topic)
			c.To, did = &to, "moved"
		}
		return withDatabase(cmd, file.owners(), func(ctx context.Context, conn *pgx.Conn, cfg spec.Config) error {
			n, err := unserved.Apply(ctx, conn, cfg.Database.Schema, c, dry)
			if err != nil {
				return fmt.Errorf("unserved: %w%s", err, ownerHint(err))
			}
			if dry {
				fmt.Fprintf(cmd.OutOrStdout(), "%d events of %s would be %s; nothing was changed\n", n.Pending-n.Duplicates, c.From, did)
			} else {
				fmt.Fprintf(cmd.OutOrStdout(), "%d events of %s %s\n", n.Changed, c.From, did)
			}
			if n.Duplicates > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "%d have a dedupe key that is there already, and stay; discard them\n", n.Duplicates)
			}
			return nil
		})
	})
	return cmd
}
