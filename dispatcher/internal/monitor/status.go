// Package monitor says how a dispatcher process is: the backlog, /status, /readyz, /healthz and
// /metrics.
package monitor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/journal"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// Process is the part of the status that stays the same while a process runs.
type Process struct {
	Name, Namespace string
	// Topics that it delivers; empty means all.
	Topics          []string
	Version, Worker string
	StartedAt       time.Time
}

// Sources provide the status of a process.
type Sources struct {
	Snapshot func() dispatcher.Snapshot
	// PerSecond is how many events are delivered in a second. It may be nil.
	PerSecond func() float64
	// Hour returns nil in the first minute, and may be nil.
	Hour func() *status.Hour
	// Backlog and OldestTransaction return nil until the database has responded once.
	Backlog           func() *dispatcher.Depth
	OldestTransaction func() *dispatcher.OldestTransaction
	// Sharing returns nil until the database has responded once, and may be nil.
	Sharing func() *[]string
	// Retention returns nil until the database has responded once, and may be nil; RetentionProblem may be, too.
	Retention        func() *retention.State
	RetentionProblem func() string
	// Notifications may be nil: there is no address.
	Notifications func() *status.Notifications
	// Data returns nil until the database has responded once, and may be nil.
	Data func() *dispatcher.Data
	// Journal returns nil until the database has responded once, and may be nil.
	Journal func() *journal.State
	// FileProblems may be nil.
	FileProblems func() []status.FileProblem
	// DeadLetters serves queries of dead letters. It may be nil: then it serves none.
	DeadLetters deadletters.Source
}

// paused is the state of a dispatcher that claims nothing.
const paused = "Paused"

// statusOf is the part of /status that needs no database.
func statusOf(p Process, s dispatcher.Snapshot) status.Status {
	out := status.Status{
		Name: p.Name, Namespace: p.Namespace, Topics: p.Topics,
		Version: p.Version, Worker: p.Worker, StartedAt: p.StartedAt,
		State:  "Running",
		Source: source(s), Schema: schema(s.Schema), Sink: sinkLink(s),
		PausedTopics: pausedTopics(s.PausedTopics), PausedTopicCount: len(s.PausedTopics), GatedTopics: len(s.Gated), StuckCalls: s.StuckCalls, Stuck: stuckCalls(s.Stuck),
		InFlight: status.InFlight{Rows: s.InFlightRows, Bytes: s.InFlightBytes},
	}
	for _, g := range s.Gated {
		out.Gated = append(out.Gated, status.GatedTopic{Topic: g.Topic, EventType: g.EventType, Since: g.Since})
	}
	out.LimitedBy = string(s.LimitedBy)
	for _, t := range s.TopicLimits {
		out.TopicLimits = append(out.TopicLimits, status.TopicLimit{Topic: t.Topic, LimitedBy: string(t.LimitedBy), Concurrency: t.Concurrency})
	}
	for _, t := range s.EventTypes {
		out.EventTypes = append(out.EventTypes, status.EventType{Type: t.Type, LastSeen: status.At(t.LastSeen)})
	}
	switch {
	case s.Draining:
		out.State = "Draining"
	case s.Paused:
		out.State = paused
	}
	if s.LastError != "" {
		out.LastError = &status.Error{At: s.LastErrorAt, Message: line(s.LastError)}
	}
	return out
}

// status is the snapshot with what the database returns.
func (from Sources) status(p Process) status.Status {
	out := statusOf(p, from.Snapshot())
	if from.PerSecond != nil {
		out.DeliveredPerSecond = from.PerSecond()
	}
	if from.Hour != nil {
		out.Hour = from.Hour()
	}
	if from.FileProblems != nil {
		out.FileProblems = fileProblems(from.FileProblems())
	}
	if depth := from.Backlog(); depth != nil {
		out.Backlog = Backlog(depth)
		countGated(out.Gated, out.Backlog.Topics)
		out.AllTopicsPaused = allTopicsPaused(out.PausedTopics, out.Gated, out.Backlog.Topics)
	}
	if from.Sharing != nil {
		if names := from.Sharing(); names != nil {
			out.Sharing = *names
		}
	}
	if from.Data != nil {
		if data := from.Data(); data != nil {
			out.Data = Data(data)
		}
	}
	if from.Journal != nil {
		if state := from.Journal(); state != nil {
			out.Journal = compared(state)
		}
	}
	if from.Retention != nil {
		if state := from.Retention(); state != nil {
			out.Retention = removal(state)
			out.Retention.Message = line(from.RetentionProblem())
		}
	}
	if from.Notifications != nil {
		out.Notifications = from.Notifications()
		out.Notifications.Message = line(out.Notifications.Message)
	}
	if t := from.OldestTransaction(); t != nil {
		out.OldestTransaction = &status.OldestTransaction{Kind: status.TransactionKind(t.Kind), Name: line(t.Name), Since: t.Since, Seconds: t.Age.Seconds()}
	}
	return out
}

