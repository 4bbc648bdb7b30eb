package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

// Two DeadLetterReplays have the same dead letters. The pod of one is killed and its Job is deleted, the database
// crashes, and the other one is deleted half-way. Each row is requeued once, and the objects have the right counts.
//
// CONTRACT: C-42
var _ = It("replays dead events as an object, through crashes and deletion", Label("replay"), func() {
	const rows = 300
	w := newWorld("replay")
	w.ready()
	w.shopOutbox("")
	w.kubectl("patch", "obd", "orders", "--type=merge", "-p", `{"spec": {"database": null, "outboxRef": {"name": "shop"}}}`)
	w.replayLogin()
	w.produce(rows)
	count := func(where string) func() int64 {
		return func() int64 { return w.number("select count(*) from outbox.outbox_events where " + where) }
	}
	Eventually(count("status = 'delivered'")).Should(BeEquivalentTo(rows))
	w.exec(`with dead as (
			update outbox.outbox_events set status = 'dead', dead_reason = 'permanent_failure', last_error = '422' where status = 'delivered' returning *
		)
		insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, reason, attempts, error)
		select id, namespace, topic, seq, key_hash, dead_reason, attempts, last_error from dead`)

	w.apply(w.replay("first", rows/2))
	Eventually(func() string {
		return w.kubectl("get", "dlr", "first", "-o", `jsonpath={.status.conditions[?(@.type=="Complete")].reason}`)
	}).Should(Equal("ReplayLoginMissing"))
	w.kubectl("patch", "outbox", "shop", "--type=merge", "-p", `{"spec": {"replayLogin": {"secretRef": {"name": "orders-replay"}}}}`)
	done := func(name string) func() int {
		return func() int {
			n, _ := strconv.Atoi(w.kubectl("get", "dlr", name, "-o", "jsonpath={.status.done}")) // empty at first
			return n
		}
	}
	Eventually(done("first")).Should(BeNumerically(">", 0))
	w.apply(w.replay("second", rows)) // the first has claimed its half
	Eventually(done("second")).Should(BeNumerically(">=", 20))

	By("the pod is killed, the Job is deleted, and the database crashes")
	w.kubectl("delete", "pod", "-l", "outbox.dev/replay=first", "--grace-period=0", "--force")
	w.kubectl("delete", "job", "first-replay")
	w.server.Kill()
	w.must(w.server.Restart(w.ctx))

	By("one is deleted half-way")
	w.kubectl("delete", "dlr", "second")

	By("the other one finishes, and a minute later a third takes what waited")
	w.kubectl("wait", "--for=condition=Complete", "dlr/first", "--timeout=4m")
	Expect(w.kubectl("get", "dlr", "first", "-o", "jsonpath={.status.matched} {.status.delivered}")).To(Equal("150 150"))
	Eventually(func() int64 {
		return w.number(`select count(*) from outbox.outbox_dead_letters where resolution is null and not coalesce(outbox.outbox_replay_claims(replay_id, replay_state), false)`)
	}).Should(BeNumerically(">", 0))
	w.apply(w.replay("third", rows))
	w.kubectl("wait", "--for=condition=Complete", "dlr/third", "--timeout=4m")
	Expect(count("status = 'delivered'")()).To(BeEquivalentTo(rows))
	Expect(w.number(`select count(*) from outbox.outbox_dead_letters where resolution = 'replayed'`)).To(BeEquivalentTo(rows))
	Expect(w.number(`select sum(requeued) from outbox.outbox_replays`)).To(BeEquivalentTo(rows))
})

// replay is a DeadLetterReplay with a limit.
func (w *world) replay(name string, limit int) string {
	w.Helper()
	user := w.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
	return fmt.Sprintf(`apiVersion: outbox.dev/v1alpha1
kind: DeadLetterReplay
metadata: {name: %s, namespace: %s}
spec:
  dispatcherRef: {name: orders}
  action: Replay
  reason: CHG-812
  requestedBy: %q
  selector: {all: true}
  rate: 10
  limit: %d
`, name, w.manifests.Namespace, user, limit)
}

