package document

import (
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/spec"
)

// replay is the spec of a DeadLetterReplay.
type replay struct {
	Namespace, Action, Reason, RequestedBy string
	Selector                               struct {
		spec.DeadLetterFilter
		Topics []string
	}
	Rate, Limit, Canary, AbortAt int
	DryRun                       bool
}

// LoadReplay returns the settings of the process that a DeadLetterReplay of a file has, and what it requests. The Outbox that
// it refers to is found as [Load] finds it. It fails as Load does.
func LoadReplay(path string, o Options) (spec.Config, spec.ReplayRequest, error) {
	o.Login = spec.LoginReplay
	c, main, err := load(path, o, "DeadLetterReplay")
	if err != nil {
		return c, spec.ReplayRequest{}, err
	}
	if main.spec["outboxRef"] == nil {
		return c, spec.ReplayRequest{}, fmt.Errorf("%s: spec.dispatcherRef: only the operator knows what that delivers; write outboxRef and namespace instead, and its topics into selector.topics", path)
	}
	r := decode[replay](main)
	id, err := uuid.Parse(main.uid)
	if err != nil && !r.DryRun {
		return c, spec.ReplayRequest{}, fmt.Errorf("%s: metadata.uid is missing; give a UUID, by which the next run continues the replay", path)
	}
	request := spec.ReplayRequest{
		ID: id, Namespace: c.Namespace, Topics: c.Topics, Filter: r.Selector.DeadLetterFilter, Limit: r.Limit, Action: spec.ReplayAction(strings.ToLower(r.Action)),
		Reason: r.Reason, RequestedBy: r.RequestedBy, Rate: r.Rate, Canary: r.Canary, AbortAt: r.AbortAt, DryRun: r.DryRun,
	}
	request.Filter.Reason = spec.ContractReason(request.Filter.Reason)
	return c, request, nil
}

// replays sets what a DeadLetterReplay says of its process.
func replays(c *spec.Config, o object) {
	r := decode[replay](o)
	c.Name, c.Namespace, c.Topics = c.Name+"-replay", r.Namespace, r.Selector.Topics
}
