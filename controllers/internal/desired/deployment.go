package desired

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// shutdown is what a pod gets beyond its grace period, to write back and close.
const shutdown = 10 * time.Second

// Deployment runs the dispatchers. Its pods roll when the configuration or the secrets (a digest of
// what they hold) change, and when the image or the pod template does (CONTRACT C-102). A new pod
// must be ready before an old one goes, so what does not work replaces nothing that does.
// Errors wrap [ErrPodTemplate].
func Deployment(obd *v1alpha1.OutboxDispatcher, image, secrets string) (*appsv1ac.DeploymentApplyConfiguration, error) {
	grace := obd.Spec.GracePeriod.Duration + shutdown
	base := podTemplate(obd, NameDispatcher, dispatcherContainer(image), DispatcherRefs(obd)).
		WithAnnotations(map[string]string{AnnotationConfigHash: Hash(Config(obd), secrets)})
	base.Spec.WithTerminationGracePeriodSeconds(int64((grace + time.Second - 1) / time.Second))
	template, err := merge(base, obd)
	if err != nil {
		return nil, err
	}
	return appsv1ac.Deployment(Name(obd), obd.Namespace).
		WithLabels(Labels(obd, NameDispatcher)).
		WithOwnerReferences(owner(obd)).
		WithSpec(appsv1ac.DeploymentSpec().
			WithReplicas(Replicas(obd)).
			WithSelector(metav1ac.LabelSelector().WithMatchLabels(Selector(obd, NameDispatcher))).
			WithStrategy(appsv1ac.DeploymentStrategy().
				WithType(appsv1.RollingUpdateDeploymentStrategyType).
				WithRollingUpdate(appsv1ac.RollingUpdateDeployment().
					WithMaxSurge(intstr.FromInt32(1)).
					WithMaxUnavailable(intstr.FromInt32(0)))).
			WithTemplate(template)), nil
}

func dispatcherContainer(image string) *corev1ac.ContainerApplyConfiguration {
	probe := func(path string) *corev1ac.ProbeApplyConfiguration {
		return corev1ac.Probe().WithHTTPGet(corev1ac.HTTPGetAction().WithPath(path).WithPort(intstr.FromString("http")))
	}
	return corev1ac.Container().
		WithImage(image).
		WithCommand("/dispatcher", "run", "-f", configFile).
		WithPorts(corev1ac.ContainerPort().WithName("http").WithContainerPort(Port)).
		WithLivenessProbe(probe("/healthz").WithPeriodSeconds(10).WithTimeoutSeconds(5).WithFailureThreshold(3)).
		WithReadinessProbe(probe("/readyz").WithPeriodSeconds(2).WithTimeoutSeconds(2).WithFailureThreshold(3))
}
