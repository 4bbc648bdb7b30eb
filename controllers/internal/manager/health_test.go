package manager

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

func TestReadyWhileTheManagerWorks(t *testing.T) {
	running := func(seconds float64) func() ([]*dto.MetricFamily, error) {
		name := "workqueue_longest_running_processor_seconds"
		return func() ([]*dto.MetricFamily, error) {
			return []*dto.MetricFamily{{Name: &name, Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: &seconds}}}}}, nil
		}
	}
	yes := func(context.Context) bool { return true }
	for name, c := range map[string]struct {
		health *health
		fails  bool
		want   string
	}{
		"works":           {health: &health{synced: yes, metrics: running(59)}},
		"not synced":      {health: &health{synced: func(context.Context) bool { return false }, metrics: running(0)}, want: "the caches are not filled"},
		"silent at first": {health: &health{synced: yes, metrics: running(0)}, fails: true, want: "connection refused"},
		"silent":          {health: &health{synced: yes, metrics: running(0), reached: time.Now().Add(-2 * silentFor)}, fails: true, want: "has not responded for 1m0s"},
		"silent a moment": {health: &health{synced: yes, metrics: running(0), reached: time.Now().Add(-silentFor / 2)}, fails: true},
		"hangs":           {health: &health{synced: yes, metrics: running(301)}, want: "a pass takes more than 5m0s"},
	} {
		h := c.health
		h.reach = func(context.Context) error {
			if c.fails {
				return errors.New("connection refused")
			}
			return nil
		}
		h.tryToReach(t.Context())
		got := ""
		if err := h.check(httptest.NewRequest(http.MethodGet, "/readyz", nil)); err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
