package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
)

// withResolving adds replay and discard to the command that reads dead letters.
func withResolving(dead *cobra.Command) *cobra.Command {
	dead.AddCommand(
		deadLettersCommand(config.ActionReplay, "replay", "Put dead events back, at a rate",
			`Put the dead events of the filter back to pending, at a rate. Each keeps its id, its dedupe key and its place
in the order, and gets its whole retry budget again. With --canary some are put back first, and alone: when too many of
them are dead again, the rest stays as it is. Of a key the next event is put back when the one before is delivered.`,
			`  dispatcher dead replay -f orders.yaml --group 7f3a9c21 --reason CHG-812 --dry-run
  dispatcher dead replay -f orders.yaml --group 7f3a9c21 --reason CHG-812 --canary 10 --rate 500 --wait`),
		deadLettersCommand(config.ActionDiscard, "discard", "Mark dead letters as handled; their events stay dead",
			`Mark the dead letters of the filter as handled. Their events stay dead, and no longer block their keys.`,
			`  dispatcher dead discard -f orders.yaml --type test.event --reason "left by the load test" --dry-run`))
	return dead
}

func deadLettersCommand(action config.ReplayAction, use, short, long, example string) *cobra.Command {
	var file string
	var all, dryRun bool
	request := config.ReplayRequest{Action: action}
	running := replay.RunOptions{}
	out := progressWriter{}
	cmd := &cobra.Command{
		Use: use + " -f FILE --reason TEXT", Short: short, Example: example, Args: cobra.NoArgs,
		Long: long + `

The set is fixed when the command begins: the open dead letters that match, of the file's namespace and topics. It is
in the database: when the command is interrupted, "dispatcher replay run --id" continues it. The login needs the grants
that "migrate grants --for replay" prints.`,
	}
	filter := deadcmd.FilterFlags(cmd)
	cmd.RunE = work(func(cmd *cobra.Command) (err error) {
		chosen, err := filter(time.Now())
		if err != nil {
			return err
		}
		if chosen.Empty() && !all {
			return errors.New("no filter; choose dead letters, such as with --group, or add --all for every open dead letter of the file's topics")
		}
		return withReplays(cmd, file, &out, func(ctx context.Context, replays *replay.Replays, cfg config.Config) error {
			request.Filter, request.Namespace, request.Topics = config.DeadLetterFilter(chosen), cfg.Namespace, cfg.Topics
			if request.RequestedBy == "" {
				if request.RequestedBy, err = database.Login(cfg.Database); err != nil {
					return err
				}
			}
			if dryRun {
				p, err := replays.DryRun(ctx, request)
				if err != nil {
					return err
				}
				return out.writeDryRun(p)
			}
			p, err := replays.Begin(ctx, request)
			if err != nil {
				return err
			}
			if p, err = out.run(ctx, replays, p, running); err != nil {
				return err
			}
			return out.stopped(p)
		})
	})
	fileFlag(cmd, &file)
	out.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&request.Reason, "reason", "", "why, such as the number of the change; it stays with each dead letter (required)")
	flags.StringVar(&request.RequestedBy, "by", "", "who requests it, as noted at each dead letter (default: the login)")
	flags.BoolVar(&all, "all", false, "every open dead letter, when there is no filter")
	flags.BoolVar(&dryRun, "dry-run", false, "print what would be done, and change nothing")
	flags.IntVar(&request.Rate, "rate", config.DefaultReplayRate, "the most events a second")
	if action == config.ActionReplay {
		flags.IntVar(&request.Canary, "canary", 0, "how many go first, and alone, until their outcome is known")
		flags.IntVar(&request.AbortAt, "abort-at", 0, fmt.Sprintf("stop when this percentage of the known outcomes is dead again (default %d with --canary, else never)", config.DefaultAbortAt))
		flags.BoolVar(&request.AnyOrder, "any-order", false, "do not wait for the event before of the same key, for dispatchers that keep no order")
		flags.BoolVar(&running.Wait, "wait", false, "wait until each event is delivered, or dead again")
		timeoutFlag(cmd, &running.Timeout)
	}
	if err := cmd.MarkFlagRequired("reason"); err != nil {
		panic(err) // the flag is there
	}
	return cmd
}

