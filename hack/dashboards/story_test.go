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

	"github.com/jackc/pgx/v5/pgxpool"
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
func (s *story) series(expr string, from, to time.Time) map[string][]float64 {
	s.Helper()
	all, err := s.server.Range(s.Context(), expr, from, to)
	need.OK(s, err)
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

// story is a dispatcher of orders and refunds, whose destination does what produce says, before a real Prometheus.
type story struct {
	*testing.T
	pool   *pgxpool.Pool
	db     pgtest.DB
	server *promtool.Server
	mode   atomic.Value // down, or what it refuses for good
}

func open(t *testing.T) *story {
	if testing.Short() {
		t.Skip("takes minutes: make test-all")
	}
	dsn, registry := pgtest.Migrated(t), prometheus.NewRegistry()
	s := &story{T: t, pool: pgtest.Pool(t, dsn), db: pgtest.Open(t, dsn)}
	s.mode.Store("")
	handle := func(_ context.Context, e *dispatcher.Event) error {
		switch {
		case s.mode.Load() == "down":
			return dispatcher.Unavailable(errors.New("status 503"))
		case s.mode.Load() == "refuses" && e.Topic == "refunds":
			return dispatcher.Permanent(dispatcher.ReasonPermanentFailure, errors.New("status 422"))
		}
		return nil
	}
	d, err := outbox.New(s.pool, dispatcher.Handlers{"orders": handle, "refunds": handle}, outbox.Config{
		Config:    dispatcher.Config{Topics: []string{"orders", "refunds"}},
		Store:     pgstore.Options{Namespace: "shop", Dispatcher: "team/orders"},
		Objective: outbox.Objective{Freshness: 5 * time.Second}, Registerer: registry,
	})
	need.OK(t, err)
	web := httptest.NewServer(d.Handler(registry))
	t.Cleanup(web.Close)
	s.server, err = promtool.Start(t.Context(), t.TempDir(), "../..", scrape)
	need.Server(t, err, promtool.ErrMissing)
	t.Cleanup(s.server.Stop)
	need.OK(t, s.server.Scrape("story", strings.TrimPrefix(web.URL, "http://"), "", map[string]string{"namespace": "team", "pod": "a"}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() { stop(); need.OK(t, <-ended) })
	return s
}

// produce adds events for a time in which the destination does something, and returns when that began.
func (s *story) produce(what string, lasts time.Duration) (began time.Time) {
	s.mode.Store(what)
	began = time.Now()
	for tick := time.NewTicker(time.Second); time.Since(began) < lasts; <-tick.C {
		pgtest.Exec(s.db, `select outbox.enqueue('shop', topic, '{}') from unnest(array['orders', 'orders', 'orders', 'refunds']) topic, generate_series(1, 5)`)
	}
	return began
}

// delivered waits until the destination has all.
func (s *story) delivered() {
	s.mode.Store("")
	pgtest.Eventually(s, "the outage is over", func() bool {
		return pgtest.Value[int](s.db, `select count(*) from outbox.outbox_events where live`) == 0
	})
}

// firing counts the alerts that fire, of those that need no manager.
const firing = `count by (alertname) (ALERTS{alertstate="firing", alertname!="OutboxOperatorAbsent"})`

// A destination fails for a minute, then refuses some events for good, and these are replayed. Every query of every panel has data
// then, the page fires alone, since its cause has to last for minutes, and p99 of the outage is that of the rows.
func TestStoryIsOnTheDashboards(t *testing.T) {
	s := open(t)
	ctx, began := t.Context(), time.Now()
	s.produce("", 20*time.Second)
	outage := s.produce("down", 70*time.Second)
	s.delivered()
	rows := pgtest.Value[float64](s.db, fmt.Sprintf(`select extract(epoch from percentile_cont(0.99) within group (order by updated_at - created_at))::float8 from outbox.outbox_events where created_at >= to_timestamp(%d)`, outage.Unix()))
	time.Sleep(2 * scrape) // nothing says that Prometheus has scraped
	over := time.Now()
	s.produce("refuses", 10*time.Second)
	s.mode.Store("")
	replays := outbox.NewReplays(s.pool, outbox.ReplayOptions{})
	_, err := replays.Run(ctx, replay(t, replays.Begin).ID, outbox.ReplayRunOptions{Wait: true})
	need.OK(t, err)
	s.produce("", 20*time.Second)
	if to := os.Getenv("STORY"); to != "" { // until the file is removed, Prometheus can be drawn
		need.OK(t, os.WriteFile(to, fmt.Appendf(nil, "%s %d %d", s.server.Address, began.Unix(), time.Now().Unix()), 0o600))
		for _, err := os.Stat(to); err == nil; _, err = os.Stat(to) {
			time.Sleep(time.Second)
		}
	}

	chosen := strings.NewReplacer("OF", `dispatcher="team/orders"`, "RATE", rates)
	for _, board := range []dashboard{fleet, one} {
		for _, p := range board.panels {
			for _, q := range p.queries {
				need.That(t, len(s.series(chosen.Replace(q.expr), began, time.Now())) > 0, "%s, %q: no data of %s", board.name, p.title, q.expr)
			}
		}
	}
	fired := s.series(firing, outage, over)
	need.That(t, len(fired) == 1 && len(fired["map[alertname:OutboxEventsLate]"]) > 0, "%v fire in the outage, want OutboxEventsLate alone: it is too short for its cause", fired)
	all := strings.NewReplacer("OF", `dispatcher="team/orders"`, "RATE", fmt.Sprintf("%ds", int(over.Sub(outage).Seconds())))
	for _, shown := range s.series(all.Replace(quantile("0.99", "outbox_end_to_end_latency_seconds", "")), over, over) {
		t.Logf("p99 of the outage: %.1f s by the dashboard, %.1f s by the rows", shown[0], rows)
		need.That(t, math.Abs(shown[0]-rows) <= rows/4, "p99 of the outage is %.1f s by the dashboard, and %.1f s by the rows", shown[0], rows)
	}
}
