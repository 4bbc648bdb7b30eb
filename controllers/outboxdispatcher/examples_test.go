package outboxdispatcher

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// The page of the kind has an example of each condition, as the operator writes it.
// CONTRACT: C-101
func TestExamplesOnThePage(t *testing.T) {
	delivers := well()
	delivers.gone = problem.Waiting(api.ReferencesResolvedCondition, api.ReasonSecretKeyNotFound,
		`Secret "orders-hook", which spec.sink.auth.secretRef names, has no key "token"; add the key, or name the right one.`)
	delivers.migration = migrate.Migration{State: migrate.Running, Detail: `Its pod waits for a place: 0/3 nodes are available.`}
	delivers.peers = []api.OutboxDispatcher{{ObjectMeta: metav1.ObjectMeta{Name: "orders-eu"}}}
	delivers.types = []api.SeenEventType{{Type: "order.placed"}}
	delivers.consumers = []*api.OutboxConsumer{{ObjectMeta: metav1.ObjectMeta{Name: "audit"}, Spec: api.OutboxConsumerSpec{EventTypes: []string{"payment.*"}}}}
	pod := &delivers.statuses[1]
	pod.PausedTopics = []status.PausedTopic{{Topic: "refunds", Link: status.Link{State: status.Refusing, Message: "http://orders-consumer/events responded 404 Not Found; check the path of url, and that it takes POST"}}}
	pod.Backlog = &status.Backlog{ObservedAt: time.Unix(2, 0), Counts: status.Counts{Dead: 1},
		DeadGroups: []status.DeadGroup{{Group: "7f3a9c21", Topic: "orders", Reason: "permanent_failure", Class: "http", Code: "422", Count: 1}}}
	pod.OldestTransaction = &status.OldestTransaction{Kind: status.ReplicationSlot, Name: "debezium", Seconds: 1000}
	delivers.obd.Spec.Namespace, delivers.peers[0].Spec.Namespace = "shop", "shop"
	pod.Data = &status.Data{ObservedAt: time.Unix(2, 0), Unserved: 1, OrphanTopics: []status.OrphanTopic{{Namespace: "shop", Topic: "invoices", Unserved: 1}}}
	delivers.obd.Spec.Pods.Scaling = &api.Scaling{Max: 3}
	delivers.obd.Status.Scaling = &api.ScalingStatus{Recommended: 2, Reason: api.ReasonLimitedByDestination}

	fails := well()
	fails.problem = problem.Stalling(api.WorkloadAvailableCondition, api.ReasonInvalidPodTemplate,
		`spec.pods.template cannot be used: unknown field "spec.toleration".`)
	for i := range fails.statuses {
		pod := &fails.statuses[i]
		pod.Source = status.Link{State: status.Unreachable, Reason: api.ReasonAuthenticationFailed,
			Message: `Database "shop" at db:5432 as user "outbox": password authentication failed for user "outbox"; correct the user and the password, or the server's pg_hba.conf.`}
		pod.Schema = status.Schema{State: "TooOld", Message: `Schema "outbox" has version 1, and this dispatcher needs 2; run "dispatcher migrate up" of this version.`}
		pod.Sink = status.Link{State: status.Refusing, Message: "http://orders-consumer/events responded 503 Service Unavailable; the destination's log says why; the event is retried."}
	}
	operatortest.CheckExamples(t, "outboxdispatcher.md", slices.Concat(conditions(delivers), conditions(fails))...)
}
