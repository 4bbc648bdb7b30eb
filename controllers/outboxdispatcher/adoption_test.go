package outboxdispatcher_test

import (
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

var _ = Describe("an adoption", Label("outbox", "adoption"), func() {
	// CONTRACT: C-91, C-104
	It("goes from the shadow over the cutover and back, by Jobs with the owner's login", func() {
		c := start(tick)
		outbox := c.adopting(api.AdoptionShadow)
		c.create(outbox)
		c.expectOf(outbox, kstatus.InProgressStatus, want{api.AdoptedCondition, metav1.ConditionFalse, api.ReasonAdopting, `brings "orders" to the phase of spec.adopt when the migration has succeeded`})
		Expect(c.adopts(outbox)).To(BeEmpty(), "no adoption before the migration")
		Expect(outbox.Status.Adoptions).To(HaveExactElements(api.AdoptionStatus{Name: "orders", Phase: api.AdoptionPending}))
		c.finish(c.migrates(), time.Now(), "")

		job := c.adoption(outbox)
		command, plan := c.ordered(job)
		Expect(command).To(Equal("/dispatcher adopt apply -f /etc/outbox/config/config.yaml --plan /etc/outbox/plan/plan.yaml"))
		Expect(plan.Data["plan.yaml"]).To(Equal("adoptions:\n- columns:\n    id: id\n    payload: body\n    status: state:NEW,SENDING:SENT\n  layout: columns\n  name: orders\n" +
			"  namespace: shop\n  phase: Shadow\n  table: public.order_outbox\n  topic: orders\n"))
		Expect(plan.Data["config.yaml"]).To(ContainSubstring("dsnFile: /etc/outbox/secrets/migration/dsn"), "the owner's login")
		c.expectOf(outbox, kstatus.InProgressStatus, want{api.AdoptedCondition, metav1.ConditionFalse, api.ReasonAdopting, `The adoption Job runs. It is about "orders".`},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""})

		c.leave(job, time.Now(), `{"adoptions":[{"name":"orders","phase":"Shadow","since":"2026-11-20T10:02:00Z","theirs":12031,"ours":12031,"missing":0,"extra":0,"refused":0}]}`)
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.AdoptedCondition, metav1.ConditionTrue, api.ReasonAsDeclared, ""})
		since := metav1.NewTime(time.Date(2026, 11, 20, 10, 2, 0, 0, time.UTC))
		Expect(outbox.Status.Adoptions[0].Since.Equal(&since)).To(BeTrue())
		Expect([]any{outbox.Status.Adoptions[0].Phase, outbox.Status.Adoptions[0].Theirs, outbox.Status.Adoptions[0].Ours}).To(Equal([]any{"Shadow", int64(12031), int64(12031)}))
		c.expectEventOf(outbox, api.ReasonShadowed, `"orders" is in the shadow`)
		version := outbox.ResourceVersion
		c.rest()
		Expect(fetch(c, outbox, "shop").ResourceVersion).To(Equal(version), "nothing is written while nothing changes")

		c.declare(outbox, api.AdoptionCutover)
		job = c.adoptionOtherThan(outbox, job.Name)
		c.leave(job, time.Now(), `{"adoptions":[{"name":"orders","phase":"Cutover","theirs":12040,"ours":12040,"missing":0,"extra":0,"refused":0}]}`)
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.AdoptedCondition, metav1.ConditionTrue, api.ReasonAsDeclared, ""})
		c.expectEventOf(outbox, api.ReasonCutOver, "which dispatchers send")

		c.declare(outbox, api.AdoptionBack)
		job = c.adoptionOtherThan(outbox, job.Name)
		c.leave(job, time.Now(), `{"adoptions":[{"name":"orders","phase":"Back","theirs":0,"ours":0,"missing":0,"extra":0,"refused":0}]}`)
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.AdoptedCondition, metav1.ConditionTrue, api.ReasonAsDeclared, ""})
		c.expectEventOf(outbox, api.ReasonWentBack, "the service's worker's again")
		Expect(c.requests.forbidden()).To(BeEmpty())
	})

	// A count that is ten minutes old is made again, while in the shadow alone.
	It("is counted again while it is in the shadow", func() {
		c := start(tick)
		outbox := c.adopting(api.AdoptionShadow)
		c.create(outbox)
		c.finish(c.migrates(), time.Now(), "")
		first := c.adoption(outbox)
		c.leave(first, time.Now().Add(-desired.AdoptionInterval), `{"adoptions":[{"name":"orders","phase":"Shadow","theirs":7,"ours":6,"missing":1,"extra":0,"refused":0}]}`)
		second := c.adoptionOtherThan(outbox, first.Name)
		Expect(second.Annotations).To(HaveKeyWithValue(desired.AnnotationAttempt, "2"))
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.AdoptedCondition, metav1.ConditionFalse, api.ReasonCountsDiffer, `of "orders"`})
		c.leave(second, time.Now(), `{"adoptions":[{"name":"orders","phase":"Shadow","theirs":8,"ours":7,"missing":0,"extra":0,"refused":1}]}`)
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.AdoptedCondition, metav1.ConditionFalse, api.ReasonRowsRefused, `"orders"`})
		Eventually(func() []batchv1.Job { return c.adopts(outbox) }).Should(HaveLen(1), "the first one is gone")

		c.declare(outbox, api.AdoptionCutover)
		third := c.adoptionOtherThan(outbox, second.Name)
		c.leave(third, time.Now().Add(-time.Hour), `{"adoptions":[{"name":"orders","phase":"Cutover","theirs":8,"ours":8,"missing":0,"extra":0,"refused":0}]}`)
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.AdoptedCondition, metav1.ConditionTrue, api.ReasonAsDeclared,
			"What is cut over was counted by the last Job; to count again: `kubectl delete job -l outbox.dev/component=adoption,"})
		c.rest()
		Expect(c.adopts(outbox)).To(HaveExactElements(HaveField("Name", third.Name)))

		Expect(c.admin.Delete(c.ctx, third, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		Eventually(func() []batchv1.Job { return c.adopts(outbox) }).Should(HaveExactElements(HaveField("UID", Not(Equal(third.UID)))))
		fourth := &c.adopts(outbox)[0]
		c.leave(fourth, time.Now(), `{"adoptions":[{"name":"orders","phase":"Cutover","theirs":8,"ours":7,"missing":0,"extra":0,"refused":1}]}`)
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.AdoptedCondition, metav1.ConditionFalse, api.ReasonRowsRefused, "to count again: `kubectl delete job"})
	})

	It("reports why a step failed, removes nothing, and is tried again", func() {
		c := start(tick)
		outbox := c.adopting(api.AdoptionShadow)
		c.create(outbox)
		c.finish(c.migrates(), time.Now(), "")
		first := c.adoption(outbox)
		c.finish(first, time.Now().Add(-time.Minute), "adoption orders: adopt shadow: permission denied; log in as the owner")
		c.expectOf(outbox, kstatus.InProgressStatus,
			want{api.AdoptedCondition, metav1.ConditionFalse, api.ReasonAdoptionFailed, "The adoption failed: adoption orders: adopt shadow: permission denied; log in as the owner. It is tried again"},
			want{api.ReconcilingCondition, metav1.ConditionTrue, api.ReasonAdoptionFailed, "permission denied"},
			want{api.SchemaReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""},
			want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""})
		c.expectEventOf(outbox, api.ReasonAdoptionFailed, "permission denied")
		again := c.adoptionOtherThan(outbox, first.Name)
		c.leave(again, time.Now(), `{"adoptions":[{"name":"orders","phase":"Shadow","theirs":0,"ours":0,"missing":0,"extra":0,"refused":0}]}`)
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.AdoptedCondition, metav1.ConditionTrue, api.ReasonAsDeclared, ""})
	})

	// CONTRACT: C-91
	It("of a table that Debezium reads gives the Job slot and publication, and a person what to do with the connector", func() {
		c := start(tick)
		outbox := c.outbox()
		c.create(outbox)
		c.finish(c.migrates(), time.Now(), "")
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""})
		router := debezium(api.AdoptionCutover)
		router.Name, router.Table, router.Publication = "orders", "public.outboxevent", "dbz_orders"
		edit(c, outbox, func(o *api.Outbox) { o.Spec.Adopt = []api.Adoption{router} }) // of a schema that is there already
		job := c.adoption(outbox)
		_, plan := c.ordered(job)
		Expect(plan.Data["plan.yaml"]).To(Equal("adoptions:\n- layout: debezium\n  name: orders\n  namespace: shop\n  phase: Cutover\n" +
			"  publication: dbz_orders\n  slot: debezium\n  table: public.outboxevent\n"))

		c.finish(job, time.Now().Add(-time.Minute), `adoption orders: adopt cutover: slot debezium: ERROR: replication slot "debezium" is active for PID 7 (SQLSTATE 55006); stop the connector, and run it again`)
		c.expectOf(outbox, kstatus.InProgressStatus, want{api.AdoptedCondition, metav1.ConditionFalse, api.ReasonAdoptionFailed, "stop the connector, and run it again. It is tried again"})
		c.leave(c.adoptionOtherThan(outbox, job.Name), time.Now(), `{"adoptions":[{"name":"orders","phase":"Cutover","theirs":0,"ours":0,"missing":0,"extra":0,"refused":1}]}`)
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.AdoptedCondition, metav1.ConditionFalse, api.ReasonRowsRefused, `rows of "orders", and so no dispatcher sends them`})
		c.expectEventOf(outbox, api.ReasonCutOver, "which dispatchers send")
	})

	It("that is taken out of the spec goes back from the shadow, and stays cut over", func() {
		c := start(tick)
		outbox := c.adopting(api.AdoptionShadow)
		outbox.Spec.Adopt = append(outbox.Spec.Adopt, api.Adoption{Name: "other", Layout: api.LayoutOverview, Namespace: "shop", Phase: api.AdoptionCutover})
		c.create(outbox)
		c.finish(c.migrates(), time.Now(), "")
		job := c.adoption(outbox)
		c.leave(job, time.Now(), `{"adoptions":[{"name":"orders","phase":"Shadow","theirs":0,"ours":0,"missing":0,"extra":0,"refused":0},{"name":"other","phase":"Cutover","theirs":0,"ours":0,"missing":0,"extra":0,"refused":0}]}`)
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.AdoptedCondition, metav1.ConditionTrue, api.ReasonAsDeclared, ""})

		edit(c, outbox, func(o *api.Outbox) { o.Spec.Adopt = nil })
		job = c.adoptionOtherThan(outbox, job.Name)
		_, plan := c.ordered(job)
		Expect(plan.Data["plan.yaml"]).To(Equal("removed:\n- orders\n- other\n"))
		c.expectOf(outbox, kstatus.InProgressStatus, want{api.AdoptedCondition, metav1.ConditionFalse, api.ReasonAdopting, `"orders"`})
		c.leave(job, time.Now(), `{"adoptions":[{"name":"other","phase":"Cutover","theirs":0,"ours":0,"missing":0,"extra":0,"refused":0}]}`)
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.AdoptedCondition, metav1.ConditionTrue, api.ReasonLeftCutOver, `still cut over: "other"`})
		c.expectEventOf(outbox, api.ReasonWentBack, `"orders" was taken out of spec.adopt`)
		Expect(outbox.Status.Adoptions).To(HaveExactElements(api.AdoptionStatus{Name: "other", Phase: "Cutover"}))
	})

	It("that is taken out of the spec with the migration says what undoes it, and waits for no Job", func() {
		c := start(tick)
		outbox := c.adopting(api.AdoptionShadow)
		returned := overview(api.AdoptionBack)
		returned.Name = "returned"
		outbox.Spec.Adopt = append(outbox.Spec.Adopt, returned)
		c.create(outbox)
		c.finish(c.migrates(), time.Now(), "")
		c.leave(c.adoption(outbox), time.Now(), `{"adoptions":[{"name":"orders","phase":"Shadow","theirs":0,"ours":0,"missing":0,"extra":0,"refused":0},{"name":"returned","phase":"Back","theirs":0,"ours":0,"missing":0,"extra":0,"refused":0}]}`)
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.AdoptedCondition, metav1.ConditionTrue, api.ReasonAsDeclared, ""})

		migration := outbox.Spec.Migration
		edit(c, outbox, func(o *api.Outbox) { o.Spec.Adopt, o.Spec.Migration = nil, nil })
		c.expectOf(outbox, kstatus.InProgressStatus, // because no dispatcher observes the database
			want{api.AdoptedCondition, metav1.ConditionFalse, api.ReasonAdopting, `No Job can undo "orders", because spec.migration is gone or has policy None; set it again`},
			want{api.ReadyCondition, metav1.ConditionUnknown, api.ReasonNotObserved, ""})
		Expect(meta.FindStatusCondition(outbox.Status.Conditions, api.ReconcilingCondition)).To(BeNil())
		Expect(outbox.Status.Adoptions).To(HaveExactElements(api.AdoptionStatus{Name: "orders", Phase: "Shadow"}))
		Expect(c.adopts(outbox)).To(BeEmpty())

		edit(c, outbox, func(o *api.Outbox) { o.Spec.Migration = migration })
		c.finish(c.migrates(), time.Now(), "")
		job := c.adoption(outbox)
		_, plan := c.ordered(job)
		Expect(plan.Data["plan.yaml"]).To(Equal("removed:\n- orders\n"))
		c.leave(job, time.Now(), `{"adoptions":[]}`)
		c.expectOf(outbox, kstatus.CurrentStatus, want{api.ReadyCondition, metav1.ConditionTrue, api.ReasonUpToDate, ""})
		Expect(outbox.Status.Adoptions).To(BeEmpty())
	})

	It("is repeated when the pod that has its counts is gone", func() {
		c := start(tick)
		outbox := c.adopting(api.AdoptionCutover)
		c.create(outbox)
		c.finish(c.migrates(), time.Now(), "")
		first := c.adoption(outbox)
		c.finish(first, time.Now().Add(-5*time.Minute), "")
		Eventually(func() []batchv1.Job { return c.adopts(outbox) }).Should(HaveExactElements(HaveField("UID", Not(Equal(first.UID)))))

		By("and again a little later")
		second := c.adopts(outbox)[0]
		c.leave(&second, time.Now(), "not JSON")
		c.expectOf(outbox, kstatus.InProgressStatus, want{api.AdoptedCondition, metav1.ConditionFalse, api.ReasonAdopting, `left no outcome of "orders" that can be read. It is made again 5 minutes after its end.`})
		Expect(c.adopts(outbox)).To(HaveExactElements(HaveField("UID", second.UID)))
	})

	DescribeTable("is changed in an order that loses nothing:", func(from, to api.Adoption, words string) {
		c := start(rare)
		outbox := c.adopting(api.AdoptionShadow)
		from.Name, to.Name = "orders", "orders"
		outbox.Spec.Adopt = []api.Adoption{from}
		c.create(outbox)
		var err error
		Eventually(func() bool { // again when the status was written meanwhile
			fetch(c, outbox, "shop").Spec.Adopt = []api.Adoption{to}
			err = c.admin.Update(c.ctx, outbox)
			return err == nil || !strings.Contains(err.Error(), "modified")
		}).Should(BeTrue())
		if words == "" {
			Expect(err).NotTo(HaveOccurred())
			return
		}
		Expect(err).To(MatchError(ContainSubstring(words)))
	},
		Entry("from the cutover to the shadow by way of back", overview(api.AdoptionCutover), overview(api.AdoptionShadow), "phase goes from Cutover to Shadow by way of Back"),
		Entry("another table after it went back", overview(api.AdoptionShadow), api.Adoption{Layout: api.LayoutOverview, Namespace: "shop", Table: "a.b", Phase: api.AdoptionCutover}, "change only from phase Back"),
		Entry("another namespace after it went back", overview(api.AdoptionCutover), api.Adoption{Layout: api.LayoutOverview, Namespace: "stock", Phase: api.AdoptionCutover}, "change only from phase Back"),
		Entry("another layout after it went back", overview(api.AdoptionShadow), api.Adoption{Layout: api.LayoutStorage, Namespace: "shop", Phase: api.AdoptionShadow}, "change only from phase Back"),
		Entry("a topic after it went back", overview(api.AdoptionShadow), api.Adoption{Layout: api.LayoutOverview, Namespace: "shop", Topic: "orders", Phase: api.AdoptionShadow}, "change only from phase Back"),
		Entry("other columns after it went back", completedIn("done"), completedIn("sent"), "change only from phase Back"),
		Entry("another slot after it went back", debezium(api.AdoptionCutover), api.Adoption{Layout: api.LayoutDebezium, Namespace: "shop", Slot: "other", Phase: api.AdoptionCutover}, "slot and publication change only from phase Back"),
		Entry("another publication after it went back", debezium(api.AdoptionShadow), api.Adoption{Layout: api.LayoutDebezium, Namespace: "shop", Slot: "debezium", Publication: "other", Phase: api.AdoptionCutover}, "slot and publication change only from phase Back"),
		Entry("another slot from back", debezium(api.AdoptionBack), api.Adoption{Layout: api.LayoutDebezium, Namespace: "shop", Slot: "other", Phase: api.AdoptionShadow}, ""),
		Entry("to the cutover with the connector's slot as it is", debezium(api.AdoptionShadow), debezium(api.AdoptionCutover), ""),
		Entry("to the cutover", overview(api.AdoptionShadow), overview(api.AdoptionCutover), ""),
		Entry("back", overview(api.AdoptionCutover), overview(api.AdoptionBack), ""),
		Entry("another table from back", overview(api.AdoptionBack), api.Adoption{Layout: api.LayoutOverview, Namespace: "shop", Table: "a.b", Phase: api.AdoptionShadow}, ""),
	)
})

