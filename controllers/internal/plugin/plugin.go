// Package plugin is `kubectl outbox`. It reads what the operator reports from the API server, and a dispatcher's pod,
// through the API server's port-forward, for dead letters. It connects to no database. What it changes are objects:
// spec.state, and DeadLetterReplays that it creates.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
)

// completeWithin bounds a completion, for which a person waits.
const completeWithin = 3 * time.Second

// Options are for tests.
type Options struct {
	// Config is the way to the API server. Defaults to what the flags and the kubeconfig say.
	Config *rest.Config
	// Forward makes a port of a pod reachable. Defaults to the API server's port-forward.
	Forward Forward
	// Now defaults to time.Now.
	Now func() time.Time
	// Every is the time between two looks at what is followed. Defaults to 1s.
	Every time.Duration
}

// plugin is what the commands share.
type plugin struct {
	flags *genericclioptions.ConfigFlags
	given *pflag.FlagSet // the same, as they were given
	http  *http.Client   // to the pods. nil: the default
	Options
}

// New returns the command.
func New(version string, streams genericiooptions.IOStreams, o Options) *cobra.Command {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Every == 0 {
		o.Every = time.Second
	}
	if o.Forward == nil {
		o.Forward = forward
	}
	p := &plugin{flags: genericclioptions.NewConfigFlags(true), Options: o}
	root := &cobra.Command{
		Use: "kubectl-outbox", Short: "See and steer the delivery of a transactional outbox",
		Long: `See and steer the delivery of a transactional outbox. NAME is that of an OutboxDispatcher.

Dead letters are read from a dispatcher's pod, through the API server's port-forward, so who may
create pods/portforward there may read them, payloads too. The pod only serves reads. To replay or
discard is a DeadLetterReplay, an object, and who may create one may do it.`,
		SilenceUsage: true, SilenceErrors: true, Version: version,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl outbox"},
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	p.given = root.PersistentFlags()
	p.flags.AddFlags(p.given)
	reading := deadcmd.Commands{
		Program: "kubectl outbox", Whose: "NAME", Example: "orders", Named: true, Pages: true, Now: o.Now, Complete: p.complete, Open: p.open,
	}
	dead := reading.Dead()
	dead.AddCommand(p.beginCommand(spec.ActionReplay), p.beginCommand(spec.ActionDiscard), p.beginCommand(spec.ActionReopen), p.operationsCommand(), p.stopCommand())
	root.AddCommand(p.statusCommand(), dead, reading.Events(), p.stateCommand(spec.Paused), p.stateCommand(spec.Running), p.uiCommand())
	deadcmd.RefuseUnknown(root)
	return root
}

// target is where the commands work.
type target struct {
	client.Client
	config    *rest.Config
	namespace string
	// flags are those that chose the cluster and the user, as they were given, without secrets.
	flags string
}

// here is what a command that a person is shown has at its end, so that it works in the same place.
func (t *target) here(namespace string) string { return " --namespace " + namespace + t.flags }

func (p *plugin) target() (*target, error) {
	cfg := p.Config
	if cfg == nil {
		var err error
		if cfg, err = p.flags.ToRESTConfig(); err != nil {
			return nil, fmt.Errorf("find the API server: %w; set --kubeconfig or --context", err)
		}
	}
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1 // no limit but the API server's: a page makes more than the five calls a second that are the default
	namespace, _, err := p.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, fmt.Errorf("find the namespace: %w; set --namespace", err)
	}
	flags := ""
	p.given.VisitAll(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			if f.Changed && value != "" && !slices.Contains([]string{"namespace", "token", "password"}, f.Name) { // no secret in a line
				flags += " --" + f.Name + map[bool]string{true: "=", false: " "}[f.NoOptDefVal != ""] + deadcmd.Quote(value)
			}
		}
	})
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w; set --kubeconfig or --context", err)
	}
	return &target{c, cfg, namespace, flags}, nil
}

// dispatcher reads an OutboxDispatcher.
func (t *target) dispatcher(ctx context.Context, name string) (*v1alpha1.OutboxDispatcher, error) {
	var obd v1alpha1.OutboxDispatcher
	err := t.Get(ctx, client.ObjectKey{Namespace: t.namespace, Name: name}, &obd)
	switch {
	case err == nil:
		return &obd, nil
	case meta.IsNoMatchError(err):
		return nil, fmt.Errorf("this cluster has no OutboxDispatchers: %w; install the operator, or choose another --context", err)
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("no OutboxDispatcher %s in the namespace %s: `kubectl get outboxdispatchers -A%s` lists them all; set --namespace", name, t.namespace, t.flags)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w; request the role outboxdispatchers-view in this namespace", err)
	}
	return nil, fmt.Errorf("read the OutboxDispatcher %s/%s: %w", t.namespace, name, err)
}

// open makes a source of a dispatcher's pod.
func (p *plugin) open(cmd *cobra.Command, name string) (deadletters.Source, func(), error) {
	t, err := p.target()
	if err != nil {
		return nil, nil, err
	}
	obd, err := t.dispatcher(cmd.Context(), name)
	if err != nil {
		return nil, nil, err
	}
	return p.source(cmd.Context(), t, obd)
}

// complete completes names of OutboxDispatchers.
func (p *plugin) complete(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(parent(cmd), completeWithin)
	defer cancel()
	t, err := p.target()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var list v1alpha1.OutboxDispatcherList
	if err := t.List(ctx, &list, client.InNamespace(t.namespace)); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// parent is the command's context, which a completion may not have.
func parent(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}
