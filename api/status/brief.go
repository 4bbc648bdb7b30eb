package status

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// BriefPath is where a dispatcher serves a brief Status, which every caller may have. On [Path] only
// callers on the process's own machine or in its pod get more.
const BriefPath = Path + "?brief"

// MaxBrief bounds the JSON of a brief Status, in bytes.
const MaxBrief = 58 << 10

// Bounds of what is in a brief Status: how many paused topics, and the bytes of each text.
const (
	briefPausedTopics  = 8
	briefWaits         = 3
	briefError         = 160
	briefGated         = 4
	briefGatedName     = 60
	briefFiles         = 3
	briefSharing       = 5
	briefSharer        = 120
	briefWord          = 40
	briefTopic         = 100
	briefName          = 200
	briefPausedMessage = 200
	briefMessage       = 400
	briefCause         = 60
	briefReason        = 24
	briefOrphans       = 5
	briefOrphan        = 48
	briefWindows       = 4
)

// Brief is the Status for callers who may be anyone, and for the operator: states, messages and totals. It
// holds no key, no id of an event, no list of topics but the first eight that are paused, the first four that are gated, the
// first eight that something limits and those of groups of dead events, the types of events, and no error of a single delivery. Its JSON has at most MaxBrief
// bytes, whatever the Status holds.
func (s Status) Brief() Status {
	brief := Status{
		Name: clip(s.Name, briefName), Namespace: clip(s.Namespace, briefName), Version: clip(s.Version, briefName), Worker: clip(s.Worker, briefName),
		State: clip(s.State, briefWord), LimitedBy: clip(s.LimitedBy, briefWord), StartedAt: s.StartedAt,
		Source: s.Source.clip(briefMessage), Sink: s.Sink.clip(briefMessage),
		Schema:           Schema{State: clip(s.Schema.State, briefWord), Version: s.Schema.Version, Required: s.Schema.Required, Message: clip(s.Schema.Message, briefMessage)},
		PausedTopicCount: s.PausedTopicCount, AllTopicsPaused: s.AllTopicsPaused, GatedTopics: s.GatedTopics, StuckCalls: s.StuckCalls, InFlight: s.InFlight,
		DeliveredPerSecond: s.DeliveredPerSecond,
	}
	for _, h := range s.PausedTopics[:min(len(s.PausedTopics), briefPausedTopics)] {
		brief.PausedTopics = append(brief.PausedTopics, PausedTopic{Topic: clip(h.Topic, briefTopic), Link: h.clip(briefPausedMessage)})
	}
	for _, g := range s.Gated[:min(len(s.Gated), briefGated)] {
		brief.Gated = append(brief.Gated, GatedTopic{Topic: clip(g.Topic, briefGatedName), EventType: clip(g.EventType, briefGatedName), Waiting: g.Waiting, Since: g.Since})
	}
	for _, t := range s.TopicLimits[:min(len(s.TopicLimits), TopicLimitsListed)] {
		brief.TopicLimits = append(brief.TopicLimits, TopicLimit{Topic: clip(t.Topic, briefGatedName), LimitedBy: clip(t.LimitedBy, briefWord), Concurrency: t.Concurrency})
	}
	for _, t := range s.EventTypes[:min(len(s.EventTypes), EventTypesListed)] {
		if name := clip(t.Type, EventTypeBytes); name == t.Type { // a part of a name is none
			brief.EventTypes = append(brief.EventTypes, EventType{Type: name, LastSeen: t.LastSeen})
		}
	}
	for _, f := range s.FileProblems[:min(len(s.FileProblems), briefFiles)] {
		brief.FileProblems = append(brief.FileProblems, FileProblem{Field: clip(f.Field, briefTopic), Message: clip(f.Message, briefPausedMessage), Since: f.Since})
	}
	for _, name := range s.Sharing[:min(len(s.Sharing), briefSharing)] {
		brief.Sharing = append(brief.Sharing, clip(name, briefSharer))
	}
	if t := s.OldestTransaction; t != nil {
		brief.OldestTransaction = &OldestTransaction{Kind: TransactionKind(clip(string(t.Kind), briefWord)), Name: clip(t.Name, briefName), Since: t.Since, Seconds: t.Seconds}
	}
	if s.Replay != nil {
		brief.Replay = s.Replay.brief()
	}
	if r := s.Retention; r != nil {
		brief.Retention = &Retention{LastRun: r.LastRun, NextRun: r.NextRun, Removed: r.Removed}
	}
	if d := s.Data; d != nil {
		brief.Data = d.brief()
	}
	if j := s.Journal; j != nil {
		brief.Journal = &Journal{ObservedAt: j.ObservedAt, Differences: j.Differences}
	}
	if b := s.Backlog; b != nil {
		brief.Backlog = &Backlog{ObservedAt: b.ObservedAt, Counts: b.Counts, BlockedKeys: b.BlockedKeys}
		for _, g := range b.DeadGroups[:min(len(b.DeadGroups), DeadGroupsListed)] {
			brief.Backlog.DeadGroups = append(brief.Backlog.DeadGroups, g.brief())
		}
	}
	return brief
}

func (l Link) clip(message int) Link {
	return Link{State: LinkState(clip(string(l.State), briefWord)), Reason: clip(l.Reason, briefWord), Message: clip(l.Message, message), Since: l.Since}
}

// brief has the first windows and topics alone.
func (d *Data) brief() *Data {
	brief := *d
	brief.Windows, brief.OrphanTopics = nil, nil
	for _, w := range d.Windows[:min(len(d.Windows), briefWindows)] {
		w.Window = clip(w.Window, briefWord)
		brief.Windows = append(brief.Windows, w)
	}
	for _, t := range d.OrphanTopics[:min(len(d.OrphanTopics), briefOrphans)] {
		t.Namespace, t.Topic = clip(t.Namespace, briefOrphan), clip(t.Topic, briefOrphan)
		brief.OrphanTopics = append(brief.OrphanTopics, t)
	}
	return &brief
}

// brief is the group without an event's id and error.
func (g DeadGroup) brief() DeadGroup {
	return DeadGroup{
		Group: clip(g.Group, briefWord), Topic: clip(g.Topic, briefTopic), Reason: clip(g.Reason, briefReason),
		Class: clip(g.Class, briefReason), Code: clip(g.Code, briefCause), Place: clip(g.Place, briefCause),
		Count: g.Count, Estimated: g.Estimated, Since: g.Since, Last: g.Last,
	}
}

// clip returns at most so many bytes of a text, without control characters, which JSON writes as six bytes.
// A text that is cut does not keep the whole one in memory.
func clip(text string, limit int) string {
	cut := text
	if len(text) > limit {
		end := limit - len("…")
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		cut = text[:end] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(cut, ""))
}
