package pgreader

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/monitor"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A forwarded port changes no row: each method at each path of the pod's server leaves every version of every row as it
// was. CONTRACT: C-42
func TestForwardedPortChangesNoRow(t *testing.T) {
	t.Parallel()
	pool, r := outbox(t)
	story(t, pool)
	server := httptest.NewServer(monitor.Handler(monitor.Process{StartedAt: time.Now()}, monitor.Sources{
		Snapshot: func() dispatcher.Snapshot { return dispatcher.Snapshot{} }, Backlog: func() *dispatcher.Depth { return nil },
		OldestTransaction: func() *dispatcher.OldestTransaction { return nil }, DeadLetters: r,
	}, prometheus.NewRegistry()))
	defer server.Close()
	before, succeeded := rows(t, pool), 0
	for _, path := range []string{
		"/", "/healthz", "/readyz", "/status", "/status?brief", "/metrics", "/dead", "/dead/", "/dead/groups", "/dead?group=7f3a9c21", "/dead/4", "/dead/4?payload=true",
		"/dead/4/replay", "/dead/replay", "/dead/discard", "/dead/" + eventID(1), "/events", "/events/", "/events/" + eventID(1), "/events/key-1?payload=true",
		"/dead?errorContains=%27%3Bdelete+from+outbox.outbox_events%3B--", "/events/x%27%3B%20delete%20from%20outbox.outbox_events%3B%20--",
	} {
		for _, method := range []string{
			http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodTrace, "REPLAY",
		} {
			request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(`{"action": "replay", "all": true}`))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("X-HTTP-Method-Override", http.MethodDelete)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			reads := method == http.MethodGet || method == http.MethodHead
			switch {
			case reads && response.StatusCode == http.StatusOK:
				succeeded++
			case !reads && response.StatusCode != http.StatusMethodNotAllowed && response.StatusCode != http.StatusNotFound:
				t.Errorf("%s %s gets %s, want 404 or 405", method, path, response.Status)
			}
			if now := rows(t, pool); now != before {
				t.Fatalf("%s %s has changed rows:\n%s\nwere\n%s", method, path, now, before)
			}
		}
	}
	if succeeded < 2*12 {
		t.Errorf("%d requests succeeded, want 24: is it a pod's server?", succeeded)
	}
}

// rows returns the versions of all rows of the schema. A row that is written again, even unchanged, has another version.
func rows(t *testing.T, pool pgtest.DB) string {
	t.Helper()
	names, err := pool.Query(t.Context(), "select format('%I.%I', schemaname, tablename) from pg_tables where schemaname = 'outbox' order by 1")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	var tables []string
	for names.Next() {
		var name string
		if err := names.Scan(&name); err != nil {
			t.Fatal(err)
		}
		tables = append(tables, name)
	}
	if names.Err() != nil || len(tables) < 3 {
		t.Fatalf("tables %v: %v", tables, names.Err())
	}
	for _, table := range tables {
		var versions string
		if err := pool.QueryRow(t.Context(), "select coalesce(string_agg(concat_ws(' ', t.ctid, t.xmin, md5(t::text)), ', ' order by t.ctid), '') from "+table+" t").Scan(&versions); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s: %s\n", table, versions)
	}
	return out.String()
}
