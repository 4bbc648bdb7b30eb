package outboxdispatcher_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/report"
)

// CONTRACT: C-101
func TestWhatPodsReport(t *testing.T) {
	c := start(t, tick)
	obd := c.dispatcher()
	replicas(2)(obd)
	c.create(obd)
	c.rollOut(c.healthy(), c.healthy())
	c.expect(status.CurrentStatus)
	before := c.deployment().Generation

	source := func(reason, message string) func(*report.Status) {
		return func(s *report.Status) {
			s.Source = report.Link{State: report.Unreachable, Reason: reason, Message: message}
			s.Schema = report.Schema{State: "Unknown"}
		}
	}
	schema := func(state, message string) func(*report.Status) {
		return func(s *report.Status) { s.Schema = report.Schema{State: state, Message: message} }
	}
	sink := func(state report.LinkState, reason, message string) func(*report.Status) {
		return func(s *report.Status) { s.Sink = report.Link{State: state, Reason: reason, Message: message} }
	}
	for name, trouble := range map[string]struct {
		says   func(*report.Status)
		kind   string
		reason string
		remedy string
	}{
		"password wrong":   {source("AuthenticationFailed", "the login was refused; correct the password in the Secret"), api.SourceReachableCondition, api.ReasonAuthenticationFailed, "correct the password"},
		"rights missing":   {source("PermissionDenied", "no right to read; run dispatcher migrate grants"), api.SourceReachableCondition, api.ReasonPermissionDenied, "migrate grants"},
		"database down":    {source("ConnectionRefused", "nothing listens; start the server"), api.SourceReachableCondition, api.ReasonConnectionFailed, "start the server"},
		"database missing": {source("DatabaseNotFound", "no such database; create it"), api.SourceReachableCondition, api.ReasonDatabaseNotFound, "create it"},
		"wrong CA":         {source("CertificateInvalid", "unknown authority; name the right ca"), api.SourceReachableCondition, api.ReasonCertificateInvalid, "name the right ca"},
		"schema missing":   {schema("Missing", "there is no schema; run migrate up"), api.SchemaReadyCondition, api.ReasonMissing, "run migrate up"},
		"schema too old":   {schema("TooOld", "version 1 of 2; run migrate up"), api.SchemaReadyCondition, api.ReasonTooOld, "run migrate up"},
		"schema too new":   {schema("TooNew", "version 3 of 2; upgrade the operator"), api.SchemaReadyCondition, api.ReasonTooNew, "upgrade the operator"},
		"outcomes refused": {func(s *report.Status) {
			s.Source = report.Link{State: report.Refusing, Reason: report.OutcomesRefused, Message: "The database refuses outcomes; mend the trigger"}
		}, api.SourceReachableCondition, api.ReasonOutcomesRefused, "mend the trigger"},
		"calls stuck":        {sink(report.Unreachable, report.CallsStuck, "All 16 calls of the sink are stuck; restart it"), api.SinkReachableCondition, api.ReasonCallsStuck, "restart it"},
		"sink refuses":       {sink(report.Refusing, "Refusing", "it answers 500; look at its log"), api.SinkReachableCondition, api.ReasonRefusing, "look at its log"},
		"sink down":          {sink(report.Unreachable, "ConnectionRefused", "nothing listens; check the url"), api.SinkReachableCondition, api.ReasonConnectionFailed, "check the url"},
		"sink's certificate": {sink(report.Unreachable, "CertificateInvalid", "unknown authority; name the right ca"), api.SinkReachableCondition, api.ReasonCertificateInvalid, "name the right ca"},
		"sink's login":       {sink(report.Unreachable, "AuthenticationFailed", "it answers 401; correct the token"), api.SinkReachableCondition, api.ReasonAuthenticationFailed, "correct the token"},
	} {
		t.Run(name, func(t *testing.T) {
			c := *c
			c.t, c.WithT = t, NewWithT(t)
			ill := c.healthy()
			trouble.says(&ill)
			c.pods.says("pod-1", ill) // pod-0 sees no trouble
			c.expect(status.InProgressStatus,
				want{trouble.kind, metav1.ConditionFalse, trouble.reason, trouble.remedy},
				want{api.ReadyCondition, metav1.ConditionFalse, trouble.reason, trouble.remedy})
			c.pods.says("pod-1", c.healthy())
			well := api.ReasonConnected
			if trouble.kind == api.SchemaReadyCondition {
				well = api.ReasonUpToDate
			}
			c.expect(status.CurrentStatus, want{trouble.kind, metav1.ConditionTrue, well, ""})
		})
	}
	c.Expect(c.deployment().Generation).To(Equal(before), "no trouble tears down what runs")
}

