package plugin

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
)

func (p *plugin) statusCommand() *cobra.Command {
	var output *deadcmd.Output
	cmd := &cobra.Command{
		Use: "status NAME", Short: "Report how an OutboxDispatcher is, and what to do", Args: oneName, ValidArgsFunction: p.completeOne,
		Long: `Report how an OutboxDispatcher is: its conditions, its pods, the backlog, the groups of its dead letters with
an event of each, and what to do. The events come from a pod: without one, or without the right to create
pods/portforward, the report says so, and has the groups that the status has.`,
		Example: "  kubectl outbox status orders --namespace shop\n  kubectl outbox status orders --output json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := output.Validate(); err != nil {
				return err
			}
			report, err := p.report(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return output.Write(cmd.OutOrStdout(), report, func() error {
				_, err := cmd.OutOrStdout().Write(report.text())
				return err
			})
		},
	}
	output = deadcmd.AddOutput(cmd, "table", "json", "yaml")
	return cmd
}

// report collects the report.
func (p *plugin) report(ctx context.Context, name string) (Report, error) {
	t, err := p.target()
	if err != nil {
		return Report{}, err
	}
	obd, err := t.dispatcher(ctx, name)
	if err != nil {
		return Report{}, err
	}
	return p.reportOf(ctx, t, obd), nil
}

func (p *plugin) reportOf(ctx context.Context, t *target, obd *v1alpha1.OutboxDispatcher) Report {
	report := newReport(obd, t.here(obd.Namespace), p.Now())
	all, err := pods.List(ctx, t, obd.Namespace, desired.Selector(obd, desired.ComponentDispatcher))
	if err != nil {
		report.PodsUnknown = err.Error()
	}
	report.pods(all)
	groups, err := p.groups(ctx, t, obd)
	if err != nil {
		groups, report.GroupsUnknown = known(obd.Status.DeadGroups), err.Error()
	}
	report.groups(groups)
	return report
}

// groups reads the groups from a pod.
func (p *plugin) groups(ctx context.Context, t *target, obd *v1alpha1.OutboxDispatcher) ([]deadletters.Group, error) {
	source, end, err := p.source(ctx, t, obd)
	if err != nil {
		return nil, err
	}
	defer end()
	groups, err := source.Groups(ctx, deadletters.Filter{})
	return groups.Groups, err
}