func overview(phase api.AdoptionPhase) api.Adoption {
	return api.Adoption{Layout: api.LayoutOverview, Namespace: "shop", Phase: phase}
}

func completedIn(column api.AdoptionColumn) api.Adoption {
	return api.Adoption{Layout: api.LayoutColumns, Table: "a.b", Namespace: "shop", Topic: "orders", Phase: api.AdoptionShadow,
		Columns: &api.AdoptionColumns{ID: "id", Payload: "body", Completed: column}}
}

func debezium(phase api.AdoptionPhase) api.Adoption {
	return api.Adoption{Layout: api.LayoutDebezium, Namespace: "shop", Slot: "debezium", Phase: phase}
}

// adopting is an Outbox that adopts a table.
func (c *cluster) adopting(phase api.AdoptionPhase) *api.Outbox {
	o := c.outbox()
	o.Spec.Adopt = []api.Adoption{{
		Name: "orders", Layout: api.LayoutColumns, Table: "public.order_outbox", Namespace: "shop", Topic: "orders", Phase: phase,
		Columns: &api.AdoptionColumns{ID: "id", Payload: "body", Status: &api.AdoptionStatusColumn{Column: "state", Open: []string{"NEW", "SENDING"}, Completed: "SENT"}},
	}}
	return o
}

