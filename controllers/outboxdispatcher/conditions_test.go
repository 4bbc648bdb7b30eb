package outboxdispatcher

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/report"
)

// well is what a pass sees when all is well, with two replicas.
func well() observed {
	return observed{
		obd: &api.OutboxDispatcher{
			ObjectMeta: metav1.ObjectMeta{Name: "orders", Namespace: "shop", Generation: 3},
			Spec:       api.OutboxDispatcherSpec{Replicas: ptr.To[int32](2)},
		},
		migration: migration{state: migrationSucceeded},
		deployment: &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Generation: 1},
			Status: appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2,
				Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: newReplicaSetAvailable}}},
		},
		pods:    []corev1.Pod{runningPod("a"), runningPod("b")},
		answers: []report.Status{answer(), answer()},
	}
}

func answer() report.Status {
	return report.Status{
		Source:  report.Link{State: report.Reachable},
		Schema:  report.Schema{State: "Ready"},
		Sink:    report.Link{State: report.Reachable},
		Backlog: &report.Backlog{ObservedAt: time.Unix(1, 0)},
	}
}

func runningPod(name string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"}}
}

func noDeployment(o *observed) { o.deployment, o.pods, o.answers = nil, nil, nil }

// CONTRACT: C-101
func TestConditions(t *testing.T) {
	const no, yes, unknown = metav1.ConditionFalse, metav1.ConditionTrue, metav1.ConditionUnknown
	down := report.Link{State: report.Unreachable, Reason: "ConnectionRefused", Message: "start it"}
	for name, c := range map[string]struct {
		change func(*observed)
		status metav1.ConditionStatus // of Ready
		reason string                 // of Ready
		also   []string               // other conditions, as Type=Status/Reason
		absent []string
	}{
		"well": {func(*observed) {}, yes, api.ReasonDelivering,
			[]string{"SchemaReady=True/UpToDate", "WorkloadAvailable=True/Available", "DeadLettersPresent=False/NoDeadLetters"},
			[]string{"Reconciling", "Stalled"}},
		"paused": {func(o *observed) { o.obd.Spec.State = api.StatePaused }, yes, api.ReasonPaused, nil, nil},
		"paused and the database down": {func(o *observed) { o.obd.Spec.State = api.StatePaused; o.answers[0].Source = down },
			no, api.ReasonConnectionFailed, nil, []string{"Reconciling", "Stalled"}},
		"scaled to zero": {func(o *observed) {
			o.obd.Spec.Replicas = ptr.To[int32](0)
			o.pods, o.answers, o.deployment.Status = nil, nil, appsv1.DeploymentStatus{ObservedGeneration: 1}
		}, yes, api.ReasonScaledToZero, []string{"WorkloadAvailable=True/ScaledToZero", "SourceReachable=Unknown/NotObserved", "DeadLettersPresent=Unknown/NotObserved"}, []string{"Reconciling"}},
		"first migration": {func(o *observed) { noDeployment(o); o.migration.state = migrationRunning },
			no, api.ReasonMigrating, []string{"Reconciling=True/Migrating", "WorkloadAvailable=False/Progressing"}, nil},
		"first migration failed": {func(o *observed) { noDeployment(o); o.migration.state = migrationFailed },
			no, api.ReasonMigrationFailed, []string{"Reconciling=True/MigrationFailed", "SchemaReady=False/MigrationFailed"}, nil},
		"later migration runs": {func(o *observed) { o.migration.state = migrationRunning },
			yes, api.ReasonDelivering, []string{"SchemaReady=True/UpToDate", "Reconciling=True/Migrating"}, nil},
		"later migration failed": {func(o *observed) { o.migration.state = migrationFailed },
			yes, api.ReasonDelivering, []string{"SchemaReady=True/UpToDate", "Reconciling=True/MigrationFailed"}, nil},
		"schema too old while it migrates": {func(o *observed) { o.migration.state = migrationRunning; o.answers[1].Schema.State = "TooOld" },
			no, api.ReasonMigrating, []string{"SchemaReady=False/Migrating"}, nil},
		"schema too new, whatever migrates": {func(o *observed) { o.migration.state = migrationFailed; o.answers[1].Schema.State = "TooNew" },
			no, api.ReasonTooNew, []string{"SchemaReady=False/TooNew"}, nil},
		"nobody migrates": {func(o *observed) { o.migration = migration{}; o.answers[0].Schema.State = "Missing" },
			no, api.ReasonMissing, nil, []string{"Reconciling"}},
		"database before schema and workload": {func(o *observed) {
			o.answers[0].Source, o.answers[0].Schema.State = down, "TooOld"
			o.deployment.Status.AvailableReplicas = 0
		}, no, api.ReasonConnectionFailed, []string{"WorkloadAvailable=False/Unavailable"}, nil},
		"one pod has not tried yet": {func(o *observed) { o.answers[0].Source.State, o.answers[0].Sink.State = report.Unknown, report.Unknown },
			yes, api.ReasonDelivering, nil, nil},
		"no pod has tried the sink": {func(o *observed) { o.answers[0].Sink.State, o.answers[1].Sink.State = report.Unknown, report.Unknown },
			unknown, api.ReasonNotTried, []string{"SinkReachable=Unknown/NotTried"}, nil},
		"one pod sees the sink refuse": {func(o *observed) { o.answers[1].Sink = report.Link{State: report.Refusing, Message: "it answers 500"} },
			no, api.ReasonRefusing, []string{"SinkReachable=False/Refusing"}, nil},
		"unreachable is worse than refusing": {func(o *observed) {
			o.answers[0].Sink, o.answers[1].Sink = report.Link{State: report.Refusing}, down
		}, no, api.ReasonConnectionFailed, nil, nil},
		"pods do not answer": {func(o *observed) { o.answers = nil }, unknown, api.ReasonNotObserved,
			[]string{"SourceReachable=Unknown/NotObserved", "SchemaReady=True/UpToDate"}, nil},
		"pods are starting": {func(o *observed) {
			o.pods, o.answers = nil, nil
			o.deployment.Status.AvailableReplicas, o.deployment.Status.Conditions = 0, nil
		}, no, api.ReasonProgressing, []string{"WorkloadAvailable=False/Progressing", "Reconciling=True/Progressing"}, nil},
		"rolling out beside pods that deliver": {func(o *observed) {
			o.deployment.Status.UpdatedReplicas, o.deployment.Status.Replicas = 1, 3
			o.deployment.Status.Conditions[0].Reason = "ReplicaSetUpdated"
		}, yes, api.ReasonDelivering, []string{"WorkloadAvailable=True/Available", "Reconciling=True/Progressing"}, nil},
		"the rollout is stuck": {func(o *observed) {
			o.deployment.Status.UpdatedReplicas, o.deployment.Status.Replicas = 1, 3
			o.deployment.Status.Conditions[0].Status, o.deployment.Status.Conditions[0].Reason = corev1.ConditionFalse, "ProgressDeadlineExceeded"
		}, no, api.ReasonUnavailable, []string{"WorkloadAvailable=False/Unavailable"}, nil},
		"pods are refused": {func(o *observed) {
			o.deployment.Status.AvailableReplicas = 0
			o.deployment.Status.Conditions = append(o.deployment.Status.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota"})
		}, no, api.ReasonUnavailable, nil, nil},
		"a Secret is missing": {func(o *observed) {
			o.migration = migration{}
			o.problem = &problem{condition: api.SecretsResolvedCondition, reason: api.ReasonSecretNotFound}
		}, no, api.ReasonSecretNotFound, []string{"SecretsResolved=False/SecretNotFound", "WorkloadAvailable=True/Available", "Reconciling=True/SecretNotFound"}, []string{"Stalled"}},
		"a foreign object, and the database down": {func(o *observed) {
			o.problem = &problem{condition: api.WorkloadAvailableCondition, reason: api.ReasonForeignObject, stalled: true}
			o.answers[0].Source = down
		}, no, api.ReasonForeignObject, []string{"Stalled=True/ForeignObject", "SourceReachable=False/ConnectionFailed"}, []string{"Reconciling"}},
		"dead rows": {func(o *observed) {
			o.answers[1].Backlog = &report.Backlog{ObservedAt: time.Unix(2, 0), Counts: report.Counts{Dead: 1}}
		},
			yes, api.ReasonDelivering, []string{"DeadLettersPresent=True/DeadLetters"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := well()
			c.change(&o)
			got := conditions(o)
			ready := meta.FindStatusCondition(got, api.ReadyCondition)
			if ready == nil || ready.Status != c.status || ready.Reason != c.reason {
				t.Errorf("Ready is %+v, want %s/%s", ready, c.status, c.reason)
			}
			for _, want := range c.also {
				if !slices.ContainsFunc(got, func(c metav1.Condition) bool { return c.Type+"="+string(c.Status)+"/"+c.Reason == want }) {
					t.Errorf("want %s in %+v", want, got)
				}
			}
			for _, absent := range c.absent {
				if meta.FindStatusCondition(got, absent) != nil {
					t.Errorf("want no %s in %+v", absent, got)
				}
			}
		})
	}
}

// Pods that disagree must not make a message flicker with the order of their answers.
func TestMessagesDoNotDependOnTheOrder(t *testing.T) {
	o := well()
	o.answers[0].Source = report.Link{State: report.Unreachable, Message: "b"}
	o.answers[1].Source = report.Link{State: report.Unreachable, Message: "a"}
	o.answers[0].Schema, o.answers[1].Schema = report.Schema{State: "TooOld", Message: "d"}, report.Schema{State: "TooOld", Message: "c"}
	before := conditions(o)
	slices.Reverse(o.answers)
	if after := conditions(o); !slices.Equal(before, after) {
		t.Errorf("%v, and in the other order %v", before, after)
	}
}

func TestSetCounts(t *testing.T) {
	var s api.OutboxDispatcherStatus
	a, b := answer(), answer()
	a.Backlog = &report.Backlog{ObservedAt: time.Unix(10, 0), Counts: report.Counts{Pending: 1, Dead: 2}}
	b.Backlog = &report.Backlog{ObservedAt: time.Unix(20, 5), Counts: report.Counts{Pending: 3, Estimated: true, OldestPending: ptr.To(time.Unix(7, 9))}}
	setCounts(&s, []report.Status{b, a})
	if *s.Pending != 3 || *s.Dead != 0 || !s.Estimated || s.OldestPending.Unix() != 7 || s.ObservedTime.Unix() != 20 {
		t.Errorf("counts %+v, want those of the newest", s)
	}
	before := *s.DeepCopy()
	b.Backlog.ObservedAt = time.Unix(30, 0)
	setCounts(&s, []report.Status{b})
	setCounts(&s, []report.Status{{}})
	setCounts(&s, nil)
	if !equal(before, s) {
		t.Errorf("counts %+v, want them unchanged: %+v", s, before)
	}
	b.Backlog.OldestPending = nil
	setCounts(&s, []report.Status{b})
	if s.OldestPending != nil || s.ObservedTime.Unix() != 30 {
		t.Errorf("counts %+v, want no oldest, as of the newest time", s)
	}
}

func TestSetFailure(t *testing.T) {
	var s api.OutboxDispatcherStatus
	setConditions(&s.Conditions, 1, conditions(well()))
	before := meta.FindStatusCondition(s.Conditions, api.ReadyCondition).DeepCopy()
	setFailure(&s, 2, errors.New("the server is down"))
	if got := meta.FindStatusCondition(s.Conditions, api.ReadyCondition); *got != *before {
		t.Errorf("Ready is %+v, want %+v: the operator's trouble is not the object's", got, before)
	}
	if got := meta.FindStatusCondition(s.Conditions, api.ReconcilingCondition); got == nil || !strings.Contains(got.Message, "the server is down") {
		t.Errorf("Reconciling is %+v, want the failure", got)
	}
	setConditions(&s.Conditions, 2, conditions(well()))
	if got := meta.FindStatusCondition(s.Conditions, api.ReconcilingCondition); got != nil {
		t.Errorf("Reconciling is %+v after a pass that went well, want none", got)
	}
	var fresh api.OutboxDispatcherStatus
	setFailure(&fresh, 1, errors.New("the server is down"))
	if got := meta.FindStatusCondition(fresh.Conditions, api.ReadyCondition); got == nil || got.Status != metav1.ConditionUnknown {
		t.Errorf("Ready is %+v, want Unknown: it is always there", got)
	}
}
