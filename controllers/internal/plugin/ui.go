package plugin

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/console"
)

const (
	// fleetPage is how many dispatchers a page of the fleet has.
	fleetPage = 100
	// unread is how long a forward stays open that no page reads.
	unread = 30 * time.Second
)

func (p *plugin) uiCommand() *cobra.Command {
	var namespaces []string
	var port int
	cmd := &cobra.Command{
		Use: "ui [NAME]", Short: "Show dispatchers and dead letters in a browser on this machine", Args: cobra.MaximumNArgs(1), ValidArgsFunction: p.completeOne,
		Long: `Show the fleet, a dispatcher, its dead letters in groups, replays and the life of an event in a browser on this
machine, with your own rights, until Ctrl-C. A button makes the same object or patch as the command next to it. The
console listens on 127.0.0.1 alone, and the link that it prints works once. The fleet is of --namespaces, or else of
--namespace, or else of all namespaces, or of the current one where you may not list all.`,
		Example: "  kubectl outbox ui\n  kubectl outbox ui orders --namespace shop\n  kubectl outbox ui --namespaces shop,billing",
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := p.backend(cmd.Context(), namespaces)
			if err != nil {
				return err
			}
			path := "/"
			if len(args) > 0 {
				path = console.Name{Namespace: b.t.namespace, Name: args[0]}.Path()
			}
			return console.Serve(cmd.Context(), cmd.OutOrStdout(), &console.Console{Backend: b, Where: b.where(), Now: p.Now}, path, port)
		},
	}
	cmd.Flags().StringSliceVar(&namespaces, "namespaces", nil, "the namespaces of the fleet (default: all that you may list)")
	cmd.Flags().IntVar(&port, "port", 0, "the port on this machine (default: a free one)")
	return cmd
}

// backend is the console's, with the rights of a user of the cluster.
type backend struct {
	*plugin
	t *target
	// scope are the namespaces of the fleet: all without one.
	scope []string
}

func (p *plugin) backend(ctx context.Context, namespaces []string) (*backend, error) {
	t, err := p.target()
	if err != nil {
		return nil, err
	}
	if namespace := *p.flags.Namespace; namespace != "" && len(namespaces) == 0 {
		namespaces = []string{namespace}
	}
	shared, f := *p, &forwards{ctx: ctx, open: p.Forward}
	shared.Forward, shared.http = f.forward, &http.Client{Transport: f}
	return &backend{plugin: &shared, t: t, scope: namespaces}, nil
}

// where names the cluster and the user.
func (b *backend) where() string {
	text := b.t.config.Host
	if raw, err := b.flags.ToRawKubeConfigLoader().RawConfig(); err == nil {
		if name := cmp.Or(*b.flags.Context, raw.CurrentContext); name != "" {
			text = name + " · " + text
		}
	}
	if as := b.t.config.Impersonate.UserName; as != "" {
		text += " · as " + as
	}
	return text
}

// in is the target in a dispatcher's namespace.
func (b *backend) in(n console.Name) *target {
	t := *b.t
	t.namespace = n.Namespace
	return &t
}

// at is the target with the dispatcher.
func (b *backend) at(ctx context.Context, n console.Name) (*target, *v1alpha1.OutboxDispatcher, error) {
	t := b.in(n)
	obd, err := t.dispatcher(ctx, n.Name)
	return t, obd, err
}