// withReplays connects to the replays of a file's outbox.
func withReplays(cmd *cobra.Command, file string, out *progressWriter, do func(context.Context, *replay.Replays, config.Config) error) error {
	out.w, out.file = cmd.OutOrStdout(), file
	if out.format != "text" && out.format != "json" {
		return fmt.Errorf("--output is %q; choose text or json", out.format)
	}
	cfg, err := load(file, validateReading)
	if err != nil {
		return err
	}
	pool, err := database.Pool(cmd.Context(), cfg.Database, cfg.Name)
	if err != nil {
		return err
	}
	defer pool.Close()
	return do(cmd.Context(), replay.New(pool, replay.Options{Schema: cfg.Database.Schema, Namespace: cfg.Namespace}), cfg)
}

// timeoutFlag adds the flag that ends a wait.
func timeoutFlag(cmd *cobra.Command, timeout *time.Duration) {
	cmd.Flags().DurationVar(timeout, "timeout", replay.DefaultTimeout, "fail when nothing has happened for so long: no event was put back, delivered or dead again; 0 waits for ever")
}

// progressWriter writes the progress of a replay.
type progressWriter struct {
	w            io.Writer
	file, format string
	last         string
}

func (t *progressWriter) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&t.format, "output", "o", "text", "text, or json: an object for each line")
}

// write writes a progress that differs from the last one.
func (t *progressWriter) write(p status.Replay) error {
	line := fmt.Sprintf("%s %s: %s", p.Action, p.ID, p)
	if t.format == "json" {
		text, err := json.Marshal(p)
		if err != nil {
			return fmt.Errorf("write the progress: %w", err)
		}
		line = string(text)
	} else {
		for _, wait := range p.WaitingFor {
			line += "\n  " + wait.String()
		}
	}
	if line == t.last {
		return nil
	}
	t.last = line
	_, err := fmt.Fprintln(t.w, line)
	return err
}

// writeDryRun writes what a dry run found.
func (t *progressWriter) writeDryRun(p status.Replay) error {
	if t.format == "json" {
		return t.write(p)
	}
	text := fmt.Sprintf("would %s %d of %d", p.Action, p.Waiting, p.Matched)
	for _, s := range p.Skipped {
		text += fmt.Sprintf(", and skip %d: %s", s.Count, s.Reason)
	}
	_, err := fmt.Fprintln(t.w, text)
	return err
}

// run runs a replay, and writes its progress.
func (t *progressWriter) run(ctx context.Context, replays *replay.Replays, p status.Replay, running replay.RunOptions) (status.Replay, error) {
	if err := t.write(p); err != nil {
		return p, err
	}
	id := p.ID
	report := running.Report
	running.Report = func(p status.Replay) {
		_ = t.write(p) // the last write reports a closed output
		if report != nil {
			report(p)
		}
	}
	p, err := replays.Run(ctx, id, running)
	if errors.Is(err, context.Canceled) {
		err = errors.New("it was interrupted")
	}
	if err != nil {
		return p, fmt.Errorf("%w; `dispatcher replay run -f %s --id %s` continues it, and `dispatcher replay stop` gives up the rest", err, t.file, id)
	}
	return p, t.write(p)
}

// stopped is the error of a replay that stopped early.
func (t *progressWriter) stopped(p status.Replay) error {
	if p.Stopped == "" {
		return nil
	}
	return fmt.Errorf("replay %s was stopped: %s; see the reasons with `dispatcher dead groups -f %s`, before you replay the rest", p.ID, p.Stopped, t.file)
}
