package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// manager is the field manager of what the plugin changes.
const manager = "kubectl-outbox"

func (p *plugin) stateCommand(state spec.State) *cobra.Command {
	use, short, what := "pause", "Stop claiming events", "Set spec.state to Paused. The pods finish what is in flight, claim nothing more, and still count the backlog."
	if state == spec.Running {
		use, short, what = "resume", "Claim and deliver events again", "Set spec.state to Running. The pods claim and deliver events again."
	}
	return &cobra.Command{
		Use: use + " NAME", Short: short, ValidArgsFunction: p.completeOne,
		Long: what + ` No pod is
restarted.

Where a GitOps tool owns spec.state, it sets it back at its next sync: change it in Git, or stop the sync first. A
manifest without spec.state leaves it alone. The command says so when it sees that another manager has the field.`,
		Example: "  kubectl outbox " + use + " orders --namespace shop",
		Args:    oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := p.target()
			if err != nil {
				return err
			}
			obd, err := t.dispatcher(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			owners := stateOwners(obd)
			if obd.Spec.State == state {
				fmt.Fprintf(cmd.OutOrStdout(), "outboxdispatcher %s/%s is already %s\n", obd.Namespace, obd.Name, state)
				return nil
			}
			if err := t.setState(cmd.Context(), obd, state); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "outboxdispatcher %s/%s: spec.state set to %s\n", obd.Namespace, obd.Name, state)
			if len(owners) > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: spec.state is also set by %s, which may set it back; change it there too\n", strings.Join(owners, " and "))
			}
			return nil
		},
	}
}

// setState sets spec.state.
func (t *target) setState(ctx context.Context, obd *v1alpha1.OutboxDispatcher, state spec.State) error {
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"state":"`+string(state)+`"}}`))
	if err := t.Patch(ctx, obd, patch, client.FieldOwner(manager)); err != nil {
		return fmt.Errorf("set the state of %s/%s: %w", obd.Namespace, obd.Name, err)
	}
	return nil
}

// stateOwners names those that apply manifests with spec.state: server-side, or as kubectl apply remembers it.
func stateOwners(obd *v1alpha1.OutboxDispatcher) (owners []string) {
	for _, m := range obd.ManagedFields {
		if m.Operation == metav1.ManagedFieldsOperationApply && m.FieldsV1 != nil && hasState(m.FieldsV1.GetRawBytes(), "f:spec", "f:state") {
			owners = append(owners, m.Manager)
		}
	}
	if hasState([]byte(obd.Annotations["kubectl.kubernetes.io/last-applied-configuration"]), "spec", "state") {
		owners = append(owners, "the manifest that was applied last")
	}
	return owners
}

func hasState(text []byte, spec, state string) bool {
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) != nil {
		return false
	}
	var inner map[string]json.RawMessage
	if json.Unmarshal(members[spec], &inner) != nil {
		return false
	}
	_, has := inner[state]
	return has
}

// oneName checks the arguments.
func oneName(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%d arguments, want 1: kubectl outbox %s; see --help", len(args), cmd.Use)
	}
	return nil
}

// completeOne completes the one argument.
func (p *plugin) completeOne(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return p.complete(cmd, args, word)
}