// shopOutbox applies the Outbox shop, with the logins of the dispatcher's own database and more fields.
func (w *world) shopOutbox(more string) {
	w.Helper()
	w.apply(fmt.Sprintf("apiVersion: outbox.dev/v1alpha1\nkind: Outbox\nmetadata: {name: shop, namespace: %s}\nspec:\n  secretRef: {name: orders-db}\n  migration: {secretRef: {name: orders-db-owner}}\n%s",
		w.manifests.Namespace, more))
}

// replayLogin makes the login for replays, and its Secret orders-replay. The migration of the Outbox that names it grants it its rights.
func (w *world) replayLogin() {
	w.Helper()
	login := scenario.Login{User: w.shop.Database + "_replay", Password: "replay"}
	w.exec(fmt.Sprintf("create role %s login password '%s'", login.User, login.Password))
	w.apply(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: orders-replay, namespace: %s}\nstringData: {dsn: %q}\n",
		w.manifests.Namespace, w.shop.DSN(login, cluster.HostIP, w.server.Port)))
}

// serve runs a server that pods reach, and returns its URL.
func (w *world) serve(handler http.HandlerFunc) string {
	w.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(cluster.HostListen, "0"))
	w.must(err)
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice a closed connection
		handler(rw, r)
	})}
	go func() { _ = server.Serve(listener) }() // until it is closed
	w.Cleanup(func() { _ = server.Close() })
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return "http://" + net.JoinHostPort(cluster.HostIP, port)
}

// A backlog that one pod would deliver in an hour: more pods run, deliver more, and the spec stays.
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
	Eventually(w.replicas).Should(Equal("3"))
	w.Logf("three pods are wanted after %.0f s", time.Since(began).Seconds())
	w.expect("ScalingLimited", "True", "AtMaximum")
	Eventually(func(g Gomega) { // the pods that just began count too
		s := now()
		g.Expect([]int32{s.Scaling.Recommended, s.Scaling.LastStep.From, s.Scaling.LastStep.To, s.ReadyReplicas}).To(Equal([]int32{3, 1, 3, 3}))
		g.Expect(s.ETA).To(MatchRegexp(`^[0-9]+[mh]$`))
		g.Expect(s.LimitedBy).To(Equal("Concurrency"))
	}).Should(Succeed())
	s := now()
	w.Logf("%+v, last step %+v, ETA %s, limited by %s\n%s", s.Scaling, s.Scaling.LastStep, s.ETA, s.LimitedBy, w.kubectl("get", "obd"))
	Expect(w.kubectl("get", "obd", "orders", "-o", "jsonpath={.spec.replicas}")).To(Equal("1"))
	Expect(w.kubectl("get", "events", "-o", "jsonpath={range .items[*]}{.reason} {.note}{.message}{'\\n'}{end}")).To(ContainSubstring("Scaled The number of pods changes from 1 to 3."))

	// All go at once, in order: what they gave back has spent no attempt, and nothing was delivered twice.
	w.patch(`{"spec":{"replicas":0}}`)
	Eventually(func() string { return w.kubectl("get", "pods", "-l", "outbox.dev/component=dispatcher", "-o", "name") }).Should(BeEmpty())
	Expect(w.number("select count(*) from outbox.outbox_events where status = 'pending' and attempts > 0 or status = 'delivered' and attempts > 1")).To(BeZero())
	delivered, ids := w.consumer.Deliveries()[before:], map[string]bool{}
	for _, d := range delivered {
		ids[d.ID.String()] = true
	}
	Expect(ids).To(HaveLen(len(delivered)))
	w.noCrashes()
	w.Logf("%d events were delivered; %s", len(delivered), strings.TrimSpace(w.kubectl("get", "obd")))
})
