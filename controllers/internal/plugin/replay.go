package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
)

// keepDryRun is how long the object of a dry run stays, for a record of who requested what.
const keepDryRun = time.Hour

// nameBytes is the most bytes of the name of a DeadLetterReplay.
const nameBytes = 48

// keep is how long the object of another one stays after its end.
const keep = 7 * 24 * time.Hour

// request is what the flags of replay, discard and reopen say.
type request struct {
	action                       spec.ReplayAction
	name, reason, by, format     string
	rate, canary, abortAt, limit int32
	all, dryRun, wait, show      bool
	ttl, expires                 time.Duration
	filter                       func(time.Time) (deadletters.Filter, error)
}

// beginCommand makes the command of an action.
func (p *plugin) beginCommand(action spec.ReplayAction) *cobra.Command {
	o := &request{action: action}
	use, short := "replay", "Put dead events back, at a rate"
	long := `Put the dead events of the filter back to pending, at a rate. Each keeps its id, its dedupe key and its place in
the order; its retry budget is whole again. With --canary some go first, and alone. When too many of the newest outcomes
are failures, the rest stays as it is: an event whose first attempt failed has failed.`
	example := `  kubectl outbox dead replay orders --group 7f3a9c21 --reason CHG-812 --dry-run
  kubectl outbox dead replay orders --group 7f3a9c21 --reason CHG-812 --canary 10 --rate 500 --wait
  kubectl outbox dead replay orders --topic refunds --since 2h --reason CHG-812 --print --name chg-812 > chg-812.yaml`
	switch action {
	case spec.ActionDiscard:
		use, short = "discard", "Mark dead letters as handled; their events stay dead"
		long = "Mark the dead letters of the filter as handled. Their events stay dead, and block their keys no more."
		example = `  kubectl outbox dead discard orders --type test.event --reason "left by the load test" --dry-run`
	case spec.ActionReopen:
		use, short = "reopen", "Open discarded dead letters again"
		long = "Open the discarded dead letters of the filter again, of which the event is still dead."
		example = `  kubectl outbox dead reopen orders --group 7f3a9c21 --since 2h --reason "it was the wrong group"`
	}
	cmd := &cobra.Command{
		Use: use + " NAME --reason TEXT", Short: short, Example: example, Args: oneName, ValidArgsFunction: p.completeOne,
		Long: long + `

The command creates a DeadLetterReplay and writes its progress, a line for each change, until each dead letter had its turn,
or with --wait its outcome. The operator runs it: to break the command off stops nothing, and "dead stop" does, which
deletes the object. Exit code 1 says that it failed, or stopped by itself. Who may create DeadLetterReplays may do this:
the role deadletterreplays-replay. Your user name goes into spec.requestedBy, where the API server proves it.

--dry-run counts and changes nothing; its object goes after an hour. --print creates nothing: it writes the object for
a pull request, which a GitOps tool applies under its own name, the one to give in --requested-by.`,
		RunE: func(cmd *cobra.Command, args []string) error { return p.begin(cmd, args[0], o) },
	}
	o.flags(cmd)
	complete := func(flag string, f cobra.CompletionFunc) {
		if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
			panic(err) // the flag is there
		}
	}
	complete("group", p.completeGroup)
	complete("output", cobra.FixedCompletions([]string{"text", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o *request) flags(cmd *cobra.Command) {
	o.filter = deadcmd.FilterFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.reason, "reason", "", "why, such as the number of the change; it stays with each dead letter (required)")
	flags.BoolVar(&o.all, "all", false, "every dead letter, when there is no filter")
	flags.Int32Var(&o.limit, "limit", 0, "how many dead letters at most, the oldest first (default: all)")
	flags.BoolVar(&o.dryRun, "dry-run", false, "count what would be done, and change nothing")
	flags.BoolVar(&o.wait, "wait", false, "wait until each outcome is known (delivered, dead again, discarded or skipped), or the replay has stopped")
	flags.StringVar(&o.name, "name", "", "the name of the object (default: the dispatcher's and the time)")
	flags.DurationVar(&o.ttl, "ttl-after-finished", keep, "how long the object stays after its end; 0 is until it is deleted, and so is what --print writes unless this is set")
	flags.BoolVar(&o.show, "print", false, "write the object for a pull request, and create nothing")
	flags.StringVar(&o.by, "requested-by", "", "with --print: the user that will apply it (default: you)")
	flags.StringVarP(&o.format, "output", "o", "text", "text, or the object as json or yaml; then progress goes to standard error")
	if o.action == spec.ActionReplay {
		flags.Int32Var(&o.rate, "rate", 100, "the most events a second")
		flags.Int32Var(&o.canary, "canary", 0, "how many go first, and alone, until their outcome is known")
		flags.Int32Var(&o.abortAt, "abort-at", 0, "stop when this percentage of the newest 100 outcomes are failures (default 50)")
		flags.DurationVar(&o.expires, "expires", 0, "for how long events whose time is over are worth sending again, such as 1h (default: such a replay is refused)")
	}
	if err := cmd.MarkFlagRequired("reason"); err != nil {
		panic(err) // the flag is there
	}
}

// begin creates the object of the request, and follows it.
func (p *plugin) begin(cmd *cobra.Command, name string, o *request) error {
	ctx := cmd.Context()
	write, err := objectWriter(o.format, o.show)
	if err != nil {
		return err
	}
	if o.by != "" && !o.show {
		return errors.New("--requested-by is for --print alone: the API server takes no name but yours; remove it, or impersonate with --as")
	}
	t, err := p.target()
	if err != nil {
		return err
	}
	obd, err := t.dispatcher(ctx, name)
	if err != nil {
		return err
	}
	switch set := cmd.Flags().Changed("ttl-after-finished"); {
	case !set && o.show:
		o.ttl = 0 // what is in Git would be created again
	case !set && o.dryRun:
		o.ttl = keepDryRun
	}
	dlr, err := p.create(ctx, t, obd, o)
	if err != nil {
		return err
	}
	if o.show {
		return write(cmd.OutOrStdout(), dlr)
	}
	progress := cmd.OutOrStdout()
	if o.format != "text" {
		progress = cmd.ErrOrStderr()
	}
	f := follower{plugin: p, target: t, out: progress, wait: o.wait || o.dryRun, dispatcher: name}
	failed := f.follow(ctx, dlr)
	return errors.Join(failed, write(cmd.OutOrStdout(), dlr))
}

// create makes the object of a request in the user's name and, unless it is to be shown, creates it.
func (p *plugin) create(ctx context.Context, t *target, obd *v1alpha1.OutboxDispatcher, o *request) (*v1alpha1.DeadLetterReplay, error) {
	dlr, err := o.object(obd, p.Now())
	if err != nil {
		return nil, err
	}
	if dlr.Spec.RequestedBy == "" {
		if dlr.Spec.RequestedBy, err = t.user(ctx); err != nil {
			return nil, err
		}
	}
	if o.show {
		return dlr, nil
	}
	if err := t.hasLogin(ctx, obd); err != nil {
		return nil, err
	}
	if err := t.Create(ctx, dlr, client.FieldOwner(manager)); err != nil {
		return nil, t.refusedCreate(dlr, err)
	}
	return dlr, nil
}

// object is what the flags say.
func (o *request) object(obd *v1alpha1.OutboxDispatcher, now time.Time) (*v1alpha1.DeadLetterReplay, error) {
	filter, err := o.filter(now)
	switch {
	case err != nil:
		return nil, err
	case filter.Empty() && !o.all:
		return nil, errors.New("no filter; choose dead letters, such as with --group, or add --all for every open one of the dispatcher")
	case !filter.Empty() && o.all:
		return nil, errors.New("--all is every dead letter, and there is a filter too; remove one of them")
	case o.ttl < 0:
		return nil, fmt.Errorf("--ttl-after-finished is %s; set it to a time such as 168h", o.ttl)
	}
	if o.name == "" {
		stamp := now.UTC().Format("-20060102-150405")
		o.name = strings.TrimRight(obd.Name[:min(len(obd.Name), nameBytes-len(stamp))], "-") + stamp
	}
	dlr := &v1alpha1.DeadLetterReplay{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "DeadLetterReplay"},
		ObjectMeta: metav1.ObjectMeta{Namespace: obd.Namespace, Name: o.name},
		Spec: spec.Replay{
			DispatcherRef: &spec.DispatcherRef{Name: obd.Name}, Action: o.action, Reason: o.reason, RequestedBy: o.by,
			Selector: selector(filter), Rate: o.rate, Canary: o.canary, AbortAt: o.abortAt, Expires: spec.Duration(o.expires), Limit: o.limit, DryRun: o.dryRun,
		},
	}
	if o.ttl > 0 {
		dlr.Spec.TTLAfterFinished = new(spec.Duration(o.ttl))
	}
	return dlr, nil
}

