package outboxdispatcher

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/operatortest"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// well is what a pass sees when all is well, with two replicas.
func well() observed {
	return observed{
		obd: &api.OutboxDispatcher{
			ObjectMeta: metav1.ObjectMeta{Name: "orders", Namespace: "shop", Generation: 3},
			Spec:       spec.Dispatcher{Replicas: ptr.To[int32](2)},
		},
		migration: migrate.Migration{State: migrate.Succeeded},
		deployment: &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Generation: 1},
			Status: appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2,
				Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: newReplicaSetAvailable}}},
		},
		pods:     []corev1.Pod{runningPod("a"), runningPod("b")},
		statuses: []status.Status{podStatus(), podStatus()},
	}
}

func podStatus() status.Status {
	return status.Status{
		Source:  status.Link{State: status.Reachable},
		Schema:  status.Schema{State: "Ready"},
		Sink:    status.Link{State: status.Reachable},
		Backlog: &status.Backlog{ObservedAt: time.Unix(1, 0)},
		Data:    &status.Data{ObservedAt: time.Unix(1, 0)},

		OldestTransaction: &status.OldestTransaction{Kind: status.Session, Name: "pid 17 (app)", Seconds: 3},
	}
}

// oldest lets one pod see what holds vacuum back.
func oldest(kind status.TransactionKind, seconds float64) func(*observed) {
	return func(o *observed) {
		o.statuses[1].OldestTransaction = &status.OldestTransaction{Kind: kind, Name: "it's", Seconds: seconds}
	}
}

func runningPod(name string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"}}
}

// schemas lets all pods see the schema so.
func schemas(o *observed, state string) {
	for i := range o.statuses {
		o.statuses[i].Schema.State = state
	}
}

func noDeployment(o *observed) { o.deployment, o.pods, o.statuses = nil, nil, nil }

// conditionsCase is a change of what a pass sees, and what the conditions say of it.
type conditionsCase struct {
	change func(*observed)
	status metav1.ConditionStatus // of Ready
	reason string                 // of Ready
	also   []string               // other conditions, as Type=Status/Reason
	absent []string
}

const no, yes, unknown = metav1.ConditionFalse, metav1.ConditionTrue, metav1.ConditionUnknown

// unpulled is a migration whose pod cannot start.
var unpulled = migrate.Migration{State: migrate.Running, Reason: api.ReasonImagePullFailed, Detail: "check its name"}

var down = status.Link{State: status.Unreachable, Reason: "ConnectionRefused", Message: "start it"}

func checkConditions(t *testing.T, cases map[string]conditionsCase) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := well()
			c.change(&o)
			ready := api.ReadyCondition + "=" + string(c.status) + "/" + c.reason
			operatortest.CheckConditions(t, conditions(o), append([]string{ready}, c.also...), c.absent)
		})
	}
}

