package manager

import (
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

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/apply"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// cacheOptions keep memory small: of the common kinds only what has the operator's label, and of each object only what
// is read of it. Everybody may set the label, and make objects as large as the API server takes.
func cacheOptions(only, ignored []string) cache.Options {
	label := labels.SelectorFromSet(labels.Set{desired.LabelManagedBy: desired.Manager})
	ours := func(transform toolscache.TransformFunc) cache.ByObject {
		return cache.ByObject{Label: label, Transform: transform}
	}
	return cache.Options{
		DefaultTransform:  cache.TransformStripManagedFields(),
		DefaultNamespaces: namespaces(only, ignored),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.OutboxDispatcher{}: {Transform: transformed(slimDispatcher)},
			&v1alpha1.Outbox{}:           {Transform: transformed(slimOutbox)},
			&v1alpha1.DeadLetterReplay{}: {Transform: transformed(func(o *v1alpha1.DeadLetterReplay) { slimUsers(&o.ObjectMeta) })},
			&v1alpha1.OutboxConsumer{}:   {Transform: transformed(func(o *v1alpha1.OutboxConsumer) { slimUsers(&o.ObjectMeta) })},

			&appsv1.Deployment{}:     ours(transformed(slimDeployment)),
			&appsv1.ReplicaSet{}:     ours(transformed(slimReplicaSet)),
			&batchv1.Job{}:           ours(transformed(slimJob)),
			&corev1.Pod{}:            ours(transformed(slimPod)),
			&corev1.ConfigMap{}:      ours(transformed(slimConfigMap)),
			&corev1.ServiceAccount{}: ours(transformed(func(o *corev1.ServiceAccount) { *o = corev1.ServiceAccount{ObjectMeta: slimMeta(o.ObjectMeta)} })),
			&networkingv1.NetworkPolicy{}: ours(transformed(func(o *networkingv1.NetworkPolicy) {
				*o = networkingv1.NetworkPolicy{ObjectMeta: slimMeta(o.ObjectMeta)}
			})),
			&policyv1.PodDisruptionBudget{}: ours(transformed(func(o *policyv1.PodDisruptionBudget) {
				*o = policyv1.PodDisruptionBudget{ObjectMeta: slimMeta(o.ObjectMeta)}
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
	maxMetaBytes = 6 << 10 // of its labels, and of its annotations
	maxNameBytes = 512     // of an owner, of an image
	maxWords     = 1 << 10 // of a message
	maxLastWords = 4 << 10 // of a termination message: the kubelet keeps no more
	maxStatuses  = 16      // of containers, of conditions
)

// slimUsers takes out of the metadata of a user's object what tools have written there.
func slimUsers(m *metav1.ObjectMeta) {
	m.ManagedFields = nil
	delete(m.Annotations, corev1.LastAppliedConfigAnnotation)
	m.Labels, m.Annotations = bounded(m.Labels), bounded(m.Annotations)
}

func slimDispatcher(o *v1alpha1.OutboxDispatcher) {
	scaledBy(&o.ObjectMeta)
	slimUsers(&o.ObjectMeta)
	desired.BoundTemplate(&o.Spec.Pods.Template)
	desired.BoundSpec(o)
}

// scaledBy keeps who has set the replicas by the scale subresource, as kubectl scale and autoscalers do.
func scaledBy(m *metav1.ObjectMeta) {
	for _, fields := range m.ManagedFields {
		if fields.Subresource == "scale" {
			metav1.SetMetaDataAnnotation(m, desired.AnnotationScaledBy, problem.Clip(fields.Manager, maxNameBytes))
		}
	}
}

func slimOutbox(o *v1alpha1.Outbox) {
	slimUsers(&o.ObjectMeta)
	if m := o.Spec.Migration; m != nil {
		desired.BoundTemplate(&m.PodTemplate)
	}
	if l := o.Spec.ReplayLogin; l != nil {
		desired.BoundTemplate(&l.PodTemplate)
	}
}

// slimMeta is what is read of the metadata of an object that the operator makes.
func slimMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	slim := metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
		Labels: bounded(m.Labels), Annotations: bounded(apply.Short(m.Annotations)),
	}
	if owner := metav1.GetControllerOfNoCopy(&m); owner != nil && len(owner.APIVersion)+len(owner.Kind)+len(owner.Name) <= maxNameBytes {
		slim.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return slim
}

// bounded are labels or annotations, or of too many those that are the operator's own.
func bounded(all map[string]string) map[string]string {
	if size(all) <= maxMetaBytes {
		return all
	}
	own := map[string]string{}
	for _, key := range []string{
		desired.LabelDispatcher, desired.LabelOutbox, desired.LabelReplay, desired.LabelComponent, desired.LabelManagedBy, desired.LabelMigration,
		desired.AnnotationState, desired.AnnotationConsumers, desired.AnnotationSpec, desired.AnnotationGeneration, desired.AnnotationTemplate, desired.AnnotationAttempt, desired.AnnotationReplay, desired.AnnotationBytes, desired.AnnotationScaledBy, v1alpha1.AnnotationReconcile, batchv1.JobNameLabel, batchv1.ControllerUidLabel,
	} {
		if value, ok := all[key]; ok {
			own[key] = problem.Clip(value, maxNameBytes)
		}
	}
	return own
}

func size(all map[string]string) (bytes int) {
	for key, value := range all {
		bytes += len(key) + len(value)
	}
	return bytes
}

func slimDeployment(d *appsv1.Deployment) {
	spec, status := appsv1.DeploymentSpec{Replicas: d.Spec.Replicas, Paused: d.Spec.Paused, Template: d.Spec.Template}, d.Status
	desired.Digest(&spec.Template)
	status.Conditions = status.Conditions[:min(len(status.Conditions), maxStatuses)]
	for i := range status.Conditions {
		status.Conditions[i].Message = problem.Clip(status.Conditions[i].Message, maxWords)
	}
	others := desired.Others(d.ManagedFields) + d.Annotations[desired.AnnotationOthers]
	*d = appsv1.Deployment{ObjectMeta: slimMeta(d.ObjectMeta), Spec: spec, Status: status}
	metav1.SetMetaDataAnnotation(&d.ObjectMeta, desired.AnnotationOthers, others)
}

func slimReplicaSet(s *appsv1.ReplicaSet) {
	template := s.Spec.Template
	desired.Digest(&template)
	*s = appsv1.ReplicaSet{ObjectMeta: slimMeta(s.ObjectMeta), Spec: appsv1.ReplicaSetSpec{Template: template}}
	s.Annotations = nil
}

func slimJob(j *batchv1.Job) {
	template, status := j.Spec.Template, j.Status
	desired.Digest(&template)
	status.UncountedTerminatedPods, status.CompletedIndexes, status.FailedIndexes = nil, "", nil
	status.Conditions = status.Conditions[:min(len(status.Conditions), maxStatuses)]
	for i := range status.Conditions {
		status.Conditions[i].Message = problem.Clip(status.Conditions[i].Message, maxWords)
	}
	*j = batchv1.Job{ObjectMeta: slimMeta(j.ObjectMeta), Spec: batchv1.JobSpec{Suspend: j.Spec.Suspend, Template: template}, Status: status}
}

// slimConfigMap keeps of the data what says the state.
func slimConfigMap(m *corev1.ConfigMap) {
	kept := corev1.ConfigMap{ObjectMeta: slimMeta(m.ObjectMeta), Immutable: m.Immutable}
	if state := desired.State(m); len(state) > 0 && len(state) <= maxNameBytes {
		kept.Data = desired.StateData(state)
	}
	*m = kept
}

func slimPod(p *corev1.Pod) {
	kept := corev1.Pod{ObjectMeta: slimMeta(p.ObjectMeta)}
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
