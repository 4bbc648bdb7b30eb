package outboxdispatcher

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// An edit wakes the peers only when they look at what it changes: of a thousand dispatchers of one database each
// would wake all others.
func TestConcernsPeers(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*api.OutboxDispatcher)
		want   bool
	}{
		"replicas":    {func(o *api.OutboxDispatcher) { o.Spec.Replicas = ptr.To[int32](7) }, false},
		"no replicas": {func(o *api.OutboxDispatcher) { o.Spec.Replicas = ptr.To[int32](0) }, true},
		"a pause":     {func(o *api.OutboxDispatcher) { o.Spec.State = api.StatePaused }, true},
		"batchSize":   {func(o *api.OutboxDispatcher) { o.Spec.Delivery.BatchSize = 7 }, false},
		"the status":  {func(o *api.OutboxDispatcher) { o.Status.Pods = "1/1" }, false},
		"topics":      {func(o *api.OutboxDispatcher) { o.Spec.Topics = []string{"orders"} }, true},
		"namespace":   {func(o *api.OutboxDispatcher) { o.Spec.Namespace = "shop" }, true},
		"outboxRef":   {func(o *api.OutboxDispatcher) { o.Spec.OutboxRef, o.Spec.Database = &api.OutboxRef{Name: "shop"}, nil }, true},
		"schema":      {func(o *api.OutboxDispatcher) { o.Spec.Database.Schema = "other" }, true},
		"its removal": {func(o *api.OutboxDispatcher) { o.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, true},
	} {
		before := &api.OutboxDispatcher{Spec: api.OutboxDispatcherSpec{Database: &api.DispatcherDatabase{}}}
		after := before.DeepCopy()
		c.change(after)
		if got := concernsPeers(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	one, other := &api.OutboxDispatcher{}, &api.OutboxDispatcher{}
	one.Spec.OutboxRef, other.Spec.OutboxRef = &api.OutboxRef{Name: "one"}, &api.OutboxRef{Name: "other"}
	if !concernsPeers(event.UpdateEvent{ObjectOld: one, ObjectNew: other}) {
		t.Error("another outboxRef: false")
	}
}