// CONTRACT: C-101
func TestConditionsFollowWhatPodsReport(t *testing.T) {
	checkConditions(t, map[string]conditionsCase{
		"well": {func(*observed) {}, yes, api.ReasonDelivering,
			[]string{"ReferencesResolved=True/Resolved", "SchemaReady=True/UpToDate", "WorkloadAvailable=True/Available", "DeadLettersPresent=False/NoDeadLetters", "VacuumHeldBack=False/NotHeldBack", "DataHealthy=True/Healthy"},
			[]string{"Reconciling", "Stalled"}},
		"a pod has not heard of the pause": {func(o *observed) {
			o.obd.Spec.State, o.statuses[1].State = spec.Paused, "Running"
		}, yes, api.ReasonPausing, []string{"Reconciling=True/Progressing"}, nil},
		"paused": {func(o *observed) { o.obd.Spec.State = spec.Paused }, yes, api.ReasonPaused, nil, nil},
		"paused and the database down": {func(o *observed) {
			o.obd.Spec.State = spec.Paused
			o.statuses[0].Source, o.statuses[1].Source = down, down
		},
			no, api.ReasonConnectionFailed, nil, []string{"Reconciling", "Stalled"}},
		"scaled to zero": {func(o *observed) {
			o.obd.Spec.Replicas = ptr.To[int32](0)
			o.pods, o.statuses, o.deployment.Status = nil, nil, appsv1.DeploymentStatus{ObservedGeneration: 1}
		}, yes, api.ReasonScaledToZero, []string{"WorkloadAvailable=True/ScaledToZero", "SourceReachable=Unknown/NotObserved", "DeadLettersPresent=Unknown/NotObserved"}, []string{"Reconciling"}},
		"first migration": {func(o *observed) { noDeployment(o); o.migration.State = migrate.Running },
			no, api.ReasonMigrating, []string{"Reconciling=True/Migrating", "WorkloadAvailable=False/Progressing"}, nil},
		"first migration failed": {func(o *observed) { noDeployment(o); o.migration.State = migrate.Failed },
			no, api.ReasonMigrationFailed, []string{"Reconciling=True/MigrationFailed", "SchemaReady=False/MigrationFailed"}, nil},
		"later migration runs": {func(o *observed) { o.migration.State = migrate.Running },
			yes, api.ReasonDelivering, []string{"SchemaReady=True/UpToDate", "WorkloadAvailable=True/Available", "Reconciling=True/Migrating"}, nil},
		"later migration failed": {func(o *observed) { o.migration.State = migrate.Failed },
			yes, api.ReasonDelivering, []string{"SchemaReady=True/UpToDate", "Reconciling=True/MigrationFailed"}, nil},
		"first migration that cannot pull its image": {func(o *observed) { noDeployment(o); o.migration = unpulled },
			no, api.ReasonImagePullFailed, []string{"SchemaReady=False/ImagePullFailed", "Reconciling=True/ImagePullFailed"}, []string{"Stalled"}},
		"for longer than a rollout may": {func(o *observed) { noDeployment(o); o.migration, o.migration.Late = unpulled, true },
			no, api.ReasonImagePullFailed, []string{"Stalled=True/ImagePullFailed"}, []string{"Reconciling"}},
		"first migration that waits for files for longer than a rollout may": {func(o *observed) {
			noDeployment(o)
			o.migration = migrate.Migration{State: migrate.Running, Detail: "Its pod waits for files: x", Late: true}
		}, no, api.ReasonProgressDeadlineExceeded, []string{"Stalled=True/ProgressDeadlineExceeded"}, nil},
		"first migration that waits for a Secret": {func(o *observed) {
			noDeployment(o)
			o.migration.State, o.missing = migrate.Running, problem.Waiting(api.ReferencesResolvedCondition, api.ReasonSecretNotFound, "x")
		}, no, api.ReasonSecretNotFound, []string{"Reconciling=True/SecretNotFound"}, nil},
		"first migration that exceeds its memory limit": {func(o *observed) {
			noDeployment(o)
			o.migration = migrate.Migration{State: migrate.Failed, Reason: api.ReasonOOMKilled, Detail: "raise the limit"}
		}, no, api.ReasonOOMKilled, []string{"SchemaReady=False/OOMKilled", "Reconciling=True/OOMKilled"}, nil},
		"later migration that cannot pull its image": {func(o *observed) { o.migration = unpulled }, yes, api.ReasonDeliveringDespiteTrouble,
			[]string{"SchemaReady=True/UpToDate", "WorkloadAvailable=False/PartlyAvailable", "Reconciling=True/ImagePullFailed"}, nil},
		"pods have just started, and have not responded yet": {func(o *observed) { o.statuses = nil }, unknown, api.ReasonNotObserved,
			[]string{"SourceReachable=Unknown/NotObserved", "Reconciling=True/Progressing"}, nil},
		"the first pod works before the Deployment counts it": {func(o *observed) {
			o.deployment.Status.AvailableReplicas, o.deployment.Status.Conditions[0].Reason = 0, "ReplicaSetUpdated"
		}, yes, api.ReasonDelivering, []string{"WorkloadAvailable=False/Progressing"}, nil},
		"schema too old while it migrates": {func(o *observed) { o.migration.State = migrate.Running; schemas(o, "TooOld") },
			no, api.ReasonMigrating, []string{"SchemaReady=False/Migrating"}, nil},
		"schema too new, whatever migrates": {func(o *observed) { o.migration.State = migrate.Failed; schemas(o, "TooNew") },
			no, api.ReasonTooNew, []string{"SchemaReady=False/TooNew"}, nil},
		"new pods carry other migrations of the same number": {func(o *observed) { o.migration.State = migrate.Failed; o.statuses[1].Schema.State = "Differs" },
			yes, api.ReasonDeliveringDespiteTrouble, []string{"SchemaReady=False/Differs", "Reconciling=True/MigrationFailed"}, nil},
		"no migration": {func(o *observed) { o.migration = migrate.Migration{}; schemas(o, "Missing") },
			no, api.ReasonMissing, nil, []string{"Reconciling"}},
		"database before schema and workload": {func(o *observed) {
			o.statuses[0].Source, o.statuses[1].Source = down, down
			schemas(o, "TooOld")
			o.deployment.Status.AvailableReplicas = 0
		}, no, api.ReasonConnectionFailed, []string{"WorkloadAvailable=False/Unavailable"}, nil},
		"some claims are refused": {func(o *observed) {
			o.statuses[0].Source = status.Link{State: status.Refusing, Reason: status.ClaimsRefused, Message: "some"}
			o.statuses[1].Source = o.statuses[0].Source
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"SourceReachable=False/ClaimsRefused"}, nil},
		"all claims are refused": {func(o *observed) {
			o.statuses[0].Source = status.Link{State: status.Refusing, Reason: status.ClaimsRefused, Message: "any", Stopped: true}
			o.statuses[1].Source = o.statuses[0].Source
		}, no, api.ReasonClaimsRefused, []string{"SourceReachable=False/ClaimsRefused"}, nil},
		"one pod has not tried yet": {func(o *observed) {
			o.statuses[0].Source.State, o.statuses[0].Sink.State = status.Unknown, status.Unknown
		},
			yes, api.ReasonDelivering, nil, nil},
		"no pod has tried the sink": {func(o *observed) { o.statuses[0].Sink.State, o.statuses[1].Sink.State = status.Unknown, status.Unknown },
			unknown, api.ReasonNotTried, []string{"SinkReachable=Unknown/NotTried"}, nil},
		"one pod sees the sink refuse": {func(o *observed) {
			o.statuses[1].Sink = status.Link{State: status.Refusing, Message: "it responds 500"}
		},
			no, api.ReasonRefusing, []string{"SinkReachable=False/Refusing"}, nil},
		"unreachable is worse than refusing": {func(o *observed) {
			o.statuses[0].Sink, o.statuses[1].Sink = status.Link{State: status.Refusing}, down
		}, no, api.ReasonConnectionFailed, nil, nil},
		"pods do not respond, as they end again and again": {func(o *observed) {
			o.statuses, o.silent, o.deployment.Status.AvailableReplicas = nil, 2, 0
			for i := range o.pods {
				o.pods[i].Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "dispatcher", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
			}
		}, no, api.ReasonCrashLoop, []string{"SourceReachable=Unknown/NotObserved: No dispatcher pod runs yet."}, nil},
		"pods do not respond": {func(o *observed) { o.statuses, o.silent = nil, 2 }, unknown, api.ReasonNotObserved,
			[]string{"SourceReachable=Unknown/NotObserved", "SchemaReady=True/UpToDate"}, []string{"Reconciling"}},
		"a Secret is gone that a new pod misses too, and none works": {func(o *observed) {
			o.missing = problem.Waiting(api.ReferencesResolvedCondition, api.ReasonSecretNotFound, "x")
			o.gone, o.statuses[0].Source, o.statuses[1].Source = o.missing, down, down
		}, no, api.ReasonSecretNotFound, nil, nil},
		"pods are starting": {func(o *observed) {
			o.pods, o.statuses = nil, nil
			o.deployment.Status.AvailableReplicas, o.deployment.Status.Conditions = 0, nil
		}, no, api.ReasonProgressing, []string{"WorkloadAvailable=False/Progressing", "Reconciling=True/Progressing"}, nil},
		"the image of the first pods cannot be pulled": {func(o *observed) {
			o.statuses, o.deployment.Status.AvailableReplicas, o.deployment.Status.Conditions = nil, 0, nil
			o.pods = []corev1.Pod{{Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}}}}
		}, no, api.ReasonImagePullFailed, []string{"WorkloadAvailable=False/ImagePullFailed", "Reconciling=True/ImagePullFailed"}, nil},
		"the image of a rollout cannot be pulled, and no pod from before is ready": {func(o *observed) {
			o.statuses, o.deployment.Status.AvailableReplicas, o.deployment.Status.UpdatedReplicas, o.deployment.Status.Conditions = nil, 0, 1, nil
			o.pods = []corev1.Pod{{Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}}}}
		}, no, api.ReasonImagePullFailed, []string{"WorkloadAvailable=False/ImagePullFailed"}, nil},
		"rolling out next to pods that deliver": {func(o *observed) {
			o.deployment.Status.UpdatedReplicas, o.deployment.Status.Replicas = 1, 3
			o.deployment.Status.Conditions[0].Reason = "ReplicaSetUpdated"
		}, yes, api.ReasonDelivering, []string{"WorkloadAvailable=True/Available", "Reconciling=True/Progressing"}, nil},
		"the rollout is stuck": {func(o *observed) {
			o.deployment.Status.UpdatedReplicas, o.deployment.Status.Replicas = 1, 3
			o.deployment.Status.Conditions[0].Status, o.deployment.Status.Conditions[0].Reason = corev1.ConditionFalse, "ProgressDeadlineExceeded"
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"WorkloadAvailable=False/Unavailable"}, nil},
		"pods are refused": {func(o *observed) {
			o.deployment.Status.AvailableReplicas, o.pods, o.statuses = 0, nil, nil
			o.deployment.Status.Conditions = append(o.deployment.Status.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota"})
		}, no, api.ReasonUnavailable, nil, nil},
		"a new pod is refused": {func(o *observed) {
			o.deployment.Status.UpdatedReplicas = 0
			o.deployment.Status.Conditions = append(o.deployment.Status.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: `pods "orders-dispatcher-x-y" is forbidden: exceeded quota`})
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"WorkloadAvailable=False/Unavailable", "Reconciling=True/Progressing"}, nil},
		"no pod has started": {func(o *observed) {
			o.pods[0].Status.Phase, o.pods[1].Status.Phase, o.statuses = corev1.PodPending, corev1.PodPending, nil
		},
			unknown, api.ReasonNotObserved, []string{"ReferencesResolved=Unknown/NotObserved"}, []string{"Reconciling"}},
		"a migration has started": {func(o *observed) { o.migration.Pods, o.pods = o.pods, nil }, yes, api.ReasonDelivering, []string{"ReferencesResolved=True/Resolved"}, nil},
		"waits for its turn":      {func(o *observed) { o.queues = true }, yes, api.ReasonDelivering, []string{"Reconciling=True/Progressing: It waits for other dispatchers to take what the operator's upgrade changes; its pods stay as they are."}, nil},
		"resumes":                 {func(o *observed) { o.state.resumes = true }, no, api.ReasonResuming, []string{"Reconciling=True/Progressing"}, nil},
		"annotated late":          {func(o *observed) { o.state.late = "late" }, yes, api.ReasonDelivering, []string{"Reconciling=True/Progressing"}, nil},
		"a Secret is missing": {func(o *observed) {
			o.missing = problem.Waiting(api.ReferencesResolvedCondition, api.ReasonSecretNotFound, "")
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"ReferencesResolved=False/SecretNotFound", "WorkloadAvailable=True/Available", "Reconciling=True/SecretNotFound"}, []string{"Stalled"}},
		"a foreign object, and the database down": {func(o *observed) {
			o.problem = problem.Stalling(api.WorkloadAvailableCondition, api.ReasonForeignObject, "")
			o.statuses[0].Source, o.statuses[1].Source = down, down
		}, no, api.ReasonForeignObject, []string{"Stalled=True/ForeignObject", "SourceReachable=False/ConnectionFailed"}, []string{"Reconciling"}},
		"one pod pauses a topic": {func(o *observed) {
			o.statuses[1].PausedTopics = []status.PausedTopic{{Topic: "a", Link: status.Link{State: status.Refusing, Reason: "Refusing", Message: "it responds 500"}}}
		}, yes, api.ReasonDelivering, []string{"TopicsPaused=True/TopicsPaused", "SinkReachable=True/Connected", "WorkloadAvailable=True/Available"}, []string{"Reconciling", "Stalled"}},
		"every pod holds every topic that has events": {func(o *observed) {
			for i := range o.statuses {
				o.statuses[i].AllTopicsPaused = true
				o.statuses[i].PausedTopics = []status.PausedTopic{{Topic: "a", Link: status.Link{State: status.Refusing, Reason: "Refusing", Message: "it responds 500"}}}
			}
		}, no, api.ReasonAllTopicsPaused, []string{"TopicsPaused=True/AllTopicsPaused", "SinkReachable=True/Connected"}, nil},
		"every topic that has events waits for a verified consumer": {func(o *observed) {
			for i := range o.statuses {
				o.statuses[i].AllTopicsPaused = true
				o.statuses[i].Gated = []status.GatedTopic{{Topic: "a", EventType: "order.placed"}}
			}
		}, no, api.ReasonConsumersNotVerified, []string{"TopicsPaused=True/ConsumersNotVerified", "SinkReachable=True/Connected"}, nil},
		"one of two pods holds every topic": {func(o *observed) {
			o.statuses[0].AllTopicsPaused, o.statuses[0].PausedTopics = true, []status.PausedTopic{{Topic: "a"}}
		}, yes, api.ReasonDelivering, []string{"TopicsPaused=True/TopicsPaused"}, nil},
		"one of two pods restarts": {func(o *observed) {
			o.statuses, o.deployment.Status.AvailableReplicas = o.statuses[:1], 1
		}, yes, api.ReasonDelivering, []string{"WorkloadAvailable=False/PartlyAvailable"}, []string{"Reconciling", "Stalled"}},
		"one of two pods is silent": {func(o *observed) { o.statuses, o.silent = o.statuses[:1], 1 },
			yes, api.ReasonDelivering, []string{"WorkloadAvailable=False/PartlyAvailable"}, []string{"Reconciling", "Stalled"}},
		"a third pod is starting": {func(o *observed) {
			o.obd.Spec.Replicas = ptr.To[int32](3)
			o.deployment.Status.Conditions[0].Reason = "ReplicaSetUpdated"
		}, yes, api.ReasonDelivering, []string{"WorkloadAvailable=False/Progressing", "Reconciling=True/Progressing"}, nil},
		"a third pod is refused": {func(o *observed) {
			o.obd.Spec.Replicas = ptr.To[int32](3)
			o.deployment.Status.Conditions = append(o.deployment.Status.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota"})
		}, yes, api.ReasonDeliveringDespiteTrouble, []string{"WorkloadAvailable=False/Unavailable", "Reconciling=True/Progressing"}, nil},
		"paused, and the destination is down": {func(o *observed) {
			o.obd.Spec.State, o.statuses[0].Sink = spec.Paused, down
		}, yes, api.ReasonPaused, []string{"SinkReachable=False/ConnectionFailed"}, nil},
		"one pod pauses a topic, the other sees the sink down": {func(o *observed) {
			o.statuses[0].Sink, o.statuses[1].PausedTopics = down, []status.PausedTopic{{Topic: "a"}}
		}, no, api.ReasonConnectionFailed, []string{"SinkReachable=False/ConnectionFailed"}, nil},
		"the data were not looked at yet": {func(o *observed) { o.statuses[0].Data, o.statuses[1].Data = nil, nil },
			yes, api.ReasonDelivering, []string{"DataHealthy=Unknown/NotObserved"}, nil},
		"topics without a dispatcher": {func(o *observed) {
			o.statuses[1].Data = orphan(o, status.OrphanTopic{Unserved: 1, Abandoned: 1})
		}, yes, api.ReasonDelivering, []string{"DataHealthy=False/TopicsUnserved"}, []string{"Reconciling", "Stalled"}},
		"leases of workers that are gone": {func(o *observed) {
			o.statuses[0].Data = orphan(o, status.OrphanTopic{Abandoned: 1})
		}, yes, api.ReasonDelivering, []string{"DataHealthy=False/LeasesAbandoned"}, nil},
		"rows of an adopted table wait there": {func(o *observed) {
			o.statuses[1].Data = &status.Data{ObservedAt: time.Unix(2, 0), Adoptions: []status.AdoptedRows{{Adoption: "orders", State: "waiting", Rows: 3}}}
		}, yes, api.ReasonDelivering, []string{"DataHealthy=False/AdoptedRowsLeft"}, nil},
		"a pod has found rows that differ from the journal": {func(o *observed) {
			o.statuses[1].Journal = &status.Journal{Differences: 2}
		}, yes, api.ReasonDelivering, []string{"DataHealthy=False/JournalDiffers"}, nil},
		"a journal without a difference": {func(o *observed) { o.statuses[1].Journal = &status.Journal{Records: 9} }, yes, api.ReasonDelivering, nil, nil},
		"topics of another namespace without a dispatcher": {func(o *observed) {
			o.statuses[0].Data = &status.Data{ObservedAt: time.Unix(2, 0), Unserved: 1, OrphanTopics: []status.OrphanTopic{{Namespace: "shpo", Unserved: 1}}}
		}, yes, api.ReasonDelivering, []string{"DataHealthy=True/OthersUnserved"}, nil},
		"a pod has seen orphans, and another none since": {func(o *observed) {
			o.statuses[0].Data = &status.Data{Unserved: 1}
		}, yes, api.ReasonDelivering, []string{"DataHealthy=True/Healthy"}, nil},
		"vacuum was not looked after yet": {func(o *observed) { o.statuses[0].OldestTransaction, o.statuses[1].OldestTransaction = nil, nil },
			yes, api.ReasonDelivering, []string{"VacuumHeldBack=Unknown/NotObserved"}, nil},
		"an old transaction": {oldest(status.Session, 901), yes, api.ReasonDelivering, []string{"VacuumHeldBack=True/OldTransaction"}, []string{"Reconciling", "Stalled"}},
		"a long transaction": {oldest(status.Session, 900), yes, api.ReasonDelivering, []string{"VacuumHeldBack=False/NotHeldBack"}, nil},
		"a prepared transaction": {oldest(status.PreparedTransaction, 1e6), yes, api.ReasonDelivering,
			[]string{"VacuumHeldBack=True/PreparedTransaction"}, nil},
		"a replication slot": {oldest(status.ReplicationSlot, 1e6), yes, api.ReasonDelivering, []string{"VacuumHeldBack=True/ReplicationSlot"}, nil},
		"a standby":          {oldest(status.Standby, 1e6), yes, api.ReasonDelivering, []string{"VacuumHeldBack=True/StandbyFeedback"}, nil},
		"dead rows": {func(o *observed) {
			o.statuses[1].Backlog = &status.Backlog{ObservedAt: time.Unix(2, 0), Counts: status.Counts{Dead: 1}}
		},
			yes, api.ReasonDelivering, []string{"DeadLettersPresent=True/DeadLetters"}, nil},
	})
}

