package plugin_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// statusOf is what the operator would report of a DeadLetterReplay.
func statusOf(ready metav1.ConditionStatus, reason string, matched, done int64) v1alpha1.DeadLetterReplayStatus {
	s := v1alpha1.DeadLetterReplayStatus{ObservedGeneration: 1, Progress: &status.Progress{Matched: matched}, Done: &done}
	s.Conditions = []metav1.Condition{{Type: v1alpha1.CompleteCondition, Status: ready, Reason: reason, Message: "As it is.", LastTransitionTime: metav1.NewTime(noon)}}
	return s
}

// operator plays the operator once: it reports of the DeadLetterReplay that appears, and ends with the spec.
func (w *world) operator(report v1alpha1.DeadLetterReplayStatus) {
	w.play(func(ctx context.Context) bool {
		var list v1alpha1.DeadLetterReplayList
		if w.List(ctx, &list, client.InNamespace(w.namespace)) != nil || len(list.Items) == 0 {
			return false
		}
		list.Items[0].Status = report
		return w.Status().Update(ctx, &list.Items[0]) == nil
	})
}

// created is the one DeadLetterReplay that there is.
func (w *world) created(ctx context.Context) v1alpha1.DeadLetterReplay {
	GinkgoHelper()
	var list v1alpha1.DeadLetterReplayList
	Expect(w.List(ctx, &list, client.InNamespace(w.namespace))).To(Succeed())
	Expect(list.Items).To(HaveLen(1))
	return list.Items[0]
}

