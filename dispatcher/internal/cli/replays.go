package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/document"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
)

// replayCommand puts dead events back: by its flags, or by a file, as the Job of a DeadLetterReplay does.
func replayCommand(version string) *cobra.Command {
	var id, requestFile, listen string
	o := operation{request: replay.Request{Action: replay.ActionReplay}}
	running := replay.RunOptions{}
	cmd := &cobra.Command{
		Use: "replay -f FILE (--reason TEXT | --operation ID)", Short: "Put dead events back, at a rate", Args: cobra.NoArgs,
		Long: `Put the dead events of the filter back to pending, at a rate. Each keeps its id, its dedupe key and its place
in the order, and gets its whole retry budget again. With --canary some are put back first, and alone. When too many
of the newest outcomes are failures, the rest stays as it is: an event whose first attempt failed has failed. No more
than 5 seconds of the rate are put back without an outcome.

The set is fixed when the command begins: the open dead letters that match, of the file's namespace and topics, that no
other operation has. It is in the database: when the command is interrupted, --operation continues it. The login needs
the grants that "migrate grants --for replay" prints.`,
		Example: `  dispatcher dead replay -f orders.yaml --group 7f3a9c21 --reason CHG-812 --dry-run
  dispatcher dead replay -f orders.yaml --group 7f3a9c21 --reason CHG-812 --canary 10 --rate 500 --wait
  dispatcher dead replay -f orders.yaml --operation 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11 --wait`,
		RunE: work(func(cmd *cobra.Command) error {
			if id != "" || requestFile != "" {
				err := onlyFlags(cmd, "is for a new replay, and one that exists keeps its set and its rate; leave it out, or see where the replay is with `dispatcher dead operations --operation ID`, which puts nothing back",
					"operation", "request", "listen", "file", "secrets", "object", "output", "wait", "timeout")
				if err != nil {
					return err
				}
			}
			if requestFile != "" {
				cfg, request, err := requestOf(requestFile, o.file.Options)
				if err != nil {
					return err
				}
				running.Wait, running.Linger = true, true // the object has the outcomes, and says at once that it stopped
				return withReplaysOf(cmd, cfg, requestFile, &o.out, func(ctx context.Context, replays *replay.Replays, cfg spec.Config) error {
					return o.out.requested(ctx, replays, cfg, request, listen, version, running)
				})
			}
			return withReplays(cmd, o.file, &o.out, func(ctx context.Context, replays *replay.Replays, cfg spec.Config) error {
				begin := func() (status.Replay, error) { return o.begin(ctx, replays, cfg) }
				if id != "" {
					begin = func() (status.Replay, error) {
						return byID(id, func(id uuid.UUID) (status.Replay, error) { return replays.Progress(ctx, id) })
					}
				}
				p, err := begin()
				if err != nil || p.ID == uuid.Nil {
					return err
				}
				if p, err = o.out.run(ctx, replays, p, running); err != nil {
					return err
				}
				return o.out.stopped(p)
			})
		}),
	}
	o.flags(cmd)
	flags := cmd.Flags()
	flags.IntVar(&o.request.Rate, "rate", replay.DefaultRate, "the most events a second")
	flags.IntVar(&o.request.Canary, "canary", 0, "how many go first, and alone, until their outcome is known")
	flags.IntVar(&o.request.AbortAt, "abort-at", replay.DefaultAbortAt, "stop when this percentage of the newest 100 outcomes are failures")
	flags.DurationVar(&o.request.Expires, "expires", 0, "for how long events whose time is over are worth sending again, such as 1h (default: such a replay is refused)")
	flags.BoolVar(&running.Wait, "wait", false, "wait until each event is delivered, or dead again, or the replay has stopped")
	flags.DurationVar(&running.Timeout, "timeout", replay.DefaultTimeout, "fail when nothing has happened for so long: no event was put back, delivered or dead again; 0 waits for ever")
	flags.StringVar(&id, "operation", "", "continue the replay of this id")
	flags.StringVar(&requestFile, "request", "", "the file with a DeadLetterReplay and its Outbox, instead of -f")
	flags.StringVar(&listen, "listen", "", "with --request: the address that /status is served at, such as :8080")
	for _, flag := range []string{"request", "listen"} { // for the Job
		if err := flags.MarkHidden(flag); err != nil {
			panic(err) // the flag is there
		}
	}
	cmd.MarkFlagsOneRequired("reason", "operation", "request")
	cmd.MarkFlagsMutuallyExclusive("reason", "operation", "request")
	return cmd
}