// What both pods report is the condition of its kind and Ready's, with the remedy, until they report that it is well.
//
// CONTRACT: C-101
func TestTroubleOfPodsHasItsReasonAndRemedy(t *testing.T) {
	unreachable := func(reason string) status.Link {
		return status.Link{State: status.Unreachable, Reason: reason, Message: "do so"}
	}
	for kind, reasons := range map[string]map[string]status.Status{
		api.SourceReachableCondition: {
			api.ReasonAuthenticationFailed: {Source: unreachable("AuthenticationFailed")},
			api.ReasonPermissionDenied:     {Source: unreachable("PermissionDenied")},
			api.ReasonConnectionFailed:     {Source: unreachable("ConnectionRefused")},
			api.ReasonDatabaseNotFound:     {Source: unreachable("DatabaseNotFound")},
			api.ReasonCertificateInvalid:   {Source: unreachable("CertificateInvalid")},
			api.ReasonOutcomesRefused:      {Source: status.Link{State: status.Refusing, Reason: status.OutcomesRefused, Message: "do so"}},
		},
		api.SchemaReadyCondition: {
			api.ReasonMissing:         {Schema: status.Schema{State: "Missing", Message: "do so"}},
			api.ReasonTooOld:          {Schema: status.Schema{State: "TooOld", Message: "do so"}},
			api.ReasonTooNew:          {Schema: status.Schema{State: "TooNew", Message: "do so"}},
			api.ReasonDiffers:         {Schema: status.Schema{State: "Differs", Message: "do so"}},
			api.ReasonSequencesBehind: {Schema: status.Schema{State: "SequencesBehind", Message: "do so"}},
		},
		api.SinkReachableCondition: {
			api.ReasonCallsStuck:           {Sink: unreachable(status.CallsStuck)},
			api.ReasonRefusing:             {Sink: status.Link{State: status.Refusing, Reason: "Refusing", Message: "do so"}},
			api.ReasonConnectionFailed:     {Sink: unreachable("ConnectionRefused")},
			api.ReasonCertificateInvalid:   {Sink: unreachable("CertificateInvalid")},
			api.ReasonAuthenticationFailed: {Sink: unreachable("AuthenticationFailed")},
		},
	} {
		for reason, ill := range reasons {
			o := well()
			for i := range o.statuses {
				s := &o.statuses[i]
				s.Source, s.Schema, s.Sink = cmp.Or(ill.Source, s.Source), cmp.Or(ill.Schema, s.Schema), cmp.Or(ill.Sink, s.Sink)
			}
			for _, kind := range []string{kind, api.ReadyCondition} {
				c := meta.FindStatusCondition(conditions(o), kind)
				need.That(t, c != nil && c.Status == no && c.Reason == reason && strings.Contains(strings.ToLower(c.Message), "do so"), "%s of %s: %+v", kind, reason, c)
			}
		}
	}
}