func removal(s *retention.State) *status.Retention {
	r := &status.Retention{
		Running: s.Running, Position: s.Position, Pages: s.Pages, Seconds: s.Seconds, DeadLetters: s.Removed.DeadLetters,
		RetentionTotals: status.RetentionTotals{Delivered: s.Removed.Delivered, Dead: s.Removed.Dead, Expired: s.Removed.Expired},
	}
	if s.Ended != nil {
		r.LastRun = status.At(*s.Ended)
	}
	if s.Next != nil {
		r.NextRun = status.At(*s.Next)
	}
	return r
}

// source is the database. It is Refusing when it responds, and refuses to lease some events, or the outcomes of some.
func source(s dispatcher.Snapshot) status.Link {
	link := status.Link{State: state(s.Source), Since: s.Source.Since}
	switch {
	case link.State == status.Unreachable:
		if link.Reason, link.Message = database.Classify(s.Source.Err); link.Reason == database.TooFewConnections { // it responds
			link.State, link.Stopped = status.Refusing, true
		}
	case link.State == status.Reachable && state(s.Claims) == status.Unreachable:
		return refusedClaims(s)
	case link.State == status.Reachable && state(s.Outcomes) == status.Unreachable:
		return status.Link{State: status.Refusing, Reason: status.OutcomesRefused, Since: s.Outcomes.Since,
			Message: line("The database refuses outcomes: what is written back of some events. They are delivered again until that is fixed; see the dispatcher's log for their ids. " + s.Outcomes.Err.Error())}
	}
	return link
}

// refusedClaims is a database that refuses to lease some events, or any.
func refusedClaims(s dispatcher.Snapshot) status.Link {
	link := status.Link{State: status.Refusing, Reason: status.ClaimsRefused, Since: s.Claims.Since, Stopped: s.ClaimsStopped}
	text := "The database refuses to lease some events. Each is left alone for five minutes at a time, and the others are delivered. Fix what refuses them; the dispatcher's log has their ids. "
	if s.ClaimsStopped {
		text = "The database refuses to lease the events, and nothing is delivered. Fix what refuses them; single ones are tried meanwhile. "
	}
	if row := (*dispatcher.RefusedRow)(nil); errors.As(s.Claims.Err, &row) {
		link.EventID, link.Message = row.ID.String(), line(fmt.Sprintf("%sTopic %q: %v", text, row.Topic, row.Err))
	} else {
		link.Message = line(text + s.Claims.Err.Error())
	}
	return link
}

// sinkLink is the destination. A sink whose calls are all stuck, or keep all the memory, delivers nothing, whatever else it
// reports.
func sinkLink(s dispatcher.Snapshot) status.Link {
	if s.StuckCalls > 0 && s.StuckCalls >= s.Concurrency {
		return status.Link{State: status.Unreachable, Reason: status.CallsStuck, Since: s.Stuck[0].Since,
			Message: fmt.Sprintf("All %d calls of the sink are stuck: they did not return when delivery.timeout was over. Fix what they wait for, and restart the dispatcher.", s.StuckCalls)}
	}
	if s.NoRoom {
		return status.Link{State: status.Unreachable, Reason: status.CallsStuck, Since: s.Stuck[0].Since,
			Message: fmt.Sprintf("The events of %d stuck calls of the sink leave no room in maxInFlightBytes, and nothing is claimed. Fix what the calls wait for, and restart the dispatcher.", s.StuckCalls)}
	}
	return destination(s.Sink, s.Breaker)
}

// fileProblems bounds the reported problems of files.
func fileProblems(all []status.FileProblem) (out []status.FileProblem) {
	for _, f := range all[:min(len(all), status.FileProblemsListed)] {
		f.Message = line(f.Message)
		out = append(out, f)
	}
	return out
}

func stuckCalls(calls []dispatcher.StuckCall) (out []status.StuckCall) {
	for _, c := range calls {
		out = append(out, status.StuckCall{Topic: c.Topic, EventID: c.EventID.String(), Events: c.Events, Since: c.Since})
	}
	return out
}

func destination(l dispatcher.LinkState, breaker dispatcher.BreakerState) status.Link {
	if state := state(l); state != status.Unreachable {
		return status.Link{State: state, Since: l.Since}
	}
	return trouble(breaker, l.Err, l.Since)
}

// trouble is a destination that takes no events.
func trouble(breaker dispatcher.BreakerState, err error, since time.Time) status.Link {
	link := status.Link{State: status.Unreachable, Reason: reason.Of(err), Message: line(err.Error()), Since: since}
	if breaker == dispatcher.BreakerRefusing {
		link.State = status.Refusing
	}
	return link
}

func pausedTopics(topics []dispatcher.PausedTopic) (out []status.PausedTopic) {
	for _, t := range topics {
		out = append(out, status.PausedTopic{Topic: t.Topic, Link: trouble(t.Breaker, t.Err, t.Since)})
	}
	return out
}