func (b *backend) Fleet(ctx context.Context, next string) (out console.Fleet, err error) {
	add := func(list v1alpha1.OutboxDispatcherList) {
		for i := range list.Items {
			obd := &list.Items[i]
			out.Reports = append(out.Reports, newReport(obd, b.t.here(obd.Namespace), b.Now()).Report)
		}
	}
	scope := b.scope
	if len(scope) == 0 {
		var list v1alpha1.OutboxDispatcherList
		if err := b.t.List(ctx, &list, client.Limit(fleetPage), client.Continue(next)); !apierrors.IsForbidden(err) {
			add(list)
			out.Next = list.Continue
			return out, listed(err)
		}
		scope = []string{b.t.namespace}
		out.Note = "You may not list the OutboxDispatchers of all namespaces. These are of " + b.t.namespace + "; start the command with --namespaces for others."
	}
	lists, errs := make([]v1alpha1.OutboxDispatcherList, len(scope)), make([]error, len(scope))
	var all sync.WaitGroup
	for i, namespace := range scope {
		all.Go(func() { errs[i] = b.t.List(ctx, &lists[i], client.InNamespace(namespace)) })
	}
	all.Wait()
	var refused []string
	for i, e := range errs {
		if add(lists[i]); apierrors.IsForbidden(e) {
			refused = append(refused, scope[i])
		} else if e != nil {
			out.Note += " " + listed(e).Error()
		}
		err = cmp.Or(err, e)
	}
	if n := len(refused); n > 0 {
		out.Note += " You may not list the OutboxDispatchers of " + strings.Join(refused[:min(n, 3)], ", ")
		if n > 3 {
			out.Note += fmt.Sprintf(" and %d more namespaces", n-3)
		}
		out.Note += "; request the role outboxdispatchers-view there."
	}
	if slices.Contains(errs, nil) {
		err = nil // it is in the note
	}
	return out, listed(err)
}

func listed(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; request the role outboxdispatchers-view there", err)
	}
	if err != nil {
		return fmt.Errorf("list the OutboxDispatchers: %w; install the operator, or choose another --context", err)
	}
	return nil
}

func (b *backend) Report(ctx context.Context, n console.Name) (console.Report, error) {
	t, obd, err := b.at(ctx, n)
	if err != nil {
		return console.Report{}, err
	}
	report := b.reportOf(ctx, t, obd).Report
	report.State = cmp.Or(report.State, string(spec.Running))
	source, end, err := b.source(ctx, t, obd)
	if err == nil {
		defer end()
		report.Now = &status.Status{}
		*report.Now, err = source.(deadletters.Client).Status(ctx)
	}
	if err != nil {
		report.NowUnknown = err.Error()
	}
	return report, nil
}

func (b *backend) Open(ctx context.Context, n console.Name) (deadletters.Source, func(), error) {
	t, obd, err := b.at(ctx, n)
	if err != nil {
		return nil, nil, err
	}
	return b.source(ctx, t, obd)
}

func (b *backend) Rights(ctx context.Context, n console.Name) console.Rights {
	may := func(verb, resource, remedy string) string {
		review := authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: n.Namespace, Verb: verb, Group: v1alpha1.GroupVersion.Group, Resource: resource}}}
		if err := b.t.Create(ctx, &review); err != nil {
			return "Your rights could not be read: " + err.Error()
		}
		if review.Status.Allowed {
			return ""
		}
		return fmt.Sprintf("You may look, and not %s %s in the namespace %s; request %s.", verb, resource, n.Namespace, remedy)
	}
	return console.Rights{Replay: may("create", "deadletterreplays", "the role deadletterreplays-replay"), State: may("patch", "outboxdispatchers", "the right")}
}

func (b *backend) Replays(ctx context.Context, n console.Name) (out []console.Replay, err error) {
	list, err := b.in(n).replays(ctx, n.Name)
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		out = append(out, replayOf(&list.Items[i]))
	}
	return out, nil
}

func replayOf(dlr *v1alpha1.DeadLetterReplay) console.Replay {
	s := dlr.Spec
	r := console.Replay{
		ID: dlr.Name, Action: string(s.Action), By: s.RequestedBy, Reason: s.Reason, DryRun: s.DryRun, Began: dlr.CreationTimestamp.Time, Canary: int(s.Canary),
		State: "Unseen", Line: progress(dlr), Ended: ended(dlr, true), Progress: dlr.Status.Progress, Filter: deadletters.Filter{
			Group: s.Selector.Group, Topic: strings.Join(s.Selector.Topics, ","), Reason: spec.ContractReason(s.Selector.Reason), Type: s.Selector.Type, Aggregate: s.Selector.Aggregate,
			Tenant: s.Selector.Tenant, IDs: s.Selector.IDs, ErrorContains: s.Selector.ErrorContains, Since: s.Selector.Since.Time(), Until: s.Selector.Until.Time()},
	}
	if s.DispatcherRef == nil || s.Limit != 0 || !reflect.DeepEqual(selector(r.Filter), s.Selector) {
		r.Filter = deadletters.Filter{} // what a form could begin would be another set
	}
	for _, c := range dlr.Status.Conditions {
		switch {
		case c.Type == v1alpha1.CompleteCondition:
			if r.State = c.Reason; c.Reason == v1alpha1.ReasonWaiting {
				r.Why = append(r.Why, c.Message)
			}
		case c.Type == v1alpha1.StalledCondition && stalled(dlr):
			r.Failed, r.Why = true, append(r.Why, c.Message)
		}
	}
	r.Failed = r.Failed || r.Progress != nil && r.Progress.Stopped != ""
	return r
}