// A topic that is held back, and events that were given up, are told by conditions of their own: other events
// flow. When no topic is left, none flow.
func TestHeldTopics(t *testing.T) {
	c := start(t, tick)
	c.create(c.dispatcher())
	answer := c.healthy()
	answer.Held = []report.HeldTopic{{Topic: "refunds", Link: report.Link{State: report.Refusing, Reason: "Refusing", Message: "it answers 404; correct the path"}}}
	c.rollOut(answer)
	c.expect(status.CurrentStatus,
		want{api.TopicsHeldCondition, metav1.ConditionTrue, api.ReasonTopicsHeld, `"refunds". For "refunds": It answers 404; correct the path`},
		want{api.SinkReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""},
		want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
	c.expectEvent(corev1.EventTypeWarning, api.ReasonTopicsHeld, "refunds")

	answer.AllHeld = true
	c.pods.says("pod-0", answer)
	c.expect(status.InProgressStatus,
		want{api.TopicsHeldCondition, metav1.ConditionTrue, api.ReasonAllTopicsHeld, "refunds"},
		want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonAllTopicsHeld, "refunds"})
	c.pods.says("pod-0", c.healthy())
	c.expect(status.CurrentStatus, want{api.TopicsHeldCondition, metav1.ConditionFalse, api.ReasonNoTopicsHeld, ""})
}

// One of two pods is silent, or restarts: the other delivers.
func TestOneOfTwoPods(t *testing.T) {
	c := start(t, tick)
	obd := c.dispatcher()
	replicas(2)(obd)
	c.create(obd)
	c.rollOut(c.healthy(), c.healthy())
	c.expect(status.CurrentStatus, want{api.WorkloadAvailableCondition, metav1.ConditionTrue, api.ReasonAvailable, ""})
	c.Eventually(func() int32 { return c.get().Status.AnsweringReplicas }).Should(BeEquivalentTo(2))
	c.Eventually(func() string { return c.get().Status.Pods }).Should(Equal("2/2"))

	c.pods.silent("pod-1")
	c.expect(status.CurrentStatus,
		want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""},
		want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonPartlyAvailable, "do not answer the operator"})
	c.Expect(c.get().Status.AnsweringReplicas).To(BeEquivalentTo(1))

	c.deployed(2, 1)
	c.expect(status.CurrentStatus,
		want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""},
		want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonPartlyAvailable, "Fewer dispatcher pods are ready"})
	c.Expect(c.get().Status.Pods).To(Equal("1/2"))
}

// Only pods that a ReplicaSet of the Deployment owns are asked, whatever labels others have.
func TestStrangersAreNotAsked(t *testing.T) {
	c := start(t, tick)
	c.create(c.dispatcher())
	ill := c.healthy()
	ill.Source = report.Link{State: report.Unreachable, Message: "a stranger says so"}
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)
	owned := fetch(c, &corev1.Pod{}, "pod-0")
	for name, owner := range map[string][]metav1.OwnerReference{
		"without-owner": nil,
		"forged-set":    {{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "orders-dispatcher-5d4f8c", UID: "4711", Controller: new(true)}},
		"other-kind":    {{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "orders-dispatcher-5d4f8c", UID: owned.OwnerReferences[0].UID, Controller: new(true)}},
	} {
		c.pods.says(name, ill)
		stranger := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.namespace, Labels: owned.Labels, OwnerReferences: owner}, Spec: *owned.Spec.DeepCopy()}
		c.create(stranger)
		stranger.Status.Phase, stranger.Status.PodIP, stranger.Status.PodIPs = corev1.PodRunning, "127.0.0.1", []corev1.PodIP{{IP: "127.0.0.1"}}
		c.Expect(c.admin.Status().Update(c.ctx, stranger)).To(Succeed())
	}
	c.passes(5)
	c.expect(status.CurrentStatus, want{api.SourceReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""})
	c.Expect(c.pods.who()).To(Equal([]string{"pod-0"}))
}

