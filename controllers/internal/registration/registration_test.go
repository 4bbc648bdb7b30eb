package registration

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// A consumer counts that its condition and its evidence say to be verified. The condition stays as it was while the object is
// left alone.
// CONTRACT: C-82
func TestVerifiedTypesNeedConditionAndEvidence(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	evidence := func(age time.Duration) *api.ConsumerEvidence {
		return &api.ConsumerEvidence{VerifiedAt: metav1.NewTime(now.Add(-age)), Checks: 19, Passed: 19}
	}
	for name, c := range map[string]struct {
		condition metav1.ConditionStatus
		evidence  *api.ConsumerEvidence
		feeds     string
		want      bool
	}{
		"verified":                {metav1.ConditionTrue, evidence(0), "orders", true},
		"not yet":                 {metav1.ConditionFalse, evidence(0), "orders", false},
		"fed by another":          {metav1.ConditionTrue, evidence(0), "others", false},
		"its evidence is too old": {metav1.ConditionTrue, evidence(time.Hour), "orders", false},
		"its evidence is removed": {metav1.ConditionTrue, nil, "orders", false},
	} {
		t.Run(name, func(t *testing.T) {
			o := &api.OutboxConsumer{
				Spec: api.OutboxConsumerSpec{EventTypes: []string{"b", "a", "two\nlines"}, Evidence: c.evidence, EvidenceMaxAge: spec.Duration(time.Hour),
					DispatcherRefs: []spec.DispatcherRef{{Name: c.feeds}}},
				Status: api.OutboxConsumerStatus{Conditions: []metav1.Condition{{Type: api.VerifiedCondition, Status: c.condition}}},
			}
			var want []string
			if c.want {
				want = []string{"a", "b"}
			}
			need.WantAll(t, want, "types %q, want %q", VerifiedTypes([]*api.OutboxConsumer{o, o}, "orders", now))
		})
	}
}

// Evidence of a clock that was ahead counts when the time has come, and not before.
func TestEvidenceBeginsAndExpires(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	o := &api.OutboxConsumer{Spec: api.OutboxConsumerSpec{EvidenceMaxAge: spec.Duration(time.Hour),
		Evidence: &api.ConsumerEvidence{VerifiedAt: metav1.NewTime(at), Checks: 19, Passed: 19}}}
	for _, c := range []struct {
		now  time.Time
		want string
	}{
		{at.Add(-7 * time.Minute), api.ReasonEvidenceMissing}, {at.Add(-5*time.Minute - 1), api.ReasonEvidenceMissing}, {at.Add(-5 * time.Minute), api.ReasonVerified},
		{at.Add(time.Hour - 1), api.ReasonVerified}, {at.Add(time.Hour), api.ReasonEvidenceTooOld},
	} {
		got, message := Evidence(o, c.now)
		need.That(t, got == c.want, "%s after it was made: %s, want %s: %s", c.now.Sub(at), got, c.want, message)
	}
}
