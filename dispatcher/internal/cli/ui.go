package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/console"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/monitor"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
)

// shownGroups is how many groups the page of the dispatcher has.
const shownGroups = 10

func uiCommand() *cobra.Command {
	var file source
	var against string
	var port int
	cmd := &cobra.Command{
		Use: "ui -f FILE", Short: "Show the dispatcher and its dead letters in a browser on this machine", Args: cobra.NoArgs,
		Long: `Show the dispatcher of a file, its dead letters in groups, replays and the life of an event in a browser on this
machine, until Ctrl-C. It reads the database with the login of the file. It replays and discards with its login for
replays, where that has the grants that "migrate grants --for replay" prints. A button does the same as the command next
to it. The console listens on 127.0.0.1 alone, and the link that it prints works once. A replay runs in this process:
"dead replay --operation" continues one that Ctrl-C has interrupted.`,
		Example: "  dispatcher ui -f orders.yaml",
		RunE: work(func(cmd *cobra.Command) error {
			b, err := newBackend(cmd.Context(), file)
			if err != nil {
				return err
			}
			b.try = tryFlags{file: file, against: against, past: pgstore.Past{Last: defaultLast}}
			defer b.pool.Close()
			defer b.running.Wait()
			where := fmt.Sprintf("%s · outbox namespace %s", filepath.Base(file.file), b.cfg.Namespace)
			return console.Serve(cmd.Context(), cmd.OutOrStdout(), &console.Console{Backend: b, Where: where}, b.name().Path(), port)
		}),
	}
	fileFlag(cmd, &file)
	cmd.Flags().StringVar(&against, "against", "", "the configuration file that the page \"Try the file\" compares with (default: what the rows' status says)")
	cmd.Flags().IntVar(&port, "port", 0, "the port on this machine (default: a free one)")
	return cmd
}

// backend is the console's, with the logins of a file.
type backend struct {
	ctx     context.Context // of the command, with which the replays end
	file    string
	by      string // the login for replays
	cfg     spec.Config
	replays *replay.Replays
	pool    *pgxpool.Pool // of the login for replays
	running sync.WaitGroup
	try     tryFlags

	mu      sync.Mutex
	runs    map[uuid.UUID]error // those that this process has begun, with what interrupted them
	dryRuns []console.Replay    // the newest first
}

func newBackend(ctx context.Context, file source) (*backend, error) {
	cfg, err := load(file, true)
	if err != nil {
		return nil, err
	}
	file.Login = spec.LoginReplay
	with, err := load(file, true)
	if err != nil {
		return nil, err
	}
	pool, poolErr := database.Pool(ctx, with.Database, with.Name)
	by, err := database.Login(with.Database)
	if err := errors.Join(poolErr, err); err != nil {
		return nil, refused{err}
	}
	return &backend{ctx: ctx, file: file.file, by: by, cfg: cfg, pool: pool, runs: map[uuid.UUID]error{},
		replays: replay.New(pool, replay.Options{Schema: cfg.Database.Schema, Namespace: cfg.Namespace})}, nil
}

func (b *backend) name() console.Name { return console.Name{Namespace: "-", Name: b.cfg.Name} }

func (b *backend) Fleet(ctx context.Context, _ string) (console.Fleet, error) {
	report, err := b.Report(ctx, b.name())
	return console.Fleet{Reports: []console.Report{report}}, err
}

