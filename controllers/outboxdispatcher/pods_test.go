package outboxdispatcher_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

var _ = Describe("what pods report", Label("status"), func() {
	// CONTRACT: C-101
	Context("when one of two has a trouble", Ordered, ContinueOnFailure, func() {
		var c *cluster
		var before int64

		BeforeAll(func() {
			c = start(tick)
			obd := c.dispatcher()
			replicas(2)(obd)
			c.create(obd)
			c.rollOut(c.healthy(), c.healthy())
			c.expect(kstatus.CurrentStatus)
			before = c.deployment().Generation
		})

		source := func(reason, message string) func(*status.Status) {
			return func(s *status.Status) {
				s.Source = status.Link{State: status.Unreachable, Reason: reason, Message: message}
				s.Schema = status.Schema{State: "Unknown"}
			}
		}
		schema := func(state, message string) func(*status.Status) {
			return func(s *status.Status) { s.Schema = status.Schema{State: state, Message: message} }
		}
		sink := func(state status.LinkState, reason, message string) func(*status.Status) {
			return func(s *status.Status) { s.Sink = status.Link{State: state, Reason: reason, Message: message} }
		}
		DescribeTable("is reported with its remedy, and removes nothing:", func(says func(*status.Status), kind, reason, remedy string) {
			ill := c.healthy()
			says(&ill)
			c.pods.says("pod-0", ill)
			c.pods.says("pod-1", ill)
			c.expect(kstatus.InProgressStatus,
				want{kind, metav1.ConditionFalse, reason, remedy},
				want{api.ReadyCondition, metav1.ConditionFalse, reason, remedy})
			c.pods.says("pod-0", c.healthy())
			c.pods.says("pod-1", c.healthy())
			well := api.ReasonConnected
			if kind == api.SchemaReadyCondition {
				well = api.ReasonUpToDate
			}
			c.expect(kstatus.CurrentStatus, want{kind, metav1.ConditionTrue, well, ""})
			Expect(c.deployment().Generation).To(Equal(before), "no trouble tears down what runs")
		},
			Entry("password wrong", source("AuthenticationFailed", "the login was refused; correct the password in the Secret"), api.SourceReachableCondition, api.ReasonAuthenticationFailed, "correct the password"),
			Entry("rights missing", source("PermissionDenied", "no right to read; run dispatcher migrate grants"), api.SourceReachableCondition, api.ReasonPermissionDenied, "migrate grants"),
			Entry("database down", source("ConnectionRefused", "nothing listens; start the server"), api.SourceReachableCondition, api.ReasonConnectionFailed, "start the server"),
			Entry("database missing", source("DatabaseNotFound", "no such database; create it"), api.SourceReachableCondition, api.ReasonDatabaseNotFound, "create it"),
			Entry("wrong CA", source("CertificateInvalid", "unknown authority; name the right ca"), api.SourceReachableCondition, api.ReasonCertificateInvalid, "name the right ca"),
			Entry("schema missing", schema("Missing", "there is no schema; run migrate up"), api.SchemaReadyCondition, api.ReasonMissing, "run migrate up"),
			Entry("schema too old", schema("TooOld", "version 1 of 2; run migrate up"), api.SchemaReadyCondition, api.ReasonTooOld, "run migrate up"),
			Entry("schema too new", schema("TooNew", "version 3 of 2; upgrade the operator"), api.SchemaReadyCondition, api.ReasonTooNew, "upgrade the operator"),
			Entry("sequences behind", schema("SequencesBehind", "the sequences are behind the tables; run outbox_moved()"), api.SchemaReadyCondition, api.ReasonSequencesBehind, "run outbox_moved()"),
			Entry("outcomes refused", func(s *status.Status) {
				s.Source = status.Link{State: status.Refusing, Reason: status.OutcomesRefused, Message: "The database refuses outcomes; fix the trigger"}
			}, api.SourceReachableCondition, api.ReasonOutcomesRefused, "fix the trigger"),
			Entry("calls stuck", sink(status.Unreachable, status.CallsStuck, "All 16 calls of the sink are stuck; restart it"), api.SinkReachableCondition, api.ReasonCallsStuck, "restart it"),
			Entry("sink refuses", sink(status.Refusing, "Refusing", "it responds 500; look at its log"), api.SinkReachableCondition, api.ReasonRefusing, "look at its log"),
			Entry("sink down", sink(status.Unreachable, "ConnectionRefused", "nothing listens; check the url"), api.SinkReachableCondition, api.ReasonConnectionFailed, "check the url"),
			Entry("sink's certificate", sink(status.Unreachable, "CertificateInvalid", "unknown authority; name the right ca"), api.SinkReachableCondition, api.ReasonCertificateInvalid, "name the right ca"),
			Entry("sink's login", sink(status.Unreachable, "AuthenticationFailed", "it responds 401; correct the token"), api.SinkReachableCondition, api.ReasonAuthenticationFailed, "correct the token"),
		)
	})

	// Paused topics and dead events have conditions of their own: other events
	// flow. When no topic is left, none flow.
	It("reports paused topics next to those that are delivered", func() {
		c := start(tick)
		c.create(c.dispatcher())
		podStatus := c.healthy()
		podStatus.PausedTopics = []status.PausedTopic{{Topic: "refunds", Link: status.Link{State: status.Refusing, Reason: "Refusing", Message: "it responds 404; correct the path"}}}
		c.rollOut(podStatus)
		c.expect(kstatus.CurrentStatus,
			want{api.TopicsPausedCondition, metav1.ConditionTrue, api.ReasonTopicsPaused, `"refunds". For "refunds": It responds 404; correct the path`},
			want{api.SinkReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
		c.expectEvent(corev1.EventTypeWarning, api.ReasonTopicsPaused, "refunds")

		podStatus.AllTopicsPaused = true
		c.pods.says("pod-0", podStatus)
		c.expect(kstatus.InProgressStatus,
			want{api.TopicsPausedCondition, metav1.ConditionTrue, api.ReasonAllTopicsPaused, "refunds"},
			want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonAllTopicsPaused, "refunds"})
		c.pods.says("pod-0", c.healthy())
		c.expect(kstatus.CurrentStatus, want{api.TopicsPausedCondition, metav1.ConditionFalse, api.ReasonNoTopicsPaused, ""})
	})

	// One of two pods is silent, or restarts: the other delivers.
	It("is that of the pod that delivers, when the other does not", func() {
		c := start(tick)
		obd := c.dispatcher()
		replicas(2)(obd)
		c.create(obd)
		c.rollOut(c.healthy(), c.healthy())
		c.expect(kstatus.CurrentStatus, want{api.WorkloadAvailableCondition, metav1.ConditionTrue, api.ReasonAvailable, ""})
		Eventually(func() int32 { return c.get().Status.RespondingReplicas }).Should(BeEquivalentTo(2))
		Eventually(func() string { return c.get().Status.Pods }).Should(Equal("2/2"))

		c.pods.silent("pod-1")
		c.expect(kstatus.CurrentStatus,
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""},
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonPartlyAvailable, "do not respond to the operator"})
		Expect(c.get().Status.RespondingReplicas).To(BeEquivalentTo(1))

		c.deployed(2, 1)
		c.expect(kstatus.CurrentStatus,
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""},
			want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonPartlyAvailable, "Fewer dispatcher pods than spec.replicas"})
		Expect(c.get().Status.Pods).To(Equal("1/2"))
	})

	// Only pods that a ReplicaSet of the Deployment owns are polled, whatever labels others have.
	It("is polled from pods that the Deployment owns, and from no others", Label("security"), func() {
		c := start(tick)
		c.create(c.dispatcher())
		ill := c.healthy()
		ill.Source = status.Link{State: status.Unreachable, Message: "a stranger says so"}
		c.rollOut(c.healthy())
		c.expect(kstatus.CurrentStatus)
		owned := fetch(c, &corev1.Pod{}, "pod-0")
		for name, owner := range map[string][]metav1.OwnerReference{
			"without-owner": nil,
			"forged-set":    {{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "orders-dispatcher-5d4f8c", UID: "4711", Controller: new(true)}},
			"other-kind":    {{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "orders-dispatcher-5d4f8c", UID: owned.OwnerReferences[0].UID, Controller: new(true)}},
		} {
			c.pods.says(name, ill)
			stranger := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.namespace, Labels: owned.Labels, OwnerReferences: owner}, Spec: *owned.Spec.DeepCopy()}
			c.create(stranger)
			editStatus(c, stranger, func(pod *corev1.Pod) {
				pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, "127.0.0.1", []corev1.PodIP{{IP: "127.0.0.1"}}
			})
		}
		c.passes(5)
		c.expect(kstatus.CurrentStatus, want{api.SourceReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""})
		Expect(c.pods.who()).To(Equal([]string{"pod-0"}))
	})

	It("is unknown when no pod responds", Label("network"), func() {
		c := start(tick)
		c.create(c.dispatcher())
		podStatus := c.healthy()
		podStatus.Backlog.Pending, podStatus.Backlog.Dead = 4, 2
		c.rollOut(podStatus)
		c.expect(kstatus.CurrentStatus, want{api.DeadLettersPresentCondition, metav1.ConditionTrue, api.ReasonDeadLetters, "Dead column"})

		c.pods.silent("pod-0")
		unknown := func(kind string) want {
			return want{kind, metav1.ConditionUnknown, api.ReasonNotObserved, "NetworkPolicy"}
		}
		c.expect(kstatus.InProgressStatus, unknown(api.ReadyCondition), unknown(api.SourceReachableCondition), unknown(api.SinkReachableCondition),
			unknown(api.SchemaReadyCondition), unknown(api.DeadLettersPresentCondition))
		Expect([]int64{*c.get().Status.Pending, *c.get().Status.Dead}).To(Equal([]int64{4, 2}), "the last counts stay")
		Expect(c.get().Status.RespondingReplicas).To(BeEquivalentTo(0))

		other := c.healthy()
		other.Name = "elsewhere/orders" // the pod's address was given to another
		c.pods.says("pod-0", other)
		c.passes(2)
		c.expect(kstatus.InProgressStatus, unknown(api.ReadyCondition))
		c.pods.says("pod-0", podStatus)
		c.expect(kstatus.CurrentStatus)
	})

	// CONTRACT: C-43
	It("reports dead letters", func() {
		c := start(tick)
		c.create(c.dispatcher())
		podStatus := c.healthy()
		c.rollOut(podStatus)
		c.expect(kstatus.CurrentStatus, want{api.DeadLettersPresentCondition, metav1.ConditionFalse, api.ReasonNoDeadLetters, ""})

		podStatus.Backlog.Dead = 1
		since := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
		group := status.DeadGroup{Group: "7f3a9c21", Topic: "orders", Reason: "permanent_failure", Class: "http", Code: "422", Place: "/items/*/price", Count: 1, Since: since, Last: since.Add(time.Hour)}
		reported := group
		reported.Sample, reported.Error = "00000000-0000-0000-0000-000000000001", "of a single delivery"
		podStatus.Backlog.DeadGroups = []status.DeadGroup{reported, reported, {Topic: "nameless"}}
		c.pods.says("pod-0", podStatus)
		c.expect(kstatus.CurrentStatus, // a dead row does not keep the others from being delivered
			want{api.DeadLettersPresentCondition, metav1.ConditionTrue, api.ReasonDeadLetters, "outbox_dead_letters"},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
		Expect(*c.get().Status.Dead).To(BeEquivalentTo(1))
		groups := c.get().Status.DeadGroups
		Expect(groups).To(HaveLen(1))
		Expect(groups[0].Since.UTC()).To(Equal(since.Truncate(time.Second)))
		Expect(groups[0].Last.UTC()).To(Equal(since.Truncate(time.Second).Add(time.Hour)))
		groups[0].Since, groups[0].Last = nil, nil
		Expect(groups[0]).To(Equal(api.DeadGroup{Group: "7f3a9c21", Topic: "orders", Reason: "PermanentFailure", Class: "http", Code: "422", Place: "/items/*/price", Count: 1}))
		c.expectEvent(corev1.EventTypeWarning, api.ReasonDeadLetters, "outbox_dead_letters")
		c.expectEvent(corev1.EventTypeNormal, api.ReasonDelivering, "")
	})
})
