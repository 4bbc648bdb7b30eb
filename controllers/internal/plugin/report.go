package plugin

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/console"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
)

// shownGroups is how many groups the text has.
const shownGroups = 10

// Report is the output of `kubectl outbox status`.
type Report struct {
	console.Report

	now time.Time
	// here is what a command has at its end, so that it works in the same place.
	here string
}

func newReport(obd *v1alpha1.OutboxDispatcher, here string, now time.Time) Report {
	s := obd.Status
	r := Report{now: now, here: here, Report: console.Report{
		Namespace: obd.Namespace, Name: obd.Name, State: string(obd.Spec.State), OutboxNamespace: obd.Spec.Namespace, Topics: obd.Spec.Topics,
		Sink: s.Sink, Wanted: desired.Replicas(obd), Conditions: []console.Condition{}, Pods: []console.Pod{}, Groups: []deadletters.Group{}, ToDo: []console.ToDo{},
		Owners: stateOwners(obd), ReadyPods: s.Pods,
	}}
	if ref := obd.Spec.OutboxRef; ref != nil {
		r.Outbox = ref.Name
	}
	for _, c := range s.Conditions {
		r.Conditions = append(r.Conditions, console.Condition{Type: c.Type, Status: string(c.Status), Reason: c.Reason, Since: c.LastTransitionTime.UTC(), Message: c.Message, Wrong: isWrong(c)})
	}
	slices.SortStableFunc(r.Conditions, func(a, b console.Condition) int { return cmp.Compare(rank(a), rank(b)) })
	for _, c := range r.Conditions {
		if c.Wrong && !r.reportedElsewhere(c) {
			r.toDo(fmt.Sprintf("%s is %s (%s): %s", c.Type, c.Status, c.Reason, c.Message))
		}
	}
	if len(s.Conditions) == 0 {
		r.toDo("The operator has not seen this object yet: see that it runs, and serves this namespace.")
	}
	r.Backlog, r.Scaling = backlogOf(s), scalingOf(obd)
	return r
}

// reportedElsewhere reports whether something else of the report says what is to be done: the groups about dead letters, and
// about Ready the condition that is its cause, which has its reason.
func (r *Report) reportedElsewhere(c console.Condition) bool {
	switch c.Type {
	case v1alpha1.DeadLettersPresentCondition:
		return true
	case v1alpha1.ReadyCondition:
		return slices.ContainsFunc(r.Conditions, func(o console.Condition) bool { return o.Wrong && o.Type != c.Type && o.Reason == c.Reason })
	}
	return false
}

// isWrong reports whether a person may have to do something. Unknown is not wrong: it passes, or another condition
// says why.
func isWrong(c metav1.Condition) bool {
	return c.Type != v1alpha1.ReconcilingCondition && c.Status == v1alpha1.BadStatus(c.Type) // Reconciling passes
}

// rank puts Ready first, then what is wrong.
func rank(c console.Condition) int {
	switch {
	case c.Type == v1alpha1.ReadyCondition:
		return 0
	case c.Wrong:
		return 1
	}
	return 2
}

func (r *Report) pods(all []corev1.Pod) {
	for i := range all {
		pod := &all[i]
		out := console.Pod{Name: pod.Name, Ready: ready(pod), Phase: string(pod.Status.Phase), Node: pod.Spec.NodeName, Created: pod.CreationTimestamp.UTC()}
		if pod.DeletionTimestamp != nil {
			out.Phase, out.Ready = "Terminating", false
		}
		for _, c := range pod.Status.ContainerStatuses {
			if c.Name == desired.Container {
				out.Restarts, out.Image = c.RestartCount, c.Image
			}
			if w := c.State.Waiting; w != nil && w.Reason != "" && pod.DeletionTimestamp == nil {
				out.Phase = w.Reason
			}
		}
		r.Pods = append(r.Pods, out)
	}
}

// groups adds the groups, and what to do about them.
func (r *Report) groups(groups []deadletters.Group) {
	r.Groups = append(r.Groups, groups...)
	for _, g := range groups[:min(len(groups), shownGroups)] {
		var commands []string
		if g.Event != "" {
			commands = append(commands, fmt.Sprintf("kubectl outbox dead show %s %s%s", r.Name, g.Event, r.here))
		}
		commands = append(commands, fmt.Sprintf("kubectl outbox dead replay %s --group %s --canary 10 --reason WHY --dry-run%s", r.Name, g.Group, r.here))
		r.toDo(fmt.Sprintf("Group %s, %s dead: %s", g.Group, g.Number(), g.Advice), commands...)
		r.ToDo[len(r.ToDo)-1].Group = g.Group
	}
	if r.Backlog != nil && r.Backlog.Dead > 0 && r.GroupsUnknown != "" {
		r.toDo(fmt.Sprintf("%s events are dead, and no pod could be read for one of each group: %s", r.Backlog.Number(r.Backlog.Dead), r.GroupsUnknown))
	}
}

func (r *Report) toDo(what string, commands ...string) {
	r.ToDo = append(r.ToDo, console.ToDo{What: what, Commands: commands})
}