func (c *cluster) declare(outbox *api.Outbox, phase api.AdoptionPhase) {
	GinkgoHelper()
	edit(c, outbox, func(o *api.Outbox) { o.Spec.Adopt[0].Phase = phase })
}

// component are the Outbox's Jobs of one.
func (c *cluster) component(component string) []batchv1.Job {
	GinkgoHelper()
	var jobs batchv1.JobList
	Expect(c.admin.List(c.ctx, &jobs, client.InNamespace(c.namespace), client.MatchingLabels{desired.LabelComponent: component})).To(Succeed())
	return jobs.Items
}

// adopts are the Outbox's Jobs that adopt.
func (c *cluster) adopts(*api.Outbox) []batchv1.Job { return c.component(desired.ComponentAdoption) }

// migrates waits for the only migration Job.
func (c *cluster) migrates() *batchv1.Job {
	GinkgoHelper()
	Eventually(func() []batchv1.Job { return c.component(desired.ComponentMigration) }).Should(HaveLen(1))
	return &c.component(desired.ComponentMigration)[0]
}

// adoption waits for the first Job that adopts, and adoptionOtherThan for the next one.
func (c *cluster) adoption(outbox *api.Outbox) *batchv1.Job { return c.adoptionOtherThan(outbox, "") }

func (c *cluster) adoptionOtherThan(outbox *api.Outbox, name string) (found *batchv1.Job) {
	GinkgoHelper()
	Eventually(func() *batchv1.Job {
		for _, job := range c.adopts(outbox) {
			if job.Name != name {
				found = &job
			}
		}
		return found
	}).ShouldNot(BeNil())
	return found
}

