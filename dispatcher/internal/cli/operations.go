package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/pgreader"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/httpsink"
)

// withOperations adds to the command that reads dead letters those that change them.
func withOperations(dead *cobra.Command, version string) *cobra.Command {
	dead.AddCommand(replayCommand(version),
		atOnceCommand(replay.ActionDiscard, "Mark dead letters as handled; their events stay dead",
			`Mark the dead letters of the filter as handled. Their events stay dead, and no longer block their keys. "dead reopen"
undoes it, while the events are there.`,
			`  dispatcher dead discard -f orders.yaml --type test.event --reason "left by the load test" --dry-run`),
		atOnceCommand(replay.ActionReopen, "Open discarded dead letters again",
			`Open the discarded dead letters of the filter again, of which the event is still dead: they are listed, block their keys
and can be replayed as before.`,
			`  dispatcher dead reopen -f orders.yaml --operation 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11 --reason "wrong group"`),
		operationsCommand(), stopCommand())
	return dead
}

// operation is what the flags of a command say that begins an operation.
type operation struct {
	file        source
	undo        string // of a reopen, the operation whose dead letters these are
	all, dryRun bool
	request     replay.Request
	filter      func(time.Time) (deadletters.Filter, error)
	out         progressWriter
}

func (o *operation) flags(cmd *cobra.Command) {
	o.filter = deadcmd.FilterFlags(cmd)
	fileFlag(cmd, &o.file)
	o.out.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.request.Reason, "reason", "", "why, such as the number of the change; it stays with each dead letter (required)")
	flags.StringVar(&o.request.RequestedBy, "requested-by", "", "who requests it, as noted at each dead letter (default: the login)")
	flags.IntVar(&o.request.Limit, "limit", 0, "how many dead letters at most, the oldest first (default: all)")
	flags.BoolVar(&o.all, "all", false, "every dead letter, when there is no filter")
	flags.BoolVar(&o.dryRun, "dry-run", false, "print what would be done, and change nothing")
}

// begin begins the operation, or writes what it would do.
func (o *operation) begin(ctx context.Context, replays *replay.Replays, cfg spec.Config) (p status.Replay, err error) {
	chosen, err := o.filter(time.Now())
	if err != nil {
		return p, err
	}
	chosen.Operation = o.undo
	if chosen.Empty() && !o.all {
		return p, errors.New("no filter; choose dead letters, such as with --group, or add --all for every one of the file's topics")
	}
	o.request.Filter, o.request.Namespace, o.request.Topics = chosen, cfg.Namespace, cfg.Topics
	if o.request.RequestedBy == "" {
		if o.request.RequestedBy, err = database.Login(cfg.Database); err != nil {
			return p, err
		}
	}
	if missing, err := replays.Missing(ctx, o.request); err != nil || len(missing) > 0 {
		return p, cmp.Or(err, fmt.Errorf("--id: %s: nothing that a %s can take, of the file's namespace and topics; nothing was changed: leave it out, or see what became of the event with `dispatcher events show -f %s ID`",
			strings.Join(missing, ", "), o.request.Action, o.file.file))
	}
	if o.dryRun {
		if p, err = replays.DryRun(ctx, o.request); err != nil {
			return p, err
		}
		return p, o.out.writeDryRun(p)
	}
	if p, err = replays.Begin(ctx, o.request); err != nil {
		return p, err
	}
	return p, o.out.write(p)
}

// atOnceCommand makes a command for an operation that is done when it has begun.
func atOnceCommand(action replay.Action, short, long, example string) *cobra.Command {
	o := operation{request: replay.Request{Action: action}}
	cmd := &cobra.Command{
		Use: string(action) + " -f FILE --reason TEXT", Short: short, Long: long, Example: example, Args: cobra.NoArgs,
		RunE: work(func(cmd *cobra.Command) error {
			return withReplays(cmd, o.file, &o.out, func(ctx context.Context, replays *replay.Replays, cfg spec.Config) error {
				_, err := o.begin(ctx, replays, cfg)
				return err
			})
		}),
	}
	o.flags(cmd)
	if action == replay.ActionReopen {
		cmd.Flags().StringVar(&o.undo, "operation", "", "only those of this discard, by its id")
	}
	if err := cmd.MarkFlagRequired("reason"); err != nil {
		panic(err) // the flag is there
	}
	return cmd
}

func operationsCommand() *cobra.Command {
	var file source
	var id string
	out := progressWriter{}
	cmd := &cobra.Command{
		Use: "operations -f FILE", Short: "List the replays, discards and reopens, the newest first", Args: cobra.NoArgs,
		Long: `List the replays, discards and reopens of the file's namespace, the newest first: who, why, and what became of the
events. LOGIN is the one that began it, as the database knows it. With --operation it looks for the outcomes of one,
and says what that waits for. Which dead letters it had is in "dead list --operation".`,
		Example: "  dispatcher dead operations -f orders.yaml\n  dispatcher dead operations -f orders.yaml --operation 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11",
		RunE: work(func(cmd *cobra.Command) error {
			return withReplays(cmd, file, &out, func(ctx context.Context, replays *replay.Replays, _ spec.Config) error {
				if id != "" {
					p, err := byID(id, func(id uuid.UUID) (status.Replay, error) { return replays.Observe(ctx, id) })
					if err != nil {
						return err
					}
					return out.write(p)
				}
				all, err := replays.Operations(ctx)
				if err != nil {
					return err
				}
				return out.list(all)
			})
		}),
	}
	fileFlag(cmd, &file)
	out.add(cmd)
	cmd.Flags().StringVar(&id, "operation", "", "the id of one")
	return cmd
}