// selector says in the resource what the filter says.
func selector(f deadletters.Filter) spec.DeadLetterSelector {
	s := spec.DeadLetterSelector{
		All: f.Empty(), Group: f.Group, Reason: spec.DeadReason(f.Reason), Type: f.Type, Aggregate: f.Aggregate, Tenant: f.Tenant, IDs: f.IDs, ErrorContains: f.ErrorContains, Since: status.At(f.Since), Until: status.At(f.Until),
	}
	if f.Topic != "" {
		s.Topics = []string{f.Topic}
	}
	return s
}

// user is who the API server takes us for.
func (t *target) user(ctx context.Context) (string, error) {
	var review authenticationv1.SelfSubjectReview
	if err := t.Create(ctx, &review); err != nil {
		return "", fmt.Errorf("read your user name from the API server: %w; request the role system:basic-user", err)
	}
	return review.Status.UserInfo.Username, nil
}

// hasLogin returns an error when there is no login for replays. A user who may not read the Outbox finds it in the
// object's status.
func (t *target) hasLogin(ctx context.Context, obd *v1alpha1.OutboxDispatcher) error {
	const remedy = "a login that has what `dispatcher migrate grants --for replay` prints"
	ref := obd.Spec.OutboxRef
	if ref == nil {
		return fmt.Errorf("the OutboxDispatcher %s has a database of its own, without a login for replays; create an Outbox for that database, with spec.replayLogin set to %s, and set the dispatcher's spec.outboxRef to it", obd.Name, remedy)
	}
	var outbox v1alpha1.Outbox
	if err := t.Get(ctx, client.ObjectKey{Namespace: obd.Namespace, Name: ref.Name}, &outbox); err == nil && outbox.Spec.ReplayLogin == nil {
		return fmt.Errorf("the Outbox %s names no login for replays; set its spec.replayLogin to %s", ref.Name, remedy)
	}
	return nil
}

