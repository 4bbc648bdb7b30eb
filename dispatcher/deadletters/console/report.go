package console

import (
	"fmt"
	"time"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

// Report is how a dispatcher is, and what to do: the output of `kubectl outbox status`, and its page.
type Report struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// State is spec.state. Empty where it is set elsewhere.
	State string `json:"state"`
	// OutboxNamespace and Topics say whose events it delivers; no topics means all. Outbox is where they are.
	OutboxNamespace string   `json:"outboxNamespace"`
	Topics          []string `json:"topics,omitempty"`
	Outbox          string   `json:"outbox,omitempty"`
	Sink            string   `json:"sink,omitempty"`
	// Conditions are the object's, or the checks that were made: Ready, then what is wrong.
	Conditions []Condition `json:"conditions"`
	// Pods are the dispatcher's. PodsUnknown says why they are not known.
	Pods        []Pod  `json:"pods"`
	Wanted      int32  `json:"wantedPods"`
	PodsUnknown string `json:"podsUnknown,omitempty"`
	// Backlog is nil before the first count.
	Backlog *Backlog `json:"backlog,omitempty"`
	// Scaling is nil without spec.pods.scaling.
	Scaling *Scaling `json:"scaling,omitempty"`
	// Groups of open dead letters, the largest first. GroupsUnknown says why no pod reported them: then they are
	// those of the status, without an event and an error of each.
	Groups        []deadletters.Group `json:"groups"`
	GroupsUnknown string              `json:"groupsUnknown,omitempty"`
	// ToDo is what a person should do, the most urgent first.
	ToDo []ToDo `json:"toDo"`

	// What follows is for pages. Owners are others that set State, and ReadyPods is such as 1/2.
	Owners    []string `json:"-"`
	ReadyPods string   `json:"-"`
	// Now is what a process, or the database, reports. nil, with the reason in NowUnknown: none does.
	Now        *status.Status `json:"-"`
	NowUnknown string         `json:"-"`
}

// ToDo is something to do.
type ToDo struct {
	What string `json:"what"`
	// Commands are those that help: the last is the one that does it.
	Commands []string `json:"commands,omitempty"`
	// Group is the group that it is about, or empty.
	Group string `json:"-"`
}

// Condition is a condition of the object.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"`
	Reason  string    `json:"reason"`
	Since   time.Time `json:"since"`
	Message string    `json:"message,omitempty"`
	// Wrong is true when something is to be done about it.
	Wrong bool `json:"wrong,omitempty"`
}

// Pod is a pod of the dispatcher.
type Pod struct {
	Name     string    `json:"name"`
	Ready    bool      `json:"ready"`
	Phase    string    `json:"phase"`
	Restarts int32     `json:"restarts"`
	Node     string    `json:"node,omitempty"`
	Image    string    `json:"image,omitempty"`
	Created  time.Time `json:"created"`
}

// Backlog is what waits, as the status has it.
type Backlog struct {
	Pending     int64     `json:"pending"`
	Scheduled   int64     `json:"scheduled"`
	Processing  int64     `json:"processing"`
	Dead        int64     `json:"dead"`
	BlockedKeys int64     `json:"blockedKeys"`
	Estimated   bool      `json:"estimated,omitempty"`
	Oldest      time.Time `json:"oldestPending,omitzero"`
	LateSince   time.Time `json:"lateSince,omitzero"` // zero while it is not late
	ObservedAt  time.Time `json:"observedAt,omitzero"`
	// ETA is the time until the pending rows are delivered, such as 4m, and LimitedBy what keeps most of the pods from
	// delivering more. Empty when it is not known.
	ETA       string `json:"eta,omitempty"`
	LimitedBy string `json:"limitedBy,omitempty"`
}

// Number is a count, marked where it is so large that it may be an estimate.
func (b Backlog) Number(n int64) string {
	if b.Estimated && n > dispatcher.DepthCap/2 {
		return fmt.Sprintf("~%d", n)
	}
	return fmt.Sprint(n)
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
