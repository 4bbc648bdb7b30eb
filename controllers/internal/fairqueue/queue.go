// Package fairqueue is what the controllers take their requests from. How many objects a namespace has, and how often they
// change, does not decide how long the request of another namespace waits (CONTRACT C-108).
package fairqueue

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// share is how many requests of a namespace wait or are worked on with the priority that they were added with: half of the
// workers of the largest controller. A request beyond it comes after all that are within the share of their namespace.
const share = 4

// beyond is added to the priority of a request beyond the share. It is below that of a low one.
const beyond = 2 * handler.LowPriority

// New returns the queue of a controller, for the NewQueue of its options.
func New(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	return &queue{
		PriorityQueue: priorityqueue.New(name, func(o *priorityqueue.Opts[reconcile.Request]) { o.RateLimiter = limiter }),
		given:         map[reconcile.Request]int{},
		load:          map[string]int{},
	}
}

// queue lowers priorities of a priority queue.
type queue struct {
	priorityqueue.PriorityQueue[reconcile.Request]

	mu sync.Mutex
	// given are the priorities that requests were added with, of those that wait for a worker.
	given map[reconcile.Request]int
	// load is how many requests of a namespace wait for a worker, or have one.
	load map[string]int
}

func (q *queue) AddWithOpts(o priorityqueue.AddOpts, requests ...reconcile.Request) {
	priority := ptr.Deref(o.Priority, 0)
	if o.After > 0 || o.RateLimited { // what waits for its time comes after edits
		o.Priority = new(min(priority, handler.LowPriority))
		q.PriorityQueue.AddWithOpts(o, requests...)
		return
	}
	for _, r := range requests {
		o.Priority = new(q.add(r, priority))
		q.PriorityQueue.AddWithOpts(o, r)
	}
}

// add counts a request, and returns the priority that it has here.
func (q *queue) add(r reconcile.Request, priority int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	before, waits := q.given[r]
	if !waits {
		q.load[r.Namespace]++
	}
	if !waits || priority > before {
		q.given[r] = priority
	}
	if q.load[r.Namespace] > share {
		return priority + beyond
	}
	return priority
}

func (q *queue) Add(r reconcile.Request) { q.AddWithOpts(priorityqueue.AddOpts{}, r) }

func (q *queue) AddAfter(r reconcile.Request, after time.Duration) {
	q.AddWithOpts(priorityqueue.AddOpts{After: after}, r)
}

func (q *queue) AddRateLimited(r reconcile.Request) {
	q.AddWithOpts(priorityqueue.AddOpts{RateLimited: true}, r)
}

func (q *queue) Get() (reconcile.Request, bool) {
	r, _, shutdown := q.GetWithPriority()
	return r, shutdown
}

// GetWithPriority returns the priority that the request was added with: whoever adds it again starts from there.
func (q *queue) GetWithPriority() (reconcile.Request, int, bool) {
	r, priority, shutdown := q.PriorityQueue.GetWithPriority()
	q.mu.Lock()
	defer q.mu.Unlock()
	if given, waits := q.given[r]; waits {
		priority = given
		delete(q.given, r)
	} else { // its time has come
		q.load[r.Namespace]++
	}
	return r, priority, shutdown
}

func (q *queue) Done(r reconcile.Request) {
	q.mu.Lock()
	if q.load[r.Namespace]--; q.load[r.Namespace] <= 0 {
		delete(q.load, r.Namespace)
	}
	q.mu.Unlock()
	q.PriorityQueue.Done(r)
}
