package outboxdispatcher

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// rolling is a rollout whose new pod sees something else than those from before.
func rolling(change func(*status.Status)) func(*observed) {
	return func(o *observed) {
		o.pods, o.sets = append(o.pods, runningPod("c")), []types.UID{"old", "old", "new"}
		for i, set := range o.sets {
			o.pods[i].OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", UID: set, Controller: ptr.To(true)}}
			o.pods[i].CreationTimestamp = metav1.Unix([]int64{1, 9, 5}[i], 0) // the second was evicted, and made again
		}
		o.deployment.Status.Replicas, o.deployment.Status.UpdatedReplicas = 3, 1
		o.deployment.Status.Conditions[0].Reason = "ReplicaSetUpdated"
		fresh := podStatus()
		change(&fresh)
		o.statuses = append(o.statuses, fresh)
	}
}

// While some pods deliver, Ready is True, whatever others see. CONTRACT: C-101
func TestReadyDespiteTrouble(t *testing.T) {
	checkConditions(t, map[string]conditionsCase{
		"a new pod cannot log in": {rolling(func(s *status.Status) {
			s.Source, s.Schema.State = status.Link{State: status.Unreachable, Reason: "AuthenticationFailed", Message: "no"}, "Unknown"
		}), yes, api.ReasonDeliveringDespiteTrouble, []string{"SourceReachable=False/AuthenticationFailed", "WorkloadAvailable=False/PartlyAvailable", "Reconciling=True/AuthenticationFailed"}, nil},
		"a new pod finds an older schema": {rolling(func(s *status.Status) { s.Schema = status.Schema{State: "TooOld", Message: "migrate"} }),
			yes, api.ReasonDeliveringDespiteTrouble, []string{"SchemaReady=False/TooOld", "WorkloadAvailable=False/PartlyAvailable", "Reconciling=True/TooOld"}, nil},
		"a new pod has another destination, which is down": {rolling(func(s *status.Status) { s.Sink = down }),
			yes, api.ReasonDeliveringDespiteTrouble, []string{"SinkReachable=False/ConnectionFailed", "WorkloadAvailable=False/PartlyAvailable", "Reconciling=True/ConnectionFailed"}, nil},
		"the destination is down in a rollout": {func(o *observed) {
			rolling(func(s *status.Status) { s.Sink = down })(o)
			o.statuses[1].Sink = down
		}, no, api.ReasonConnectionFailed, nil, nil},
		"a new pod knows nothing yet": {rolling(func(s *status.Status) { *s = status.Status{} }),
			yes, api.ReasonDelivering, []string{"WorkloadAvailable=True/Available", "Reconciling=True/Progressing"}, nil},
		"a new pod's image cannot be pulled": {func(o *observed) {
			rolling(func(s *status.Status) { *s = status.Status{} })(o)
			o.statuses, o.sets = o.statuses[:2], o.sets[:2]
			o.pods[2].Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}}
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"WorkloadAvailable=False/PartlyAvailable", "Reconciling=True/ImagePullFailed"}, nil},
		"new pods refuse an expression": {func(o *observed) {
			o.problem = problem.Stalling(api.WorkloadAvailableCondition, api.ReasonInvalidPipeline, "x")
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"Stalled=True/InvalidPipeline", "WorkloadAvailable=False/InvalidPipeline"}, nil},
		"one of two pods cannot reach the database": {func(o *observed) { o.statuses[0].Source = down },
			yes, api.ReasonDeliveringDespiteTrouble, []string{"SourceReachable=False/ConnectionFailed", "WorkloadAvailable=True/Available"}, []string{"Reconciling"}},
		"the old pods see the database down, and the new one does not": {func(o *observed) {
			rolling(func(*status.Status) {})(o)
			o.statuses[0].Source, o.statuses[1].Source = down, down
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"SourceReachable=False/ConnectionFailed", "WorkloadAvailable=True/Available", "Reconciling=True/Progressing"}, nil},
		"two revisions of one second": {func(o *observed) {
			rolling(func(s *status.Status) { s.Source = down })(o)
			for i := range o.pods {
				o.pods[i].CreationTimestamp = metav1.Unix(1, 0)
			}
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"WorkloadAvailable=False/PartlyAvailable", "Reconciling=True/ConnectionFailed"}, nil},
		"a Secret is gone, and the database is down": {func(o *observed) {
			o.gone = problem.Waiting(api.ReferencesResolvedCondition, api.ReasonSecretNotFound, "x")
			o.statuses[0].Source, o.statuses[1].Source = down, down
		}, no, api.ReasonConnectionFailed, []string{"ReferencesResolved=False/SecretNotFound"}, nil},
		"no pod works: one misses the database, the other the schema": {func(o *observed) { o.statuses[0].Source, o.statuses[1].Schema.State = down, "TooOld" },
			no, api.ReasonConnectionFailed, nil, nil},
	})
}