// known are the groups that the status has.
func known(groups []status.DeadGroup) (out []deadletters.Group) {
	for _, g := range groups {
		reason := dispatcher.DeadReason(spec.ContractReason(g.Reason))
		out = append(out, deadletters.Group{
			Group: g.Group, Topic: g.Topic, Reason: reason, Cause: dispatcher.Cause{Class: g.Class, Code: g.Code, Place: g.Place},
			Count: g.Count, Estimated: g.Estimated, Advice: dispatcher.Recovery(reason, g.Class), Since: g.Since.Time(), Last: g.Last.Time(),
		})
	}
	return out
}

// text is the report for people.
func (r Report) text() []byte {
	var out bytes.Buffer
	r.writeHead(&out)
	fmt.Fprintln(&out, "\nConditions")
	table(&out, "  TYPE\tSTATUS\tREASON\tSINCE", len(r.Conditions), func(w io.Writer, i int) {
		c := r.Conditions[i]
		mark := "  "
		if c.Wrong {
			mark = "! "
		}
		fmt.Fprintf(w, "%s%s\t%s\t%s\t%s\n", mark, c.Type, c.Status, c.Reason, deadcmd.Age(c.Since, r.now))
	})
	r.podsText(&out)
	r.scalingText(&out)
	r.backlogText(&out)
	fmt.Fprintln(&out, "\nDead letters")
	if r.GroupsUnknown != "" {
		wrap(&out, "  ", "as the status has them; no pod could be read: "+r.GroupsUnknown)
	}
	if len(r.Groups) == 0 {
		fmt.Fprintln(&out, "  none")
	} else {
		shown := r.Groups[:min(len(r.Groups), shownGroups)]
		var groups bytes.Buffer
		_ = deadcmd.WriteGroups(&groups, shown, r.now) // a buffer takes everything
		for line := range bytes.Lines(groups.Bytes()) {
			fmt.Fprintf(&out, "  %s", line)
		}
		if more := len(r.Groups) - len(shown); more > 0 {
			fmt.Fprintf(&out, "  and %d more groups: kubectl outbox dead groups %s%s\n", more, r.Name, r.here)
		}
	}
	fmt.Fprintln(&out, "\nWhat to do")
	if len(r.ToDo) == 0 {
		fmt.Fprintln(&out, "  nothing")
	}
	for _, todo := range r.ToDo {
		wrap(&out, "  - ", todo.What)
		for _, command := range todo.Commands {
			fmt.Fprintln(&out, "    "+command)
		}
	}
	return out.Bytes()
}

func (r Report) writeHead(out io.Writer) {
	topics := "all topics"
	if len(r.Topics) > 0 {
		topics = "topics " + strings.Join(r.Topics, ", ")
	}
	fmt.Fprintf(out, "OutboxDispatcher %s/%s\n", r.Namespace, r.Name)
	for _, c := range r.Conditions {
		if c.Type == v1alpha1.ReadyCondition {
			wrap(out, "  Ready:   ", fmt.Sprintf("%s, %s: %s", c.Status, c.Reason, c.Message))
		}
	}
	wrap(out, "  State:   ", r.State)
	wrap(out, "  Events:  ", fmt.Sprintf("namespace %s, %s", r.OutboxNamespace, topics))
	if r.Outbox != "" {
		wrap(out, "  Outbox:  ", r.Outbox)
	}
	if r.Sink != "" {
		wrap(out, "  Sink:    ", r.Sink)
	}
}

func (r Report) podsText(out io.Writer) {
	readyPods := 0
	for _, p := range r.Pods {
		if p.Ready {
			readyPods++
		}
	}
	fmt.Fprintf(out, "\nPods (%d of %d ready)\n", readyPods, r.Wanted)
	if r.PodsUnknown != "" {
		wrap(out, "  ", "not known: "+r.PodsUnknown)
		return
	}
	if len(r.Pods) == 0 {
		fmt.Fprintln(out, "  none")
		return
	}
	table(out, "  NAME\tREADY\tSTATUS\tRESTARTS\tNODE\tAGE", len(r.Pods), func(w io.Writer, i int) {
		p := r.Pods[i]
		fmt.Fprintf(w, "  %s\t%t\t%s\t%d\t%s\t%s\n", p.Name, p.Ready, p.Phase, p.Restarts, p.Node, deadcmd.Age(p.Created, r.now))
	})
}

// wrap writes a text in lines of 120 columns, the first with what leads it.
func wrap(out io.Writer, lead, text string) {
	const width = 120
	line := lead
	for word := range strings.FieldsSeq(text) {
		if utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width && strings.TrimSpace(line) != strings.TrimSpace(lead) {
			fmt.Fprintln(out, line)
			line = strings.Repeat(" ", len(lead))
		}
		if !strings.HasSuffix(line, " ") {
			line += " "
		}
		line += word
	}
	fmt.Fprintln(out, line)
}

func table(out io.Writer, head string, rows int, row func(w io.Writer, i int)) {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, head)
	for i := range rows {
		row(w, i)
	}
	_ = w.Flush() // a buffer takes everything
}

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
