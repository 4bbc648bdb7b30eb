package plugin

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/hack/testing/golden"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

var noon = metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))

func ago(d time.Duration) metav1.Time { return metav1.NewTime(noon.Add(-d)) }

// troubled is a dispatcher with everything that a report can have.
func troubled() *v1alpha1.OutboxDispatcher {
	condition := func(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: ago(time.Hour)}
	}
	obd := &v1alpha1.OutboxDispatcher{}
	obd.Namespace, obd.Name = "shop", "orders"
	obd.Spec = spec.Dispatcher{
		Namespace: "shop", Topics: []string{"orders", "refunds"}, OutboxRef: &spec.OutboxRef{Name: "main"}, Replicas: ptr.To(int32(2)), State: spec.Running,
	}
	obd.Spec.Pods.Scaling = &spec.Scaling{Mode: spec.ScalingApply, Min: 1, Max: 5}
	obd.Status = v1alpha1.OutboxDispatcherStatus{
		Scaling: &v1alpha1.ScalingStatus{Recommended: 2, Reason: "LimitedByDestination", PerPod: "410", LastStep: &v1alpha1.ScalingStep{Time: ago(9 * time.Minute)}},
		Sink:    "http", Counts: &status.Counts{Pending: 28200, Scheduled: 3, Dead: 1501, Estimated: true, OldestPending: status.At(ago(12 * time.Minute).Time)}, BlockedKeys: ptr.To(int64(2)),
		ETA: "4m", LimitedBy: "Destination", LateSince: status.At(ago(7 * time.Minute).Time),
		ObservedTime: ptr.To(ago(8 * time.Second)),
		Conditions: []metav1.Condition{
			condition(v1alpha1.SchemaReadyCondition, metav1.ConditionTrue, "UpToDate", "The schema has version 1."),
			condition(v1alpha1.SourceReachableCondition, metav1.ConditionUnknown, "NotObserved", "No pod has said it yet."),
			condition(v1alpha1.SinkReachableCondition, metav1.ConditionFalse, "ConnectionFailed", "http://orders does not respond; "+strings.Repeat("after a timeout ", 10)+"start it."),
			condition(v1alpha1.DeadLettersPresentCondition, metav1.ConditionTrue, "DeadLetters", "Events are dead; look at them."),
			condition(v1alpha1.TopicsSharedCondition, metav1.ConditionFalse, "NotShared", "No other dispatcher has these topics."),
			condition(v1alpha1.TypesUnregisteredCondition, metav1.ConditionFalse, "NotUsed", "No OutboxConsumer says who consumes what."),
			condition(v1alpha1.ScalingLimitedCondition, metav1.ConditionFalse, "NotLimited", "The pods suffice."),
			condition(v1alpha1.ReconcilingCondition, metav1.ConditionTrue, "Progressing", "A rollout is under way."),
			condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, "ConnectionFailed", "http://orders does not respond; start it."),
		},
	}
	return obd
}

func pod(name string, change func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: ago(3 * time.Hour)}, Spec: corev1.PodSpec{NodeName: "node-1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: desired.Container, Image: "dispatcher:v1", RestartCount: 1}}},
	}
	if change != nil {
		change(&p)
	}
	return p
}

// The report is for people and for scripts: it changes only on purpose. UPDATE_GOLDEN=1 writes it.
func TestReportInEveryFormat(t *testing.T) {
	const event, here = "0190a5c8-5d1e-7000-8000-000000000001", " --namespace shop"
	full := newReport(troubled(), here, noon.Time)
	full.pods([]corev1.Pod{
		pod("orders-dispatcher-a", nil),
		pod("orders-dispatcher-b", func(p *corev1.Pod) {
			p.Status.Conditions, p.Status.ContainerStatuses[0].State.Waiting = nil, &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
		}),
		pod("orders-dispatcher-c", func(p *corev1.Pod) { p.DeletionTimestamp = &noon }),
	})
	var groups []deadletters.Group
	for n := range shownGroups + 2 {
		groups = append(groups, deadletters.Group{Group: "7f3a9c21", Topic: "orders", Reason: dispatcher.ReasonPermanentFailure, Cause: dispatcher.Cause{Class: "http", Code: "422"},
			Count: int64(100 - n), Since: ago(time.Hour).Time, Last: ago(time.Minute).Time, DeadLetter: 42, Event: event, Error: "the consumer responded 422" + strings.Repeat(" because", n*20), Advice: "Correct the price" + strings.Repeat(" or the name", 3*n) + "."})
	}
	full.groups(groups)

	waiting := troubled()
	waiting.Status.Scaling = nil
	blind := newReport(waiting, here, noon.Time)
	blind.PodsUnknown, blind.GroupsUnknown = "pods is forbidden", "no pod runs"
	blind.pods(nil)
	blind.groups(known([]status.DeadGroup{
		{Group: "7f3a9c21", Topic: "orders", Reason: "PermanentFailure", Class: "http", Code: "422", Place: "/items/*", Count: 1500, Estimated: true, Since: status.At(ago(time.Hour).Time), Last: status.At(noon.Time)},
	}))

	fresh := &v1alpha1.OutboxDispatcher{Spec: spec.Dispatcher{Namespace: "shop", State: spec.Paused}}
	fresh.Namespace, fresh.Name = "shop", "new"
	unseen := newReport(fresh, here, noon.Time)
	unseen.pods(nil)
	unseen.groups(nil)

	alone := troubled()
	alone.Status.Conditions = alone.Status.Conditions[7:]
	alone.Spec.Pods.Scaling, alone.Status.ETA, alone.Status.LimitedBy = nil, "", ""
	lone := newReport(alone, here, noon.Time)
	lone.pods(nil)
	lone.groups(nil)

	for name, report := range map[string]Report{"full": full, "lone": lone, "blind": blind, "unseen": unseen} {
		for _, format := range []string{"table", "json", "yaml"} {
			got, err := report.text(), error(nil)
			if format != "table" {
				got, err = marshal(format, report)
			}
			need.OK(t, err)
			if format == "json" { // the same document as YAML
				if got, err = yaml.JSONToYAML(got); err != nil {
					t.Fatal(err)
				}
			}
			need.That(t, format != "table" || !slices.ContainsFunc(strings.Split(string(got), "\n"), func(line string) bool { return utf8.RuneCountInString(line) > 120 }),
				"%s has a line of more than 120 columns:\n%s", name, got)
			golden.Check(t, "reports.golden", name+"."+strings.Replace(format, "json", "yaml", 1), string(got))
		}
	}
}
