package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/outbox"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/hack/testing/promtool"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// scrape is how often the story's Prometheus scrapes and evaluates, and rates is what Grafana takes as the range of a rate then.
const scrape, rates = 2 * time.Second, "8s"

// series are the values of a query in a time, by its labels, without what is not a number.
func series(t *testing.T, server *promtool.Server, expr string, from, to time.Time) map[string][]float64 {
	t.Helper()
	all, err := server.Range(t.Context(), expr, from, to)
	need.OK(t, err)
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
	server, err := promtool.Start(t.Context(), t.TempDir(), "../..", scrape)
	need.Server(t, err, promtool.ErrMissing)
	t.Cleanup(server.Stop)
	need.OK(t, server.Scrape("story", strings.TrimPrefix(web.URL, "http://"), "", map[string]string{"namespace": "team"}))
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
		need.OK(t, os.WriteFile(to, fmt.Appendf(nil, "%s %d %d", server.Address, began.Unix(), time.Now().Unix()), 0o600))
		for _, err := os.Stat(to); err == nil; _, err = os.Stat(to) {
			time.Sleep(time.Second)
		}
	}

	chosen := strings.NewReplacer("OF", `dispatcher="team/orders"`, "RATE", rates)
	for _, board := range []dashboard{fleet, one} {
		for _, p := range board.panels {
			for _, q := range p.queries {
				need.That(t, len(series(t, server, chosen.Replace(q.expr), began, time.Now())) > 0, "%s, %q: no data of %s", board.name, p.title, q.expr)
			}
		}
	}
	fired := series(t, server, `count by (alertname) (ALERTS{alertstate="firing", alertname!="OutboxOperatorAbsent"})`, outage, over)
	need.That(t, len(fired) == 1 && len(fired["map[alertname:OutboxEventsLate]"]) > 0, "%v fire in the outage, want OutboxEventsLate alone: it is too short for its cause", fired)
	all := strings.NewReplacer("OF", `dispatcher="team/orders"`, "RATE", fmt.Sprintf("%ds", int(over.Sub(outage).Seconds())))
	for _, shown := range series(t, server, all.Replace(quantile("0.99", "outbox_end_to_end_latency_seconds", "")), over, over) {
		t.Logf("p99 of the outage: %.1f s by the dashboard, %.1f s by the rows", shown[0], rows)
		need.That(t, math.Abs(shown[0]-rows) <= rows/4, "p99 of the outage is %.1f s by the dashboard, and %.1f s by the rows", shown[0], rows)
	}
}
