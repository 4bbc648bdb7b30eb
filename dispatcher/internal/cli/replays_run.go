package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
)

// replayCommand runs, shows and stops a replay that was requested.
func replayCommand(version string) *cobra.Command {
	cmd := &cobra.Command{Use: "replay", Short: "Run, watch or stop a replay or a discard of dead letters", Args: cobra.NoArgs}
	cmd.AddCommand(replayRunCommand(version), replayStatusCommand(), replayStopCommand())
	return cmd
}

func replayRunCommand(version string) *cobra.Command {
	var file, requestFile, id, listen string
	var timeout time.Duration
	out := progressWriter{}
	cmd := &cobra.Command{
		Use: "run -f FILE (--request FILE | --id ID)", Short: "Run a replay to its end, from the beginning or from where it stands", Args: cobra.NoArgs,
		Long: `Run a replay until each outcome is known. --request names a file with the request, as YAML: id, action, reason,
requestedBy, filter, rate, canary, abortAt, anyOrder; dryRun: true changes nothing. Namespace and topics are those
of the configuration. When a replay of the id exists, it is continued. At the end the progress, as a JSON object, is
in the file that TERMINATION_LOG names (by default /dev/termination-log, if there is one). A stop by abortAt is a
success. With --listen the progress is served on /status while it runs, and failures of the database are shown there
and retried. When it is interrupted, the next run of the id continues.`,
		Example: `  dispatcher replay run -f orders.yaml --request replay.yaml
  dispatcher replay run -f orders.yaml --id 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11`,
		RunE: work(func(cmd *cobra.Command) error {
			return withReplays(cmd, file, &out, func(ctx context.Context, replays *replay.Replays, cfg config.Config) error {
				attempt := func(report func(status.Replay)) (status.Replay, error) {
					p, err := begun(ctx, replays, cfg, requestFile, id)
					if err != nil {
						return p, err
					}
					if report(p); p.ID == uuid.Nil {
						return p, out.writeDryRun(p)
					}
					return out.run(ctx, replays, p, replay.RunOptions{Wait: true, Timeout: timeout, Report: report})
				}
				p, err := served(ctx, listen, version, cfg, attempt)
				if err != nil {
					return err
				}
				return writeProgress(p)
			})
		}),
	}
	fileFlag(cmd, &file)
	out.add(cmd)
	cmd.Flags().StringVar(&requestFile, "request", "", "the file with the request")
	cmd.Flags().StringVar(&id, "id", "", "a replay that was begun before")
	timeoutFlag(cmd, &timeout)
	cmd.Flags().StringVar(&listen, "listen", "", "the address that /status is served at, such as :8080 (default: none)")
	cmd.MarkFlagsMutuallyExclusive("request", "id")
	cmd.MarkFlagsOneRequired("request", "id")
	return cmd
}

// begun is the replay of a request's file, or of an id. Without an id it was a dry run.
func begun(ctx context.Context, replays *replay.Replays, cfg config.Config, requestFile, id string) (status.Replay, error) {
	if requestFile == "" {
		return byID(id, func(id uuid.UUID) (status.Replay, error) { return replays.Progress(ctx, id) })
	}
	request, err := readRequest(cfg, requestFile)
	if err == nil && request.DryRun {
		return replays.DryRun(ctx, request)
	}
	if err != nil {
		return status.Replay{}, err
	}
	return replays.Begin(ctx, request)
}

// readRequest reads a request, and adds what the configuration says.
func readRequest(cfg config.Config, file string) (request config.ReplayRequest, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return request, fmt.Errorf("read the request: %w; name its file with --request", err)
	}
	if err := yaml.UnmarshalStrict(text, &request); err != nil {
		return request, refused{fmt.Errorf("request %s: %w; correct it there", file, err)}
	}
	request.Namespace, request.Topics = cfg.Namespace, cfg.Topics
	if err := replay.Validate(request); err != nil {
		return request, refused{fmt.Errorf("request %s: %w", file, err)}
	}
	if request.ID == uuid.Nil && !request.DryRun {
		return request, refused{fmt.Errorf("request %s: id is missing; give a UUID, by which the next run continues it", file)}
	}
	return request, nil
}