var _ = Describe("kubectl outbox dead replay", Label("replay"), func() {
	var w *world
	BeforeEach(func(ctx SpecContext) {
		w = newWorld(ctx)
		w.dispatcher(ctx)
	})

	It("takes a group, and reports its outcome", func(ctx SpecContext) {
		report := statusOf(metav1.ConditionTrue, "Finished", 1500, 1500)
		report.Delivered, report.DeadAgain, report.Skipped = 1495, 4, []status.Skipped{{Reason: "not_dead", Count: 1}}
		w.operator(report)
		r := w.run(ctx, "dead", "replay", "orders", "--group", "7f3a9c21", "--reason", "CHG-812", "--rate", "500", "--canary", "10", "--abort-at", "20", "--expires", "1h", "--limit", "2000", "--wait")
		Expect(r.err).NotTo(HaveOccurred())
		Expect(r.errOut).To(BeEmpty())
		Expect(r.out).To(HavePrefix("replay orders-20260301-130000: waits for the operator\n"))
		Expect(r.out).To(HaveSuffix("replay orders-20260301-130000: 1499 of 1500 put back, 1495 delivered, 4 dead again, 1 skipped: not_dead\n"))
		made := w.created(ctx).Spec
		Expect(made.RequestedBy).To(Equal("admin"))
		Expect(made).To(Equal(spec.Replay{
			DispatcherRef: &spec.DispatcherRef{Name: "orders"}, Action: spec.ActionReplay, Reason: "CHG-812", RequestedBy: "admin",
			Selector: spec.DeadLetterSelector{Group: "7f3a9c21"}, Rate: 500, Canary: 10, AbortAt: 20, Expires: spec.Duration(time.Hour), Limit: 2000, TTLAfterFinished: new(spec.Duration(168 * time.Hour)),
		}))
	})

	It("does not wait for outcomes without --wait", func(ctx SpecContext) {
		w.operator(statusOf(metav1.ConditionFalse, "Running", 3, 1))
		report := statusOf(metav1.ConditionFalse, "Running", 3, 3)
		report.Pending = 3
		var out strings.Builder
		progress := &watched{until: "0 of 3 put back, 0 delivered", then: sync.OnceFunc(func() { w.operator(report) })}
		r := w.runBoth(ctx, &out, progress, "dead", "replay", "orders", "--all", "--reason", "CHG-812", "--output", "json")
		Expect(r.err).NotTo(HaveOccurred())
		Expect(out.String()).To(ContainSubstring(`"name": "orders-20260301-130000"`))
		Expect(progress.String()).To(HaveSuffix(": 3 of 3 put back, 0 delivered, 3 not delivered yet\n"))
		Expect(strings.Count(progress.String(), "0 of 3 put back, 0 delivered")).To(Equal(1), "a line for each change")
	})

	It("says what is in the way", func(ctx SpecContext) {
		report := statusOf(metav1.ConditionFalse, "Waiting", 30, 10)
		report.Failing, report.Conditions[0].Message = 1, "The newest failure: 503."
		w.operator(report)
		short, cancel := context.WithCancel(ctx)
		DeferCleanup(cancel)
		out := &watched{until: "1 of 30 put back, 0 delivered, 1 failing; The newest failure: 503.\n", then: cancel}
		Expect(w.runTo(short, out, "dead", "replay", "orders", "--all", "--reason", "CHG-812", "--canary", "10").err).To(MatchError(ContainSubstring("`kubectl outbox dead stop orders orders-20260301-130000 --namespace " + w.namespace + "` stops it")))

		By("and stops it")
		Expect(w.run(ctx, "dead", "stop", "orders", "chg-812").err).To(MatchError(ContainSubstring("orders has no operation chg-812; `kubectl outbox dead operations orders --namespace " + w.namespace + "`")))
		Expect(w.run(ctx, "dead", "stop", "orders", "orders-20260301-130000").out).To(HavePrefix("orders-20260301-130000 is stopped: 1 of 30 put back, 0 delivered, 1 failing"))
		Expect(w.run(ctx, "dead", "operations", "orders").out).To(ContainSubstring("items: []\n"))
	})

	It("says why it could not stop one", func(ctx SpecContext) {
		dlr := w.replay("chg-812", "admin")
		Expect(w.Create(ctx, dlr)).To(Succeed())
		deletes := func() error { return errors.New("the line is down") }
		w.config = rest.CopyConfig(w.config)
		w.config.Wrap(func(server http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodDelete {
					if err := deletes(); err != nil {
						return nil, err
					}
				}
				return server.RoundTrip(r)
			})
		})
		Expect(w.run(ctx, "dead", "stop", "orders", "chg-812").err).To(MatchError(And(HavePrefix("delete the DeadLetterReplay "+w.namespace+"/chg-812: "), HaveSuffix("the line is down; try again"))))
		deletes = func() error { return w.Delete(ctx, dlr) } // another person is faster
		Expect(w.run(ctx, "dead", "stop", "orders", "chg-812").err).To(MatchError(And(HavePrefix("the DeadLetterReplay "+w.namespace+"/chg-812 is gone already: "), HaveSuffix("`kubectl outbox dead groups orders --namespace "+w.namespace+"`"))))
	})

	It("counts what would be done", func(ctx SpecContext) {
		report := statusOf(metav1.ConditionTrue, "Finished", 3, 0)
		report.Skipped = []status.Skipped{{Reason: "gone", Count: 1}}
		w.operator(report)
		r := w.run(ctx, "dead", "discard", "orders", "--topic", "orders", "--since", "2h", "--id", "42", "--id", event, "--reason", "load test", "--dry-run", "--name", "count")
		Expect(r.err).NotTo(HaveOccurred())
		Expect(r.out).To(HaveSuffix("discard count: would discard 2 of 3, 1 skipped: gone\n"))
		spec := w.created(ctx).Spec
		Expect(spec.DryRun).To(BeTrue())
		Expect(spec.TTLAfterFinished.D()).To(Equal(time.Hour))
		Expect(spec.Selector.Topics).To(Equal([]string{"orders"}))
		Expect(spec.Selector.IDs).To(Equal([]string{"42", event}))
		Expect(spec.Selector.Since.Time()).To(Equal(noon.Add(-time.Hour)))
	})

	It("fails when it stopped by itself, and says what to do", func(ctx SpecContext) {
		report := statusOf(metav1.ConditionFalse, "Aborted", 1500, 1500)
		report.DeadAgain, report.Stopped = 6, "6 of 10 known outcomes are dead again"
		w.operator(report)
		r := w.run(ctx, "dead", "replay", "orders", "--group", "7f3a9c21", "--reason", "CHG-812", "--canary", "10", "-o", "json")
		Expect(r.err).To(MatchError(ContainSubstring("was stopped: 6 of 10 known outcomes are dead again; see why events are dead again, with `kubectl outbox dead groups orders --namespace " + w.namespace + "`")))
		var dlr v1alpha1.DeadLetterReplay
		Expect(json.Unmarshal([]byte(r.out), &dlr)).To(Succeed(), "what is piped is the object alone")
		Expect(dlr.Kind).To(Equal("DeadLetterReplay"))
		Expect(dlr.Status.DeadAgain).To(Equal(int64(6)))
	})

	It("fails when it cannot continue", func(ctx SpecContext) {
		report := statusOf(metav1.ConditionFalse, "NoLogin", 0, 0)
		report.Progress, report.Done = nil, nil
		report.Conditions = append(report.Conditions, metav1.Condition{Type: v1alpha1.StalledCondition, Status: metav1.ConditionTrue, Reason: "NoLogin", Message: "Set spec.replayLogin.", LastTransitionTime: metav1.NewTime(noon)})
		w.operator(report)
		kubeconfig := filepath.Join(GinkgoT().TempDir(), "kubeconfig")
		Expect(os.WriteFile(kubeconfig, nil, 0o600)).To(Succeed())
		here := " --namespace " + w.namespace + " --context staging --kubeconfig " + kubeconfig
		r := w.run(ctx, "dead", "replay", "orders", "--all", "--reason", "CHG-812", "--name", "chg-812", "--context", "staging", "--kubeconfig", kubeconfig)
		Expect(r.err).To(MatchError("chg-812 cannot continue: NoLogin: Set spec.replayLogin.; `kubectl outbox dead stop orders chg-812" + here + "` gives it up"))
		Expect(r.out).To(HaveSuffix("replay chg-812: NoLogin: As it is.\n"))
		Expect(w.run(ctx, "dead", "replay", "orders", "--all", "--reason", "again", "--name", "chg-812").err).To(MatchError(ContainSubstring("choose another --name, or see `kubectl outbox dead operations orders --namespace " + w.namespace + "`")))
	})

	It("reports that the operator has not seen it, and that it continues without the command", func(ctx SpecContext) {
		short, cancel := context.WithCancel(ctx)
		DeferCleanup(cancel)
		out := &watched{until: "the operator has not seen it yet", then: cancel}
		r := w.runTo(short, out, "dead", "replay", "orders", "--all", "--reason", "CHG-812")
		Expect(r.err).To(MatchError(ContainSubstring("the command was interrupted, and orders-20260301-130000 continues")))
		Expect(w.created(ctx).DeletionTimestamp).To(BeNil())
	})

	DescribeTable("reports that one is gone, with what was seen last", func(ctx SpecContext, ttl, want string) {
		w.operator(statusOf(metav1.ConditionFalse, "Running", 3, 1))
		out := &watched{until: "0 of 3 put back, 0 delivered", then: sync.OnceFunc(func() {
			dlr := w.created(ctx)
			Expect(w.Delete(ctx, &dlr)).To(Succeed())
		})}
		r := w.runTo(ctx, out, "dead", "replay", "orders", "--all", "--reason", "CHG-812", "--wait", "--name", "chg-812", "--ttl-after-finished", ttl)
		Expect(r.err).To(MatchError(And(HavePrefix("the DeadLetterReplay "+w.namespace+"/chg-812 was "+want), ContainSubstring("; seen last: 0 of 3 put back, 0 delivered; "), ContainSubstring("`kubectl outbox dead groups orders --namespace "+w.namespace+"`"))))
	},
		Entry("removed after its end", "1s", "removed after it ended, since its ttlAfterFinished is 1s"),
		Entry("deleted by a person", "168h", "deleted, which stops it"),
		Entry("without a time to live", "0", "deleted, which stops it"),
	)

	It("writes the object for a pull request, and creates nothing", func(ctx SpecContext) {
		r := w.run(ctx, "dead", "replay", "orders", "--group", "7f3a9c21", "--reason", "CHG-812, requested by ada", "--canary", "10", "--print", "--name", "chg-812",
			"--ttl-after-finished", "168h", "--requested-by", "system:serviceaccount:flux-system:kustomize-controller")
		Expect(r.err).NotTo(HaveOccurred())
		Expect(r.out).To(Equal(strings.ReplaceAll(`apiVersion: outbox.dev/v1alpha1
kind: DeadLetterReplay
metadata:
  name: chg-812
  namespace: NAMESPACE
spec:
  action: Replay
  canary: 10
  dispatcherRef:
    name: orders
  rate: 100
  reason: CHG-812, requested by ada
  requestedBy: system:serviceaccount:flux-system:kustomize-controller
  selector:
    group: 7f3a9c21
  ttlAfterFinished: 168h
`, "NAMESPACE", w.namespace)))
		var list v1alpha1.DeadLetterReplayList
		Expect(w.List(ctx, &list, client.InNamespace(w.namespace))).To(Succeed())
		Expect(list.Items).To(BeEmpty())
	})

	It("works when no pod responds, and makes a name of what fits", func(ctx SpecContext) {
		long := &v1alpha1.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: strings.Repeat("o", 31) + "-orders"},
			Spec: spec.Dispatcher{Namespace: "shop", OutboxRef: &spec.OutboxRef{Name: "main"}, Sink: spec.Sink{Log: &spec.LogSink{}}}}
		Expect(w.Create(ctx, long)).To(Succeed())
		Expect(w.run(ctx, "dead", "replay", long.Name, "--all", "--reason", "CHG-812", "--print").out).To(ContainSubstring("\n  name: " + strings.Repeat("o", 31) + "-20260301-130000\n"))
		w.unreachable = errors.New("no route to the pod")
		r := w.run(ctx, "dead", "replay", "orders", "--group", "7f3a9c21", "--reason", "CHG-812", "--print")
		Expect(r.err).NotTo(HaveOccurred())
		Expect(r.out).To(ContainSubstring("\n    group: 7f3a9c21\n"))
	})

	It("refuses what cannot be meant, with a remedy", func(ctx SpecContext) {
		for words, want := range map[string]string{
			"":                               "no filter; choose dead letters, such as with --group, or add --all",
			"--all --topic orders":           "--all is every dead letter, and there is a filter too; remove one of them",
			"--group 2":                      "the filter is wrong: group: \"2\" is not a group; give its 8 hex digits",
			"--group 7F3A9C21":               "the filter is wrong: group: ",
			"--all --requested-by eve":       "--requested-by is for --print alone",
			"--all --output xml":             "choose text, json or yaml",
			"--all --rate 0 --canary -1":     "spec.canary",
			"--all --ttl-after-finished=-1h": "set it to a time such as 168h",
		} {
			short, cancel := context.WithTimeout(ctx, time.Minute) // what is taken has no end
			r := w.run(short, append([]string{"dead", "replay", "orders", "--reason", "CHG-812"}, strings.Fields(words)...)...)
			cancel()
			Expect(r.err).To(MatchError(ContainSubstring(want)), words)
		}
		Expect(w.run(ctx, "dead", "replay", "orders", "--all").err).To(MatchError(ContainSubstring(`"reason" not set`)))
		Expect(w.Create(ctx, &v1alpha1.Outbox{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "main"},
			Spec: spec.Outbox{SecretRef: spec.SecretRef{Name: "db"}}})).To(Succeed())
		Expect(w.run(ctx, "dead", "replay", "orders", "--all", "--reason", "CHG-812").err).To(MatchError("the Outbox main names no login for replays; " +
			"set its spec.replayLogin to a login that has what `dispatcher migrate grants --for replay` prints"))
		Expect(w.Create(ctx, &v1alpha1.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "bills"},
			Spec: spec.Dispatcher{Namespace: "shop", Database: &spec.DispatcherDatabase{SecretRef: spec.SecretRef{Name: "db"}},
				Sink: spec.Sink{Log: &spec.LogSink{}}}})).To(Succeed())
		Expect(w.run(ctx, "dead", "replay", "bills", "--all", "--reason", "CHG-812").err).To(MatchError(ContainSubstring("the OutboxDispatcher bills has a database of its own, without a login for replays; create an Outbox")))
		var list v1alpha1.DeadLetterReplayList
		Expect(w.List(ctx, &list, client.InNamespace(w.namespace))).To(Succeed())
		Expect(list.Items).To(BeEmpty())
	})

	It("lists what was requested", func(ctx SpecContext) {
		Expect(w.run(ctx, "dead", "operations", "orders").out).To(ContainSubstring("items: []\n"))
		report := statusOf(metav1.ConditionTrue, "Finished", 3, 3)
		report.Discarded = 3
		w.operator(report)
		Expect(w.run(ctx, "dead", "discard", "orders", "--all", "--reason", "CHG-812:\nno such item", "--name", "chg-812").err).NotTo(HaveOccurred())
		other := w.created(ctx)
		other = v1alpha1.DeadLetterReplay{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "other"}, Spec: other.Spec}
		other.Spec.DispatcherRef = &spec.DispatcherRef{Name: "bills"}
		Expect(w.Create(ctx, &other)).To(Succeed())
		r := w.run(ctx, "dead", "operations", "orders")
		Expect(r.err).NotTo(HaveOccurred())
		Expect(r.out).To(And(ContainSubstring("kind: DeadLetterReplayList\n"), ContainSubstring("name: chg-812\n"), ContainSubstring("reason: Finished\n"), Not(ContainSubstring("name: other\n"))))
		var list v1alpha1.DeadLetterReplayList
		Expect(json.Unmarshal([]byte(w.run(ctx, "dead", "operations", "orders", "-o", "json").out), &list)).To(Succeed())
		Expect(list.Kind).To(Equal("DeadLetterReplayList"))
		Expect(list.Items).To(HaveLen(1))

		By("those of its Outbox too, the newest first")
		Eventually(ctx, time.Now).Should(BeTemporally(">", list.Items[0].CreationTimestamp.Add(time.Second)), "it is older than what follows")
		for name, namespace := range map[string]string{"of-the-outbox": "shop", "of-another-namespace": "warehouse"} {
			other = v1alpha1.DeadLetterReplay{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Spec: list.Items[0].Spec}
			other.Spec.DispatcherRef, other.Spec.OutboxRef, other.Spec.Namespace = nil, &spec.OutboxRef{Name: "main"}, namespace
			Expect(w.Create(ctx, &other)).To(Succeed())
		}
		Expect(json.Unmarshal([]byte(w.run(ctx, "dead", "operations", "orders", "-o", "json").out), &list)).To(Succeed())
		Expect(list.Items).To(HaveExactElements(HaveField("Name", "of-the-outbox"), HaveField("Name", "chg-812")))
		Expect(w.run(ctx, "__complete", "dead", "replay", "orders", "--group", "").out).To(ContainSubstring("7f3a9c21\t3 dead"))
		Expect(w.run(ctx, "__complete", "dead", "operations", "").out).To(HavePrefix("orders\n"))
		w.as(ctx, "tess-"+w.namespace)
		Expect(w.run(ctx, "dead", "operations", "orders").err).To(MatchError(ContainSubstring("; request the role deadletterreplays-view in this namespace")))
	})
})

// roundTrip is a way to the API server.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// watched calls then when until is written.
type watched struct {
	strings.Builder
	until string
	then  func()
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Builder.Write(p)
	if strings.Contains(w.String(), w.until) {
		w.then()
	}
	return n, err
}