// ordered are the Job's command, and its files.
func (c *cluster) ordered(job *batchv1.Job) (command string, files *corev1.ConfigMap) {
	GinkgoHelper()
	spec := job.Spec.Template.Spec
	return strings.Join(spec.Containers[0].Command, " "), fetch(c, &corev1.ConfigMap{}, desired.ConfigNames(&spec)[0])
}

// leave plays a pod that ended well, and left a message.
func (c *cluster) leave(job *batchv1.Job, at time.Time, message string) {
	GinkgoHelper()
	pod := &corev1.Pod{ObjectMeta: *job.Spec.Template.ObjectMeta.DeepCopy(), Spec: *job.Spec.Template.Spec.DeepCopy()}
	pod.Name, pod.Namespace = job.Name+"-"+string(job.UID[:6]), c.namespace
	c.start(pod, corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{Name: desired.Container, Image: "outbox-operator:v1",
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", Message: message}}}}})
	c.finish(job, at, "")
}

// expectEventOf waits for an event about an Outbox.
func (c *cluster) expectEventOf(outbox *api.Outbox, reason, note string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		var events eventsv1.EventList
		g.Expect(c.admin.List(c.ctx, &events, client.InNamespace(c.namespace))).To(Succeed())
		g.Expect(events.Items).To(ContainElement(And(HaveField("Reason", reason), HaveField("Note", ContainSubstring(note)),
			HaveField("Regarding.Kind", "Outbox"), HaveField("Regarding.Name", outbox.Name))), fmt.Sprint(len(events.Items)))
	}).Should(Succeed())
}

// rest waits until the manager has sent the API server no request during five of its intervals.
func (c *cluster) rest() {
	GinkgoHelper()
	before := -1
	Eventually(func() bool {
		was := before
		before = len(c.requests.all())
		return was == before
	}).WithPolling(5*tick).Should(BeTrue(), "there are always new requests")
}