// Pods that disagree must not make a message flicker with the order of their statuses.
func TestMessagesDoNotDependOnTheOrder(t *testing.T) {
	o := well()
	o.statuses[0].Source = status.Link{State: status.Unreachable, Message: "b"}
	o.statuses[1].Source = status.Link{State: status.Unreachable, Message: "a"}
	o.statuses[0].Schema, o.statuses[1].Schema = status.Schema{State: "TooOld", Message: "d"}, status.Schema{State: "TooOld", Message: "c"}
	before := conditions(o)
	slices.Reverse(o.statuses)
	after := conditions(o)
	need.WantAll(t, after, "%v, and in the other order %v", before)
}

// What a person must know is in the message, whatever the names, and nothing that changes by itself.
func TestMessagesNameWhatAPersonMustKnow(t *testing.T) {
	message := func(o observed, kind string) string { return meta.FindStatusCondition(conditions(o), kind).Message }
	o := well()
	paused := func(topics ...string) (all []status.PausedTopic) {
		for _, topic := range topics {
			all = append(all, status.PausedTopic{Topic: topic, Link: status.Link{State: status.Refusing, Message: "it refuses " + topic}})
		}
		return all
	}
	o.statuses[0].PausedTopics, o.statuses[1].PausedTopics = paused("b"), paused("c", "a")
	const remedy = "Fix what receives them; they are tried again by themselves."
	if got, want := message(o, api.TopicsPausedCondition), `Paused, while others are delivered: "a", "b", "c". For "a": It refuses a. `+remedy; !strings.HasSuffix(got, want) {
		t.Errorf("three paused topics: %s\nwant %s", got, want)
	}
	o.statuses[0].PausedTopics = paused("b", "e", "d", "f", "g")
	got := message(o, api.TopicsPausedCondition)
	need.That(t, strings.Contains(got, `: "a", "b", "c", "d", "e" and others. For "a": `), "seven paused topics: %s", got)
	o.statuses[0].PausedTopics = paused("b", "e", "d", "f")
	need.Want(t, got, "another number of paused topics: %s\nwant %s", message(o, api.TopicsPausedCondition))
	long := strings.Repeat("é", 255)
	o.statuses[0].PausedTopics = paused(long+"1", long+"2", long+"3", long+"4", long+"5", long+"6")
	o.statuses[1].PausedTopics = nil
	if got := message(o, api.TopicsPausedCondition); !strings.HasSuffix(got, remedy) || len(got) > problem.MaxMessage {
		t.Errorf("long names: %s", got)
	}

	for kind, want := range map[status.TransactionKind]string{
		status.Session:             "An open transaction (pid 4711 (it's)) has kept vacuum from removing rows for more than 15 minutes, so the outbox grows and gets slower. Let it end, or end it: select pg_terminate_backend(4711).",
		status.PreparedTransaction: "End it in its database: commit prepared '4711 (it''s)', or rollback prepared '4711 (it''s)'.",
		status.ReplicationSlot:     "Let its consumer catch up, or drop the slot: select pg_drop_replication_slot('4711 (it''s)').",
		status.Standby:             "End that query on the standby, or turn hot_standby_feedback off there.",
	} {
		for _, seconds := range []float64{1000, 2000} {
			o.statuses[0].OldestTransaction = &status.OldestTransaction{Kind: kind, Name: "4711 (it's)", Seconds: seconds}
			if kind == status.Session {
				o.statuses[0].OldestTransaction.Name = "pid 4711 (it's)"
			}
			got := message(o, api.VacuumHeldBackCondition)
			need.That(t, strings.HasSuffix(got, want) && strings.Contains(got, "4711"), "%s: %s\nwant %s", kind, got, want)
		}
	}

	o.obd.Spec.Namespace = "Shop"
	orphans := func(unserved int64, topics ...status.OrphanTopic) {
		o.statuses[0].Data = &status.Data{ObservedAt: time.Unix(5, 0), Unserved: unserved, Abandoned: 1, OrphanTopics: topics}
	}
	orphans(4, status.OrphanTopic{Namespace: "Shop", Topic: "a", Unserved: 1}, status.OrphanTopic{Namespace: "Shop", Topic: "b", Unserved: 3}, status.OrphanTopic{Namespace: "shpo", Topic: "c", Unserved: 1})
	unserved := message(o, api.DataHealthyCondition)
	if want := `Events are due that no dispatcher serves: topic "a" of outbox namespace "Shop", "b" of outbox namespace "Shop". Make an OutboxDispatcher for them`; !strings.HasPrefix(unserved, want) {
		t.Errorf("unserved topics: %s\nwant %s", unserved, want)
	}
	orphans(9, status.OrphanTopic{Namespace: "Shop", Topic: "a", Unserved: 7}, status.OrphanTopic{Namespace: "Shop", Topic: "b", Unserved: 2})
	need.Want(t, unserved, "other numbers: %s\nwant %s", message(o, api.DataHealthyCondition))
	orphans(0, status.OrphanTopic{Namespace: "Shop", Topic: "c", Abandoned: 1})
	if got := message(o, api.DataHealthyCondition); !strings.Contains(got, `no worker takes them over: topic "c" of outbox namespace "Shop". See whether`) {
		t.Errorf("abandoned leases: %s", got)
	}
	o.statuses[0].Data = &status.Data{ObservedAt: time.Unix(5, 0), Adoptions: []status.AdoptedRows{{Adoption: "a", State: "refused", Rows: 7}, {Adoption: "b", State: "uncounted", Rows: -1}}}
	if got := message(o, api.DataHealthyCondition); !strings.HasPrefix(got, `Rows of adopted tables are left: of "a" (refused), of "b" (uncounted). See which`) {
		t.Errorf("rows of adopted tables: %s", got)
	}

	o.statuses[0].Backlog.Dead = 1
	plain := message(o, api.DeadLettersPresentCondition)
	o.statuses[0].Backlog.DeadGroups = []status.DeadGroupExample{
		{DeadGroup: status.DeadGroup{Group: "7f3a9c21", Topic: "orders", Reason: "permanent_failure", Class: "http", Code: "422", Count: 1}},
		{DeadGroup: status.DeadGroup{Group: "00000000", Topic: "others", Reason: "poison_message", Count: 1}},
	}
	if got := message(o, api.DeadLettersPresentCondition); !strings.HasPrefix(got, plain) || strings.Contains(got, "others") ||
		!strings.Contains(got, ` The largest group is 7f3a9c21 of topic "orders": PermanentFailure http 422. Fix what the destination refuses`) {
		t.Errorf("the largest group: %s", got)
	}
	o.statuses[0].Backlog.DeadGroups = nil
	o.statuses[0].Backlog.BlockedKeys = 3
	need.Want(t, plain, "keys that do not block: %s", message(o, api.DeadLettersPresentCondition))
	o.obd.Spec.Delivery.OnDead = spec.OnDeadBlock
	if got := message(o, api.DeadLettersPresentCondition); !strings.HasPrefix(got, plain) || !strings.Contains(got, "wait behind them") || strings.Contains(plain, "behind") {
		t.Errorf("blocked keys: %s\nwithout: %s", got, plain)
	}
	o.statuses = nil
	need.Want(t, "No dispatcher pod has responded to the operator yet.", "pods that have just started: %s, want %s", message(o, api.SourceReachableCondition))
	o.statuses, o.pods = []status.Status{{}}, o.pods[:1]
	if got := message(o, api.VacuumHeldBackCondition); strings.Contains(got, "statuses the operator") {
		t.Errorf("a pod statuses, and yet: %s", got)
	}
}

