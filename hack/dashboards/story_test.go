package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/outbox"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// errNone is returned where Prometheus cannot be had.
var errNone = errors.New("no prometheus on this machine; install the package prometheus")

// scrape is how often the story's Prometheus scrapes and evaluates, and rates is what Grafana takes as the range of a rate then.
const scrape, rates = 2 * time.Second, "8s"

// server is a real Prometheus that scrapes an address by the project's rules, evaluated as often as it scrapes.
func server(t *testing.T, target string) (address string) {
	t.Helper()
	binary, err := daemon.Need(t.Context(), errNone, "prometheus", "prometheus")
	need.Server(t, err, errNone)
	var rules struct{ Spec any }
	text, err := os.ReadFile("../../config/prometheus/rules.yaml")
	need.OK(t, err)
	need.OK(t, yaml.Unmarshal(text, &rules))
	text, err = yaml.Marshal(rules.Spec)
	need.OK(t, err)
	often := strings.NewReplacer("interval: 30s", "interval: "+scrape.String(), "interval: 1m\n", "interval: "+scrape.String()+"\n")
	dir := t.TempDir()
	config := fmt.Sprintf(`{"global": {"scrape_interval": %[1]q, "evaluation_interval": %[1]q}, "rule_files": ["rules.yaml"],
		"scrape_configs": [{"job_name": "outbox", "static_configs": [{"targets": [%q], "labels": {"namespace": "team"}}]}]}`, scrape, target)
	for name, text := range map[string]string{"rules.yaml": often.Replace(string(text)), "prometheus.yml": config} {
		need.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	need.OK(t, err)
	address = listener.Addr().String()
	need.OK(t, listener.Close())
	cmd := exec.Command(binary, "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address="+address, "--enable-feature=native-histograms")
	cmd.Dir = dir
	process, err := daemon.Serve(t.Context(), "prometheus", cmd, nil, syscall.SIGKILL, filepath.Join(dir, "log"), daemon.Listens(address))
	need.OK(t, err)
	t.Cleanup(func() { process.End(syscall.SIGTERM) })
	return address
}

// series are the values of a query in a time, by its labels, without what is not a number.
func series(t *testing.T, address, expr string, from, to time.Time) map[string][]float64 {
	t.Helper()
	response, err := http.PostForm("http://"+address+"/api/v1/query_range", url.Values{"query": {expr}, "step": {"1"},
		"start": {strconv.FormatInt(from.Unix(), 10)}, "end": {strconv.FormatInt(to.Unix(), 10)}})
	need.OK(t, err)
	defer response.Body.Close()
	var body struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	need.OK(t, json.NewDecoder(response.Body).Decode(&body))
	need.That(t, body.Error == "", "%s: %s", expr, body.Error)
	all := map[string][]float64{}
	for _, s := range body.Data.Result {
		for _, v := range s.Values {
			if n, err := strconv.ParseFloat(v[1].(string), 64); err == nil && !math.IsNaN(n) {
				all[fmt.Sprint(s.Metric)] = append(all[fmt.Sprint(s.Metric)], n)
			}
		}
	}
	return all
}

// replay puts all dead events back. Its request has a type of an internal package.
func replay[R any](t *testing.T, begin func(context.Context, R) (status.Replay, error)) status.Replay {
	var request R
	need.OK(t, json.Unmarshal([]byte(`{"Namespace": "shop", "Action": "replay", "Reason": "the destination is fixed", "RequestedBy": "story"}`), &request))
	begun, err := begin(t.Context(), request)
	need.OK(t, err)
	return begun
}

// A destination fails for a minute, then refuses some events for good, and these are replayed. Every query of every panel has data
// then, the page fires alone, since its cause has to last for minutes, and p99 of the outage is that of the rows.
func TestStoryIsOnTheDashboards(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes: make test-all")
	}
	dsn := pgtest.Migrated(t)
	pool, db, registry := pgtest.Pool(t, dsn), pgtest.Open(t, dsn), prometheus.NewRegistry()
	var mode atomic.Value
	mode.Store("")
	handle := func(_ context.Context, e *dispatcher.Event) error {
		switch {
		case mode.Load() == "down":
			return dispatcher.Unavailable(errors.New("status 503"))
		case mode.Load() == "refuses" && e.Topic == "refunds":
			return dispatcher.Permanent(dispatcher.ReasonPermanentFailure, errors.New("status 422"))
		}
		return nil
	}
	d, err := outbox.New(pool, dispatcher.Handlers{"orders": handle, "refunds": handle}, outbox.Config{
		Config:    dispatcher.Config{Topics: []string{"orders", "refunds"}},
		Store:     pgstore.Options{Namespace: "shop", Dispatcher: "team/orders"},
		Objective: outbox.Objective{Freshness: 5 * time.Second}, Registerer: registry,
	})
	need.OK(t, err)
	web := httptest.NewServer(d.Handler(registry))
	t.Cleanup(web.Close)
	address := server(t, strings.TrimPrefix(web.URL, "http://"))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() { stop(); need.OK(t, <-ended) })

	began := time.Now()
	produce := func(what string, lasts time.Duration) {
		mode.Store(what)
		for tick, end := time.NewTicker(time.Second), time.Now().Add(lasts); time.Now().Before(end); <-tick.C {
			pgtest.Exec(db, `select outbox.enqueue('shop', topic, '{}') from unnest(array['orders', 'orders', 'orders', 'refunds']) topic, generate_series(1, 5)`)
		}
	}
	produce("", 20*time.Second)
	outage := time.Now()
	produce("down", 70*time.Second)
	mode.Store("")
	pgtest.Eventually(t, "the outage is over", func() bool { return pgtest.Value[int](db, `select count(*) from outbox.outbox_events where live`) == 0 })
	rows := pgtest.Value[float64](db, fmt.Sprintf(`select extract(epoch from percentile_cont(0.99) within group (order by updated_at - created_at))::float8 from outbox.outbox_events where created_at >= to_timestamp(%d)`, outage.Unix()))
	time.Sleep(2 * scrape) // nothing says that Prometheus has scraped
	over := time.Now()
	produce("refuses", 10*time.Second)
	mode.Store("")
	replays := outbox.NewReplays(pool, outbox.ReplayOptions{})
	_, err = replays.Run(ctx, replay(t, replays.Begin).ID, outbox.ReplayRunOptions{Wait: true})
	need.OK(t, err)
	produce("", 20*time.Second)
	if to := os.Getenv("STORY"); to != "" { // until the file is removed, Prometheus can be drawn
		need.OK(t, os.WriteFile(to, fmt.Appendf(nil, "%s %d %d", address, began.Unix(), time.Now().Unix()), 0o600))
		for _, err := os.Stat(to); err == nil; _, err = os.Stat(to) {
			time.Sleep(time.Second)
		}
	}

	chosen := strings.NewReplacer("OF", `dispatcher="team/orders"`, "RATE", rates)
	for _, board := range []dashboard{fleet, one} {
		for _, p := range board.panels {
			for _, q := range p.queries {
				need.That(t, len(series(t, address, chosen.Replace(q.expr), began, time.Now())) > 0, "%s, %q: no data of %s", board.name, p.title, q.expr)
			}
		}
	}
	fired := series(t, address, `count by (alertname) (ALERTS{alertstate="firing", alertname!="OutboxOperatorAbsent"})`, outage, over)
	need.That(t, len(fired) == 1 && len(fired["map[alertname:OutboxEventsLate]"]) > 0, "%v fire in the outage, want OutboxEventsLate alone: it is too short for its cause", fired)
	all := strings.NewReplacer("OF", `dispatcher="team/orders"`, "RATE", fmt.Sprintf("%ds", int(over.Sub(outage).Seconds())))
	for _, shown := range series(t, address, all.Replace(quantile("0.99", "outbox_end_to_end_latency_seconds", "")), over, over) {
		t.Logf("p99 of the outage: %.1f s by the dashboard, %.1f s by the rows", shown[0], rows)
		need.That(t, math.Abs(shown[0]-rows) <= rows/4, "p99 of the outage is %.1f s by the dashboard, and %.1f s by the rows", shown[0], rows)
	}
}