func (b *backend) Report(ctx context.Context, n console.Name) (r console.Report, err error) {
	r = console.Report{Namespace: "-", Name: b.cfg.Name, OutboxNamespace: b.cfg.Namespace, Topics: b.cfg.Topics}
	if n != b.name() {
		return r, fmt.Errorf("the file has no OutboxDispatcher %s: %w", n, deadletters.ErrNotFound)
	}
	pool, store, err := readyStore(ctx, b.cfg)
	if err != nil {
		return r, err
	}
	defer pool.Close()
	depth, err := store.Depth(ctx, b.cfg.Topics)
	if err != nil {
		return r, sentence(err)
	}
	data, err := store.Data(ctx, pgstore.WorkerInfo{Dispatcher: b.cfg.Name, Topics: b.cfg.Topics})
	if err != nil {
		return r, sentence(err)
	}
	r.Now = &status.Status{Backlog: monitor.Backlog(&depth), Data: monitor.Data(&data)}
	c := r.Now.Backlog.Counts
	r.Backlog = &console.Backlog{Pending: c.Pending, Scheduled: c.Scheduled, Processing: c.Processing, Dead: c.Dead, BlockedKeys: r.Now.Backlog.BlockedKeys, Estimated: c.Estimated,
		Oldest: c.OldestPending.Time(), ObservedAt: depth.ObservedAt}
	b.judge(&r, judge(b.cfg, depth, data))
	for _, g := range depth.Groups[:min(len(depth.Groups), shownGroups)] {
		line := b.Line(n, "dead replay", "--group "+g.Fingerprint+" --canary 10 --reason WHY --dry-run")
		dead := deadletters.Group{Count: g.Count.N, Estimated: g.Count.Estimated}.Number()
		r.ToDo = append(r.ToDo, console.ToDo{What: fmt.Sprintf("Group %s, %s dead: %s", g.Fingerprint, dead, dispatcher.Recovery(g.Reason, g.Cause.Class)), Group: g.Fingerprint, Commands: []string{line}})
	}
	return r, nil
}

// explains are the commands that say more of a check that failed.
var explains = map[string]string{"dead": "dead groups", "unserved": "unserved list", "adoptions": "adopt status", "journal": "verify"}

// judge adds the checks of check --data, and says what to do.
func (b *backend) judge(r *console.Report, data *dataReport) {
	delivered, delivers := "No process of it runs.", false
	if w := r.Now.Data.Windows; len(w) > 0 {
		delivers = w[0].Delivered > 0
		delivered = fmt.Sprintf("%d delivered in the last %s.", w[0].Delivered, w[0].Window)
	}
	ready := console.Condition{Type: "Ready", Status: "True", Reason: "DataHealthy", Message: fmt.Sprintf("%s %d checks of the data found nothing wrong.", delivered, len(data.Checks))}
	var failed []string
	for _, c := range data.Checks {
		one := console.Condition{Type: c.Name, Status: "ok", Message: c.Message, Wrong: !c.OK}
		if !c.OK {
			one.Status, failed = "FAIL", append(failed, c.Name)
			todo := console.ToDo{What: strings.ToUpper(c.Message[:1]) + c.Message[1:] + ". " + c.Remedy}
			if command := explains[c.Name]; command != "" {
				todo.Commands = []string{b.Line(b.name(), command, "")}
			}
			if c.Name != "dead" || len(r.Now.Backlog.DeadGroups) == 0 { // else each group says what to do
				r.ToDo = append(r.ToDo, todo)
			}
		}
		r.Conditions = append(r.Conditions, one)
	}
	if len(failed) > 0 {
		if ready.Reason = "DeliveringDespiteTrouble"; !delivers {
			ready.Status, ready.Wrong, ready.Reason = "False", true, "CheckFailed"
		}
		ready.Message = fmt.Sprintf("%s %d of %d checks of the data failed: %s.", delivered, len(failed), len(data.Checks), strings.Join(failed, ", "))
	}
	r.Conditions = append([]console.Condition{ready}, r.Conditions...)
}

// Try implements [console.Tryer], with the files as they are now.
func (b *backend) Try(ctx context.Context, _ console.Name) (t console.Tried, err error) {
	r, err := tryRun(ctx, b.try)
	if err != nil {
		return t, err
	}
	t = console.Tried{Against: against(r), Rows: r.Rows, Different: r.Different, Oldest: r.Oldest, Newest: r.Newest}
	if b.try.against != "" {
		t.Command = "--against " + deadcmd.Quote(b.try.against)
	}
	if r.Incomplete {
		t.Note = incomplete(r)
	}
	for _, g := range r.Groups {
		d := console.Difference{Before: string(g.Before), After: string(g.Outcome), Topic: g.Topic, What: g.Text(), Count: g.Count}
		for _, id := range g.Samples {
			d.Events = append(d.Events, id.String())
		}
		t.Differences = append(t.Differences, d)
	}
	if r.Ungrouped > 0 {
		t.Note += fmt.Sprintf(" %d more are in further groups.", r.Ungrouped)
	}
	return t, nil
}

func (b *backend) Open(context.Context, console.Name) (deadletters.Source, func(), error) {
	return reader(b.cfg, podTimeout), func() {}, nil
}