// refusedCreate says what to do about a refusal.
func (t *target) refusedCreate(dlr *v1alpha1.DeadLetterReplay, err error) error {
	switch {
	case meta.IsNoMatchError(err):
		return fmt.Errorf("this cluster has no DeadLetterReplays: %w; upgrade the operator and its definitions", err)
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), `cannot create resource "deadletterreplays"`):
		return fmt.Errorf("%w; request the role deadletterreplays-replay in this namespace", err)
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%w; choose another --name, or see `kubectl outbox dead operations %s%s`", err, dlr.Spec.DispatcherRef.Name, t.here(dlr.Namespace))
	}
	return fmt.Errorf("create the DeadLetterReplay %s/%s: %w", dlr.Namespace, dlr.Name, err)
}

// completeGroup completes the groups that the status has.
func (p *plugin) completeGroup(cmd *cobra.Command, args []string, _ string) (found []string, _ cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(parent(cmd), completeWithin)
	defer cancel()
	t, err := p.target()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	obd, err := t.dispatcher(ctx, args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for _, g := range known(obd.Status.DeadGroups) {
		found = append(found, cobra.CompletionWithDesc(g.Group, strings.TrimSpace(fmt.Sprintf("%s dead, %s %s %s", g.Number(), g.Topic, g.Class, g.Code))))
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

func (p *plugin) operationsCommand() *cobra.Command {
	var output *deadcmd.Output
	cmd := &cobra.Command{
		Use: "operations NAME", Short: "List the replays, discards and reopens of an OutboxDispatcher's dead letters", Args: oneName, ValidArgsFunction: p.completeOne,
		Long: `List the DeadLetterReplays of an OutboxDispatcher, and those of its Outbox that are about its outbox namespace: the
newest first, with who requested it, why, and what became of the events, as a DeadLetterReplayList in YAML or JSON.
"kubectl outbox ui" shows them as a page, and "kubectl get deadletterreplays" as a table.`,
		Example: "  kubectl outbox dead operations orders --namespace shop\n  kubectl outbox dead operations orders --output json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := output.Validate(); err != nil {
				return err
			}
			t, err := p.target()
			if err != nil {
				return err
			}
			list, err := t.replays(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return output.Write(cmd.OutOrStdout(), list, nil)
		},
	}
	output = deadcmd.AddOutput(cmd, "yaml", "json")
	return cmd
}

// replays of a dispatcher, the newest first.
func (t *target) replays(ctx context.Context, name string) (*v1alpha1.DeadLetterReplayList, error) {
	obd, err := t.dispatcher(ctx, name)
	if err != nil {
		return nil, err
	}
	list := &v1alpha1.DeadLetterReplayList{}
	switch err := t.List(ctx, list, client.InNamespace(obd.Namespace)); {
	case meta.IsNoMatchError(err):
		return nil, fmt.Errorf("this cluster has no DeadLetterReplays: %w; upgrade the operator and its definitions", err)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w; request the role deadletterreplays-view in this namespace", err)
	case err != nil:
		return nil, fmt.Errorf("list the DeadLetterReplays of the namespace %s: %w", obd.Namespace, err)
	}
	list.Items = slices.DeleteFunc(list.Items, func(dlr v1alpha1.DeadLetterReplay) bool { return !concerns(&dlr, obd) })
	slices.SortStableFunc(list.Items, func(a, b v1alpha1.DeadLetterReplay) int {
		return b.CreationTimestamp.Compare(a.CreationTimestamp.Time)
	})
	for i := range list.Items {
		list.Items[i] = *named(&list.Items[i])
	}
	list.APIVersion, list.Kind = v1alpha1.GroupVersion.String(), "DeadLetterReplayList"
	return list, nil
}

// concerns reports whether an object may concern dead letters of a dispatcher.
func concerns(dlr *v1alpha1.DeadLetterReplay, obd *v1alpha1.OutboxDispatcher) bool {
	if ref := dlr.Spec.DispatcherRef; ref != nil {
		return ref.Name == obd.Name
	}
	mine, other := obd.Spec.OutboxRef, dlr.Spec.OutboxRef
	return mine != nil && other != nil && mine.Name == other.Name && dlr.Spec.Namespace == obd.Spec.Namespace
}

func (p *plugin) stopCommand() *cobra.Command {
	return &cobra.Command{
		Use: "stop NAME OPERATION", Short: "Stop a replay: what waits stays open", Args: cobra.ExactArgs(2),
		Long: `Stop a replay of an OutboxDispatcher's dead letters, by the name that "dead operations" lists: its DeadLetterReplay is
deleted. It ends after the batch under way. What was put back stays so; the dead letters that wait stay open, and a minute
later another replay may take them.`,
		Example:           "  kubectl outbox dead stop orders chg-812",
		ValidArgsFunction: p.completeOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := p.target()
			if err != nil {
				return err
			}
			dlr, err := t.stop(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is stopped: %s\n", dlr.Name, progress(dlr))
			return nil
		},
	}
}

// stop stops an operation of a dispatcher.
func (t *target) stop(ctx context.Context, name, operation string) (*v1alpha1.DeadLetterReplay, error) {
	list, err := t.replays(ctx, name)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(list.Items, func(dlr v1alpha1.DeadLetterReplay) bool { return dlr.Name == operation })
	if at < 0 {
		return nil, fmt.Errorf("%s has no operation %s; `kubectl outbox dead operations %[1]s%[3]s` lists them", name, operation, t.here(t.namespace))
	}
	dlr := &list.Items[at]
	switch err := t.Delete(ctx, dlr, client.Preconditions{UID: &dlr.UID}); {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("the DeadLetterReplay %s/%s is gone already: %w; see what is dead now with `kubectl outbox dead groups %s%s`", dlr.Namespace, dlr.Name, err, name, t.here(dlr.Namespace))
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("delete the DeadLetterReplay %s/%s: %w; request the role deadletterreplays-replay in this namespace", dlr.Namespace, dlr.Name, err)
	case err != nil:
		return nil, fmt.Errorf("delete the DeadLetterReplay %s/%s: %w; try again", dlr.Namespace, dlr.Name, err)
	}
	return dlr, nil
}
