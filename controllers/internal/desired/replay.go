package desired

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	batchv1ac "k8s.io/client-go/applyconfigurations/batch/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

const (
	keyRequest    = "request.yaml"
	requestDir    = "/etc/outbox/request"
	volumeRequest = "request"

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

// file is the configuration of the Job, which has no more than a connection and what events are meant.
func (r Replay) file() (spec.Config, []Ref) {
	var refs []Ref
	c := withoutDefaults(func() spec.Config {
		of, named := settings(databaseOf(r.Outbox, "Outbox "+r.Outbox.Name+": spec"), spec.ReplayLogin)
		c := spec.Config{Name: ProcessName(r.DeadLetterReplay), Namespace: r.Spec.Namespace, Topics: slices.Sorted(slices.Values(r.Spec.Selector.Topics)), Database: of.Database}
		refs = named
		if d := r.Dispatcher; d != nil {
			c.Namespace = d.Spec.Namespace
			if len(c.Topics) == 0 {
				c.Topics = slices.Sorted(slices.Values(d.Spec.Topics))
			}
		}
		return c
	})
	return c, refs
}

// Refs are what the Job reads.
func (r Replay) Refs() []Ref {
	_, refs := r.file()
	return refs
}

// request is the request of the object. Its id is the object's UID, so that the set stays the same when pods restart.
func (r Replay) request() spec.ReplayRequest {
	s := &r.Spec
	id, _ := uuid.Parse(string(r.UID)) // the API server makes no other; the Job refuses a request without one
	o := spec.ReplayRequest{
		ID: id, Action: spec.ActionReplay, Reason: s.Reason, RequestedBy: s.RequestedBy,
		Rate: int(s.Rate), Limit: int(s.Limit), Canary: int(s.Canary), AbortAt: int(s.AbortAt), DryRun: s.DryRun,
	}
	selector := s.Selector
	selector.Topics, selector.All = nil, false // they are in the configuration; a filter that is empty chooses all
	convert(selector, &o.Filter)
	o.Filter.Reason = ContractReason(selector.Reason)
	if s.Action != v1alpha1.ActionReplay {
		o.Action, o.Rate = spec.ReplayAction(strings.ToLower(string(s.Action))), 0
	}
	return o
}

// ConfigMap holds the files that the Job loads.
func (r Replay) ConfigMap() *corev1ac.ConfigMapApplyConfiguration {
	c, _ := r.file()
	return files(r.DeadLetterReplay, ComponentReplay, ReplayName(r.DeadLetterReplay), map[string]string{keyConfig: render(c), keyRequest: render(r.request())})
}

// NetworkPolicy lets the operator read the progress from the Job's pod.
func (r Replay) NetworkPolicy(operatorNamespace string) *networkingv1ac.NetworkPolicyApplyConfiguration {
	return networkPolicy(r.DeadLetterReplay, ComponentReplay, ReplayName(r.DeadLetterReplay), operatorNamespace)
}

// Job runs the replay. The pod that replaces an evicted one continues it; refused files end it. Errors wrap
// [ErrPodTemplate].
func (r Replay) Job(p Platform) (*batchv1ac.JobApplyConfiguration, error) {
	template, err := r.template(p,
		"/dispatcher", "dead", "replay", "-f", configFile, "--request", requestDir+"/"+keyRequest, "--listen", fmt.Sprintf(":%d", Port))
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
	configMap := *r.ConfigMap().Name
	base := podTemplate(r.DeadLetterReplay, p, ComponentReplay, configMap, r.Refs())
	field, users := "Outbox "+r.Outbox.Name+": spec.replayLogin.podTemplate", r.Outbox.Spec.ReplayLogin.PodTemplate
	if d := r.Dispatcher; d != nil {
		base.Spec.ImagePullSecrets = nil
		base.Spec.WithServiceAccountName(accountName(d)).WithImagePullSecrets(pullSecrets(d, p)...)
		if users == nil {
			field, users = "spec.pods.template of OutboxDispatcher "+d.Name, d.Spec.Pods.Template
		}
	}
	base.Spec.WithVolumes(corev1ac.Volume().WithName(volumeRequest).WithConfigMap(corev1ac.ConfigMapVolumeSource().
		WithName(configMap).WithItems(corev1ac.KeyToPath().WithKey(keyRequest).WithPath(keyRequest))))
	container(base).WithVolumeMounts(mount(volumeRequest, requestDir))
	template, err := jobTemplate(base, field, users, command...)
	if err == nil {
		p.inherit(r.DeadLetterReplay, template)
	}
	return template, err
}

// jobTemplate lays the user's template over the base, without sidecars, which would keep the Job from ending (a
// sidecar among the initContainers stays), and without probes.
func jobTemplate(base *corev1ac.PodTemplateSpecApplyConfiguration, field string, users *runtime.RawExtension, command ...string) (*corev1ac.PodTemplateSpecApplyConfiguration, error) {
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