// writeProgress writes the progress as the termination message.
func writeProgress(p status.Replay) error {
	text, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("write the progress: %w", err)
	}
	writeTerminationMessage(string(text))
	return nil
}

func byID(text string, do func(uuid.UUID) (status.Replay, error)) (status.Replay, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return status.Replay{}, fmt.Errorf("--id is %.60q, which is not a UUID; `dispatcher dead replay` prints it when it begins", text)
	}
	p, err := do(id)
	if errors.Is(err, replay.ErrNotFound) {
		err = fmt.Errorf("replay %s: %w", id, err)
	}
	return p, err
}

func replayStatusCommand() *cobra.Command {
	var file, id string
	out := progressWriter{}
	cmd := &cobra.Command{
		Use: "status -f FILE --id ID", Short: "Show the progress of a replay", Args: cobra.NoArgs,
		Long:    `Look for the outcomes of a replay, and show its progress. The outcomes are stored; no event is moved.`,
		Example: `  dispatcher replay status -f orders.yaml --id 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11 --output json`,
		RunE: work(func(cmd *cobra.Command) error {
			return withReplays(cmd, file, &out, func(ctx context.Context, replays *replay.Replays, _ config.Config) error {
				p, err := byID(id, func(id uuid.UUID) (status.Replay, error) { return replays.Observe(ctx, id) })
				if err != nil {
					return err
				}
				return out.write(p)
			})
		}),
	}
	return addReplayFlags(cmd, &file, &id, &out)
}

func replayStopCommand() *cobra.Command {
	var file, requestFile, id, reason string
	out := progressWriter{}
	cmd := &cobra.Command{
		Use: "stop -f FILE (--request FILE | --id ID) --reason TEXT", Short: "Give up what waits of a replay", Args: cobra.NoArgs,
		Long: `Give up the events of a replay that wait, after the batch in progress. Their dead letters stay open; events that were
put back stay so. The run of the replay ends when their outcomes are known. --request names the file that "replay run"
takes: a replay that has not begun is begun and given up, so that a later run of its id moves nothing. The progress is
written as "replay run" writes it.`,
		Example: `  dispatcher replay stop -f orders.yaml --id 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11 --reason "the consumer is down"`,
		RunE: work(func(cmd *cobra.Command) error {
			return withReplays(cmd, file, &out, func(ctx context.Context, replays *replay.Replays, cfg config.Config) error {
				p, err := stopReplay(ctx, replays, cfg, requestFile, id, reason)
				if err != nil {
					return err
				}
				return errors.Join(out.write(p), writeProgress(p))
			})
		}),
	}
	fileFlag(cmd, &file)
	out.add(cmd)
	cmd.Flags().StringVar(&requestFile, "request", "", "the file with the request")
	cmd.Flags().StringVar(&id, "id", "", "the replay")
	cmd.Flags().StringVar(&reason, "reason", "", "why (required)")
	if err := cmd.MarkFlagRequired("reason"); err != nil {
		panic(err) // the flag is there
	}
	cmd.MarkFlagsMutuallyExclusive("request", "id")
	cmd.MarkFlagsOneRequired("request", "id")
	return cmd
}

// stopReplay gives up the replay of a request's file, or of an id.
func stopReplay(ctx context.Context, replays *replay.Replays, cfg config.Config, requestFile, id, reason string) (status.Replay, error) {
	if requestFile == "" {
		return byID(id, func(id uuid.UUID) (status.Replay, error) { return replays.Stop(ctx, id, reason) })
	}
	request, err := readRequest(cfg, requestFile)
	if err != nil {
		return status.Replay{}, err
	}
	if request.DryRun {
		return status.Replay{}, refused{fmt.Errorf("request %s: it is a dry run, of which nothing waits; name another", requestFile)}
	}
	if _, err := replays.Begin(ctx, request); err != nil {
		return status.Replay{}, err
	}
	return replays.Stop(ctx, request.ID, reason)
}

// addReplayFlags adds the flags of a command on one replay.
func addReplayFlags(cmd *cobra.Command, file, id *string, out *progressWriter) *cobra.Command {
	fileFlag(cmd, file)
	out.add(cmd)
	cmd.Flags().StringVar(id, "id", "", "the replay (required)")
	if err := cmd.MarkFlagRequired("id"); err != nil {
		panic(err) // the flag is there
	}
	return cmd
}
