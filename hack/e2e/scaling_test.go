package e2e

import (
	"encoding/json"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// A backlog that one pod would deliver in an hour: more pods run within a minute, deliver more, and the spec stays.
//
// CONTRACT: C-107
var _ = It("lets the number of pods follow the backlog", Label("scaling"), func() {
	w := newWorld("scaling")
	w.consumer.Work = 100 * time.Millisecond
	w.ready()
	w.patch(`{"spec":{"delivery":{"concurrency":1},"pods":{"scaling":{"mode":"Apply","max":3,"catchUp":"1m"}}}}`)
	w.expect("Ready", "True", "Delivering")
	w.expect("ScalingLimited", "False", "NotLimited")
	now := func() (status v1alpha1.OutboxDispatcherStatus) {
		w.must(json.Unmarshal([]byte(w.kubectl("get", "obd", "orders", "-o", "jsonpath={.status}")), &status))
		return status
	}
	before := len(w.consumer.Deliveries())

	w.exec(`insert into outbox.outbox_events (id, namespace, topic, payload)
		select gen_random_uuid(), 'shop', 'orders', '{}' from generate_series(1, 30000)`)
	began := time.Now()
	Eventually(w.replicas).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Equal("3"))
	w.Logf("three pods are wanted after %.0f s", time.Since(began).Seconds())
	w.expectWithin(2*time.Minute, "ScalingLimited", "True", "AtMaximum")
	Eventually(func(g Gomega) { // the pods that just began count too
		s := now()
		g.Expect([]int32{s.Scaling.Recommended, s.Scaling.LastStep.From, s.Scaling.LastStep.To, s.ReadyReplicas}).To(Equal([]int32{3, 1, 3, 3}))
		g.Expect(s.ETA).To(MatchRegexp(`^[0-9]+[mh]$`))
		g.Expect(s.LimitedBy).To(Equal("Concurrency"))
	}).WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
	s := now()
	w.Logf("%+v, last step %+v, ETA %s, limited by %s\n%s", s.Scaling, s.Scaling.LastStep, s.ETA, s.LimitedBy, w.kubectl("get", "obd"))
	Expect(w.kubectl("get", "obd", "orders", "-o", "jsonpath={.spec.replicas}")).To(Equal("1"))
	Expect(w.kubectl("get", "events", "-o", "jsonpath={range .items[*]}{.reason} {.note}{.message}{'\\n'}{end}")).To(ContainSubstring("Scaled The number of pods changes from 1 to 3."))

	// All go at once, in order: what they gave back has spent no attempt, and nothing was delivered twice.
	w.patch(`{"spec":{"replicas":0}}`)
	Eventually(func() string { return w.kubectl("get", "pods", "-l", "outbox.dev/component=dispatcher", "-o", "name") }).
		WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(BeEmpty())
	Expect(w.number("select count(*) from outbox.outbox_events where status = 'pending' and attempts > 0 or status = 'delivered' and attempts > 1")).To(BeZero())
	delivered, ids := w.consumer.Deliveries()[before:], map[string]bool{}
	for _, d := range delivered {
		ids[d.ID.String()] = true
	}
	Expect(ids).To(HaveLen(len(delivered)))
	w.noCrashes()
	w.Logf("%d events were delivered; %s", len(delivered), strings.TrimSpace(w.kubectl("get", "obd")))
})
