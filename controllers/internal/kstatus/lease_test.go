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
		free, stale      bool          // the object: nothing holds it, and it has changed since it was read
		none, released   bool          // the Lease
		renews           bool          // meanwhile
		follows, refused bool          // this operator
		after            time.Duration // the first look
		takes            bool
		again            time.Duration
	}{
		"free":                                   {free: true, takes: true},
		"free, and another one was faster":       {free: true, stale: true, again: claimAgain},
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
				if c.free {
					o.Status.Operator = ""
				}
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
				if c.stale {
					faster := o.DeepCopy()
					faster.Status.Operator = "faster"
					need.OK(t, cl.Status().Update(t.Context(), faster))
				}
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
				if !held && !c.stale {
					want[map[bool]string{true: "unknown", false: "alive"}[c.refused || c.follows]] = 1
				}
				need.That(t, maps.Equal(want, counted), "%v objects of others, want %v", counted, want)

				need.OK(t, cl.Get(t.Context(), client.ObjectKeyFromObject(o), o))
				need.That(t, (o.Status.Operator == "own") == c.takes, "status.operator is %q", o.Status.Operator)
				o.Status.Operator = "" // handed over
				held, _, err = r.Claim(t.Context(), o)
				need.That(t, held && err == nil, "handed over: held %v, %v", held, err)
				left := testutil.ToFloat64(heldObjects.WithLabelValues("alive")) + testutil.ToFloat64(heldObjects.WithLabelValues("unknown"))
				need.Want(t, 0.0, "%v objects of others, want %v", left)

				r.saysHeld("deleted", false, time.Now())
				time.Sleep(2*lookAtHeld + time.Second)
				r.saysHeld("there", false, time.Now())
				need.Want(t, 1.0, "%v objects of others, want %v", testutil.ToFloat64(heldObjects.WithLabelValues("unknown")))
				r.holds("there")
			})
		})
	}
}

// What is at rest is left out of the status, for the Events alone; what stays as it was keeps its time.
func TestConditionsAtRestAreLeftOut(t *testing.T) {
	before := metav1.NewTime(time.Unix(1, 0))
	current := []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: "A", LastTransitionTime: before}, {Type: "OfAnotherVersion"}}
	all := []metav1.Condition{Condition(v1alpha1.ReadyCondition, metav1.ConditionTrue, "B", "b"), Condition(v1alpha1.VacuumHeldBackCondition, metav1.ConditionFalse, v1alpha1.ReasonNotHeldBack, "c"),
		Condition(v1alpha1.DataHealthyCondition, metav1.ConditionTrue, v1alpha1.ReasonOthersUnserved, "d")}
	need.That(t, len(SetConditions(&current, 7, all)) == len(all), "Events need all")
	need.That(t, len(current) == 2 && current[0].Reason == "B" && current[0].LastTransitionTime.Equal(&before) && current[0].ObservedGeneration == 7 && current[1].Reason == v1alpha1.ReasonOthersUnserved, "%+v", current)
}

// What has come to its end in a namespace that is full is held: its time to live counts there too.
func TestWhatHasEndedIsHeldInAFullNamespace(t *testing.T) {
	scheme := runtime.NewScheme()
	need.OK(t, v1alpha1.AddToScheme(scheme))
	for _, end := range []string{"", v1alpha1.CompleteCondition, v1alpha1.FailedCondition} {
		o := &v1alpha1.DeadLetterReplay{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "replay"}}
		o.Status.Conditions = []metav1.Condition{{Type: end, Status: metav1.ConditionTrue}}
		cl := fake.NewClientBuilder().WithScheme(scheme).WithObjects(o).WithStatusSubresource(o).Build()
		r := &Reporter{Client: cl, Live: cl, Events: events.NewFakeRecorder(1), Full: func(string) bool { return true }}
		need.OK(t, cl.Get(t.Context(), client.ObjectKeyFromObject(o), o))
		held, _, err := r.Claim(t.Context(), o)
		need.That(t, err == nil && held == (end != ""), "ended by %q: held %v, %v", end, held, err)
	}
}
