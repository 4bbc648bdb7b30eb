package outboxdispatcher

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// Topics that wait for a verified consumer are reported with their types, whichever pod holds them, and change neither what
// is said of the destination nor Ready. Those whose destination fails are reported first.
//
// CONTRACT: C-82
func TestTopicsThatWaitForAConsumer(t *testing.T) {
	o := well()
	o.statuses = append(o.statuses, o.statuses[0])
	o.statuses[0].Gated = []status.GatedTopic{{Topic: "refunds", EventType: "order.refunded"}}
	o.statuses[1].Gated = []status.GatedTopic{{Topic: "orders", EventType: ""}, {Topic: "refunds", EventType: "order.refunded", Waiting: 7}}
	find := func(kind string) metav1.Condition {
		t.Helper()
		for _, c := range conditions(o) {
			if c.Type == kind {
				return c
			}
		}
		t.Fatalf("no condition %s", kind)
		return metav1.Condition{}
	}
	c := find(api.TopicsPausedCondition)
	if want := `: "orders" (no type, so for a consumer of *), "refunds" (type "order.refunded"). Make its evidence`; c.Status != metav1.ConditionTrue || c.Reason != api.ReasonConsumersNotVerified || !strings.Contains(c.Message, want) {
		t.Errorf("%+v, want %s", c, want)
	}
	for _, kind := range []string{api.ReadyCondition, api.SinkReachableCondition} {
		if c := find(kind); c.Status != metav1.ConditionTrue {
			t.Errorf("%s is %s, %s", kind, c.Status, c.Message)
		}
	}
	if len(c.Message) > 1000 || !strings.Contains(c.Message, "`kubectl patch outboxconsumer NAME --type merge --patch-file FILE`") {
		t.Errorf("%d bytes: %s", len(c.Message), c.Message)
	}
	o.statuses[1].GatedTopics = 5
	if c := find(api.TopicsPausedCondition); !strings.Contains(c.Message, `"order.refunded") and others.`) {
		t.Errorf("%s: want that there are more", c.Message)
	}
	o.statuses[0].PausedTopics = []status.PausedTopic{{Topic: "invoices", Link: status.Link{State: status.Refusing, Message: "no"}}}
	if c := find(api.TopicsPausedCondition); c.Reason != api.ReasonTopicsPaused || !strings.Contains(c.Message, `"invoices"`) || !strings.Contains(c.Message, "Some others wait for a verified consumer") {
		t.Errorf("%+v, want the topic whose destination fails", c)
	}
}
