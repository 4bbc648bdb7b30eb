package replay

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

// Action is what is done with dead letters.
type Action string

// The actions.
const (
	// Replay puts the event's row back to pending, and resolves its letter as replayed.
	Replay Action = "replay"
	// Discard resolves the letter as discarded. The event stays dead, and blocks its key no more.
	Discard Action = "discard"
)

// Bounds and defaults of an [Order].
const (
	// DefaultRate is the rate when an order has none, in events a second.
	DefaultRate = 100
	// MaxRate is the highest rate.
	MaxRate = 100_000
	// MaxCanary is the most events of a canary.
	MaxCanary = 10_000
	// DefaultAbortAt is AbortAt of an order with a canary that has none, in percent.
	DefaultAbortAt = 50
	// enough is how many outcomes must be known before a replay without a canary may stop by itself.
	enough = 10
	// maxWords is the most bytes of a reason, and of a name.
	maxWords = 1024
)

// Order is what somebody asks for.
type Order struct {
	// ID names the operation. A second Begin with the same one goes on with the first. Defaults to a random one.
	ID uuid.UUID `json:"id,omitzero"`
	// Namespace is the outbox namespace of the letters. Required.
	Namespace string `json:"namespace"`
	// Topics are those whose letters may be chosen. None means all of the namespace.
	Topics []string `json:"topics,omitempty"`
	// Filter chooses among the open letters. The zero filter chooses all.
	Filter deadletters.Filter `json:"filter,omitzero"`
	// Action is replay or discard. Required.
	Action Action `json:"action"`
	// Reason is why, in the person's words, at most 1024 bytes. It stays with each letter. Required.
	Reason string `json:"reason"`
	// RequestedBy is who asked, at most 1024 bytes. It stays with each letter. Required.
	RequestedBy string `json:"requestedBy"`
	// Rate is the most events a second, 1 to 100000. Defaults to 100.
	Rate int `json:"rate,omitempty"`
	// Canary is how many events go first, and alone, until their outcomes are known, at most 10000. It is for
	// replays. Defaults to 0: none.
	Canary int `json:"canary,omitempty"`
	// AbortAt is the share of the known outcomes that died again, in percent from 1 to 100, at which a replay stops
	// by itself: what waits is skipped. It is looked at when the outcomes of the canary are known, or of 10 events
	// without one, and from then on. Defaults to 50 with a canary, and to 0, which never stops, without one.
	AbortAt int `json:"abortAt,omitempty"`
	// AnyOrder puts events back without regard to the order of their keys, for a dispatcher that keeps none.
	// Defaults to false.
	AnyOrder bool `json:"anyOrder,omitempty"`
}

// withDefaults fills in what is not set.
func (o Order) withDefaults() Order {
	if o.ID == uuid.Nil {
		o.ID = uuid.New()
	}
	if o.Rate == 0 {
		o.Rate = DefaultRate
	}
	if o.Canary > 0 && o.AbortAt == 0 {
		o.AbortAt = DefaultAbortAt
	}
	return o
}

// Validate says everything that is wrong with the order, each with its remedy.
func (o Order) Validate() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	words := func(field, text, hint string) {
		switch {
		case strings.TrimSpace(text) == "":
			refuse(true, "%s: it is missing; %s", field, hint)
		case len(text) > maxWords || !utf8.ValidString(text) || strings.ContainsRune(text, 0):
			refuse(true, "%s: it has more than %d bytes, or is no text; shorten it", field, maxWords)
		}
	}
	refuse(o.Namespace == "", "namespace: it is missing; give the outbox namespace of the events")
	refuse(o.Action != Replay && o.Action != Discard, "action: %.20q is none; choose replay or discard", o.Action)
	words("reason", o.Reason, "say why, such as the number of the change; it stays with each letter")
	words("requestedBy", o.RequestedBy, "say who asks; it stays with each letter")
	refuse(o.Rate < 0 || o.Rate > MaxRate, "rate: %d is not from 1 to %d events a second", o.Rate, MaxRate)
	refuse(o.Canary < 0 || o.Canary > MaxCanary, "canary: %d is not from 0 to %d events", o.Canary, MaxCanary)
	refuse(o.AbortAt < 0 || o.AbortAt > 100, "abortAt: %d is not from 1 to 100 percent", o.AbortAt)
	refuse(o.Action == Discard && (o.Canary > 0 || o.AbortAt > 0), "canary, abortAt: a discard has no outcome to wait for; remove them")
	refuse(o.Filter.Resolved, "filter: letters that were resolved are done; choose among the open ones")
	if err := o.Filter.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("filter: %w", err))
	}
	return errors.Join(errs...)
}
