package manager

import (
	"encoding/json"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// cacheOptions keep memory small: of the common kinds only what has the operator's label, of each object only what is read of
// it. Everybody may set the label, and make objects as large as the API server takes. inherited are keys of labels that are read
// too.
func cacheOptions(only, ignored, inherited []string) cache.Options {
	slim := slimmer{slices.Concat(ownLabels, inherited)}
	label := labels.SelectorFromSet(labels.Set{desired.LabelManagedBy: desired.Manager})
	ours := func(transform toolscache.TransformFunc) cache.ByObject {
		return cache.ByObject{Label: label, Transform: transform}
	}
	return cache.Options{
		DefaultTransform:  cache.TransformStripManagedFields(),
		DefaultNamespaces: namespaces(only, ignored),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.OutboxDispatcher{}: {Transform: transformed(slim.dispatcher)},
			&v1alpha1.Outbox{}:           {Transform: transformed(slim.outbox)},
			&v1alpha1.DeadLetterReplay{}: {Transform: transformed(slim.replay)},
			&v1alpha1.OutboxConsumer{}:   {Transform: transformed(func(o *v1alpha1.OutboxConsumer) { o.ObjectMeta = slim.meta(o.ObjectMeta) })},

			&appsv1.Deployment{}:     ours(transformed(slim.deployment)),
			&appsv1.ReplicaSet{}:     ours(transformed(slim.replicaSet)),
			&batchv1.Job{}:           ours(transformed(slim.job)),
			&corev1.Pod{}:            ours(transformed(slim.pod)),
			&corev1.ConfigMap{}:      ours(transformed(slim.configMap)),
			&corev1.ServiceAccount{}: ours(transformed(func(o *corev1.ServiceAccount) { *o = corev1.ServiceAccount{ObjectMeta: slim.meta(o.ObjectMeta)} })),
			&networkingv1.NetworkPolicy{}: ours(transformed(func(o *networkingv1.NetworkPolicy) {
				*o = networkingv1.NetworkPolicy{ObjectMeta: slim.meta(o.ObjectMeta)}
			})),
			&policyv1.PodDisruptionBudget{}: ours(transformed(func(o *policyv1.PodDisruptionBudget) {
				*o = policyv1.PodDisruptionBudget{ObjectMeta: slim.meta(o.ObjectMeta)}
			})),
		},
	}
}

// namespaces are those that are watched; nil for all.
func namespaces(only, ignored []string) map[string]cache.Config {
	if len(only) == 0 && len(ignored) == 0 {
		return nil
	}
	all := map[string]cache.Config{}
	for _, name := range only {
		all[name] = cache.Config{}
	}
	var others []fields.Selector
	for _, name := range ignored {
		others = append(others, fields.OneTermNotEqualSelector("metadata.namespace", name))
	}
	if len(others) > 0 {
		all[cache.AllNamespaces] = cache.Config{FieldSelector: fields.AndSelectors(others...)}
	}
	return all
}

// transformed changes objects of the type before the cache keeps them. The change of a changed object is nothing.
func transformed[T any](change func(T)) toolscache.TransformFunc {
	return func(o any) (any, error) {
		if object, ok := o.(T); ok {
			change(object)
		}
		return o, nil
	}
}

// Bounds of what is kept of an object.
const (
	maxSpecBytes  = 4 << 10 // of JSON, of a spec that is kept whole
	maxValueBytes = 64      // of a value of the operator's own, of a topic
	maxNameBytes  = 512     // of an owner, of an image
	maxWords      = 1 << 10 // of a message
	maxLastWords  = 4 << 10 // of a termination message: the kubelet keeps no more
	maxStatuses   = 16      // of containers, of conditions
)

// ownLabels and ownAnnotations are those that the operator reads or writes.
var (
	ownLabels = []string{
		desired.LabelDispatcher, desired.LabelOutbox, desired.LabelReplay, desired.LabelComponent, desired.LabelManagedBy, desired.LabelMigration,
		batchv1.JobNameLabel, batchv1.ControllerUidLabel, "app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/managed-by",
	}
	ownAnnotations = []string{
		desired.AnnotationState, desired.AnnotationConsumers, desired.AnnotationSpec, desired.AnnotationGeneration, desired.AnnotationTemplate, desired.AnnotationAttempt,
		desired.AnnotationReplay, desired.AnnotationPart, desired.AnnotationScaledBy, v1alpha1.AnnotationReconcile,
	}
)

// slimmer leaves of objects what is read of them: of labels those, and of annotations the operator's own.
type slimmer struct{ labels []string }

// meta is what is read of the metadata of an object.
func (s slimmer) meta(m metav1.ObjectMeta) metav1.ObjectMeta {
	slim := metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp, Labels: pick(m.Labels, s.labels), Annotations: pick(m.Annotations, ownAnnotations),
	}
	if owner := metav1.GetControllerOfNoCopy(&m); owner != nil && len(owner.APIVersion)+len(owner.Kind)+len(owner.Name) <= maxNameBytes {
		slim.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return slim
}

// pick returns the values of those keys.
func pick(all map[string]string, keys []string) (some map[string]string) {
	for _, key := range keys {
		if value, ok := all[key]; ok {
			if some == nil {
				some = map[string]string{}
			}
			some[key] = problem.Clip(value, maxValueBytes)
		}
	}
	return some
}

// spec reduces a spec that is large. Whoever needs the whole reads the object from the API server: see [kstatus.Reporter.Whole].
func (s slimmer) spec(m *metav1.ObjectMeta, spec any, reduce func()) {
	*m = s.meta(*m)
	text, err := json.Marshal(spec)
	if err != nil {
		panic(fmt.Sprintf("size of a spec: %v", err)) // plain data only
	}
	if len(text) > maxSpecBytes {
		reduce()
		metav1.SetMetaDataAnnotation(m, desired.AnnotationPart, "true")
	}
}

