package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// plugin puts kubectl outbox on the PATH.
func (w *world) plugin() {
	w.Helper()
	bin := w.TempDir()
	build := exec.CommandContext(w.ctx, "../build.sh", bin+"/", "./controllers/cmd/kubectl-outbox")
	build.Stderr = GinkgoWriter
	w.must(build.Run())
	w.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

// outbox runs kubectl outbox in the world's namespace.
func (w *world) outbox(args ...string) string {
	w.Helper()
	out, err := cluster.Run(w.ctx, append(append([]string{"outbox"}, args...), "--namespace", w.manifests.Namespace)...)
	w.must(err)
	return out
}

// night is a world whose consumer refuses shipments until it is fixed, and never responds to an audit.
type night struct {
	*world
	fixed atomic.Bool
}

func newNight() *night {
	n := &night{world: newWorld("night")}
	n.manifests.SinkURL = n.serve(n.respond)
	n.plugin()
	n.replayLogin()
	n.shopOutbox("  replayLogin: {secretRef: {name: orders-replay}}\n")
	n.apply(strings.NewReplacer(
		"maxAttempts: 3", "maxAttempts: 2",
		"backoff: {base: 1s, max: 2s}", `backoff: {base: 1s, max: 2s}
  message: {validation: [{types: [OrderPlaced], schema: {inline: '{"properties": {"price": {"type": "number"}}}'}}]}`,
		"  database:\n    secretRef: {name: orders-db}\n    migrationSecretRef: {name: orders-db-owner}\n", "  outboxRef: {name: shop}\n",
		strconv.Quote(n.manifests.SinkURL)+"}", strconv.Quote(n.manifests.SinkURL)+"}\n    timeout: 5s",
	).Replace(n.manifests.Dispatcher()))
	n.must(n.dispatcher.WaitReady(n.ctx, need.Wait))
	return n
}

func (n *night) respond(w http.ResponseWriter, r *http.Request) {
	switch kind := r.Header.Get("ce-type"); {
	case kind == "OrderAudited":
		<-r.Context().Done()
	case kind == "OrderShipped" && !n.fixed.Load():
		http.Error(w, "no such warehouse", http.StatusUnprocessableEntity)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// place commits events from a number on: of each hundred 3 are shipments, and 1 breaks the schema.
func (n *night) place(conn *pgx.Conn, from, count int) {
	n.Helper()
	_, err := conn.Exec(context.WithoutCancel(n.ctx), `insert into outbox.outbox_events (id, namespace, topic, event_type, aggregate_type, aggregate_id, payload)
		select gen_random_uuid(), 'shop', 'orders', case when n % 100 in (1, 2, 3) then 'OrderShipped' else 'OrderPlaced' end, 'order', n::text,
			case when n % 100 = 50 then '{"price": "ten"}'::jsonb else jsonb_build_object('price', n) end
		from generate_series($1::integer, $1::integer + $2::integer - 1) as n`, from, count)
	n.must(err)
}

var deadGauge = regexp.MustCompile(`(?m)^outbox_dlq_events_count\{[^}]*topic="orders"[^}]*\} (\S+)$`)

// agree waits until SQL, the groups of a pod, its metric, the object's status and its column have the same number of open
// dead letters, and returns the groups.
func (n *night) agree(step string, want int) deadletters.Groups {
	n.Helper()
	var groups deadletters.Groups
	Eventually(func(g Gomega) {
		groups = deadletters.Groups{}
		g.Expect(json.Unmarshal([]byte(n.outbox("dead", "groups", "orders", "--output", "json")), &groups)).To(Succeed())
		grouped, inStatus := 0, 0
		for _, group := range groups.Groups {
			grouped += int(group.Count)
		}
		var obd v1alpha1.OutboxDispatcher
		g.Expect(json.Unmarshal([]byte(n.kubectl("get", "obd", "orders", "-o", "json")), &obd)).To(Succeed())
		for _, group := range obd.Status.DeadGroups {
			inStatus += int(group.Count)
		}
		columns, err := n.dispatcher.Columns(n.ctx)
		g.Expect(err).NotTo(HaveOccurred())
		pods, err := n.dispatcher.Pods(n.ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pods).To(HaveLen(1))
		metrics := n.kubectl("get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:8080/proxy/metrics", n.manifests.Namespace, pods[0]))
		g.Expect(n.number(`select count(*) from outbox.outbox_dead_letters where resolution is null`)).To(BeEquivalentTo(want), "in SQL")
		g.Expect(grouped).To(Equal(want), "in the groups")
		g.Expect(obd.Status.Counts).To(HaveValue(HaveField("Dead", BeEquivalentTo(want))), "in the status")
		g.Expect(inStatus).To(Equal(want), "in the status's groups")
		g.Expect(strings.Fields(strings.Split(columns, "\n")[1])[4]).To(Equal(strconv.Itoa(want)), "in the column DEAD of\n%s", columns)
		g.Expect(deadGauge.FindStringSubmatch(metrics)).To(HaveExactElements(Not(BeEmpty()), Equal(strconv.Itoa(want))), "in the metric")
	}).Should(Succeed(), step)
	n.Logf("%s: %d open dead letters in SQL, groups, metric, status and column", step, want)
	return groups
}

// run replays or discards with the plugin, logs its output, and returns the object when it has finished.
func (n *night) run(args ...string) (dlr v1alpha1.DeadLetterReplay) {
	n.Helper()
	args = append(args, "--wait", "-o", "json", "--namespace", n.manifests.Namespace)
	out, err := cluster.Run(n.ctx, append([]string{"outbox"}, args...)...)
	n.Logf("kubectl outbox %s: %v", strings.Join(args, " "), err)
	n.must(json.Unmarshal([]byte(out), &dlr))
	n.Log(n.kubectl("get", "dlr", dlr.Name))
	ready := "True"
	if err != nil {
		ready = "False"
	}
	Expect(n.kubectl("get", "dlr", dlr.Name, "-o", `jsonpath={.status.conditions[?(@.type=="Complete")].status}`)).To(Equal(ready), "the exit code agrees with the object")
	return dlr
}

// A night on call with 50,000 events (or NIGHT_EVENTS), until no dead letter is open: SQL, groups, metrics, columns and
// objects agree after each command, and with columns at a large backlog.
//
// CONTRACT: C-40, C-41, C-42, C-43, C-96, C-100
var _ = It("goes through a night on call", Label("night"), func() {
	n := newNight()
	events := 50_000
	if text := os.Getenv("NIGHT_EVENTS"); text != "" {
		var err error
		events, err = strconv.Atoi(text)
		n.must(err)
		events = events / 100 * 100
	}
	refused, invalid := events*3/100, events/100
	conn, err := pgx.Connect(n.ctx, n.shop.Admin)
	n.must(err)
	defer conn.Close(n.ctx)
	n.place(conn, 1, events)
	n.exec(`insert into outbox.outbox_events (id, namespace, topic, event_type, payload) values (gen_random_uuid(), 'shop', 'orders', 'OrderAudited', '{}')`)
	n.drained()

	groups := n.agree("at first", refused+invalid+1)
	Expect(groups.Groups).To(HaveLen(3))
	group := groups.Groups[0]
	Expect(group).To(And(HaveField("Count", BeEquivalentTo(refused)), HaveField("Code", "422")))
	Expect(groups.Groups[1]).To(And(HaveField("Count", BeEquivalentTo(invalid)), HaveField("Class", "schema")))
	Expect(groups.Groups[2].Count).To(BeEquivalentTo(1))
	report := n.outbox("status", "orders")
	n.Log(report)
	Expect(report).To(And(ContainSubstring(group.Group), ContainSubstring(groups.Groups[1].Group), ContainSubstring("kubectl outbox dead show orders "+group.Event)))
	Expect(n.outbox("dead", "show", "orders", group.Event)).To(And(ContainSubstring("422"), ContainSubstring("status: dead\n"), Not(ContainSubstring("payload:"))))
	Expect(n.outbox("dead", "show", "orders", group.Event, "--payload")).To(ContainSubstring("payload:"))
	Expect(n.outbox("events", "show", "orders", group.Event)).To(ContainSubstring("422"))

	By("a backlog that is counted by an estimate while the dispatcher is paused")
	n.outbox("pause", "orders")
	n.expect("Ready", "True", "Paused")
	Eventually(func() []string {
		return strings.Fields(n.kubectl("get", "pods", "-l", "outbox.dev/component=dispatcher", "-o", "name"))
	}).Should(HaveLen(1), "the pod that claims has stopped")
	n.place(conn, events+1, events)
	Eventually(func(g Gomega) {
		columns, err := n.dispatcher.Columns(n.ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(strconv.Atoi(strings.Fields(strings.Split(columns, "\n")[1])[3])).To(BeNumerically("~", events, events/20), "in the column PENDING of\n%s", columns)
		g.Expect(n.kubectl("get", "obd", "orders", "-o", "jsonpath={.status.estimated}")).To(Equal(map[bool]string{true: "true"}[events > 10_000]))
	}).Should(Succeed())
	n.exec(`delete from outbox.outbox_events where status = 'pending'`)
	n.outbox("resume", "orders")
	n.expect("Ready", "True", "Delivering")

	By("a dry run")
	dlr := n.run("dead", "replay", "orders", "--group", group.Group, "--reason", "CHG-812", "--dry-run")
	Expect(dlr.Status.Matched).To(BeEquivalentTo(refused))
	n.agree("after the dry run", refused+invalid+1)

	By("a canary before the consumer is fixed")
	dlr = n.run("dead", "replay", "orders", "--group", group.Group, "--reason", "CHG-812", "--canary", "10", "--rate", "500")
	Expect(dlr.Status.DeadAgain).To(BeEquivalentTo(10))
	Expect(dlr.Status.Skipped).To(ConsistOf(status.Skipped{Reason: "stopped", Count: int64(refused - 10)}))
	Expect(n.kubectl("get", "dlr", dlr.Name, "-o", `jsonpath={.status.conditions[?(@.type=="Complete")].reason}`)).To(Equal("Aborted"))
	n.agree("after the canary", refused+invalid+1)

	By("the replay, while the shop produces 2,000 events a second")
	n.fixed.Store(true)
	stop, flowed := make(chan struct{}), make(chan int, 1)
	go func() {
		defer GinkgoRecover()
		more, tick := 0, time.NewTicker(50*time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				flowed <- more
				return
			case <-tick.C:
				n.place(conn, events+1+more, 100)
				more += 100
			}
		}
	}()
	dlr = n.run("dead", "replay", "orders", "--group", group.Group, "--reason", "CHG-812", "--canary", "10", "--rate", "500")
	close(stop)
	more := <-flowed
	Expect(dlr.Status.Delivered).To(BeEquivalentTo(refused))
	Expect(dlr.Status.ID).NotTo(BeEmpty())
	Expect(n.number(`select delivered from outbox.outbox_replays where id = '` + dlr.Status.ID + `'`)).To(BeEquivalentTo(refused))
	n.drained()
	n.Logf("%d events came meanwhile", more)
	invalid += more / 100
	n.agree("after the replay", invalid+1)
	Expect(n.number(`select count(*) from outbox.outbox_events where status = 'delivered'`)).To(BeEquivalentTo(events + more - invalid))

	By("the rest is discarded")
	dlr = n.run("dead", "discard", "orders", "--all", "--reason", "known to the shop")
	Expect(dlr.Status.Discarded).To(BeEquivalentTo(invalid + 1))
	n.agree("in the morning", 0)
	n.expect("DeadLettersPresent", "False", "NoDeadLetters")
	Expect(n.number(`select count(*) from outbox.outbox_dead_letters where resolution = 'replayed'`)).To(BeEquivalentTo(refused + 10))
	Expect(n.number(`select count(*) from outbox.outbox_dead_letters where resolution = 'discarded'`)).To(BeEquivalentTo(invalid + 1))
	Expect(n.number(`select count(*) from outbox.outbox_events where status = 'dead'`)).To(BeEquivalentTo(invalid + 1))
	n.Log(n.outbox("dead", "operations", "orders"))
})
