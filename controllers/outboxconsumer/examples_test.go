package outboxconsumer

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// The page of the kind has an example of each condition, as the operator writes it.
// CONTRACT: C-82
func TestExamplesOnThePage(t *testing.T) {
	consumer := &api.OutboxConsumer{ObjectMeta: metav1.ObjectMeta{Name: "billing"}, Spec: api.OutboxConsumerSpec{
		EventTypes: []string{"order.placed", "payment.*"}, Retention: spec.Duration(24 * time.Hour)}}
	fed := observed{consumer: consumer, feeds: []feed{{
		dispatcher: &api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Name: "orders"},
			Status: api.OutboxDispatcherStatus{EventTypes: []status.EventType{{Type: "order.placed"}}}},
		retention: &spec.Retention{}}}}
	alone := observed{consumer: consumer, missing: problem.Waiting(api.ReferencesResolvedCondition, api.ReasonDispatcherNotFound,
		`OutboxDispatcher "orders", which spec.dispatcherRefs names, does not exist in namespace "shop"; create it, or correct the name.`)}
	operatortest.CheckExamples(t, "outboxconsumer.md", slices.Concat(conditions(fed), conditions(alone))...)
}