func (b *backend) Rights(ctx context.Context, _ console.Name) (r console.Rights) {
	var may *bool
	const look = `select has_function_privilege(to_regproc(format('%I.outbox_replay_begin', $1::text)), 'execute')`
	switch err := b.pool.QueryRow(ctx, look, b.cfg.Database.Schema).Scan(&may); {
	case err != nil:
		r.Replay = "The login for replays cannot look: " + sentence(err).Error()
	case may == nil || !*may:
		r.Replay = "You may look, and not replay or discard: have the owner run what `dispatcher migrate grants --for replay` prints."
	}
	return r
}

func (b *backend) Replays(ctx context.Context, _ console.Name) ([]console.Replay, error) {
	all, err := b.replays.Operations(ctx)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []console.Replay
	for _, o := range all {
		r := shown(o.Replay, o.RequestedBy, o.Reason)
		r.Canary = int(o.Canary)
		r.State, r.Ended, r.Failed = stateOf(o), o.FinishedAt != 0 || o.Stopped != "" && o.Pending+o.Failing == 0, o.Stopped != ""
		if failed, ours := b.runs[o.ID]; ours && failed == nil && r.State == "interrupted" {
			r.State = "running" // it begins
		} else if failed != nil || r.State == "interrupted" {
			r.State, r.Ended, r.Why = "interrupted", true, append(r.Why, "It does not run: `"+b.Line(b.name(), "dead replay", "--operation "+r.ID+" --wait")+"` continues it.")
		}
		if r.State == "open" {
			r.State = "put back" // and not all of them are delivered
		}
		out = append(out, r)
	}
	return append(out, b.dryRuns...), nil // after the replays of their second
}

func shown(p status.Replay, by, reason string) console.Replay {
	return console.Replay{ID: p.ID.String(), Action: p.Action, By: by, Reason: reason, Began: p.StartedAt.Time(), Line: p.String(), Why: p.Why(), Progress: &p.Progress}
}

func (b *backend) Begin(ctx context.Context, _ console.Name, r console.Request) (string, error) {
	id := uuid.NewSHA1(uuid.NameSpaceOID, []byte(r.ID))
	request := replay.Request{ID: id, Namespace: b.cfg.Namespace, Topics: b.cfg.Topics, Filter: r.Filter, Action: replay.Action(strings.ToLower(string(r.Action))),
		Reason: r.Reason, RequestedBy: b.by, Rate: int(r.Rate), Canary: int(r.Canary), Expires: r.Expires}
	if r.DryRun {
		p, err := b.replays.DryRun(ctx, request)
		if err != nil {
			return "", err
		}
		p.ID = id
		dry := shown(p, b.by, r.Reason)
		dry.DryRun, dry.Ended, dry.State, dry.Filter, dry.Began = true, true, "finished", r.Filter, time.Now().Truncate(time.Second)
		dry.Line = fmt.Sprintf("would %s %d of %d", p.Action, p.Waiting, p.Matched)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.dryRuns = append([]console.Replay{dry}, b.dryRuns[:min(len(b.dryRuns), replay.MaxOperations)]...)
		return id.String(), nil
	}
	p, err := b.replays.Begin(ctx, request)
	if err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, runs := b.runs[id]; p.FinishedAt == 0 && !runs {
		b.runs[id] = nil
		b.running.Go(func() { b.run(id) })
	}
	return id.String(), nil
}

// run moves a replay until each outcome is known.
func (b *backend) run(id uuid.UUID) {
	_, err := b.replays.Run(b.ctx, id, replay.RunOptions{Wait: true, Linger: true})
	if err == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.runs[id] = err
	fmt.Fprintf(os.Stderr, "replay %s was interrupted: %v; `%s` continues it\n", id, err, b.Line(b.name(), "dead replay", "--operation "+id.String()+" --wait"))
}

func (b *backend) Stop(ctx context.Context, _ console.Name, id string) error {
	_, err := byID(id, func(id uuid.UUID) (status.Replay, error) { return b.replays.Stop(ctx, id, "stopped in the console") })
	return err
}

func (b *backend) SetState(context.Context, console.Name, spec.State) error {
	return errors.New("the state of this dispatcher is in its file: set spec.state there")
}

func (b *backend) Line(_ console.Name, command, arguments string) string {
	if command == "dead stop" {
		arguments = "--operation " + arguments + " --reason WHY"
	}
	return strings.TrimRight("dispatcher "+command+" -f "+deadcmd.Quote(b.file)+" "+arguments, " ")
}
