package spec

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// ReplayAction is what is done with dead letters.
type ReplayAction string

// Values of [ReplayAction].
const (
	// ActionReplay puts the event's row back to pending, and resolves its dead letter as replayed.
	ActionReplay ReplayAction = "replay"
	// ActionDiscard resolves the dead letter as discarded. The event stays dead, and blocks its key no more.
	ActionDiscard ReplayAction = "discard"
	// ActionReopen opens a dead letter again that was discarded, while its event is there and dead.
	ActionReopen ReplayAction = "reopen"
)

// Bounds and defaults of a [ReplayRequest].
const (
	// DefaultReplayRate is the rate of a request that has none, in events a second.
	DefaultReplayRate = 100
	// MaxReplayRate is the highest rate, in events a second.
	MaxReplayRate = 100_000
	// DefaultAbortAt is AbortAt of a replay that has none, in percent.
	DefaultAbortAt = 50

	maxCanary      = 10_000
	maxLimit       = 1_000_000_000
	maxReasonBytes = 1024 // also of a name
)

// ReplayRequest is a request to replay, discard or reopen dead letters.
//
// +kubebuilder:object:generate=false
type ReplayRequest struct {
	// ID names the replay. A second request with the same ID continues the first. Defaults to a random one.
	ID uuid.UUID `json:"id,omitzero"`
	// Namespace is the outbox namespace of the dead letters. Required.
	Namespace string `json:"namespace,omitempty"`
	// Topics are those whose dead letters may be chosen. None means all of the namespace.
	Topics []string `json:"topics,omitempty"`
	// Filter chooses among the open dead letters, and for a reopen among the discarded ones. The zero filter chooses all.
	Filter DeadLetterFilter `json:"filter,omitzero"`
	// Limit is how many dead letters at most, the oldest first. Defaults to 0: all.
	Limit int `json:"limit,omitempty"`
	// Action is replay, discard or reopen. Required.
	Action ReplayAction `json:"action"`
	// Reason is why, in the person's words, at most 1024 bytes. It stays with each dead letter. Required.
	Reason string `json:"reason"`
	// RequestedBy is the person who requests it, at most 1024 bytes. It stays with each dead letter. Required.
	RequestedBy string `json:"requestedBy"`
	// Rate is the most events a second, 1 to 100000. It is for replays, and so are the next two. Defaults to 100.
	Rate int `json:"rate,omitempty"`
	// Canary is how many events go first, and alone, until their outcomes are known, at most 10000. An event whose first
	// attempt failed has an outcome: it failed. Defaults to 0: none.
	Canary int `json:"canary,omitempty"`
	// AbortAt is the share of failures among the newest 100 outcomes, in percent from 1 to 100, at which a replay stops
	// by itself: what waits stays open. It is checked when the outcomes of the canary are known, or of 10 events
	// without one, and from then on. Defaults to 50.
	AbortAt int `json:"abortAt,omitempty"`
	// DryRun counts what would be done, and changes nothing. Defaults to false.
	DryRun bool `json:"dryRun,omitempty"`
}

// DeadLetterFilter chooses dead letters. A dead letter matches when it matches every member that is set. The zero filter
// matches every open one: each that was not replayed, discarded or expired.
//
// +kubebuilder:object:generate=false
type DeadLetterFilter struct {
	// IDs are ids of events (UUIDs) or of dead letters (numbers), at most 1000. A dead letter matches one of them.
	IDs []string `json:"ids,omitempty"`
	// Topic is the event's topic.
	Topic string `json:"topic,omitempty"`
	// Type is the event's type.
	Type string `json:"type,omitempty"`
	// Aggregate is the id of the thing that the event is about, or its type and id as TYPE/ID.
	Aggregate string `json:"aggregate,omitempty"`
	// Tenant is the event's tenant, a UUID.
	Tenant string `json:"tenant,omitempty"`
	// Reason is why the event is dead: max_retries_exceeded, poison_message, schema_validation_failed,
	// processing_timeout or permanent_failure.
	Reason string `json:"reason,omitempty"`
	// Group is the fingerprint of a group: 8 hex digits.
	Group string `json:"group,omitempty"`
	// Operation is the id of the last replay, discard or reopen that claimed the dead letter.
	Operation string `json:"operation,omitempty"`
	// ErrorContains is a part of the last error, compared without regard to case.
	ErrorContains string `json:"errorContains,omitempty"`
	// Since is the earliest time at which the event became dead, and Until the time before which it did.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Resolved chooses the dead letters that were resolved, instead of the open ones.
	Resolved bool `json:"resolved,omitempty"`
}

// ApplyDefaults sets each field that is not set to its default, but the ID.
func (r *ReplayRequest) ApplyDefaults() {
	setDefault(&r.Rate, DefaultReplayRate)
	setDefault(&r.AbortAt, DefaultAbortAt)
}

// Validate reports all that is wrong with the request after [ReplayRequest.ApplyDefaults], joined, each with the field
// and the remedy. Of the filter it checks that it chooses open dead letters; the rest is checked where it is used.
// The error is nil when nothing is wrong.
func (r ReplayRequest) Validate() error {
	var p problems
	words := func(field, text, hint string) {
		if strings.TrimSpace(text) == "" {
			p.when(true, field, "it is missing; %s", hint)
			return
		}
		p.text(field, text)
	}
	p.when(r.Namespace == "", "namespace:", "it is missing; give the outbox namespace of the events")
	p.when(r.Action != ActionReplay && r.Action != ActionDiscard && r.Action != ActionReopen, "action:", "%.20q is unknown; choose replay, discard or reopen", r.Action)
	p.when(r.Limit < 0 || r.Limit > maxLimit, "limit:", "%d is not from 1 to %d dead letters; correct it, or leave it out for all", r.Limit, maxLimit)
	words("reason:", r.Reason, "say why, such as the number of the change; it stays with each dead letter")
	words("requestedBy:", r.RequestedBy, "name the person; it stays with each dead letter")
	p.when(r.Rate < 0 || r.Rate > MaxReplayRate, "rate:", "%d is not from 1 to %d events a second; correct it, or leave it out for 100", r.Rate, MaxReplayRate)
	p.when(r.Canary < 0 || r.Canary > maxCanary, "canary:", "%d is not from 0 to %d events; correct it, or leave it out for none", r.Canary, maxCanary)
	p.when(r.AbortAt < 0 || r.AbortAt > 100, "abortAt:", "%d is not from 1 to 100 percent; correct it, or leave it out for 50", r.AbortAt)
	p.when(r.Action != ActionReplay && r.Canary > 0, "canary:", "a %s has no outcome to wait for; remove it", r.Action)
	p.when(r.Filter.Resolved, "filter:", "resolved: the action chooses among the open or the discarded ones; remove it")
	return p.join()
}

// CheckReason reports what is wrong with the reason of a stop. The error is nil when nothing is wrong.
func CheckReason(reason string) error {
	var p problems
	p.text("reason:", reason)
	return p.join()
}

func (p *problems) text(field, text string) {
	p.when(len(text) > maxReasonBytes || !utf8.ValidString(text) || strings.ContainsRune(text, 0), field, "it has more than %d bytes, or is not text; shorten it", maxReasonBytes)
}

// problems collects what is wrong.
type problems struct{ errs []error }

func (p *problems) when(wrong bool, field, format string, args ...any) {
	if wrong {
		p.errs = append(p.errs, fmt.Errorf("%s %s", field, fmt.Sprintf(format, args...)))
	}
}

func (p *problems) join() error { return errors.Join(p.errs...) }