func TestPodsThatDoNotAnswer(t *testing.T) {
	c := start(t, tick)
	c.create(c.dispatcher())
	answer := c.healthy()
	answer.Backlog.Pending, answer.Backlog.Dead = 4, 2
	c.rollOut(answer)
	c.expect(status.CurrentStatus, want{api.DeadLettersPresentCondition, metav1.ConditionTrue, api.ReasonDeadLetters, "Dead column"})

	c.pods.silent("pod-0")
	unknown := func(kind string) want {
		return want{kind, metav1.ConditionUnknown, api.ReasonNotObserved, "NetworkPolicy"}
	}
	c.expect(status.InProgressStatus, unknown(api.ReadyCondition), unknown(api.SourceReachableCondition), unknown(api.SinkReachableCondition),
		unknown(api.SchemaReadyCondition), unknown(api.DeadLettersPresentCondition))
	c.Expect([]int64{*c.get().Status.Pending, *c.get().Status.Dead}).To(Equal([]int64{4, 2}), "the last counts stay")
	c.Expect(c.get().Status.AnsweringReplicas).To(BeEquivalentTo(0))

	other := c.healthy()
	other.Name = "elsewhere/orders" // the pod's address was given to another
	c.pods.says("pod-0", other)
	c.passes(2)
	c.expect(status.InProgressStatus, unknown(api.ReadyCondition))
	c.pods.says("pod-0", answer)
	c.expect(status.CurrentStatus)
}

// CONTRACT: C-43
func TestDeadLetters(t *testing.T) {
	c := start(t, tick)
	c.create(c.dispatcher())
	answer := c.healthy()
	c.rollOut(answer)
	c.expect(status.CurrentStatus, want{api.DeadLettersPresentCondition, metav1.ConditionFalse, api.ReasonNoDeadLetters, ""})

	answer.Backlog.Dead = 1
	died := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	group := report.DeadGroup{Group: "7f3a9c21", Topic: "orders", Reason: "permanent_failure", Class: "http", Code: "422", Place: "/items/*/price", Count: 1, Since: died, Last: died.Add(time.Hour)}
	told := group
	told.Sample, told.Error = "00000000-0000-0000-0000-000000000001", "of a single delivery"
	answer.Backlog.DeadGroups = []report.DeadGroup{told, told, {Topic: "nameless"}}
	c.pods.says("pod-0", answer)
	c.expect(status.CurrentStatus, // a dead row does not keep the others from being delivered
		want{api.DeadLettersPresentCondition, metav1.ConditionTrue, api.ReasonDeadLetters, "outbox_dead_letters"},
		want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""})
	c.Expect(*c.get().Status.Dead).To(BeEquivalentTo(1))
	groups := c.get().Status.DeadGroups
	c.Expect(groups).To(HaveLen(1))
	c.Expect(groups[0].Since.UTC()).To(Equal(died.Truncate(time.Second)))
	c.Expect(groups[0].Last.UTC()).To(Equal(died.Truncate(time.Second).Add(time.Hour)))
	groups[0].Since, groups[0].Last = nil, nil
	c.Expect(groups[0]).To(Equal(api.DeadGroup{Group: "7f3a9c21", Topic: "orders", Reason: "permanent_failure", Class: "http", Code: "422", Place: "/items/*/price", Count: 1}))
	c.expectEvent(corev1.EventTypeWarning, api.ReasonDeadLetters, "outbox_dead_letters")
	c.expectEvent(corev1.EventTypeNormal, api.ReasonDelivering, "")
}

// expectEvent waits for an event about the OutboxDispatcher.
func (c *cluster) expectEvent(kind, reason, note string) {
	c.t.Helper()
	c.Eventually(func(g Gomega) {
		var events eventsv1.EventList
		g.Expect(c.admin.List(c.ctx, &events, client.InNamespace(c.namespace))).To(Succeed())
		g.Expect(events.Items).To(ContainElement(And(
			HaveField("Type", kind), HaveField("Reason", reason), HaveField("Note", ContainSubstring(note)),
			HaveField("Regarding.Kind", "OutboxDispatcher"), HaveField("Regarding.Name", "orders"))))
	}).Should(Succeed())
}

