package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/replay"
)

// replayCommand is what a process does with an operation that somebody has asked for.
func replayCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "replay", Short: "Run, watch or stop a replay or a discard of dead letters", Args: cobra.NoArgs}
	cmd.AddCommand(replayRunCommand(), replayStatusCommand(), replayStopCommand())
	return cmd
}

func replayRunCommand() *cobra.Command {
	var file, orderFile, id string
	tell := teller{}
	cmd := &cobra.Command{
		Use: "run -f FILE (--order FILE | --id ID)", Short: "Run an operation to its end, from the beginning or from where it stands", Args: cobra.NoArgs,
		Long: `Run an operation until each outcome is known. --order names a file with what is asked for, as YAML: id,
action, reason, requestedBy, filter, rate, canary, abortAt, anyOrder; dryRun: true changes nothing. Namespace and
topics are those of the configuration. When an operation of the id is there already, it goes on with that. At the
end the progress, as a JSON object, is in the file that TERMINATION_LOG names (by default /dev/termination-log, if
there is one). To stop by abortAt is no failure.`,
		Example: `  dispatcher replay run -f orders.yaml --order replay.yaml
  dispatcher replay run -f orders.yaml --id 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11`,
		RunE: work(func(cmd *cobra.Command) error {
			return withReplays(cmd, file, &tell, func(ctx context.Context, replays *replay.Replays, cfg config.Config) error {
				p, err := begun(ctx, replays, cfg, orderFile, id)
				if err == nil && p.ID != uuid.Nil {
					p, err = tell.run(ctx, replays, p, replay.Running{Wait: true})
				} else if err == nil {
					err = tell.would(p)
				}
				if err != nil {
					return err
				}
				text, err := json.Marshal(p)
				if err != nil {
					return fmt.Errorf("write the progress: %w", err)
				}
				leaveTerminationMessage(string(text))
				return nil
			})
		}),
	}
	fileFlag(cmd, &file)
	tell.add(cmd)
	cmd.Flags().StringVar(&orderFile, "order", "", "the file with what is asked for")
	cmd.Flags().StringVar(&id, "id", "", "an operation that was begun before")
	cmd.MarkFlagsMutuallyExclusive("order", "id")
	cmd.MarkFlagsOneRequired("order", "id")
	return cmd
}

// begun is the operation of an order's file, or of an id. Without an id it was a dry run.
func begun(ctx context.Context, replays *replay.Replays, cfg config.Config, orderFile, id string) (replay.Progress, error) {
	if orderFile == "" {
		return byID(id, func(id uuid.UUID) (replay.Progress, error) { return replays.Progress(ctx, id) })
	}
	text, err := os.ReadFile(orderFile)
	if err != nil {
		return replay.Progress{}, fmt.Errorf("read the order: %w; name its file with --order", err)
	}
	var order struct {
		replay.Order
		DryRun bool `json:"dryRun"`
	}
	if err := yaml.UnmarshalStrict(text, &order); err != nil {
		return replay.Progress{}, refused{fmt.Errorf("order %s: %w; correct it there", orderFile, err)}
	}
	order.Namespace, order.Topics = cfg.Namespace, cfg.Topics
	switch err := order.Validate(); {
	case err != nil:
		return replay.Progress{}, refused{fmt.Errorf("order %s: %w", orderFile, err)}
	case order.DryRun:
		return replays.DryRun(ctx, order.Order)
	case order.ID == uuid.Nil:
		return replay.Progress{}, refused{fmt.Errorf("order %s: id is missing; give a UUID, by which it goes on when it is run again", orderFile)}
	}
	return replays.Begin(ctx, order.Order)
}

func byID(text string, do func(uuid.UUID) (replay.Progress, error)) (replay.Progress, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return replay.Progress{}, fmt.Errorf("--id is %.60q, which is no UUID; `dispatcher dead replay` prints it when it begins", text)
	}
	p, err := do(id)
	if errors.Is(err, replay.ErrNotFound) {
		err = fmt.Errorf("operation %s: %w", id, err)
	}
	return p, err
}

func replayStatusCommand() *cobra.Command {
	var file, id string
	tell := teller{}
	cmd := &cobra.Command{
		Use: "status -f FILE --id ID", Short: "Tell how far an operation is", Args: cobra.NoArgs,
		Long: `Look for the outcomes of an operation, and tell how far it is. This writes down what it finds, and nothing
else: it moves no event.`,
		Example: `  dispatcher replay status -f orders.yaml --id 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11 --output json`,
		RunE: work(func(cmd *cobra.Command) error {
			return withReplays(cmd, file, &tell, func(ctx context.Context, replays *replay.Replays, _ config.Config) error {
				p, err := byID(id, func(id uuid.UUID) (replay.Progress, error) { return replays.Observe(ctx, id) })
				if err != nil {
					return err
				}
				return tell.tell(p)
			})
		}),
	}
	return operationOf(cmd, &file, &id, &tell)
}

func replayStopCommand() *cobra.Command {
	var file, id, reason string
	tell := teller{}
	cmd := &cobra.Command{
		Use: "stop -f FILE --id ID --reason TEXT", Short: "Give up what waits of an operation", Args: cobra.NoArgs,
		Long: `Give up what waits of an operation, after the batch that is under way. Its letters stay open; what was put
back stays so. Who runs the operation ends when the outcomes of that are known.`,
		Example: `  dispatcher replay stop -f orders.yaml --id 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11 --reason "the consumer is down"`,
		RunE: work(func(cmd *cobra.Command) error {
			return withReplays(cmd, file, &tell, func(ctx context.Context, replays *replay.Replays, _ config.Config) error {
				p, err := byID(id, func(id uuid.UUID) (replay.Progress, error) { return replays.Stop(ctx, id, reason) })
				if err != nil {
					return err
				}
				return tell.tell(p)
			})
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why (required)")
	if err := cmd.MarkFlagRequired("reason"); err != nil {
		panic(err) // the flag is there
	}
	return operationOf(cmd, &file, &id, &tell)
}

// operationOf adds the flags of a command on one operation.
func operationOf(cmd *cobra.Command, file, id *string, tell *teller) *cobra.Command {
	fileFlag(cmd, file)
	tell.add(cmd)
	cmd.Flags().StringVar(id, "id", "", "the operation (required)")
	if err := cmd.MarkFlagRequired("id"); err != nil {
		panic(err) // the flag is there
	}
	return cmd
}