func (b *backend) Begin(ctx context.Context, n console.Name, r console.Request) (string, error) {
	t, obd, err := b.at(ctx, n)
	if err != nil {
		return "", err
	}
	o := &request{action: r.Action, reason: r.Reason, rate: r.Rate, canary: r.Canary, expires: r.Expires, dryRun: r.DryRun, ttl: keep,
		name:   strings.TrimRight(obd.Name[:min(len(obd.Name), nameBytes-1-len(r.ID))], "-") + "-" + r.ID,
		filter: func(time.Time) (deadletters.Filter, error) { return r.Filter, nil }}
	if r.DryRun {
		o.ttl = keepDryRun
	}
	if _, err = b.create(ctx, t, obd, o); apierrors.IsAlreadyExists(err) {
		err = nil // of the same form
	}
	return o.name, err
}

func (b *backend) Stop(ctx context.Context, n console.Name, id string) error {
	_, err := b.in(n).stop(ctx, n.Name, id)
	return err
}

func (b *backend) SetState(ctx context.Context, n console.Name, state spec.State) error {
	t, obd, err := b.at(ctx, n)
	if err != nil {
		return err
	}
	return t.setState(ctx, obd, state)
}

func (b *backend) Line(n console.Name, command, arguments string) string {
	return strings.TrimRight("kubectl outbox "+command+" "+n.Name+" "+arguments, " ") + b.t.here(n.Namespace)
}

// forwards keep a forward to a pod open while pages read it.
type forwards struct {
	ctx  context.Context // of the console, not of a page
	open Forward
	kept sync.Map // by the UID of a pod
}

type kept struct {
	mu    sync.Mutex
	url   string // empty: none is open
	timer *time.Timer
}

// forward is a [Forward] that has the same one again, while it works.
func (f *forwards) forward(page context.Context, cfg *rest.Config, pod *corev1.Pod, port int) (string, func(), error) {
	made, _ := f.kept.LoadOrStore(pod.UID, &kept{})
	k := made.(*kept)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.url != "" && k.timer.Stop() {
		k.timer.Reset(unread)
		if conn, err := net.DialTimeout("tcp", strings.TrimPrefix(k.url, "http://"), time.Second); err == nil {
			_ = conn.Close()
			return k.url, func() {}, nil
		}
		k.timer.Reset(0) // it has ended
	}
	ctx, cancel := context.WithCancel(f.ctx)
	stop := context.AfterFunc(page, cancel) // until it is open
	url, end, err := f.open(ctx, cfg, pod, port)
	if !stop() || err != nil {
		cancel()
		return "", nil, cmp.Or(err, page.Err())
	}
	k.url, k.timer = url, time.AfterFunc(unread, func() {
		end()
		cancel()
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.url == url {
			k.url = ""
		}
	})
	return url, func() {}, nil
}

// RoundTrip sends a request through a forward. After one that fails, the next page opens another forward.
func (f *forwards) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := http.DefaultTransport.RoundTrip(r)
	if err == nil {
		return response, nil
	}
	f.kept.Range(func(_, made any) bool {
		k := made.(*kept)
		if k.mu.TryLock() { // else it is being opened
			if k.url == "http://"+r.URL.Host {
				k.url = ""
				k.timer.Reset(0)
			}
			k.mu.Unlock()
		}
		return true
	})
	return nil, err
}