// CONTRACT: C-101
func TestForeignObjectIsNotAdopted(t *testing.T) {
	c := start(t, tick)
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "orders-dispatcher-state", Namespace: c.namespace}, Data: map[string]string{"state": "theirs"}}
	c.create(foreign, c.dispatcher())
	c.expect(status.FailedStatus,
		want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonForeignObject, `ConfigMap "orders-dispatcher-state" exists and does not belong to this OutboxDispatcher; delete it`},
		want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonForeignObject, ""},
		want{api.StalledCondition, metav1.ConditionTrue, api.ReasonForeignObject, ""})
	c.Expect(c.state()).To(Equal("theirs"))

	c.Expect(c.admin.Delete(c.ctx, foreign)).To(Succeed())
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)

	// Neither is one that was ours and lost its owner.
	edit(c, c.deployment(), func(d *appsv1.Deployment) { d.OwnerReferences = nil })
	c.expect(status.FailedStatus, want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonForeignObject, "Deployment"})
}

// CONTRACT: C-101
func TestInvalidPodTemplate(t *testing.T) {
	c := start(t, tick)
	obd := c.dispatcher()
	c.create(obd)
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)
	before := c.deployment().Generation

	template := func(raw string) {
		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.PodTemplate = &runtime.RawExtension{Raw: []byte(raw)} })
	}
	template(`{"spec":{"afinity":{}}}`)
	c.expect(status.FailedStatus,
		want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonInvalidPodTemplate, "afinity"},
		want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonInvalidPodTemplate, ""},
		want{api.SourceReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""})
	template(`{"spec":{"containers":[{"name":"sidecar"}]}}`) // well-formed, but a container needs an image
	c.expect(status.FailedStatus,
		want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonApplyRefused, "spec.template.spec.containers"})
	c.Expect(c.deployment().Generation).To(Equal(before), "the pods that run are left alone")

	template(`{"spec":{"nodeSelector":{"disk":"fast"}}}`)
	c.Eventually(func() map[string]string { return c.deployment().Spec.Template.Spec.NodeSelector }).Should(HaveKeyWithValue("disk", "fast"))
	c.deployed(1, 1)
	c.expect(status.CurrentStatus)
}

func TestPausedAndScaled(t *testing.T) {
	c := start(t, tick)
	obd := c.dispatcher()
	obd.Spec.State = api.StatePaused
	c.create(obd)
	answer := c.healthy()
	c.rollOut(answer)
	c.expect(status.InProgressStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonPausing, "within 90 seconds"})
	answer.State = "Paused"
	c.pods.says("pod-0", answer)
	c.expect(status.CurrentStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonPaused, "spec.state"})
	c.Expect(c.state()).To(Equal("Paused"))

	scale := &autoscalingv1.Scale{}
	c.Expect(c.admin.SubResource("scale").Get(c.ctx, obd, scale)).To(Succeed())
	c.Expect(scale.Status.Replicas).To(BeEquivalentTo(1))
	c.Expect(scale.Status.Selector).To(Equal("outbox.dev/component=dispatcher,outbox.dev/dispatcher=orders"))
	scale.Spec.Replicas = 0
	c.Expect(c.admin.SubResource("scale").Update(c.ctx, obd, client.WithSubResourceBody(scale))).To(Succeed())
	c.Eventually(func() int32 { return *c.deployment().Spec.Replicas }).Should(BeEquivalentTo(0))
	c.Expect(c.admin.Delete(c.ctx, fetch(c, &corev1.Pod{}, "pod-0"), client.GracePeriodSeconds(0))).To(Succeed())
	c.deployed(0, 0)
	c.expect(status.CurrentStatus,
		want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonScaledToZero, ""},
		want{api.WorkloadAvailableCondition, metav1.ConditionTrue, api.ReasonScaledToZero, ""},
		want{api.SourceReachableCondition, metav1.ConditionUnknown, api.ReasonNotObserved, "spec.replicas is 0"})
}

