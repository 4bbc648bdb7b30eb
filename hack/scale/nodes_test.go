package scale

import (
	"context"
	"fmt"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodes plays the Deployment controller, the ReplicaSet controller, the scheduler and the kubelets: a pod for
// each Deployment, which runs at once, at the address of a stand-in of a dispatcher.
type nodes struct {
	t       *testing.T
	ctx     context.Context
	client  client.Client
	address func(deployment string) string
	work    chan *appsv1.Deployment
}

func startNodes(t *testing.T, ctx context.Context, c client.Client, watched cache.Cache, address func(string) string) {
	t.Helper()
	n := &nodes{t: t, ctx: ctx, client: c, address: address, work: make(chan *appsv1.Deployment, 100_000)}
	informer, err := watched.GetInformer(ctx, &appsv1.Deployment{})
	if err != nil {
		t.Fatal(err)
	}
	push := func(o any) {
		if d := o.(*appsv1.Deployment); d.Status.ObservedGeneration != d.Generation {
			n.work <- d
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: push, UpdateFunc: func(_, o any) { push(o) }}); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case d := <-n.work:
					if err := n.rollOut(d); err != nil && ctx.Err() == nil {
						t.Errorf("play the nodes for %s: %v", d.Name, err)
					}
				}
			}
		})
	}
	t.Cleanup(group.Wait)
}

// rollOut makes the ReplicaSet and the pod, if they are not there, and says that all is rolled out.
func (n *nodes) rollOut(d *appsv1.Deployment) error {
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: d.Name + "-1", Namespace: d.Namespace, Labels: d.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
		Spec: appsv1.ReplicaSetSpec{Selector: d.Spec.Selector, Template: d.Spec.Template},
	}
	switch err := n.client.Create(n.ctx, set); {
	case err == nil:
		if err := n.run(d, set); err != nil {
			return err
		}
	case !apierrors.IsAlreadyExists(err):
		return err
	}
	now := d.DeepCopy()
	now.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
		Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"}}}
	return client.IgnoreNotFound(n.client.Status().Patch(n.ctx, now, client.MergeFrom(d)))
}

func (n *nodes) run(d *appsv1.Deployment, set *appsv1.ReplicaSet) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: set.Name + "-0", Namespace: d.Namespace, Labels: d.Spec.Template.Labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}},
		Spec: *d.Spec.Template.Spec.DeepCopy()}
	pod.Spec.ServiceAccountName = "" // no controller makes tokens here
	if err := n.client.Create(n.ctx, pod); err != nil {
		return fmt.Errorf("create the pod: %w", err)
	}
	address := n.address(d.Name)
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return n.client.Status().Update(n.ctx, pod)
}
