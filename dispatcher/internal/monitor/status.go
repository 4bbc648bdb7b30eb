// Package monitor says how a dispatcher process is: the backlog, /status, /readyz, /healthz and
// /metrics.
package monitor

import (
	"strings"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/database"
	"github.com/outbox-operator/outbox-operator/dispatcher/report"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
)

// Process is what does not change while a process lives.
type Process struct {
	Config    config.Config
	Version   string
	Worker    string
	StartedAt time.Time
}

// Sources are what a process is asked for when somebody looks at it.
type Sources struct {
	Snapshot func() dispatcher.Snapshot
	// Backlog and OldestTransaction return nil until the database has answered once.
	Backlog           func() *dispatcher.Depth
	OldestTransaction func() *dispatcher.OldestTransaction
}

// status puts together what /status says, as far as it needs no database.
func status(p Process, s dispatcher.Snapshot) report.Status {
	out := report.Status{
		Name: p.Config.Name, Namespace: p.Config.Namespace, Topics: p.Config.Topics,
		Version: p.Version, Worker: p.Worker, StartedAt: p.StartedAt,
		State:  string(p.Config.State),
		Source: source(s.Source), Schema: schema(s.Schema), Sink: destination(s.Sink, s.Breaker),
		Held:     held(s.Held),
		InFlight: report.InFlight{Rows: s.InFlightRows, Bytes: s.InFlightBytes},
	}
	if s.Draining {
		out.State = "Draining"
	}
	if s.LastError != "" {
		out.LastError = &report.Error{At: s.LastErrorAt, Message: line(s.LastError)}
	}
	return out
}

// full adds what the database is asked for.
func (from Sources) full(p Process) report.Status {
	out := status(p, from.Snapshot())
	if depth := from.Backlog(); depth != nil {
		out.Backlog = backlog(depth)
	}
	if t := from.OldestTransaction(); t != nil {
		out.OldestTransaction = &report.OldestTransaction{Kind: report.TransactionKind(t.Kind), Name: line(t.Name), Since: t.Since, Seconds: t.Age.Seconds()}
	}
	return out
}

func source(l dispatcher.LinkState) report.Link {
	link := report.Link{State: state(l), Since: l.Since}
	if link.State == report.Unreachable {
		link.Reason, link.Message = database.Classify(l.Err)
	}
	return link
}

func destination(l dispatcher.LinkState, breaker dispatcher.BreakerState) report.Link {
	if state := state(l); state != report.Unreachable {
		return report.Link{State: state, Since: l.Since}
	}
	return trouble(breaker, l.Err, l.Since)
}

// trouble is a destination that takes no events.
func trouble(breaker dispatcher.BreakerState, err error, since time.Time) report.Link {
	link := report.Link{State: report.Unreachable, Reason: sink.Reason(err), Message: line(err.Error()), Since: since}
	if breaker == dispatcher.BreakerRefusing {
		link.State = report.Refusing
	}
	return link
}

func held(topics []dispatcher.HeldTopic) (out []report.HeldTopic) {
	for _, t := range topics {
		out = append(out, report.HeldTopic{Topic: t.Topic, Link: trouble(t.Breaker, t.Err, t.Since)})
	}
	return out
}

func state(l dispatcher.LinkState) report.LinkState {
	switch {
	case !l.Known:
		return report.Unknown
	case l.OK:
		return report.Reachable
	default:
		return report.Unreachable
	}
}

func schema(s dispatcher.Schema) report.Schema {
	out := report.Schema{State: string(s.State), Version: s.Version, Required: s.Required, Message: s.Message}
	if out.State == "" {
		out.State = string(report.Unknown)
	}
	return out
}

func backlog(d *dispatcher.Depth) *report.Backlog {
	b := &report.Backlog{ObservedAt: d.ObservedAt, BlockedKeys: d.BlockedKeys.N, Counts: report.Counts{Estimated: d.BlockedKeys.Estimated}}
	for _, k := range d.Blocked {
		b.Blocked = append(b.Blocked, report.BlockedKey{Topic: k.Topic, Key: k.Key, EventID: k.EventID.String(), DiedAt: k.DiedAt})
	}
	for _, t := range d.Topics {
		c := report.Counts{
			Pending: t.Pending.N, Scheduled: t.Scheduled.N, Processing: t.Processing.N, Dead: t.Dead.N,
			Estimated: t.Pending.Estimated || t.Scheduled.Estimated || t.Processing.Estimated || t.Dead.Estimated,
		}
		if !t.OldestPending.IsZero() {
			c.OldestPending = &t.OldestPending
		}
		b.Topics = append(b.Topics, report.TopicCounts{Topic: t.Topic, Counts: c})
		b.Pending += c.Pending
		b.Scheduled += c.Scheduled
		b.Processing += c.Processing
		b.Dead += c.Dead
		b.Estimated = b.Estimated || c.Estimated
		if c.OldestPending != nil && (b.OldestPending == nil || c.OldestPending.Before(*b.OldestPending)) {
			b.OldestPending = c.OldestPending
		}
	}
	return b
}

// unready says why the process does not deliver, a line for each cause; none when it is ready. A
// single failed delivery is no cause: the engine calls the destination away or refusing by its breaker.
// Neither is a topic that is held back: the process works, and delivers the others.
func unready(s report.Status) (causes []string) {
	if s.State == "Draining" {
		causes = append(causes, "stopping: no more rows are claimed")
	}
	links := map[string]report.Link{"database": s.Source, "sink": s.Sink}
	if s.State == string(config.Paused) {
		delete(links, "sink") // else a pause could not roll out while the destination is away
	}
	for name, link := range links {
		switch link.State {
		case report.Reachable:
		case report.Unknown:
			causes = append(causes, name+": not tried yet")
		default:
			causes = append(causes, name+": "+link.Reason+": "+link.Message)
		}
	}
	switch s.Schema.State {
	case string(dispatcher.SchemaReady):
	case string(report.Unknown):
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
