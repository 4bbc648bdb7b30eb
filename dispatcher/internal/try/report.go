package try

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pipeline"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
)

const (
	// maxGroups is how many groups are kept apart. Routes that are made of data may lead to any number of places.
	maxGroups = 100
	// maxSamples is how many ids a group has.
	maxSamples = 3
	// maxError is how much of an error a group has, in bytes.
	maxError = 500
)

// Report is what was found. It holds no payload and no header's value. Destinations are as routes make them.
type Report struct {
	// Namespace of the rows.
	Namespace string `json:"namespace"`
	// Against is the file that was compared with, or "status": what the rows' status says.
	Against string `json:"against"`
	// Rows is how many events were tried, and Newest and Oldest are when the first and the last was created.
	Rows   int       `json:"rows"`
	Newest time.Time `json:"newest"`
	Oldest time.Time `json:"oldest"`
	// LookedAt is how many rows were looked at for them. Incomplete is true when that bound ended the search.
	LookedAt   int  `json:"lookedAt"`
	Incomplete bool `json:"incomplete"`
	// Outcomes counts events: each has one.
	Outcomes map[Outcome]int `json:"outcomes"`
	// Different is how many events come out otherwise than before.
	Different int `json:"different"`
	// Groups are the differences. An event that breaks several rules is in the group of each.
	Groups []Group `json:"groups"`
	// Ungrouped is how many more times an event is in a group, of groups beyond the first 100.
	Ungrouped int `json:"ungrouped"`
}

// Group is one difference.
type Group struct {
	Outcome Outcome `json:"outcome"`
	// Before is the outcome before.
	Before Outcome `json:"before"`
	// Topic of the events.
	Topic string `json:"topic"`
	// Field, Place and What are the part of the configuration that stops the events: see pipeline.Finding.
	Field string `json:"field,omitempty"`
	Place string `json:"place,omitempty"`
	What  string `json:"what,omitempty"`
	// From and To are the destinations of events that are sent elsewhere.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Parts are what differs of messages: body, headers, key or query.
	Parts []string `json:"parts,omitempty"`
	Count int      `json:"count"`
	// Samples are the ids of the newest events of the group.
	Samples []uuid.UUID `json:"samples"`
	// Error is what the newest of them fails with.
	Error string `json:"error,omitempty"`
}

// groupKey is what the events of a group have in common.
type groupKey struct {
	outcome, before Outcome
	topic           string
	finding         pipeline.Finding
	from, to, parts string
}

// keys are the groups that a difference is in.
func (s *side) keys(e *dispatcher.Event, outcome Outcome, now, before made) (all []groupKey) {
	key := groupKey{outcome: outcome, before: before.outcome, topic: e.Topic}
	if now.outcome == Sent && before.outcome == Sent {
		key.parts = strings.Join(now.message.Differs(before.message), " ")
		if outcome == Moved {
			key.from, key.to = before.message.To, now.message.To
			if now.message.At != before.message.At {
				key.from, key.to = at(before), at(now)
			}
		}
	}
	for _, key.finding = range s.findings(now) {
		all = append(all, key)
	}
	return all
}

func at(m made) string {
	if m.message.At == "" {
		return m.message.To
	}
	return m.message.To + " at " + m.message.At
}

// add counts an event.
func (r *Report) add(groups map[groupKey]*Group, e *dispatcher.Event, outcome Outcome, keys []groupKey, err error) {
	if r.Rows++; r.Rows == 1 || e.CreatedAt.After(r.Newest) {
		r.Newest = e.CreatedAt.UTC()
	}
	if r.Rows == 1 || e.CreatedAt.Before(r.Oldest) {
		r.Oldest = e.CreatedAt.UTC()
	}
	r.Outcomes[outcome]++
	if outcome == Same {
		return
	}
	r.Different++
	for _, key := range keys {
		g := groups[key]
		switch {
		case g == nil && len(groups) == maxGroups:
			r.Ungrouped++
			continue
		case g == nil:
			g = &Group{Outcome: key.outcome, Before: key.before, Topic: key.topic, Field: key.finding.Field, Place: key.finding.Place,
				What: key.finding.What, From: key.from, To: key.to, Parts: strings.Fields(key.parts), Error: brief(e.ID, err)}
			groups[key] = g
		}
		if g.Count++; len(g.Samples) < maxSamples {
			g.Samples = append(g.Samples, e.ID)
		}
	}
}

// brief is an error in one line, bounded, without the event that samples name.
func brief(id uuid.UUID, err error) string {
	if err == nil {
		return ""
	}
	text := strings.TrimPrefix(strings.Join(strings.Fields(err.Error()), " "), "event "+id.String()+": ")
	if len(text) > maxError {
		text = strings.ToValidUTF8(text[:maxError], "") + "…"
	}
	return text
}

// close puts the groups in their order: as outcomes are, the largest first.
func (r *Report) close(groups map[groupKey]*Group) {
	r.Groups = make([]Group, 0, len(groups))
	for _, g := range groups {
		r.Groups = append(r.Groups, *g)
	}
	slices.SortFunc(r.Groups, func(a, b Group) int {
		return cmp.Or(
			cmp.Compare(slices.Index(outcomes, a.Outcome), slices.Index(outcomes, b.Outcome)), cmp.Compare(b.Count, a.Count),
			cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Place, b.Place), cmp.Compare(a.What, b.What),
			cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Before, b.Before), slices.Compare(a.Parts, b.Parts),
		)
	})
}

// Text is the group in one line, without its counts.
func (g Group) Text() string {
	switch g.Outcome {
	case Moved:
		text := g.From + " → " + g.To
		if len(g.Parts) > 0 {
			text += ", with another " + strings.Join(g.Parts, ", ")
		}
		return text
	case Changed:
		return "another " + strings.Join(g.Parts, ", ")
	case NotTaken:
		return "the dispatcher does not have the topic"
	case Sent:
		return fmt.Sprintf("was %s before", g.Before)
	}
	if g.Outcome == Paused || g.What == "" {
		if strings.HasPrefix(g.Error, g.Field) {
			return g.Error
		}
		return g.Field + ": " + g.Error
	}
	text := g.Field
	if g.Place != "" {
		text += ", at " + g.Place
	}
	return text + ": " + g.What
}

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
