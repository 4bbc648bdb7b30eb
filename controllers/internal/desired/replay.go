package desired

import (
	"encoding/json"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	batchv1ac "k8s.io/client-go/applyconfigurations/batch/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

const (
	// exitRefused is how the dispatcher ends when its files are refused: the same ones are refused again.
	exitRefused = 78
	// replayTries is how often the pod of a replay may fail. Those that are evicted do not count, and trouble with
	// the database ends no pod.
	replayTries = 20
	// replayKept is how long the Job and its pod stay when they have ended, for the log. The outcome is in the status by then;
	// if not, the operator makes the Job again, which reports it.
	replayKept = time.Hour
)

// Replay is a DeadLetterReplay with what it is about.
type Replay struct {
	*v1alpha1.DeadLetterReplay
	// Dispatcher is the one that it names, nil when it names an Outbox.
	Dispatcher *v1alpha1.OutboxDispatcher
	// Outbox is where the dead letters are; its replayLogin is set.
	Outbox *v1alpha1.Outbox
}

// ReplayName is the name of a replay's Job, which is what its process calls itself.
func ReplayName(o *v1alpha1.DeadLetterReplay) string { return o.Name + "-replay" }

// ProcessName is what the process of a replay calls itself in its status.
func ProcessName(o *v1alpha1.DeadLetterReplay) string { return o.Namespace + "/" + ReplayName(o) }

// Refs are what the Job reads.
func (r Replay) Refs() []spec.Ref {
	return outboxRefs(r.Outbox, "Outbox "+r.Outbox.Name+": spec", spec.LoginReplay)
}

// ConfigMap holds the file that the Job loads: the object, with the namespace and the topics of its dispatcher, and the Outbox's
// login. The object's UID is in it, by which the set stays the same when pods restart.
func (r Replay) ConfigMap() *corev1ac.ConfigMapApplyConfiguration {
	s, o := r.Spec, r.Outbox.Spec
	s.TTLAfterFinished = nil
	if d := r.Dispatcher; d != nil {
		s.DispatcherRef, s.OutboxRef, s.Namespace = nil, &spec.OutboxRef{Name: r.Outbox.Name}, d.Spec.Namespace
		if len(s.Selector.Topics) == 0 && len(d.Spec.Topics) > 0 {
			s.Selector.Topics, s.Selector.All = d.Spec.Topics, false
		}
	}
	login := *o.ReplayLogin
	login.PodTemplate, o.ReplayLogin = nil, &login
	o.Migration, o.Journal, o.Retention, o.Notify = nil, nil, spec.Retention{}, nil
	return files(r.DeadLetterReplay, ComponentReplay, ReplayName(r.DeadLetterReplay),
		document(kindDeadLetterReplay, r.DeadLetterReplay, s)+separator+document(kindOutbox, r.Outbox, o))
}

// NetworkPolicy lets the operator read the progress from the Job's pod.
func (r Replay) NetworkPolicy(operatorNamespace string) *networkingv1ac.NetworkPolicyApplyConfiguration {
	return networkPolicy(r.DeadLetterReplay, ComponentReplay, ReplayName(r.DeadLetterReplay), operatorNamespace)
}

// Job runs the replay. The pod that replaces an evicted one continues it; refused files end it. Errors wrap
// [ErrPodTemplate].
func (r Replay) Job(p Platform) (*batchv1ac.JobApplyConfiguration, error) {
	template, err := r.template(p,
		"/dispatcher", "dead", "replay", "--request", configFile, "--secrets", secretsDir, "--listen", fmt.Sprintf(":%d", Port))
	if err != nil {
		return nil, err
	}
	container(template).WithPorts(corev1ac.ContainerPort().WithName("http").WithContainerPort(Port))
	rule := batchv1ac.PodFailurePolicyRule
	return batchv1ac.Job(ReplayName(r.DeadLetterReplay), r.Namespace).
		WithLabels(Labels(r.DeadLetterReplay, ComponentReplay)).
		WithOwnerReferences(owner(r.DeadLetterReplay)).
		WithSpec(batchv1ac.JobSpec().
			WithBackoffLimit(replayTries).
			WithTTLSecondsAfterFinished(int32(replayKept / time.Second)).
			WithPodFailurePolicy(batchv1ac.PodFailurePolicy().WithRules(
				rule().WithAction(batchv1.PodFailurePolicyActionFailJob).WithOnExitCodes(batchv1ac.PodFailurePolicyOnExitCodesRequirement().
					WithContainerName(Container).WithOperator(batchv1.PodFailurePolicyOnExitCodesOpIn).WithValues(exitRefused)),
				rule().WithAction(batchv1.PodFailurePolicyActionIgnore).WithOnPodConditions(batchv1ac.PodFailurePolicyOnPodConditionsPattern().
					WithType(corev1.DisruptionTarget).WithStatus(corev1.ConditionTrue)))).
			WithTemplate(template)), nil
}

// template is the pod of a Job: with replayLogin's podTemplate, else with the dispatcher's.
func (r Replay) template(p Platform, command ...string) (*corev1ac.PodTemplateSpecApplyConfiguration, error) {
	base, err := podTemplate(r.DeadLetterReplay, p, ComponentReplay, *r.ConfigMap().Name, r.Refs())
	if err != nil {
		return nil, err
	}
	field, users := "Outbox "+r.Outbox.Name+": spec.replayLogin.podTemplate", r.Outbox.Spec.ReplayLogin.PodTemplate
	if d := r.Dispatcher; d != nil {
		base.Spec.ImagePullSecrets = nil
		base.Spec.WithServiceAccountName(accountName(d)).WithImagePullSecrets(pullSecrets(d, p)...)
		if users == nil {
			field, users = "spec.pods.template of OutboxDispatcher "+d.Name, d.Spec.Pods.Template
		}
	}
	template, err := jobTemplate(base, field, users, command...)
	if err == nil {
		p.inherit(r.DeadLetterReplay, template)
	}
	return template, err
}

// jobTemplate lays the user's template over the base, without sidecars, which would keep the Job from ending (a
// sidecar among the initContainers stays), and without probes.
func jobTemplate(base *corev1ac.PodTemplateSpecApplyConfiguration, field string, users json.RawMessage, command ...string) (*corev1ac.PodTemplateSpecApplyConfiguration, error) {
	template, err := merge(base, field, users)
	if err != nil {
		return nil, err
	}
	only := *container(template)
	only.Command, only.Args = command, nil
	only.LivenessProbe, only.ReadinessProbe, only.StartupProbe, only.Lifecycle = nil, nil, nil, nil
	template.Spec.Containers = []corev1ac.ContainerApplyConfiguration{only}
	template.Spec.WithRestartPolicy(corev1.RestartPolicyNever)
	return template, nil
}
