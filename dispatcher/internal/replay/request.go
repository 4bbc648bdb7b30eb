package replay

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

// Action is what is done with dead letters.
type Action string

// Values of [Action].
const (
	// ActionReplay puts the event's row back to pending, and resolves its dead letter as replayed.
	ActionReplay Action = "replay"
	// ActionDiscard resolves the dead letter as discarded. The event stays dead, and blocks its key no more.
	ActionDiscard Action = "discard"
	// ActionReopen opens a dead letter again that was discarded, while its event is there and dead.
	ActionReopen Action = "reopen"
)

// Bounds and defaults of a [Request].
const (
	// DefaultRate is the rate of a request that has none, in events a second.
	DefaultRate = 100
	// MaxRate is the highest rate, in events a second.
	MaxRate = 100_000
	// DefaultAbortAt is AbortAt of a replay that has none, in percent.
	DefaultAbortAt = 50

	maxCanary      = 10_000
	maxLimit       = 1_000_000_000
	maxReasonBytes = 1024 // also of a name
)

// Request is a request to replay, discard or reopen dead letters.
type Request struct {
	// ID names the replay. A second request with the same ID continues the first. Defaults to a random one.
	ID uuid.UUID
	// Namespace is the outbox namespace of the dead letters. Required.
	Namespace string
	// Topics are those whose dead letters may be chosen. None means all of the namespace.
	Topics []string
	// Filter chooses among the open dead letters, and for a reopen among the discarded ones. The zero filter chooses all.
	Filter deadletters.Filter
	// Limit is how many dead letters at most, the oldest first. Defaults to 0: all.
	Limit int
	// Action is replay, discard or reopen. Required.
	Action Action
	// Reason is why, in the person's words, at most 1024 bytes. It stays with each dead letter. Required.
	Reason string
	// RequestedBy is the person who requests it, at most 1024 bytes. It stays with each dead letter. Required.
	RequestedBy string
	// Rate is the most events a second, 1 to 100000. It is for replays, and so are the next two. Defaults to 100.
	Rate int
	// Canary is how many events go first, and alone, until their outcomes are known, at most 10000. An event whose first
	// attempt failed has an outcome: it failed. Defaults to 0: none.
	Canary int
	// AbortAt is the share of failures among the newest 100 outcomes, in percent from 1 to 100, at which a replay stops
	// by itself: what waits stays open. It is checked when the outcomes of the canary are known, or of 10 events
	// without one, and from then on. Defaults to 50.
	AbortAt int
	// Expires is for how long events whose time is over are worth sending again, from their turn. Without it such a replay is
	// refused (CONTRACT C-18). Defaults to 0.
	Expires time.Duration
	// DryRun counts what would be done, and changes nothing. Defaults to false.
	DryRun bool
}

// complete is the request with its defaults, if nothing is wrong with it.
func complete(r Request) (Request, error) {
	if r.ID == uuid.Nil {
		r.ID = uuid.New()
	}
	r.Rate, r.AbortAt = cmp.Or(r.Rate, DefaultRate), cmp.Or(r.AbortAt, DefaultAbortAt)
	return r, r.Validate()
}

// Validate reports everything that is wrong with a request and its filter, joined, each with the field and the remedy.
// The error is nil when nothing is wrong.
func (r Request) Validate() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(r.Namespace == "", "namespace: it is missing; give the outbox namespace of the events")
	refuse(r.Action != ActionReplay && r.Action != ActionDiscard && r.Action != ActionReopen, "action: %.20q is unknown; choose replay, discard or reopen", r.Action)
	refuse(r.Limit < 0 || r.Limit > maxLimit, "limit: %d is not from 1 to %d dead letters; correct it, or leave it out for all", r.Limit, maxLimit)
	for _, text := range []struct{ field, value, hint string }{
		{"reason", r.Reason, "say why, such as the number of the change; it stays with each dead letter"},
		{"requestedBy", r.RequestedBy, "name the person; it stays with each dead letter"},
	} {
		if refuse(strings.TrimSpace(text.value) == "", "%s: it is missing; %s", text.field, text.hint); strings.TrimSpace(text.value) != "" {
			errs = append(errs, checkText(text.field, text.value))
		}
	}
	refuse(r.Rate < 0 || r.Rate > MaxRate, "rate: %d is not from 1 to %d events a second; correct it, or leave it out for 100", r.Rate, MaxRate)
	refuse(r.Canary < 0 || r.Canary > maxCanary, "canary: %d is not from 0 to %d events; correct it, or leave it out for none", r.Canary, maxCanary)
	refuse(r.AbortAt < 0 || r.AbortAt > 100, "abortAt: %d is not from 1 to 100 percent; correct it, or leave it out for 50", r.AbortAt)
	refuse(r.Action != ActionReplay && r.Canary > 0, "canary: a %s has no outcome to wait for; remove it", r.Action)
	refuse(r.Expires < 0 || r.Expires > 0 && (r.Action != ActionReplay || r.Expires < time.Second), "expires: %s is for a replay, and 1s at least; correct it, or leave it out", r.Expires)
	refuse(r.Filter.Resolved, "filter: resolved: the action chooses among the open or the discarded ones; remove it")
	if err := r.Filter.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("filter: %w", err))
	}
	return errors.Join(errs...)
}

// checkText reports what is wrong with a person's words. The error is nil when nothing is wrong.
func checkText(field, text string) error {
	if len(text) > maxReasonBytes || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return fmt.Errorf("%s: it has more than %d bytes, or is not text; shorten it", field, maxReasonBytes)
	}
	return nil
}