func TestUnavailableWorkload(t *testing.T) {
	c := start(t, tick)
	c.create(c.dispatcher())
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)

	pod := fetch(c, &corev1.Pod{}, "pod-0")
	pod.Status.Phase = corev1.PodPending
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "dispatcher", Image: "outbox-operator:v1",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}
	c.Expect(c.admin.Status().Update(c.ctx, pod)).To(Succeed())
	c.deployed(1, 0)
	c.expect(status.InProgressStatus,
		want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonUnavailable, `"outbox-operator:v1" cannot be pulled; check its name`},
		want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonUnavailable, ""},
		want{api.SourceReachableCondition, metav1.ConditionUnknown, api.ReasonNotObserved, "No dispatcher pod runs yet"})
}

// A quota or an admission policy that refuses a new pod is told at once, beside pods that deliver.
func TestRefusedPod(t *testing.T) {
	c := start(t, tick)
	c.create(c.dispatcher())
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)
	edit(c, c.get(), func(o *api.OutboxDispatcher) { o.Spec.BatchSize = 7 })
	c.Eventually(c.configFile).Should(ContainSubstring("batchSize: 7"))
	refuse := func(pod string) {
		c.Eventually(func() error {
			d := c.deployment()
			d.Status.ObservedGeneration, d.Status.UpdatedReplicas = d.Generation, 0
			d.Status.Conditions = []appsv1.DeploymentCondition{
				{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "ReplicaSetUpdated"},
				{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate",
					Message: `pods "` + pod + `" is forbidden: exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1`},
			}
			return c.admin.Status().Update(c.ctx, d)
		}).Should(Succeed())
	}
	refuse("orders-dispatcher-a-b")
	const told = "Pods cannot be created: a pod is forbidden: exceeded quota: team"
	c.expect(status.InProgressStatus,
		want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonUnavailable, told},
		want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonProgressing, told},
		want{api.SourceReachableCondition, metav1.ConditionTrue, api.ReasonConnected, ""})
	version := c.get().ResourceVersion
	refuse("orders-dispatcher-a-c") // the next try
	c.passes(3)
	c.Expect(c.get().ResourceVersion).To(Equal(version), "nothing is written about another name")
}

// A failed migration is tried again by itself, and at once when the spec names another login.
func TestMigrationFails(t *testing.T) {
	c := start(t, tick)
	obd := c.migrated()
	login := func(name string) {
		edit(c, obd, func(o *api.OutboxDispatcher) { o.Spec.Database.Migration.Secret.Name = name })
	}
	c.create(obd)
	c.finish(c.job(), time.Now(), "{\"time\":\"...\"}\nthe login owner was refused; correct the password")
	c.expect(status.InProgressStatus,
		want{api.SchemaReadyCondition, metav1.ConditionFalse, api.ReasonMigrationFailed, "The migration failed: the login owner was refused; correct the password. It is tried again"},
		want{api.ReadyCondition, metav1.ConditionFalse, api.ReasonMigrationFailed, ""},
		want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonMigrationFailed, ""},
		want{api.WorkloadAvailableCondition, metav1.ConditionFalse, api.ReasonProgressing, ""})
	c.expectEvent(corev1.EventTypeWarning, api.ReasonMigrationFailed, "correct the password")
	first := c.job().Name

	login("right-owner")
	c.Eventually(func() string { return c.job().Name }).ShouldNot(Equal(first), "another login, another Job, and the old one is gone")
	c.finish(c.job(), time.Now(), "")
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus, want{api.SchemaReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""})

	// A later migration that fails takes nothing away, and keeps nothing from being rolled out.
	second := c.job().Name
	login("wrong-owner")
	c.Eventually(func() string { return c.job().Name }).ShouldNot(Equal(second))
	edit(c, c.get(), func(o *api.OutboxDispatcher) { o.Spec.BatchSize = 7 })
	c.finish(c.job(), time.Now(), "wrong again")
	c.expect(status.InProgressStatus,
		want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonDelivering, ""},
		want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonMigrationFailed, "wrong again"})
	c.Eventually(func() string { return c.configFile() }).Should(ContainSubstring("batchSize: 7"))
	old := c.healthy()
	old.Schema = report.Schema{State: "TooOld", Message: "version 1 of 2"}
	c.pods.says("pod-0", old)
	c.expect(status.InProgressStatus, want{api.SchemaReadyCondition, metav1.ConditionFalse, api.ReasonMigrationFailed, "wrong again"})
}

