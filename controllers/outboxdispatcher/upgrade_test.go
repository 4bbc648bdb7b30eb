package outboxdispatcher

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pace"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// Whatever namespaces do to their own Deployments, an upgrade of sixty dispatchers of another one ends in twelve minutes. Here each
// of these rolls for eight seconds, and the others request a turn before them, each time, and give none back. CONTRACT: C-102
func TestAnUpgradeEndsWhateverOthersDo(t *testing.T) {
	const step, size, rolls = 4 * time.Second, 60, 2
	hang := func(*appsv1.Deployment, int) {}
	for name, c := range map[string]struct {
		namespaces int
		does       func(d *appsv1.Deployment, at int) // what its owner does to a Deployment
	}{
		"nothing":                        {0, hang},
		"one hangs":                      {1, hang},
		"three hang":                     {3, hang},
		"three restart in a loop":        {3, func(d *appsv1.Deployment, at int) { d.Status.ObservedGeneration = 1 + int64(at%3/2) }},
		"three pause and continue":       {3, func(d *appsv1.Deployment, at int) { d.Spec.Paused = at%5 == 0 }},
		"three scale to zero and up":     {3, func(d *appsv1.Deployment, at int) { *d.Spec.Replicas = int32(at % 2) }},
		"ten namespaces, as many as all": {10, hang},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				scheme := runtime.NewScheme()
				need.OK(t, errors.Join(api.AddToScheme(scheme), appsv1.AddToScheme(scheme), batchv1.AddToScheme(scheme)))
				cl := fake.NewClientBuilder().WithScheme(scheme).Build()
				pacer, left := pace.New(cl, 3), []*api.OutboxDispatcher(nil)
				var others []*api.OutboxDispatcher
				dispatcher := func(namespace, name string) *api.OutboxDispatcher {
					o := &api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)}}
					need.OK(t, cl.Create(t.Context(), o))
					return o
				}
				deployed := func(o *api.OutboxDispatcher, replicas int32) {
					need.OK(t, cl.Create(t.Context(), &appsv1.Deployment{
						ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, Generation: 2, Labels: desired.Labels(o, desired.ComponentDispatcher),
							OwnerReferences: []metav1.OwnerReference{{Kind: "OutboxDispatcher", Name: o.Name, UID: o.UID, Controller: new(true)}}},
						Spec: appsv1.DeploymentSpec{Replicas: &replicas}, Status: appsv1.DeploymentStatus{ObservedGeneration: 1}}))
				}
				for i := range 3 * c.namespaces {
					others = append(others, dispatcher(fmt.Sprint("eve-", i%c.namespaces), fmt.Sprint("eve-", i)))
					deployed(others[i], 1)
				}
				for i := range size {
					left = append(left, dispatcher("shop", fmt.Sprint(i)))
				}
				deployed(left[0], 0)
				until := map[string]int{} // of those that roll
				for at := 0; len(left) > 0 && time.Duration(at)*step < 12*time.Minute; at++ {
					time.Sleep(step)
					for _, o := range others {
						var d appsv1.Deployment
						need.OK(t, cl.Get(t.Context(), types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, &d))
						before := d.DeepCopy()
						if c.does(&d, at); !reflect.DeepEqual(before, &d) {
							need.OK(t, cl.Update(t.Context(), &d))
						}
						_, err := pacer.May(t.Context(), o)
						need.OK(t, err)
					}
					left = slices.DeleteFunc(left, func(o *api.OutboxDispatcher) bool {
						may, err := pacer.May(t.Context(), o)
						need.OK(t, err)
						if may && until[o.Name] == 0 {
							until[o.Name] = at + rolls
						}
						if !may || at < until[o.Name] {
							return false
						}
						pacer.Done(o)
						return true
					})
				}
				need.That(t, len(left) == 0, "%d of %d dispatchers wait after 12 minutes.%s", len(left), size, pacer.Holders())
			})
		})
	}
}
