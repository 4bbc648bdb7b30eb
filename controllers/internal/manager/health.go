package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/discovery"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

const (
	// reachEvery is the time between two requests that show whether the API server responds.
	reachEvery = 10 * time.Second
	// silentFor is how long it may be silent until the manager is not ready.
	silentFor = time.Minute
	// longest is how long a pass may take until the manager is not ready: each is ended after a minute.
	longest = 5 * time.Minute
	// syncWithin bounds how long a probe waits for the caches. The kubelet waits a second for it.
	syncWithin = 500 * time.Millisecond
)

// health knows whether the manager works, be it the leader or one that stands by: its caches are filled, the API server
// responds, and no pass hangs.
type health struct {
	synced  func(context.Context) bool
	reach   func(context.Context) error
	metrics func() ([]*dto.MetricFamily, error)

	mu      sync.Mutex
	reached time.Time // when the API server responded last
	failure error     // why it did not since
}

// addHealth adds /healthz, which says that the process runs, and /readyz.
func addHealth(mgr ctrl.Manager) error {
	client, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("make the client of the health check: %w", err)
	}
	h := &health{
		synced:  mgr.GetCache().WaitForCacheSync,
		reach:   func(ctx context.Context) error { return client.RESTClient().Get().AbsPath("/version").Do(ctx).Error() },
		metrics: metrics.Registry.Gather,
	}
	err = errors.Join(mgr.Add(h), mgr.AddHealthzCheck("process", func(*http.Request) error { return nil }), mgr.AddReadyzCheck("works", h.check))
	if err != nil {
		return fmt.Errorf("add the health checks: %w", err)
	}
	return nil
}

// Start looks at the API server until ctx ends.
func (h *health) Start(ctx context.Context) error {
	ticker := time.NewTicker(reachEvery)
	defer ticker.Stop()
	for {
		h.tryToReach(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// NeedLeaderElection makes a manager that stands by try too.
func (h *health) NeedLeaderElection() bool { return false }

func (h *health) tryToReach(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, reachEvery)
	defer cancel()
	err := h.reach(within)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failure = err; err == nil {
		h.reached = time.Now()
	}
}

// check is the result of /readyz.
func (h *health) check(req *http.Request) error {
	ctx, cancel := context.WithTimeout(req.Context(), syncWithin)
	defer cancel()
	if !h.synced(ctx) {
		return errors.New("the caches are not filled yet; the log says what cannot be listed")
	}
	h.mu.Lock()
	reached, failure := h.reached, h.failure
	h.mu.Unlock()
	if since := time.Since(reached); since > silentFor {
		return fmt.Errorf("the API server has not responded for %s: %w", silentFor, cmp.Or(failure, errors.New("no request has ended yet")))
	}
	return h.hanging()
}

// hanging returns an error that names a controller one of whose passes takes too long.
func (h *health) hanging() error {
	families, err := h.metrics()
	if err != nil {
		return fmt.Errorf("gather the metrics of the controllers: %w", err)
	}
	for _, family := range families {
		if family.GetName() != "workqueue_longest_running_processor_seconds" {
			continue
		}
		for _, m := range family.GetMetric() {
			if m.GetGauge().GetValue() > longest.Seconds() {
				return fmt.Errorf("a pass takes more than %s: %v", longest, m.GetLabel())
			}
		}
	}
	return nil
}
