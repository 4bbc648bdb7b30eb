package kstatus

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// An operator whose Lease is gone, released or the same for long holds nothing, as far as another one can see, by whose own clock
// that is: after an outage of the API server each Lease is old. CONTRACT: C-106
func TestAClaimLastsAsLongAsItsHolder(t *testing.T) {
	for name, c := range map[string]struct {
		none, released   bool          // the Lease
		renews           bool          // meanwhile
		follows, refused bool          // this operator
		after            time.Duration // the first look
		takes            bool
		again            time.Duration
	}{
		"gone":                                   {none: true, takes: true},
		"old, at first":                          {again: claimLasts},
		"late":                                   {after: claimLasts - time.Second, again: time.Second},
		"silent":                                 {after: claimLasts, takes: true},
		"there":                                  {after: claimLasts, renews: true, again: claimLasts},
		"released just now":                      {released: true, after: releasedLasts - time.Second, again: time.Second},
		"released":                               {released: true, after: releasedLasts, takes: true},
		"not to be read":                         {refused: true, after: 24 * time.Hour, again: lookAtHeld},
		"gone, and this one has no Lease itself": {none: true, follows: true, after: 24 * time.Hour, again: lookAtHeld},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				scheme := runtime.NewScheme()
				need.OK(t, errors.Join(v1alpha1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme)))
				o := &v1alpha1.OutboxConsumer{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "billing", UID: "1"}, Status: v1alpha1.OutboxConsumerStatus{Operator: "other"}}
				lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: LeaseName}}
				if !c.released {
					lease.Spec.HolderIdentity = new("a")
				}
				lease.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(-time.Hour)))
				cl := fake.NewClientBuilder().WithScheme(scheme).WithObjects(o).WithStatusSubresource(o).WithInterceptorFuncs(interceptor.Funcs{
					Get: func(ctx context.Context, cl client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
						if _, reads := o.(*coordinationv1.Lease); reads && c.refused {
							return apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, key.Name, nil)
						}
						return cl.Get(ctx, key, o, options...)
					}}).Build()
				if !c.none {
					need.OK(t, cl.Create(t.Context(), lease))
				}
				r := &Reporter{Client: cl, Live: cl, Events: events.NewFakeRecorder(9), Operator: "own", Leads: !c.follows}
				need.OK(t, cl.Get(t.Context(), client.ObjectKeyFromObject(o), o))
				held, again, err := r.Claim(t.Context(), o)
				if c.after > 0 {
					need.That(t, !held && err == nil, "at first: held %v, %v", held, err)
					time.Sleep(c.after)
					if c.renews {
						lease.Spec.RenewTime = new(metav1.NowMicro())
						need.OK(t, cl.Update(t.Context(), lease))
					}
					held, again, err = r.Claim(t.Context(), o)
				}
				need.OK(t, err)
				need.Want(t, c.takes, "takes it over: %v, want %v", held)
				need.Want(t, c.again, "looks again after %s, want %s", again)
				counted := map[string]float64{}
				for _, holder := range []string{"alive", "unknown"} {
					counted[holder] = testutil.ToFloat64(heldObjects.WithLabelValues(holder))
				}
				want := map[string]float64{"alive": 0, "unknown": 0}
				if !held {
					want[map[bool]string{true: "unknown", false: "alive"}[c.refused || c.follows]] = 1
				}
				need.That(t, maps.Equal(want, counted), "%v objects of others, want %v", counted, want)

				o.Status.Operator = "" // handed over
				held, _, err = r.Claim(t.Context(), o)
				need.That(t, held && err == nil, "handed over: held %v, %v", held, err)
				left := testutil.ToFloat64(heldObjects.WithLabelValues("alive")) + testutil.ToFloat64(heldObjects.WithLabelValues("unknown"))
				need.Want(t, 0.0, "%v objects of others, want %v", left)
			})
		})
	}
}