// list writes a table of operations, or a line of JSON for each.
func (t *progressWriter) list(all []replay.Operation) error {
	if t.format == "json" {
		for _, o := range all {
			if err := t.json(o); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(t.w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "OPERATION\tACTION\tBEGAN\tSTATE\tBY\tLOGIN\tWHY\tPROGRESS")
	for _, o := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", o.ID, o.Action, o.StartedAt.Time().Format(time.RFC3339), stateOf(o),
			deadcmd.Line(o.RequestedBy), o.Login, deadcmd.Line(o.Reason), deadcmd.Line(o.String()))
	}
	return w.Flush()
}

// stateOf is the state of an operation in a word.
func stateOf(o replay.Operation) string {
	switch {
	case o.Stopped != "":
		return "stopped"
	case o.Running:
		return "running"
	case o.Waiting > 0:
		return "interrupted"
	case o.FinishedAt == 0:
		return "open"
	}
	return "finished"
}

func stopCommand() *cobra.Command {
	var file source
	var id, reason string
	out := progressWriter{}
	cmd := &cobra.Command{
		Use: "stop -f FILE --operation ID --reason TEXT", Short: "Give up what waits of a replay", Args: cobra.NoArgs,
		Long: `Give up the events of a replay that wait, after the batch in progress. Their dead letters stay open; events that were
put back stay so. The run of the replay ends then, with exit code 1.`,
		Example: `  dispatcher dead stop -f orders.yaml --operation 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11 --reason "the consumer is down"`,
		RunE: work(func(cmd *cobra.Command) error {
			return withReplays(cmd, file, &out, func(ctx context.Context, replays *replay.Replays, _ spec.Config) error {
				p, err := byID(id, func(id uuid.UUID) (status.Replay, error) { return replays.Stop(ctx, id, reason) })
				if err != nil {
					return err
				}
				return out.write(p)
			})
		}),
	}
	fileFlag(cmd, &file)
	out.add(cmd)
	cmd.Flags().StringVar(&id, "operation", "", "the id of the replay (required)")
	cmd.Flags().StringVar(&reason, "reason", "", "why (required)")
	for _, flag := range []string{"operation", "reason"} {
		if err := cmd.MarkFlagRequired(flag); err != nil {
			panic(err) // the flag is there
		}
	}
	return cmd
}

// byID does something with the operation of an id.
func byID(text string, do func(uuid.UUID) (status.Replay, error)) (status.Replay, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return status.Replay{}, fmt.Errorf("--operation is %.60q, which is not a UUID; `dispatcher dead operations` lists them", text)
	}
	p, err := do(id)
	if errors.Is(err, replay.ErrNotFound) {
		err = fmt.Errorf("operation %s: %w", id, err)
	}
	return p, err
}

// podTimeout bounds a statement that a dispatcher runs for a client of its server.
const podTimeout = 5 * time.Second

// deadCommand shows and resolves dead letters.
func deadCommand() *cobra.Command { return reading().Dead() }

// eventsCommand shows events.
func eventsCommand() *cobra.Command { return reading().Events() }

// reading makes the commands that read from the database of a file, with its login.
func reading() deadcmd.Commands {
	var file source
	return deadcmd.Commands{
		Program: "dispatcher", Whose: "-f FILE", Example: "-f orders.yaml",
		Flags: func(cmd *cobra.Command) { fileFlag(cmd, &file) },
		Open: func(*cobra.Command, string) (deadletters.Source, func(), error) {
			cfg, err := load(file, true)
			if err != nil {
				return nil, nil, err
			}
			return reader(cfg, 0), func() {}, nil
		},
	}
}

// reader reads the dispatcher's own events, each query over a connection of its own. Timeout 0 is the reader's default.
func reader(cfg spec.Config, timeout time.Duration) *pgreader.Reader {
	o := pgreader.Options{Schema: cfg.Database.Schema, Namespace: cfg.Namespace, Topics: cfg.Topics, Timeout: timeout}
	if cfg.Sink.Copy != nil {
		o.Copies = cfg.Sink.Copy.Topics
	}
	return pgreader.New(func(ctx context.Context) (*pgx.Conn, error) { return connect(ctx, cfg) }, o)
}

// address makes the sink of notifications; nil when the file has no notify.
func address(cfg spec.Config) (dispatcher.Sink, error) {
	if cfg.Notify == nil {
		return nil, nil
	}
	s, err := httpsink.New(cfg.Notify.Sink(), nil)
	if err != nil {
		return nil, fmt.Errorf("notify: %w", err)
	}
	return named{s}, nil
}

// named is a sink whose errors say that it is not the events'.
type named struct{ dispatcher.Sink }

// Deliver implements [dispatcher.Sink].
func (n named) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	errs := n.Sink.Deliver(ctx, batch)
	for i, err := range errs {
		errs[i] = notifyError(err)
	}
	return errs
}

// Probe implements [dispatcher.Sink].
func (n named) Probe(ctx context.Context) error { return notifyError(n.Sink.Probe(ctx)) }

func notifyError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("notify: %w", err)
}
