// Package registration says what an OutboxConsumer registers, for its own controller and that of the
// dispatchers that feed it.
package registration

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/outbox-operator/outbox-operator/api/spec"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// ID is the consumer's id.
func ID(o *api.OutboxConsumer) string { return cmp.Or(o.Spec.ConsumerID, o.Name) }

// Handles reports whether the consumer registers an event type.
func Handles(o *api.OutboxConsumer, eventType string) bool {
	return slices.ContainsFunc(o.Spec.EventTypes, func(registered string) bool { return Covers(registered, eventType) })
}

// Covers reports whether an entry of spec.eventTypes stands for an event type.
func Covers(registered, eventType string) bool {
	if beginning, ok := strings.CutSuffix(registered, "*"); ok {
		return strings.HasPrefix(eventType, beginning)
	}
	return registered == eventType
}

// FedBy reports whether a dispatcher of the same Kubernetes namespace feeds the consumer.
func FedBy(o *api.OutboxConsumer, dispatcher string) bool {
	return len(o.Spec.DispatcherRefs) == 0 ||
		slices.ContainsFunc(o.Spec.DispatcherRefs, func(ref spec.DispatcherRef) bool { return ref.Name == dispatcher })
}

// Verified reports whether the consumer's evidence counts, as its condition says.
func Verified(o *api.OutboxConsumer) bool {
	return meta.IsStatusConditionTrue(o.Status.Conditions, api.VerifiedCondition)
}

// VerifiedTypes are the entries of spec.eventTypes of those verified consumers that a dispatcher feeds, each once and
// sorted. The evidence must be valid now too: the condition of a consumer that is left alone stays as it was. An entry with a
// line break is left out: pods read a line for each.
func VerifiedTypes(consumers []*api.OutboxConsumer, dispatcher string, now time.Time) (types []string) {
	for _, o := range consumers {
		if reason, _ := Evidence(o, now); reason == api.ReasonVerified && Verified(o) && FedBy(o, dispatcher) {
			types = append(types, o.Spec.EventTypes...)
		}
	}
	types = slices.DeleteFunc(types, func(t string) bool { return strings.ContainsAny(t, "\r\n") })
	slices.Sort(types)
	return slices.Compact(types)
}

// clockSkew is how far the clock of who made a report may be ahead.
const clockSkew = 5 * time.Minute

// register is how evidence is made and registered.
const register = "run `dispatcher verify-consumer --evidence FILE` in its pipeline, and then `kubectl patch outboxconsumer %s --type merge --patch-file FILE`"

// Evidence says what the evidence of the consumer is worth at a time: the reason and the message of the condition
// Verified, which is True with the reason Verified alone.
func Evidence(o *api.OutboxConsumer, now time.Time) (reason, message string) {
	again := fmt.Sprintf(register, o.Name)
	e := o.Spec.Evidence
	if e == nil {
		return api.ReasonEvidenceMissing, "No report of its checks is registered; " + again + "."
	}
	day := e.VerifiedAt.UTC().Format(time.DateOnly)
	switch {
	case now.Before(Begins(o)):
		return api.ReasonEvidenceMissing, fmt.Sprintf("Its evidence is of %s, which is yet to come. Correct the clock of the pipeline, remove spec.evidence, and %s.", day, again)
	case len(e.BrokenRules) > 0:
		return api.ReasonRulesBroken, fmt.Sprintf("The checks of %s found that it breaks %s; the report says what to change. Then %s.", day, strings.Join(e.BrokenRules, ", "), again)
	case e.Uncounted > 0 || e.Passed == 0:
		return api.ReasonEffectsNotCounted, fmt.Sprintf("The checks of %s did not count effects, so a duplicate may have had two; %s. Give it --probe or --probe-command.", day, again)
	case len(e.NotTried) > 0:
		return api.ReasonRulesNotTried, fmt.Sprintf("The checks of %s left out what the consumer does not declare to be without meaning: %s. Give verify-consumer the hooks that its report names; %s.",
			day, strings.Join(e.NotTried, ", "), again)
	case !now.Before(Expires(o)):
		return api.ReasonEvidenceTooOld, fmt.Sprintf("The checks of %s are older than spec.evidenceMaxAge, %s; %s.", day, o.Spec.EvidenceMaxAge, again)
	}
	made := fmt.Sprintf("all %d passed", e.Checks)
	if len(e.LeftOut) > 0 {
		made = fmt.Sprintf("%d of %d passed, and these were left out: %s", e.Passed, e.Checks, strings.Join(e.LeftOut, ", "))
	}
	return api.ReasonVerified, fmt.Sprintf("The checks of %s found no rule broken: %s.", day, made)
}

// Begins is when the evidence counts first, later than now when the clock of who made it was ahead. The consumer must have
// some.
func Begins(o *api.OutboxConsumer) time.Time { return o.Spec.Evidence.VerifiedAt.Add(-clockSkew) }

// Expires is when the evidence counts no more. The consumer must have some.
func Expires(o *api.OutboxConsumer) time.Time {
	return o.Spec.Evidence.VerifiedAt.Add(o.Spec.EvidenceMaxAge.D())
}
