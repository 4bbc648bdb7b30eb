package kstatus

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// An operator whose Lease is gone, released or old holds nothing, as far as another one can see. CONTRACT: C-106
func TestAClaimLastsAsLongAsItsHolder(t *testing.T) {
	lease := func(identity string, age time.Duration) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: LeaseName},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &identity, RenewTime: ptr.To(metav1.NewMicroTime(time.Now().Add(-age)))}}
	}
	const soon = time.Minute // as a test may take
	for name, c := range map[string]struct {
		lease            *coordinationv1.Lease
		follows, refused bool
		takes            bool
		again            time.Duration // about
	}{
		"gone":                                   {takes: true},
		"never renewed":                          {lease: &coordinationv1.Lease{ObjectMeta: lease("a", 0).ObjectMeta}, takes: true},
		"there":                                  {lease: lease("a", 0), again: claimLasts},
		"late":                                   {lease: lease("a", claimLasts-2*soon), again: 2 * soon},
		"silent":                                 {lease: lease("a", claimLasts), takes: true},
		"by a clock that is ahead":               {lease: lease("a", -time.Hour), again: claimLasts},
		"released just now":                      {lease: lease("", 0), again: releasedLasts},
		"released":                               {lease: lease("", releasedLasts), takes: true},
		"not to be read":                         {refused: true, again: lookAtHeld},
		"gone, and this one has no Lease itself": {follows: true, again: lookAtHeld},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			need.OK(t, v1alpha1.AddToScheme(scheme))
			need.OK(t, coordinationv1.AddToScheme(scheme))
			o := &v1alpha1.OutboxConsumer{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "billing", UID: "1"}, Status: v1alpha1.OutboxConsumerStatus{Operator: "other"}}
			objects := []client.Object{o}
			if c.lease != nil {
				objects = append(objects, c.lease)
			}
			cl := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(o).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, cl client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
					if _, reads := o.(*coordinationv1.Lease); reads && c.refused {
						return apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, key.Name, nil)
					}
					return cl.Get(ctx, key, o, options...)
				}}).Build()
			r := &Reporter{Client: cl, Live: cl, Events: events.NewFakeRecorder(9), Operator: "own", Leads: !c.follows}
			need.OK(t, cl.Get(t.Context(), client.ObjectKeyFromObject(o), o))
			held, again, err := r.Claim(t.Context(), o)
			need.OK(t, err)
			need.Want(t, c.takes, "takes it over: %v, want %v", held)
			need.That(t, again > c.again-soon && again <= c.again, "looks again after %s, want %s", again, c.again)
			want := map[bool]float64{false: 1}[held]
			need.Want(t, want, "%v objects of others, want %v", testutil.ToFloat64(heldObjects))

			o.Status.Operator = "" // handed over
			held, _, err = r.Claim(t.Context(), o)
			need.That(t, held && err == nil, "handed over: held %v, %v", held, err)
			need.Want(t, 0.0, "%v objects of others, want %v", testutil.ToFloat64(heldObjects))
		})
	}
}
