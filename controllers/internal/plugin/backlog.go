package plugin

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters/deadcmd"
)

// Backlog is what waits, as the status has it.
type Backlog struct {
	Pending     int64     `json:"pending"`
	Scheduled   int64     `json:"scheduled"`
	Processing  int64     `json:"processing"`
	Dead        int64     `json:"dead"`
	BlockedKeys int64     `json:"blockedKeys"`
	Estimated   bool      `json:"estimated,omitempty"`
	Oldest      time.Time `json:"oldestPending,omitzero"`
	ObservedAt  time.Time `json:"observedAt,omitzero"`
	// ETA is the time until the pending rows are delivered, such as 4m, and LimitedBy what keeps most of the pods from
	// delivering more. Empty when it is not known.
	ETA       string `json:"eta,omitempty"`
	LimitedBy string `json:"limitedBy,omitempty"`
}

// Scaling is how many pods the backlog needs.
type Scaling struct {
	Mode string `json:"mode"`
	Min  int32  `json:"min"`
	Max  int32  `json:"max"`
	// Recommended is 0 before the first count. Reason says why it is not another number, and PerPod how many events a pod
	// delivers in a second.
	Recommended int32  `json:"recommended"`
	Reason      string `json:"reason,omitempty"`
	PerPod      string `json:"perPod,omitempty"`
	// LastStep is when Recommended changed last.
	LastStep time.Time `json:"lastStep,omitzero"`
}

// backlogOf is nil before the first count.
func backlogOf(s v1alpha1.OutboxDispatcherStatus) *Backlog {
	if s.ObservedTime == nil {
		return nil
	}
	c := ptr.Deref(s.Counts, status.Counts{})
	return &Backlog{
		Pending: c.Pending, Scheduled: c.Scheduled, Processing: c.Processing, Dead: c.Dead, Oldest: c.OldestPending.Time(),
		BlockedKeys: ptr.Deref(s.BlockedKeys, 0), Estimated: c.Estimated, ObservedAt: s.ObservedTime.UTC(), ETA: s.ETA, LimitedBy: s.LimitedBy,
	}
}

func scalingOf(obd *v1alpha1.OutboxDispatcher) *Scaling {
	spec, now := obd.Spec.Pods.Scaling, ptr.Deref(obd.Status.Scaling, v1alpha1.ScalingStatus{})
	if spec == nil {
		return nil
	}
	s := &Scaling{Mode: string(spec.Mode), Min: spec.Min, Max: spec.Max, Recommended: now.Recommended, Reason: now.Reason, PerPod: now.PerPod}
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
	fmt.Fprintf(out, "\nBacklog (counted %s ago)\n", deadcmd.Age(b.ObservedAt, r.now))
	table(out, "  PENDING\tSCHEDULED\tPROCESSING\tDEAD\tBLOCKED KEYS\tOLDEST\tETA\tLIMITED BY", 1, func(w io.Writer, _ int) {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", b.number(b.Pending), b.number(b.Scheduled), b.number(b.Processing), b.number(b.Dead), b.number(b.BlockedKeys), oldest,
			cmp.Or(b.ETA, "-"), cmp.Or(b.LimitedBy, "-"))
	})
}

// number is a count, marked where it is so large that it may be an estimate.
func (b Backlog) number(n int64) string {
	if b.Estimated && n > dispatcher.DepthCap/2 {
		return fmt.Sprintf("~%d", n)
	}
	return fmt.Sprint(n)
}
