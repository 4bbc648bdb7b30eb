package plugin

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
)

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
