package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

// With default settings a canary has its result within a minute, whatever keeps its events from being delivered, and nothing
// else is put back. A replay whose destination turns bad half-way stops within five seconds of its rate.
//
// CONTRACT: C-42
var _ = It("brakes a replay at its canary, and half-way", Label("replay"), func() {
	const (
		dead, canary = 200, 10
		many, turns  = 6000, 2700
		rate         = 100
	)
	w := newWorld("brake")
	var taken atomic.Int64
	w.manifests.SinkURL = w.serve(func(rw http.ResponseWriter, r *http.Request) {
		switch topic := r.Header.Get("ce-topic"); {
		case topic == "refused", topic == "turns" && taken.Add(1) > turns:
			http.Error(rw, "no such warehouse", http.StatusUnprocessableEntity)
		case topic == "down":
			http.Error(rw, "no healthy upstream", http.StatusServiceUnavailable)
		case topic == "hangs":
			<-r.Context().Done()
		default:
			rw.WriteHeader(http.StatusNoContent)
		}
	})
	w.shopOutbox("  replayLogin: {secretRef: {name: orders-replay}}\n")
	replies := map[string]string{"refused": "422", "down": "503", "hangs": "response", "paused": "is paused", "held": "is not admitted; register its consumer"}
	more := map[string]string{"paused": "  state: Paused\n", "held": "  delivery: {consumerPolicy: Verified}\n"}
	for topic := range replies {
		w.dispatch(topic, more[topic])
	}
	w.dispatch("turns", "")
	w.kubectl("wait", "outbox/shop", "--for=condition=Ready", "--timeout=3m")
	w.kubectl("wait", "obd", "--all", "--for=condition=WorkloadAvailable", "--timeout=3m")
	w.replayLogin()
	for topic := range replies {
		w.addDead(topic, dead)
		w.apply(w.replayOf(topic, canary))
	}
	began := time.Now()
	for topic, reply := range replies {
		Eventually(func() string {
			return w.kubectl("get", "dlr", topic, "-o", `jsonpath={.status.conditions[?(@.type=="Complete")].message}`)
		}).WithTimeout(time.Minute-time.Since(began)).WithPolling(time.Second).Should(ContainSubstring(reply), topic)
		w.Logf("%s: said within %.0f s", topic, time.Since(began).Seconds())
	}
	w.Log(w.kubectl("get", "dlr", "-o", `custom-columns=NAME:.metadata.name,REASON:.status.conditions[?(@.type=="Complete")].reason,MESSAGE:.status.conditions[?(@.type=="Complete")].message`))
	for topic := range replies {
		Expect(w.number(fmt.Sprintf("select count(*) from outbox.outbox_events where topic = '%s' and status = 'dead'", topic))).To(BeNumerically(">=", dead-canary), topic)
	}

	By("a destination turns bad half-way")
	w.addDead("turns", many)
	w.apply(w.replayOf("turns", canary))
	Eventually(taken.Load).WithTimeout(3 * time.Minute).WithPolling(100 * time.Millisecond).Should(BeNumerically(">", turns))
	turned := w.number("select max(requeued) from outbox.outbox_replays")
	w.kubectl("wait", `--for=jsonpath={.status.conditions[?(@.type=="Complete")].reason}=Aborted`, "dlr/turns", "--timeout=3m")
	back := w.number("select max(requeued) from outbox.outbox_replays")
	w.Logf("%d of %d were put back, %d of them before it was seen that the destination had turned bad", back, many, turned)
	Expect(back).To(And(BeNumerically(">", turns), BeNumerically("<=", turned+5*rate)))
})

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

// dispatch applies a dispatcher of one topic of the Outbox shop, which has its name, with default settings and more fields.
func (w *world) dispatch(topic, more string) {
	w.Helper()
	w.apply(fmt.Sprintf("apiVersion: outbox.dev/v1alpha1\nkind: OutboxDispatcher\nmetadata: {name: %[2]s, namespace: %[1]s}\nspec:\n  outboxRef: {name: shop}\n  namespace: %[4]s\n  topics: [%[2]s]\n  sink: {http: {url: %[3]q}}\n%[5]s",
		w.manifests.Namespace, topic, w.manifests.SinkURL, scenario.Namespace, more))
}

// addDead commits dead events of a topic, with their dead letters.
func (w *world) addDead(topic string, n int) {
	w.Helper()
	w.exec(`with dead as (
			insert into outbox.outbox_events (id, namespace, topic, event_type, payload, attempts, status, dead_reason, last_error)
			select gen_random_uuid(), $1, $2, 'OrderPlaced', '{}', 20, 'dead', 'max_retries_exceeded', '422' from generate_series(1, $3::integer) returning *
		)
		insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, reason, attempts, error)
		select id, namespace, topic, seq, key_hash, dead_reason, attempts, last_error from dead`, scenario.Namespace, topic, n)
}

// replayOf is a replay of all dead letters of a topic, with a canary.
func (w *world) replayOf(topic string, canary int) string {
	w.Helper()
	return strings.NewReplacer("{name: orders}", "{name: "+topic+"}", "  rate: 10\n  limit: 0\n", fmt.Sprintf("  canary: %d\n", canary)).Replace(w.replay(topic, 0))
}