// countGated counts the events that wait in each gated topic.
func countGated(gated []status.GatedTopic, topics []status.TopicCounts) {
	for i := range gated {
		if at := slices.IndexFunc(topics, func(t status.TopicCounts) bool { return t.Topic == gated[i].Topic }); at >= 0 {
			gated[i].Waiting = topics[at].Pending
		}
	}
}

// allTopicsPaused reports whether every topic that has events to deliver is paused, for whatever reason.
func allTopicsPaused(paused []status.PausedTopic, gated []status.GatedTopic, topics []status.TopicCounts) bool {
	waiting := slices.DeleteFunc(slices.Clone(topics), func(t status.TopicCounts) bool { return t.Pending+t.Scheduled+t.Processing == 0 })
	return len(waiting) > 0 && !slices.ContainsFunc(waiting, func(t status.TopicCounts) bool {
		return !slices.ContainsFunc(paused, func(p status.PausedTopic) bool { return p.Topic == t.Topic }) &&
			!slices.ContainsFunc(gated, func(g status.GatedTopic) bool { return g.Topic == t.Topic })
	})
}

func state(l dispatcher.LinkState) status.LinkState {
	switch {
	case !l.Known:
		return status.Unknown
	case l.OK:
		return status.Reachable
	default:
		return status.Unreachable
	}
}

func schema(s dispatcher.Schema) status.Schema {
	out := status.Schema{State: string(s.State), Version: s.Version, Required: s.Required, Message: s.Message}
	if out.State == "" {
		out.State = string(status.Unknown)
	}
	return out
}

// Backlog is a count as a Status has it.
func Backlog(d *dispatcher.Depth) *status.Backlog {
	b := &status.Backlog{ObservedAt: d.ObservedAt, BlockedKeys: d.BlockedKeys.N, Counts: status.Counts{Estimated: d.BlockedKeys.Estimated}}
	for _, k := range d.Blocked {
		b.Blocked = append(b.Blocked, status.BlockedKey{Topic: k.Topic, Key: k.Key, EventID: k.EventID.String(), DeadAt: k.DeadAt})
	}
	for _, g := range d.Groups {
		b.DeadGroups = append(b.DeadGroups, status.DeadGroupExample{DeadGroup: status.DeadGroup{
			Group: g.Fingerprint, Topic: g.Topic, Reason: string(g.Reason), Class: g.Cause.Class, Code: g.Cause.Code, Place: g.Cause.Place,
			Count: g.Count.N, Estimated: g.Count.Estimated, Since: status.At(g.Since), Last: status.At(g.Last),
		}, Sample: g.Sample.String(), Error: line(g.Error)})
	}
	for _, t := range d.Topics {
		c := status.Counts{
			Pending: t.Pending.N, Scheduled: t.Scheduled.N, Retrying: t.Retrying.N, Processing: t.Processing.N, Dead: t.Dead.N,
			Estimated:     t.Pending.Estimated || t.Scheduled.Estimated || t.Processing.Estimated || t.Dead.Estimated,
			OldestPending: status.At(t.OldestPending),
		}
		b.Topics = append(b.Topics, status.TopicCounts{Topic: t.Topic, Counts: c})
		b.Pending += c.Pending
		b.Scheduled += c.Scheduled
		b.Retrying += c.Retrying
		b.Processing += c.Processing
		b.Dead += c.Dead
		b.Estimated = b.Estimated || c.Estimated
		if c.OldestPending != 0 && (b.OldestPending == 0 || c.OldestPending < b.OldestPending) {
			b.OldestPending = c.OldestPending
		}
	}
	return b
}

// unready says why the process does not deliver, a line for each cause; none when it is ready. A
// single failed delivery is not a cause: the engine calls the destination unreachable or refusing by its breaker.
// Neither is a paused topic: the process works, and delivers the others.
func unready(s status.Status) (causes []string) {
	if s.State == "Draining" {
		causes = append(causes, "stopping: no more rows are claimed")
	}
	links := map[string]status.Link{"database": s.Source, "sink": s.Sink}
	if s.State == paused {
		delete(links, "sink") // else a pause could not roll out while the destination is unreachable
	}
	for name, link := range links {
		switch {
		case link.State == status.Reachable, name == "database" && link.State == status.Refusing && !link.Stopped: // other events flow
		case link.State == status.Unknown:
			causes = append(causes, name+": not tried yet")
		default:
			causes = append(causes, name+": "+link.Reason+": "+link.Message)
		}
	}
	switch s.Schema.State {
	case string(dispatcher.SchemaReady):
	case string(status.Unknown):
		causes = append(causes, "schema: not compared yet")
	default:
		causes = append(causes, "schema: "+s.Schema.State+": "+s.Schema.Message)
	}
	return causes
}

// line makes one bounded line.
func line(text string) string {
	const limit = 500
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return text
}
