package try

import (
	"context"
	"errors"
	"slices"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pipeline"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
)

// Outcome is what a configuration makes of an event, or how that differs from before.
type Outcome string

// The outcomes. Of one configuration an event is Sent, Dead, Paused, Failed or NotTaken. Compared with before it is
// Same, or else as it would be now, where one that is sent both times is Moved or Changed.
const (
	// Same: as before.
	Same Outcome = "same"
	// Dead: dead at once, for a schema, a rule, or what the message would be.
	Dead Outcome = "dead"
	// Paused: a rule, a transformation or a route cannot be computed, which pauses its topic.
	Paused Outcome = "paused"
	// Failed: it fails at each attempt, until none is left. No route takes it, or it has no place to go.
	Failed Outcome = "failed"
	// NotTaken: the dispatcher does not have its topic.
	NotTaken Outcome = "notTaken"
	// Moved: sent elsewhere.
	Moved Outcome = "moved"
	// Changed: sent to the same place, with another body, other headers or another key.
	Changed Outcome = "changed"
	// Sent: sent, and it was not before.
	Sent Outcome = "sent"
)

// outcomes are all, in the order of a report.
var outcomes = []Outcome{Same, Dead, Paused, Failed, NotTaken, Moved, Changed, Sent}

// made is what one configuration makes of an event.
type made struct {
	outcome Outcome
	message draft.Message // of one that is sent
	err     error         // of one that is not
}

// side is one configuration.
type side struct {
	topics []string
	kind   string // of the sink
	drafts *sink.Drafts
}

func newSide(cfg spec.Config) (*side, error) {
	drafts, err := sink.NewDrafts(cfg)
	return &side{cfg.Topics, cfg.Sink.Kind(), drafts}, err
}

// make returns what becomes of the event. The error is that of a schema registry which is unreachable, or of ctx:
// then the outcome is not known.
func (s *side) make(ctx context.Context, e *dispatcher.Event) (made, error) {
	if len(s.topics) > 0 && !slices.Contains(s.topics, e.Topic) {
		return made{outcome: NotTaken}, nil
	}
	message, err := s.drafts.Draft(ctx, e)
	_, permanent := dispatcher.PermanentReason(err)
	switch {
	case err == nil:
		return made{outcome: Sent, message: message}, nil
	case ctx.Err() != nil:
		return made{}, ctx.Err()
	case dispatcher.IsUnavailable(err):
		return made{}, err
	case permanent:
		return made{Dead, message, err}, nil
	case dispatcher.IsDestinationFault(err):
		return made{Paused, message, err}, nil
	default:
		return made{Failed, message, err}, nil
	}
}

// stands is what the row's status says was made of it, where there is no configuration to compare with: dead rows
// are dead, and of the others nothing speaks against them. The destination is not known.
func stands(row pgstore.PastRow, now made) made {
	if row.Status != "dead" {
		return made{outcome: Sent, message: now.message}
	}
	if row.Reason != dispatcher.ReasonSchemaValidationFailed || now.outcome != Sent {
		return now // what killed it may kill it again
	}
	return made{outcome: Dead}
}

// compare says how what is made now differs from before.
func compare(now, before made) Outcome {
	switch {
	case now.outcome != before.outcome:
		return now.outcome
	case now.outcome != Sent:
		return Same
	case now.message.Elsewhere(before.message):
		return Moved
	case len(now.message.Differs(before.message)) > 0:
		return Changed
	}
	return Same
}

// findings are what stops an event: the steps of the pipeline, or the sink.
func (s *side) findings(m made) []pipeline.Finding {
	if m.err == nil {
		return []pipeline.Finding{{}}
	}
	var all []pipeline.Finding
	for _, f := range pipeline.Findings(m.err) {
		if !slices.Contains(all, f) { // elements of one array have one place
			all = append(all, f)
		}
	}
	switch {
	case len(all) > 0:
		return all
	case errors.Is(m.err, dispatcher.ErrNoHandler):
		return []pipeline.Finding{{Field: "sink.routes", What: "no route takes the topic"}}
	}
	return []pipeline.Finding{{Field: "sink." + s.kind}}
}

// Outcomes are all of a report, in its order.
func Outcomes() []Outcome { return slices.Clone(outcomes) }