// orphan is what a pod has seen of a topic of the dispatcher's namespace.
func orphan(o *observed, t status.OrphanTopic) *status.Data {
	t.Namespace = o.obd.Spec.Namespace
	return &status.Data{ObservedAt: time.Unix(2, 0), Unserved: t.Unserved, Abandoned: t.Abandoned, OrphanTopics: []status.OrphanTopic{t}}
}

// A container that keeps running has not been refused, whatever it said before.
func TestRefusalIsOver(t *testing.T) {
	now := time.Now()
	pod := corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "dispatcher",
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: exitConfig, Message: "lease is 1s; raise it (and 3 more)"}}}}}}
	for ran, want := range map[time.Duration]bool{time.Second: true, time.Minute: false} {
		pod.Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(-ran))}
		got := refusal(&appsv1.Deployment{}, []corev1.Pod{pod}, now)
		need.That(t, (got != nil) == want, "runs for %s: %v", ran, got)
	}
}

// While rows become dead there is one event in ten minutes, for each OutboxDispatcher.
func TestDeadLettersHaveOneEventInTenMinutes(t *testing.T) {
	var w warned
	a, b, began := types.NamespacedName{Name: "a"}, types.NamespacedName{Name: "b"}, time.Unix(0, 0)
	events := func(obd types.NamespacedName, after time.Duration) int {
		dead := transitions(api.OutboxDispatcherStatus{}, api.OutboxDispatcherStatus{Counts: &status.Counts{Dead: 1}}, nil)
		return len(w.seldom(obd, append(dead, kstatus.Event{Action: "Deliver"}), began.Add(after)))
	}
	for i, step := range []struct {
		obd   types.NamespacedName
		after time.Duration
		want  int
	}{{a, 0, 2}, {a, time.Second, 1}, {b, time.Second, 2}, {a, 10*time.Minute - 1, 1}, {a, 10 * time.Minute, 2}, {a, 11 * time.Minute, 1}} {
		need.Want(t, step.want, "step %d: %d events, want %d", events(step.obd, step.after), i)
	}
	w.forget(a)
	need.Want(t, 2, "made again: %d events, want 2", events(a, 11*time.Minute))
}