// withReplays connects to the operations of a file's outbox.
func withReplays(cmd *cobra.Command, file source, out *progressWriter, do func(context.Context, *replay.Replays, spec.Config) error) error {
	file.Login = spec.LoginReplay
	cfg, err := load(file, true)
	if err != nil {
		return err
	}
	return withReplaysOf(cmd, cfg, file.file, out, do)
}

// withReplaysOf connects to the operations of the settings of a file.
func withReplaysOf(cmd *cobra.Command, cfg spec.Config, file string, out *progressWriter, do func(context.Context, *replay.Replays, spec.Config) error) error {
	out.w, out.file = cmd.OutOrStdout(), file
	if out.format != "text" && out.format != "json" {
		return fmt.Errorf("--output is %q; choose text or json", out.format)
	}
	pool, err := database.Pool(cmd.Context(), cfg.Database, cfg.Name)
	if err != nil {
		return err
	}
	defer pool.Close()
	return do(cmd.Context(), replay.New(pool, replay.Options{Schema: cfg.Database.Schema, Namespace: cfg.Namespace}), cfg)
}

// progressWriter writes the progress of an operation.
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
	if t.format == "json" {
		return t.json(p)
	}
	text := fmt.Sprintf("%s %s: %s", p.Action, p.ID, deadcmd.Line(p.String()))
	for _, why := range p.Why() {
		text += "\n  " + deadcmd.Line(why)
	}
	if text == t.last {
		return nil
	}
	if t.last = text; p.EndsAt != 0 {
		text += "; ends at about " + p.EndsAt.Time().Local().Format(time.TimeOnly)
	}
	_, err := fmt.Fprintln(t.w, text)
	return err
}

func (t *progressWriter) json(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write the progress: %w", err)
	}
	if string(text) == t.last {
		return nil
	}
	t.last = string(text)
	_, err = fmt.Fprintln(t.w, t.last)
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
		return p, fmt.Errorf("%w; `dispatcher dead replay -f %s --operation %s --wait` continues it, and `dispatcher dead stop` gives up the rest", err, t.file, id)
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

// requested runs the operation of a DeadLetterReplay until each outcome is known, from where it stands. Its progress is served
// at an address, and at the end in the termination message. A stop by itself is not a failure.
func (t *progressWriter) requested(ctx context.Context, replays *replay.Replays, cfg spec.Config, request replay.Request, listen, version string, running replay.RunOptions) error {
	p, err := served(ctx, listen, version, cfg, func(report func(status.Replay)) (status.Replay, error) {
		if request.DryRun {
			p, err := replays.DryRun(ctx, request)
			if err != nil {
				return p, err
			}
			report(p)
			return p, t.writeDryRun(p)
		}
		p, err := replays.Begin(ctx, request)
		if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == "22023" {
			return p, refused{err} // such as for events whose time is over: it is the same at every attempt
		}
		if err != nil {
			return p, err
		}
		report(p)
		running.Report = report
		return t.run(ctx, replays, p, running)
	})
	if err != nil {
		return err
	}
	text, err := finalText(p)
	if err != nil {
		return fmt.Errorf("write the progress: %w", err)
	}
	writeTerminationMessage(text)
	return nil
}

// finalText is the termination message of an operation, which is read only when it is whole.
func finalText(p status.Replay) (string, error) {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // it is JSON, and else up to six times as long
	err := encoder.Encode(p.Final())
	return text.String(), err
}

// requestOf reads the DeadLetterReplay of a file.
func requestOf(file string, o document.Options) (spec.Config, replay.Request, error) {
	cfg, request, err := document.LoadReplay(file, o)
	if err != nil {
		return cfg, request, refused{err}
	}
	if err := request.Validate(); err != nil {
		return cfg, request, refused{fmt.Errorf("request %s: %w", file, err)}
	}
	return cfg, request, nil
}
