package tracing

import (
	"context"
	"errors"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// The values of outbox.outcome.
const (
	outcomeConfirmed   = "confirmed"
	outcomeFailed      = "failed"
	outcomePermanent   = "permanent"
	outcomeUnavailable = "unavailable"
)

func outcomeOf(err error) string {
	_, permanent := dispatcher.PermanentReason(err)
	switch {
	case err == nil:
		return outcomeConfirmed
	case permanent:
		return outcomePermanent
	case dispatcher.IsUnavailable(err):
		return outcomeUnavailable
	default:
		return outcomeFailed
	}
}

// typeOf is the value of error.type: one of a few words, and never text from outside.
func typeOf(err error) string {
	if err == nil {
		return ""
	}
	switch why, permanent := dispatcher.PermanentReason(err); {
	case !permanent:
	case why == dispatcher.ReasonSchemaValidationFailed, why == dispatcher.ReasonPoisonMessage:
		return string(why)
	default: // what the engine makes of any other
		return string(dispatcher.ReasonPermanentFailure)
	}
	var slow interface{ Timeout() bool } // context.DeadlineExceeded and net.Error have it
	switch {
	case errors.As(err, &slow) && slow.Timeout():
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled" // a stop, or a lost lease: nothing about the destination
	default:
		return reason.Of(err)
	}
}