// CONTRACT: C-43
func TestTransitionsAreRecordedAsEvents(t *testing.T) {
	current := func(change func(*observed), dead *int64) (s api.OutboxDispatcherStatus) {
		o := well()
		change(&o)
		s.Conditions = conditions(o)
		if dead != nil {
			s.Counts = &status.Counts{Dead: *dead}
		}
		return s
	}
	fine := func(*observed) {}
	down := func(reason string) func(*observed) {
		return func(o *observed) { o.statuses[0].Source = status.Link{State: status.Unreachable, Reason: reason} }
	}
	for name, c := range map[string]struct {
		before, after api.OutboxDispatcherStatus
		want          string
	}{
		"new and well":      {api.OutboxDispatcherStatus{}, current(fine, nil), "Normal/Delivering"},
		"new and migrating": {api.OutboxDispatcherStatus{}, current(func(o *observed) { noDeployment(o); o.migration.State = migrate.Running }, nil), "Normal/Migrating Normal/Progressing"},
		"new without image": {api.OutboxDispatcherStatus{}, current(func(o *observed) { noDeployment(o); o.migration = unpulled }, nil), "Warning/ImagePullFailed Normal/Progressing"},
		"nothing changed":   {current(fine, ptr.To[int64](3)), current(fine, ptr.To[int64](3)), ""},
		"database down":     {current(fine, nil), current(down("x"), nil), "Warning/ConnectionFailed"},
		"another reason":    {current(down("x"), nil), current(down(api.ReasonAuthenticationFailed), nil), "Warning/AuthenticationFailed"},
		"database back":     {current(down("x"), nil), current(fine, nil), "Normal/Connected Normal/Delivering"},
		"not observed":      {current(fine, nil), current(func(o *observed) { o.statuses = nil }, nil), ""},
		"topics paused": {current(fine, nil), current(func(o *observed) {
			o.statuses[0].PausedTopics = []status.PausedTopic{{Topic: "a", Link: status.Link{Message: "x"}}}
		}, nil), "Warning/TopicsPaused"},
		"vacuum held back":     {current(fine, nil), current(oldest(status.Session, 1e6), nil), "Warning/OldTransaction"},
		"by something else":    {current(oldest(status.Session, 1e6), nil), current(oldest(status.Standby, 1e6), nil), "Warning/StandbyFeedback"},
		"vacuum continues":     {current(oldest(status.Session, 1e6), nil), current(fine, nil), "Normal/NotHeldBack"},
		"first dead event":     {current(fine, ptr.To[int64](0)), current(fine, ptr.To[int64](1)), "Warning/DeadLetters"},
		"another dead event":   {current(fine, ptr.To[int64](1)), current(fine, ptr.To[int64](2)), "Warning/DeadLetters"},
		"dead when first seen": {current(fine, nil), current(fine, ptr.To[int64](2)), "Warning/DeadLetters"},
		"replayed":             {current(fine, ptr.To[int64](2)), current(fine, ptr.To[int64](1)), ""},
		"paused":               {current(fine, nil), current(func(o *observed) { o.obd.Spec.State = spec.Paused }, nil), "Normal/Paused"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			seen := map[string]bool{}
			kstatus.SetConditions(&c.before.Conditions, 1, slices.Clone(c.before.Conditions)) // as an object has them
			for _, e := range transitions(c.before, c.after, c.after.Conditions) {
				got = append(got, e.Kind+"/"+e.Reason)
				need.That(t, e.Action != "" && e.Note != "" && len(e.Note) <= 1024, "event %+v lacks an action or a note, or is too long for the API", e)
				need.That(t, !seen[e.Action], "two events of one pass have the action %s", e.Action)
				seen[e.Action] = true
			}
			need.That(t, strings.Join(got, " ") == c.want, "events %v, want %s", got, c.want)
		})
	}
}

