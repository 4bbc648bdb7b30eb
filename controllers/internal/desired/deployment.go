// Package desired says what an OutboxDispatcher should have in the cluster. It is pure: the same
// object and flags give the same bytes, which the golden files in testdata show.
package desired

import (
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// progressDeadline is Kubernetes' own, in seconds: after it a rollout that does not progress has failed.
const progressDeadline = 600

// shutdown is what a pod gets beyond its grace period, to write back and close.
const shutdown = 10 * time.Second

// Deployment runs the dispatchers. Its pods roll when the configuration, the image or the pod template
// changes, and for nothing else (CONTRACT C-102): not with the state, nor with what a Secret holds. A new
// pod must be ready before an old one goes, so what does not work replaces nothing that does.
// outbox is the one that the dispatcher refers to, nil for none, and files the name of [ConfigMap]. Errors wrap
// [ErrPodTemplate].
func Deployment(obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox, files string, p Platform) (*appsv1ac.DeploymentApplyConfiguration, error) {
	grace := obd.Spec.Delivery.GracePeriod.D() + shutdown
	base, err := podTemplate(obd, p, ComponentDispatcher, files, DispatcherRefs(obd, outbox))
	if err != nil {
		return nil, err
	}
	serve(container(base))
	base.Spec.WithTerminationGracePeriodSeconds(int64((grace + time.Second - 1) / time.Second)).
		WithVolumes(corev1ac.Volume().WithName("state").WithConfigMap(corev1ac.ConfigMapVolumeSource().WithName(stateName(obd))))
	container(base).WithVolumeMounts(mount("state", stateDir))
	if obd.Spec.Delivery.ConsumerPolicy == spec.ConsumersVerified {
		base.Spec.WithVolumes(corev1ac.Volume().WithName("consumers").WithConfigMap(corev1ac.ConfigMapVolumeSource().WithName(ConsumersName(obd))))
		container(base).WithVolumeMounts(mount("consumers", consumersDir)).WithCommand("--verified-types-file", consumersDir+"/"+keyTypes)
	}
	template, err := merge(base, "spec.pods.template", obd.Spec.Pods.Template)
	if err != nil {
		return nil, err
	}
	p.inherit(obd, template)
	return appsv1ac.Deployment(Name(obd), obd.Namespace).
		WithLabels(Labels(obd, ComponentDispatcher)).
		WithAnnotations(map[string]string{AnnotationSpec: specHash(obd), AnnotationTemplate: Hash(template)}).
		WithOwnerReferences(owner(obd)).
		WithSpec(appsv1ac.DeploymentSpec().
			WithReplicas(Replicas(obd)).
			WithProgressDeadlineSeconds(progressDeadline). // not what another writes there: an upgrade waits for it
			WithRevisionHistoryLimit(0).                   // what is to run is in the OutboxDispatcher, and not in old ReplicaSets
			WithSelector(metav1ac.LabelSelector().WithMatchLabels(Selector(obd, ComponentDispatcher))).
			WithStrategy(appsv1ac.DeploymentStrategy().
				WithType(appsv1.RollingUpdateDeploymentStrategyType).
				WithRollingUpdate(appsv1ac.RollingUpdateDeployment().
					WithMaxSurge(intstr.FromInt32(1)).
					WithMaxUnavailable(intstr.FromInt32(0)))).
			WithTemplate(template)), nil
}

// specHash is a hash of the fields of the OutboxDispatcher that roll pods. Its Outbox has a generation of its own.
func specHash(obd *v1alpha1.OutboxDispatcher) string {
	spec := obd.Spec
	spec.Replicas, spec.State, spec.Pods.Scaling = nil, "", nil
	return Hash(spec)
}

// serve gives the container its command and its probes.
func serve(container *corev1ac.ContainerApplyConfiguration) {
	probe := func(path string) *corev1ac.ProbeApplyConfiguration {
		return corev1ac.Probe().WithHTTPGet(corev1ac.HTTPGetAction().WithPath(path).WithPort(intstr.FromString("http")))
	}
	container.
		WithCommand("/dispatcher", "run", "-f", configFile, "--secrets", secretsDir, "--listen", fmt.Sprintf(":%d", Port), "--state-file", stateFile).
		WithPorts(corev1ac.ContainerPort().WithName("http").WithContainerPort(Port)).
		WithLivenessProbe(probe("/healthz").WithPeriodSeconds(10).WithTimeoutSeconds(5).WithFailureThreshold(3)).
		WithReadinessProbe(probe("/readyz").WithPeriodSeconds(2).WithTimeoutSeconds(2).WithFailureThreshold(3))
}

// Others is who else alone has set a field of an object's spec, and which; empty for none. A server-side apply leaves it as it is.
// Left out are replicas, and annotations of pods, of which kubectl rollout restart has one.
func Others(fields []metav1.ManagedFieldsEntry) string {
	own := fieldpath.NewSet()
	for _, of := range fields {
		if set, ok := managedBy(of); ok && of.Manager == Manager {
			own = own.Union(set)
		}
	}
	for _, of := range fields {
		set, ok := managedBy(of)
		if !ok || of.Manager == Manager {
			continue
		}
		first := ""
		set.Leaves().Difference(own).Iterate(func(path fieldpath.Path) { // its All panics when a loop ends early
			if at := path.String(); first == "" && strings.HasPrefix(at, ".spec.") && at != ".spec.replicas" && !strings.HasPrefix(at, ".spec.template.metadata.annotations") {
				first = at[1:]
			}
		})
		if first != "" {
			return problem.Clip(fmt.Sprintf("%q has set %s", of.Manager, first), maxImage)
		}
	}
	return ""
}

// managedBy are the fields that an entry says to be a manager's; false for an entry that cannot be read.
func managedBy(of metav1.ManagedFieldsEntry) (*fieldpath.Set, bool) {
	set := fieldpath.NewSet()
	return set, of.FieldsV1 != nil && set.FromJSON(of.FieldsV1.GetRawReader()) == nil
}

// RemedyOfOthers is what to do about what [Others] has found.
func RemedyOfOthers(others string) string {
	remedy := ": the operator leaves it as it is. Remove it"
	if strings.Contains(others, " has set spec.template.") {
		remedy += "; what pods need is for spec.pods.template"
	}
	return remedy + "."
}