// dispatcher keeps of a large spec what a stop and other dispatchers read.
func (s slimmer) dispatcher(o *v1alpha1.OutboxDispatcher) {
	for _, fields := range o.ManagedFields { // who has set the replicas by the scale subresource, as kubectl scale and autoscalers do
		if fields.Subresource == "scale" {
			metav1.SetMetaDataAnnotation(&o.ObjectMeta, desired.AnnotationScaledBy, fields.Manager)
		}
	}
	s.spec(&o.ObjectMeta, &o.Spec, func() {
		is := o.Spec
		o.Spec = spec.Dispatcher{Namespace: is.Namespace, OutboxRef: is.OutboxRef, Database: is.Database, Replicas: is.Replicas, State: is.State, Pods: spec.Pods{Scaling: is.Pods.Scaling}}
		for _, topic := range is.Topics {
			o.Spec.Topics = append(o.Spec.Topics, desired.ShortTopic(topic))
		}
	})
}

// outbox keeps of a large spec what consumers read.
func (s slimmer) outbox(o *v1alpha1.Outbox) {
	s.spec(&o.ObjectMeta, &o.Spec, func() { o.Spec = spec.Outbox{Retention: o.Spec.Retention} })
}

func (s slimmer) replay(o *v1alpha1.DeadLetterReplay) {
	s.spec(&o.ObjectMeta, &o.Spec, func() { o.Spec = spec.Replay{} })
}

func (s slimmer) deployment(d *appsv1.Deployment) {
	spec, status := appsv1.DeploymentSpec{Replicas: d.Spec.Replicas, Paused: d.Spec.Paused, Template: d.Spec.Template}, d.Status
	desired.Digest(&spec.Template)
	status.Conditions = status.Conditions[:min(len(status.Conditions), maxStatuses)]
	for i := range status.Conditions {
		status.Conditions[i].Message = problem.Clip(status.Conditions[i].Message, maxWords)
	}
	others := desired.Others(d.ManagedFields)
	*d = appsv1.Deployment{ObjectMeta: s.meta(d.ObjectMeta), Spec: spec, Status: status}
	if others != "" {
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, desired.AnnotationOthers, others)
	}
}

func (s slimmer) replicaSet(o *appsv1.ReplicaSet) {
	template := o.Spec.Template
	desired.Digest(&template)
	*o = appsv1.ReplicaSet{ObjectMeta: s.meta(o.ObjectMeta), Spec: appsv1.ReplicaSetSpec{Template: template}}
	o.Annotations = nil
}

func (s slimmer) job(j *batchv1.Job) {
	template, status := j.Spec.Template, j.Status
	desired.Digest(&template)
	status.UncountedTerminatedPods, status.CompletedIndexes, status.FailedIndexes = nil, "", nil
	status.Conditions = status.Conditions[:min(len(status.Conditions), maxStatuses)]
	for i := range status.Conditions {
		status.Conditions[i].Message = problem.Clip(status.Conditions[i].Message, maxWords)
	}
	*j = batchv1.Job{ObjectMeta: s.meta(j.ObjectMeta), Spec: batchv1.JobSpec{Suspend: j.Spec.Suspend, Template: template}, Status: status}
}

// configMap keeps of the data what says the state.
func (s slimmer) configMap(m *corev1.ConfigMap) {
	kept := corev1.ConfigMap{ObjectMeta: s.meta(m.ObjectMeta), Immutable: m.Immutable}
	if state := desired.State(m); len(state) > 0 && len(state) <= maxNameBytes {
		kept.Data = desired.StateData(state)
	}
	*m = kept
}

func (s slimmer) pod(p *corev1.Pod) {
	kept := corev1.Pod{ObjectMeta: s.meta(p.ObjectMeta)}
	kept.Spec = desired.DigestOf(&p.Spec)
	kept.Spec.NodeName = p.Spec.NodeName
	kept.Status = corev1.PodStatus{
		Phase: p.Status.Phase, PodIP: p.Status.PodIP, StartTime: p.Status.StartTime,
		Reason: problem.Clip(p.Status.Reason, maxNameBytes), Message: problem.Clip(p.Status.Message, maxWords),
		InitContainerStatuses: slimStatuses(p.Status.InitContainerStatuses), ContainerStatuses: slimStatuses(p.Status.ContainerStatuses),
	}
	for _, c := range p.Status.Conditions[:min(len(p.Status.Conditions), maxStatuses)] {
		c.Message = problem.Clip(c.Message, maxWords)
		kept.Status.Conditions = append(kept.Status.Conditions, c)
	}
	*p = kept
}

// slimStatuses keeps the dispatcher's status, and the first statuses of the others.
func slimStatuses(all []corev1.ContainerStatus) (kept []corev1.ContainerStatus) {
	for _, c := range all {
		if c.Name != desired.Container && len(kept) >= maxStatuses {
			continue
		}
		kept = append(kept, corev1.ContainerStatus{
			Name: c.Name, Ready: c.Ready, RestartCount: c.RestartCount, Image: problem.Clip(c.Image, maxNameBytes),
			State: slimState(c.State), LastTerminationState: slimState(c.LastTerminationState),
		})
	}
	return kept
}

func slimState(s corev1.ContainerState) corev1.ContainerState {
	if w := s.Waiting; w != nil {
		w.Message = problem.Clip(w.Message, maxWords)
	}
	if t := s.Terminated; t != nil {
		t.Message, t.ContainerID = problem.Clip(t.Message, maxLastWords), ""
	}
	return s
}