// The database was down during the migration: nobody has to do anything.
func TestMigrationIsTriedAgain(t *testing.T) {
	c := start(t, tick)
	c.create(c.migrated())
	first := c.job()
	c.finish(first, time.Now().Add(-time.Minute), "connection refused") // the delay is over
	c.Eventually(func() int { return len(c.jobs()) }).Should(Equal(2))
	c.expect(status.InProgressStatus, want{api.SchemaReadyCondition, metav1.ConditionFalse, api.ReasonMigrationFailed, "connection refused"})
	for _, job := range c.jobs() {
		if job.Name != first.Name {
			c.Expect(job.Annotations).To(HaveKeyWithValue("outbox.dev/attempt", "2"))
			c.finish(&job, time.Now(), "")
		}
	}
	c.Eventually(func() int { return len(c.jobs()) }).Should(Equal(1), "the failed one is gone")
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)
}

// The binary's defaults are the API's.
func TestDefaultsAgree(t *testing.T) {
	c := start(t, tick)
	c.create(c.dispatcher())
	rendered := c.loadConfig()
	least := config.Config{
		Name:      c.namespace + "/orders",
		Namespace: "shop",
		Database:  config.Database{DSNFile: "/etc/outbox/secrets/database/dsn"},
		Sink:      config.Sink{Log: &config.LogSink{}},
		Server:    config.Server{Address: ":8080"},
		StateFile: "/etc/outbox/state/state",
	}
	c.Expect(rendered).To(Equal(least), "what the API server sets is what the binary would")
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)
}

// The API server enforces the restricted profile in the namespace, so the pods of rollOut prove the
// dispatchers' template; a migration Job's pod is tried here.
func TestRestrictedPodSecurity(t *testing.T) {
	c := start(t, tick)
	c.create(c.migrated())
	job := c.job()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "migrate", Namespace: c.namespace}, Spec: *job.Spec.Template.Spec.DeepCopy()}
	pod.Spec.ServiceAccountName = ""
	c.create(pod)
	loose := pod.DeepCopy()
	loose.ObjectMeta = metav1.ObjectMeta{Name: "loose", Namespace: c.namespace}
	loose.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil
	c.Expect(c.admin.Create(c.ctx, loose)).To(MatchError(ContainSubstring("PodSecurity")), "the profile is enforced")
	for _, template := range []corev1.PodTemplateSpec{job.Spec.Template, func() corev1.PodTemplateSpec {
		c.finish(job, time.Now(), "")
		return c.deployment().Spec.Template
	}()} {
		c.Expect(*template.Spec.AutomountServiceAccountToken).To(BeFalse())
	}
	c.Expect(*fetch(c, &corev1.ServiceAccount{}, "orders-dispatcher").AutomountServiceAccountToken).To(BeFalse())
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)
}

// An OutboxDispatcher that is made again while the old one's objects are not collected yet waits.
func TestMadeAgain(t *testing.T) {
	c := start(t, tick)
	c.create(c.dispatcher())
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)
	old := []client.Object{c.deployment(), c.files(), fetch(c, &corev1.ConfigMap{}, "orders-dispatcher-state"), fetch(c, &corev1.ServiceAccount{}, "orders-dispatcher"),
		fetch(c, &networkingv1.NetworkPolicy{}, "orders-dispatcher"), fetch(c, &appsv1.ReplicaSet{}, "orders-dispatcher-5d4f8c"), fetch(c, &corev1.Pod{}, "pod-0")}

	c.Expect(c.admin.Delete(c.ctx, c.get())).To(Succeed())
	c.create(c.dispatcher())
	c.expect(status.InProgressStatus, want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonProgressing, "not collected yet"})
	for _, o := range old {
		c.Expect(c.admin.Delete(c.ctx, o, client.GracePeriodSeconds(0))).To(Succeed()) // there is no garbage collector here
	}
	c.Eventually(func() error {
		return client.IgnoreNotFound(c.admin.Delete(c.ctx, pdb(c)))
	}).Should(Succeed())
	c.Eventually(func() bool { return metav1.IsControlledBy(c.deployment(), c.get()) }).Should(BeTrue())
	c.rollOut(c.healthy())
	c.expect(status.CurrentStatus)
}