// A rollout is Stalled at its deadline, for the cause that is known; that of a template before says nothing of the next one.
func TestDeadlineOfARollout(t *testing.T) {
	late := func(o *observed) {
		rolling(func(*status.Status) {})(o)
		o.deployment.Status.Conditions[0].Status, o.deployment.Status.Conditions[0].Reason = corev1.ConditionFalse, progressDeadlineExceeded
	}
	checkConditions(t, map[string]conditionsCase{
		"the reason is unknown": {late, yes, api.ReasonDeliveringDespiteTrouble, []string{"Stalled=True/ProgressDeadlineExceeded"}, []string{"Reconciling"}},
		"a Secret is missing": {func(o *observed) {
			late(o)
			o.missing = problem.Waiting(api.ReferencesResolvedCondition, api.ReasonSecretNotFound, "x")
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"Stalled=True/SecretNotFound"}, []string{"Reconciling"}},
		"the spec was edited since": {func(o *observed) {
			late(o)
			o.deployment.Generation++
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"Reconciling=True/Progressing"}, []string{"Stalled"}},
	})
}

// A pod of a template before that refuses its files says nothing of the newest ones.
func TestPodsOfTheNewestTemplateRefuse(t *testing.T) {
	template := func(files string) corev1.PodSpec {
		return corev1.PodSpec{Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: files}}}}}}
	}
	d, pod := &appsv1.Deployment{}, corev1.Pod{Spec: template("new")}
	d.Spec.Template.Spec = template("new")
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: desired.Container, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: exitConfig, Message: "sink.kafka.brokers is missing"}}}}
	if p := refusal(d, []corev1.Pod{pod}, time.Now()); p == nil || p.Reason != api.ReasonInvalidConfiguration {
		t.Errorf("of the newest template: %+v", p)
	}
	pod.Spec = template("old")
	if p := refusal(d, []corev1.Pod{pod}, time.Now()); p != nil {
		t.Errorf("of a template before: %+v", p)
	}
}

// While pods may still claim, Ready does not say that nothing is claimed.
func TestPausingIsNotPausedWhilePodsClaim(t *testing.T) {
	o := well()
	o.obd.Spec.State = api.StatePaused
	o.statuses[0].State, o.statuses[1].State = "Paused", "Paused"
	if c := ready(o, nil); !strings.HasPrefix(c.Message, "Nothing is claimed") {
		t.Errorf("paused: %q", c.Message)
	}
	o.statuses[1].State = "Running"
	if c := ready(o, nil); !strings.HasPrefix(c.Message, "Pods stop claiming") {
		t.Errorf("while one claims: %q", c.Message)
	}
}

// Each try of a ReplicaSet has another name for the pod, which no message may have.
func TestRefusedPods(t *testing.T) {
	o := well()
	o.deployment.Status.Conditions = append(o.deployment.Status.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue,
		Message: `pods "orders-dispatcher-6d4cf56db6-x7k2p" is forbidden: exceeded quota: team`})
	const want = "Pods cannot be created: a pod is forbidden: exceeded quota: team."
	if got := podsRefused(o.deployment); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