// The page of the kind has an example of each condition, as the operator writes it.
// CONTRACT: C-101
func TestExamplesOnThePage(t *testing.T) {
	delivers := well()
	delivers.gone = problem.Waiting(api.ReferencesResolvedCondition, api.ReasonSecretKeyNotFound,
		`Secret "orders-hook", which spec.sink.auth.secretRef names, has no key "token"; add the key, or name the right one.`)
	delivers.migration = migrate.Migration{State: migrate.Running, Reason: api.ReasonUnschedulable, Detail: `No node takes a pod: 0/3 nodes are available.`}
	delivers.peers = []api.OutboxDispatcher{{ObjectMeta: metav1.ObjectMeta{Name: "orders-eu"}}}
	delivers.types = []status.EventType{{Type: "order.placed"}}
	delivers.consumers = []*api.OutboxConsumer{{ObjectMeta: metav1.ObjectMeta{Name: "audit"}, Spec: api.OutboxConsumerSpec{EventTypes: []string{"payment.*"}}}}
	pod := &delivers.statuses[1]
	pod.PausedTopics = []status.PausedTopic{{Topic: "refunds", Link: status.Link{State: status.Refusing, Message: "http://orders-consumer/events responded 404 Not Found; check the path of url, and that it takes POST"}}}
	pod.Backlog = &status.Backlog{ObservedAt: time.Unix(2, 0), Counts: status.Counts{Dead: 1},
		DeadGroups: []status.DeadGroupExample{{DeadGroup: status.DeadGroup{Group: "7f3a9c21", Topic: "orders", Reason: "permanent_failure", Class: "http", Code: "422", Count: 1}}}}
	pod.OldestTransaction = &status.OldestTransaction{Kind: status.ReplicationSlot, Name: "debezium", Seconds: 1000}
	delivers.obd.Spec.Namespace, delivers.peers[0].Spec.Namespace = "shop", "shop"
	pod.Data = &status.Data{ObservedAt: time.Unix(2, 0), Unserved: 1, OrphanTopics: []status.OrphanTopic{{Namespace: "shop", Topic: "invoices", Unserved: 1}}}
	delivers.obd.Spec.Pods.Scaling = &spec.Scaling{Max: 3}
	delivers.obd.Status.Scaling = &api.ScalingStatus{Recommended: 2, Reason: api.ReasonLimitedByDestination}

	fails := well()
	fails.problem = problem.Stalling(api.WorkloadAvailableCondition, api.ReasonInvalidPodTemplate,
		`spec.pods.template cannot be used: unknown field "spec.toleration".`)
	for i := range fails.statuses {
		pod := &fails.statuses[i]
		pod.Source = status.Link{State: status.Unreachable, Reason: api.ReasonAuthenticationFailed,
			Message: `Database "shop" at db:5432 as user "outbox": password authentication failed for user "outbox"; correct the user and the password, or the server's pg_hba.conf.`}
		pod.Schema = status.Schema{State: "TooOld", Message: `Schema "outbox" has version 1, and this dispatcher needs 2; run "dispatcher migrate up" of this version.`}
		pod.Sink = status.Link{State: status.Refusing, Message: "http://orders-consumer/events responded 503 Service Unavailable; the destination's log says why; the event is retried."}
	}
	operatortest.CheckExamples(t, "outboxdispatcher.md", slices.Concat(conditions(delivers), conditions(fails))...)
}
