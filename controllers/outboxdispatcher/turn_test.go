package outboxdispatcher

import (
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pace"
)

// A turn is for pods that roll and for migrations: a standby needs none, a user who starts one does not wait, and pods of the
// newest template give theirs back. CONTRACT: C-102
func TestATurnIsForPodsThatRoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Reconciler{Pace: pace.New(fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build(), 1)}
		wanted := appsv1ac.Deployment("", "").WithAnnotations(map[string]string{desired.AnnotationTemplate: "v2"})
		migrates, starts := false, false
		expect := func(why, name, template string, replicas int32, want bool) {
			t.Helper()
			obd := &api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: api.OutboxDispatcherSpec{Replicas: &replicas}}
			if starts {
				obd.Spec.Replicas = new(int32(1))
			}
			current := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{desired.AnnotationTemplate: template}}, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
			if waits, err := r.queue(t.Context(), obd, current, wanted, migrates); err != nil || waits != want {
				t.Errorf("%s: waits %v, want %v (%v)", why, waits, want, err)
			}
		}
		expect("the first", "a", "v1", 1, false)
		expect("the second", "b", "v1", 1, true)
		expect("a standby", "standby", "v1", 0, false)
		migrates = true
		expect("a standby that migrates", "standby", "v1", 0, true)
		starts = true
		expect("a standby that starts, and migrates", "standby", "v1", 0, false)
		migrates, starts = false, false
		expect("the first, with the newest template", "a", "v2", 1, false)
		time.Sleep(time.Minute / 2) // less than a turn that is not taken lasts
		expect("the second, after the first", "b", "v1", 1, false)
	})
}
