package fairqueue

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func request(namespace string, i int) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(i)}}
}

// A thousand requests of one namespace delay one of another by its share, whatever their priority, also when each is added again
// as it is taken; and an edit in the same namespace by its share of those of low priority (CONTRACT C-108).
func TestNamespacesShareTheQueue(t *testing.T) {
	edit, low := priorityqueue.AddOpts{}, priorityqueue.AddOpts{Priority: new(handler.LowPriority)}
	for _, c := range []struct {
		name      string
		many, one priorityqueue.AddOpts // one is added after the thousand
		namespace string                // of the one
	}{
		{"an edit after edits of another", edit, edit, "orders"},
		{"what is low after edits of another", edit, low, "orders"},
		{"what is low after what is low of another", low, low, "orders"},
		{"an edit after what is low of the same", low, edit, "eve"},
	} {
		t.Run(c.name, func(t *testing.T) {
			q, one := New("", workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]()).(*queue), request(c.namespace, 1000)
			defer q.ShutDown()
			for i := range 1000 {
				q.AddWithOpts(c.many, request("eve", i))
			}
			q.AddWithOpts(c.one, one)
			before := 0
			for r, priority, _ := q.GetWithPriority(); r != one; r, priority, _ = q.GetWithPriority() {
				if before++; before > share {
					t.Fatalf("%d requests come before it, want at most %d", before, share)
				}
				if want := ptr.Deref(c.many.Priority, 0); priority != want {
					t.Errorf("%s is taken with priority %d, and was added with %d", r, priority, want)
				}
				q.AddWithOpts(c.many, r)
				q.Done(r)
			}
			q.Done(one)
			for q.Len() > 0 {
				r, _ := q.Get()
				q.Done(r)
			}
			if len(q.given) > 0 || len(q.load) > 0 {
				t.Errorf("the empty queue remembers %d requests and %v", len(q.given), q.load)
			}
		})
	}
}
