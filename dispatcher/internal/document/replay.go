package document

import (
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
)

// LoadReplay returns the settings of the process that a DeadLetterReplay of a file has, and what it requests. The Outbox that
// it refers to is found as [Load] finds it. It fails as Load does.
func LoadReplay(path string, o Options) (spec.Config, replay.Request, error) {
	o.Login = spec.LoginReplay
	c, main, err := load(path, o, "DeadLetterReplay")
	if err != nil {
		return c, replay.Request{}, err
	}
	if main.spec["outboxRef"] == nil {
		return c, replay.Request{}, fmt.Errorf("%s: spec.dispatcherRef: only the operator knows what that delivers; write outboxRef and namespace instead, and its topics into selector.topics", path)
	}
	r := decode[spec.Replay](main)
	id, err := uuid.Parse(main.uid)
	if err != nil && !r.DryRun {
		return c, replay.Request{}, fmt.Errorf("%s: metadata.uid is missing; give a UUID, by which the next run continues the replay", path)
	}
	f := r.Selector
	return c, replay.Request{
		ID: id, Namespace: c.Namespace, Topics: c.Topics, Limit: int(r.Limit), Action: replay.Action(strings.ToLower(string(r.Action))),
		Reason: r.Reason, RequestedBy: r.RequestedBy, Rate: int(r.Rate), Canary: int(r.Canary), AbortAt: int(r.AbortAt), Expires: r.Expires.D(), DryRun: r.DryRun,
		Filter: deadletters.Filter{
			IDs: f.IDs, Type: f.Type, Aggregate: f.Aggregate, Tenant: f.Tenant, Reason: spec.ContractReason(f.Reason), Group: f.Group,
			ErrorContains: f.ErrorContains, Since: f.Since.Time(), Until: f.Until.Time(),
		},
	}, nil
}

// replays sets what a DeadLetterReplay says of its process.
func replays(c *spec.Config, o object) {
	r := decode[spec.Replay](o)
	c.Name, c.Namespace, c.Topics = c.Name+"-replay", r.Namespace, r.Selector.Topics
}
