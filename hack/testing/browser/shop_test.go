package browser_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/testing/envtest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/objects"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// shop is a database whose consumer refuses some events, with a dispatcher that delivers the others. Of what is put back the
// consumer takes seven.
type shop struct {
	pgtest.DB
	dispatcher, plugin, file string // of the commands, and of the dispatcher
}

// manifest has topics of which the consumer refuses some events.
const manifest = `apiVersion: outbox.dev/v1alpha1
kind: OutboxDispatcher
metadata: {name: orders, namespace: shop}
spec:
  namespace: shop
  topics: [orders, payments, refunds, emails]
  database:
    secretRef: {name: orders-db}
    migrationSecretRef: {name: orders-db-owner}
  sink:
    http: {url: %q}
    timeout: 2m
  delivery:
    lease: 4m
    pollInterval: 1s
    maxAttempts: 2
    backoff: {base: 1s, max: 1s}
`

// refusals are what the consumer says to events that it refuses, by their type.
var refusals = map[string]struct {
	code int
	text string
}{
	"OrderPlaced": {422, "price is negative: -1"}, "PaymentReceived": {409, "the account is closed"}, "RefundRequested": {422, "no order of this refund"}, "EmailWanted": {400, "no address"},
}

func openShop(t *testing.T) *shop {
	t.Helper()
	ctx, dir := t.Context(), t.TempDir()
	root, err := envtest.Root()
	need.OK(t, err)
	s := &shop{dispatcher: filepath.Join(dir, "dispatcher"), plugin: filepath.Join(dir, "kubectl-outbox"), file: filepath.Join(dir, "orders.yaml")}
	build := exec.Command(filepath.Join(root, "hack/build.sh"), dir+"/", "./dispatcher/cmd/dispatcher", "./controllers/cmd/kubectl-outbox")
	build.Env = append(os.Environ(), "TAGS=nocloud", "VERSION=test")
	out, err := build.CombinedOutput()
	need.Must(t, err == nil, "build the commands: %v\n%s", err, out)
	srv := pgtest.Server(t)
	db, err := scenario.NewShop(ctx, "shop", srv.DSN)
	need.OK(t, err)
	s.DB = pgtest.Open(t, db.Admin)
	end := make(chan struct{})
	var replaying atomic.Int32 // 1 from the test's replay on, and what was put back since
	consumer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		no, refused := refusals[r.Header.Get("ce-type")]
		switch {
		case !refused:
			w.WriteHeader(http.StatusNoContent)
		case replaying.Load() == 0:
			http.Error(w, no.text, no.code)
		case replaying.Add(1) <= 8:
			w.WriteHeader(http.StatusNoContent)
		default:
			<-end // as if it thought
		}
	}))
	t.Cleanup(func() { close(end); consumer.Close() })
	need.OK(t, errors.Join(os.WriteFile(s.file, fmt.Appendf(nil, manifest, consumer.URL), 0o600),
		objects.Secret(dir, "orders-db", "dsn", db.DSN(db.Dispatcher, "127.0.0.1", srv.Port)), objects.Secret(dir, "orders-db-owner", "dsn", db.DSN(db.Owner, "127.0.0.1", srv.Port))))
	s.run(t, "migrate", "up", "-f", "orders.yaml", "--grant-to-login-of", "orders.yaml")
	s.run(t, "migrate", "grants", "--role", db.Dispatcher.User, "--for", "replay", "--apply", "-f", "orders.yaml")
	for _, e := range []struct {
		topic, kind string
		n           int
	}{{"orders", "OrderShipped", 140}, {"payments", "PaymentPlanned", 60}, {"refunds", "RefundPaid", 20}, {"emails", "EmailSent", 30}, {"orders", "OrderPlaced", 42}, {"payments", "PaymentReceived", 12}, {"refunds", "RefundRequested", 5}, {"emails", "EmailWanted", 1}} {
		pgtest.Exec(s, `select outbox.enqueue('shop', $1::text, jsonb_build_object($2::text, n, 'price', -1, 'currency', 'EUR'), p_event_type => $3::text, p_aggregate_type => $2::text, p_aggregate_id => n::text,
			p_dedupe_key => $3::text || '-' || n, p_headers => '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}') from generate_series(4711, 4710 + $4::int) n`, e.topic, strings.TrimSuffix(e.topic, "s"), e.kind, e.n)
	}
	s.start(t, s.dispatcher, "run", "-f", "orders.yaml", "--listen", envtest.FreeAddress(t))
	pgtest.Eventually(t, "60 events are dead, and the others are delivered", func() bool {
		return pgtest.Value[int](s, "select count(*) from outbox.outbox_dead_letters") == 60 && pgtest.Value[int](s, "select count(*) from outbox.outbox_events where status = 'pending'") == 0
	})
	const ago = `interval '40 seconds' * (1 + d.id % 37)`
	pgtest.Exec(s, `update outbox.outbox_events e set created_at = created_at - `+ago+` from outbox.outbox_dead_letters d where d.event_id = e.id`)
	pgtest.Exec(s, `update outbox.outbox_dead_letters d set dead_at = dead_at - `+ago+`, failures = (select jsonb_agg(f || jsonb_build_object('at', (f ->> 'at')::timestamptz - `+ago+`)) from jsonb_array_elements(failures) f)`)
	replaying.Store(1)
	return s
}

