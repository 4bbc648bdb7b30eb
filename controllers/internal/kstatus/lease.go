package kstatus

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// LeaseName is the Lease by which the managers of an operator elect their leader, in its namespace. By its age other operators
// see whether that one is there.
const LeaseName = "outbox-operator.outbox.dev"

// What the manager may do in all namespaces for that: read this Lease alone.
//
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,resourceNames=outbox-operator.outbox.dev,verbs=get

const (
	// claimLasts is how long a claim lasts while the holder's Lease stays as it is, and releasedLasts after it was released: with
	// a new version of that operator another manager leads soon. Both count from when this operator has seen it, by its own
	// clock: after an outage of the API server each Lease is old.
	claimLasts    = 15 * time.Minute
	releasedLasts = time.Minute
	// lookAtHeld is the time between two Events about an object of another operator, and between two looks at it by one that
	// does not see whether the other is there.
	lookAtHeld = 30 * time.Minute
)

var heldObjects = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "outbox_objects_held_by_others",
	Help: "How many objects this operator serves and leaves alone, because the operator of another namespace holds them. It takes them over when that one is gone (holder alive), or does not see that (holder unknown)."},
	[]string{"holder"})

func init() { metrics.Registry.MustRegister(heldObjects) }

// left is the time for which an object stays another operator's, 0 when that one is gone. While it stays, an Event says so.
func (r *Reporter) left(ctx context.Context, o client.Object, operator string) (time.Duration, error) {
	left, alive, remedy := lookAtHeld, false, "When the first is gone, set status.operator to null: `kubectl patch ... --subresource=status --type=merge -p '{\"status\":{\"operator\":null}}'`."
	if r.Leads { // else others could not see that this one is there, and two would take objects from each other
		lease := &coordinationv1.Lease{}
		switch err := r.Live.Get(ctx, types.NamespacedName{Namespace: operator, Name: LeaseName}, lease); {
		case apierrors.IsForbidden(err):
			if _, said := r.unreadable.LoadOrStore(operator, true); !said {
				ctrl.LoggerFrom(ctx).Error(err, "This operator has no right to read the Lease of another one that holds objects, so it leaves them alone even when that one is gone", "operator", operator)
			}
		case client.IgnoreNotFound(err) != nil:
			return 0, fmt.Errorf("read the Lease %s of namespace %s, whose operator holds the object: %w", LeaseName, operator, err)
		default:
			left, alive = r.remaining(operator, lease), true
			remedy = fmt.Sprintf("It takes the object over when the first is gone: its Lease %s does not exist, was released, or was not renewed for %s.", LeaseName, claimLasts)
		}
	}
	if left > 0 && r.saysHeld(o.GetUID(), alive, time.Now()) {
		r.Record(ctx, o, nil, Event{corev1.EventTypeWarning, v1alpha1.ReasonManagedByAnotherOperator, actionReconcile, fmt.Sprintf(
			"The operator of namespace %q manages this object (status.operator), so that of namespace %q leaves it alone. Let one of them ignore this namespace (ignoreNamespaces). %s",
			operator, r.Operator, remedy)})
	}
	return left, nil
}

// seenLease is a Lease as it was seen first.
type seenLease struct {
	version string
	at      time.Time
}

// remaining is how long the claims of an operator last by its Lease, which is empty when there is none.
func (r *Reporter) remaining(operator string, lease *coordinationv1.Lease) time.Duration {
	if lease.Name == "" {
		return 0
	}
	lasts, now := claimLasts, time.Now()
	if ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
		lasts = cmp.Or(r.ReleasedLasts, releasedLasts)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leases == nil {
		r.leases = map[string]seenLease{}
	}
	if r.leases[operator].version != lease.ResourceVersion {
		r.leases[operator] = seenLease{lease.ResourceVersion, now}
	}
	return max(0, lasts-now.Sub(r.leases[operator].at))
}

// heldObject is an object of another operator.
type heldObject struct {
	said  time.Time // when an Event said so
	alive bool      // whether this operator sees that the other is there
}

// saysHeld counts an object as another operator's, and reports whether an Event should say so. It forgets what was not looked at
// again.
func (r *Reporter) saysHeld(uid types.UID, alive bool, now time.Time) (say bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held == nil {
		r.held = map[types.UID]heldObject{}
	}
	was, known := r.held[uid]
	if say = !known || now.Sub(was.said) >= lookAtHeld; say {
		was.said = now
	}
	r.held[uid] = heldObject{was.said, alive}
	maps.DeleteFunc(r.held, func(_ types.UID, h heldObject) bool { return now.Sub(h.said) > 2*lookAtHeld })
	r.countHeld()
	return say
}

// holds says that an object is this operator's.
func (r *Reporter) holds(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, uid)
	r.countHeld()
}

func (r *Reporter) countHeld() {
	n := map[bool]float64{}
	for _, h := range r.held {
		n[h.alive]++
	}
	heldObjects.WithLabelValues("alive").Set(n[true])
	heldObjects.WithLabelValues("unknown").Set(n[false])
}
