package outboxdispatcher

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/apply"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/scaling"
)

// A pass has made a step up, and its status is not written yet: the worker of the state reads the recommendation before, and
// does not apply that. CONTRACT: C-107
func TestAStepIsNotTakenBackBeforeTheStatusIsWritten(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, api.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	obd := &api.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", UID: "orders"}}
	obd.Spec.State, obd.Spec.Pods.Scaling = api.StateRunning, &api.Scaling{Mode: api.ScalingApply, Min: 1, Max: 8}
	obd.Status = api.OutboxDispatcherStatus{Operator: "outbox-system", Scaling: &api.ScalingStatus{Recommended: 1}}
	meta := metav1.ObjectMeta{Namespace: "shop", Name: desired.Name(obd), OwnerReferences: []metav1.OwnerReference{
		*metav1.NewControllerRef(obd, api.GroupVersion.WithKind("OutboxDispatcher"))}}
	deployment := &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](5)}}
	state := &corev1.ConfigMap{ObjectMeta: meta, Data: desired.StateData(api.StateRunning)}
	state.Name = *desired.StateConfigMap(obd).Name
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(obd, deployment, state).Build()
	r := &Reconciler{Reporter: &kstatus.Reporter{Client: c, Operator: "outbox-system"}, applied: apply.New(c, c, api.WorkloadAvailableCondition)}
	key := client.ObjectKeyFromObject(obd)
	r.scalers.all = map[types.NamespacedName]*scaling.Scaler{key: {Decision: scaling.Decision{Replicas: 5}}}

	if _, err := r.reconcileState(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment); err != nil || *deployment.Spec.Replicas != 5 {
		t.Errorf("%d replicas, want 5 (%v)", *deployment.Spec.Replicas, err)
	}
}