// run runs a command of the dispatcher to its end.
func (s *shop) run(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command(s.dispatcher, args...)
	cmd.Dir = filepath.Dir(s.file)
	out, err := cmd.CombinedOutput()
	need.Must(t, err == nil, "dispatcher %s: %v\n%s", strings.Join(args, " "), err, out)
}

// start starts a command that ends with the test, and returns what it writes.
func (s *shop) start(t *testing.T, binary string, args ...string) io.Reader {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Dir = filepath.Dir(s.file)
	read, write, err := os.Pipe()
	need.OK(t, err)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	need.OK(t, err)
	cmd.Stdout, cmd.Stderr = write, log
	process, err := daemon.Start(cmd, nil, syscall.SIGTERM)
	need.OK(t, errors.Join(err, write.Close()))
	t.Cleanup(func() {
		process.End(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("%s %s:\n%s", binary, strings.Join(args, " "), daemon.Tail(log.Name()))
		}
		_, _ = read.Close(), log.Close()
	})
	return read
}

var link = regexp.MustCompile(`http://127\.0\.0\.1:\d+/\S*token=\S+`)

// console starts a console and returns the link that it prints.
func (s *shop) console(t *testing.T, binary string, args ...string) string {
	t.Helper()
	lines := bufio.NewReader(s.start(t, binary, args...))
	line, err := lines.ReadString('\n')
	need.OK(t, err)
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return link.FindString(line)
}

// fleet makes dispatchers of several teams on the API server, with what the operator would write of each. It returns the
// kubeconfig.
func fleet(t *testing.T) string {
	t.Helper()
	scheme := runtime.NewScheme()
	need.OK(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	api, err := client.New(envtest.Start(t), client.Options{Scheme: scheme})
	need.OK(t, err)
	for _, d := range []struct {
		namespace, name, ready, reason, pods, eta, limited string
		pending, dead                                      int64
		waits                                              time.Duration
	}{
		{"billing", "invoices", "True", "Delivering", "3/3", "2m", "Rate", 18_240, 0, 48 * time.Second},
		{"billing", "ledger", "True", "Delivering", "2/2", "", "", 0, 0, 0},
		{"identity", "accounts", "True", "Delivering", "2/2", "", "", 12, 0, time.Second},
		{"logistics", "shipments", "False", "ConnectionFailed", "2/2", "", "Destination", 61_507, 0, 17 * time.Minute},
		{"logistics", "tracking", "True", "Delivering", "4/4", "<1m", "Concurrency", 904, 0, 3 * time.Second},
		{"search", "index", "True", "Paused", "1/1", "", "", 2_310, 0, 6 * time.Hour},
		{"shop", "emails", "True", "DeliveringDespiteTrouble", "2/2", "", "", 3, 18, 2 * time.Second},
		{"shop", "orders", "True", "Delivering", "2/2", "", "", 57, 1_204, 4 * time.Second},
		{"shop", "refunds", "True", "Delivering", "1/1", "", "", 0, 0, 0},
		{"warehouse", "stock", "True", "Delivering", "2/2", "", "", 41, 0, time.Second},
	} {
		if err := api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: d.namespace}}); !apierrors.IsAlreadyExists(err) {
			need.OK(t, err)
		}
		obd := &v1alpha1.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Namespace: d.namespace, Name: d.name}, Spec: spec.Dispatcher{Namespace: d.namespace, OutboxRef: &spec.OutboxRef{Name: "main"}}}
		obd.Spec.Sink.Log = &spec.LogSink{}
		need.OK(t, api.Create(t.Context(), obd))
		now := metav1.Now()
		condition := func(kind, status, reason string) metav1.Condition {
			return metav1.Condition{Type: kind, Status: metav1.ConditionStatus(status), Reason: reason, LastTransitionTime: now}
		}
		obd.Status = v1alpha1.OutboxDispatcherStatus{Pods: d.pods, ETA: d.eta, LimitedBy: d.limited, ObservedTime: &now, Counts: &status.Counts{Pending: d.pending, Dead: d.dead, Estimated: d.pending > 10_000},
			Conditions: []metav1.Condition{condition(v1alpha1.ReadyCondition, d.ready, d.reason)}}
		if d.pending > 0 {
			obd.Status.OldestPending = status.At(time.Now().Add(-d.waits))
		}
		need.OK(t, api.Status().Update(t.Context(), obd))
	}
	file := envtest.Kubeconfig(t)
	text, err := os.ReadFile(file)
	need.OK(t, errors.Join(err, os.WriteFile(file, bytes.ReplaceAll(text, []byte("envtest"), []byte("production")), 0o600)))
	return file
}
