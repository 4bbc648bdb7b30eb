package plugin

import (
	"cmp"
	"fmt"
	"io"

	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/console"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
)

// backlogOf is nil before the first count.
func backlogOf(s v1alpha1.OutboxDispatcherStatus) *console.Backlog {
	if s.ObservedTime == nil {
		return nil
	}
	c := ptr.Deref(s.Counts, status.Counts{})
	return &console.Backlog{
		Pending: c.Pending, Scheduled: c.Scheduled, Processing: c.Processing, Dead: c.Dead, Oldest: c.OldestPending.Time(), LateSince: s.LateSince.Time(),
		BlockedKeys: ptr.Deref(s.BlockedKeys, 0), Estimated: c.Estimated, ObservedAt: s.ObservedTime.UTC(), ETA: s.ETA, LimitedBy: s.LimitedBy,
	}
}

func scalingOf(obd *v1alpha1.OutboxDispatcher) *console.Scaling {
	spec, now := obd.Spec.Pods.Scaling, ptr.Deref(obd.Status.Scaling, v1alpha1.ScalingStatus{})
	if spec == nil {
		return nil
	}
	s := &console.Scaling{Mode: string(spec.Mode), Min: spec.Min, Max: spec.Max, Recommended: now.Recommended, Reason: now.Reason, PerPod: now.PerPod}
	if now.LastStep != nil {
		s.LastStep = now.LastStep.Time.UTC()
	}
	return s
}

func (r Report) scalingText(out io.Writer) {
	s := r.Scaling
	if s == nil {
		return
	}
	recommended, step := "-", "-"
	if s.Recommended > 0 {
		recommended = fmt.Sprint(s.Recommended)
	}
	if !s.LastStep.IsZero() {
		step = deadcmd.Age(s.LastStep, r.now)
	}
	fmt.Fprintln(out, "\nScaling")
	table(out, "  MODE\tMIN\tMAX\tRECOMMENDED\tREASON\tEVENTS/S PER POD\tLAST STEP", 1, func(w io.Writer, _ int) {
		fmt.Fprintf(w, "  %s\t%d\t%d\t%s\t%s\t%s\t%s\n", s.Mode, s.Min, s.Max, recommended, cmp.Or(s.Reason, "-"), cmp.Or(s.PerPod, "-"), step)
	})
}

func (r Report) backlogText(out io.Writer) {
	b := r.Backlog
	if b == nil {
		fmt.Fprintln(out, "\nBacklog\n  not counted yet")
		return
	}
	oldest := "-"
	if !b.Oldest.IsZero() {
		oldest = deadcmd.Age(b.Oldest, r.now)
	}
	late := ""
	if !b.LateSince.IsZero() {
		late = ", later than its objective for " + deadcmd.Age(b.LateSince, r.now)
	}
	fmt.Fprintf(out, "\nBacklog (counted %s ago%s)\n", deadcmd.Age(b.ObservedAt, r.now), late)
	table(out, "  PENDING\tSCHEDULED\tPROCESSING\tDEAD\tBLOCKED KEYS\tOLDEST\tETA\tLIMITED BY", 1, func(w io.Writer, _ int) {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", b.Number(b.Pending), b.Number(b.Scheduled), b.Number(b.Processing), b.Number(b.Dead), b.Number(b.BlockedKeys), oldest,
			cmp.Or(b.ETA, "-"), cmp.Or(b.LimitedBy, "-"))
	})
}
