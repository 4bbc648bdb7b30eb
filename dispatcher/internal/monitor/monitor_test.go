package monitor

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/journal"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

var (
	started = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	process = Process{Config: config.Config{Name: "orders", Namespace: "shop", Topics: []string{"a", "b"}}, Version: "v1", Worker: "w", StartedAt: started}
	up      = dispatcher.LinkState{Known: true, OK: true, Since: started}
)

func down(err error) dispatcher.LinkState {
	return dispatcher.LinkState{Known: true, Err: err, Since: started}
}

// healthy is a snapshot of a dispatcher that delivers.
func healthy(change func(*dispatcher.Snapshot)) dispatcher.Snapshot {
	s := dispatcher.Snapshot{
		Source: up, Sink: up, Breaker: dispatcher.BreakerClosed, Concurrency: 16,
		Schema: dispatcher.Schema{State: dispatcher.SchemaReady, Version: 1, Required: 1},
	}
	if change != nil {
		change(&s)
	}
	return s
}

func sources(s dispatcher.Snapshot, depth *dispatcher.Depth) Sources {
	return Sources{
		Snapshot: func() dispatcher.Snapshot { return s }, Backlog: func() *dispatcher.Depth { return depth },
		Data: func() *dispatcher.Data {
			return &dispatcher.Data{ObservedAt: started,
				Windows: []dispatcher.Outcomes{{Window: 5 * time.Minute}, {Window: time.Hour, Delivered: 3, Failed: 1, Dead: dispatcher.Count{N: 5, Estimated: true}}},
				Orphans: dispatcher.Orphans{Unserved: dispatcher.Count{N: 6}, Abandoned: dispatcher.Count{N: 7, Estimated: true},
					Topics: []dispatcher.OrphanTopic{{Namespace: "shop", Topic: "x", Unserved: dispatcher.Count{N: 6}, Abandoned: dispatcher.Count{N: 7}}}}}
		},
		Journal: func() *journal.State {
			return &journal.State{On: true, At: started, Records: 9, Found: 6, Examples: []journal.Difference{{Kind: journal.Gap, Event: "customer-17", What: "a\nchange"}}}
		},
		Sharing: func() *[]string { return &[]string{"eu/orders"} },
		OldestTransaction: func() *dispatcher.OldestTransaction {
			return &dispatcher.OldestTransaction{Kind: dispatcher.HeldByStandby, Name: "b", Since: started, Age: 9 * time.Second}
		},
	}
}

// get requests a path of a handler, from the same machine.
func get(t *testing.T, path string, s dispatcher.Snapshot, depth *dispatcher.Depth) (int, string) {
	t.Helper()
	return getFrom(t, "127.0.0.1:4711", "localhost:8080", path, s, depth)
}

func getFrom(t *testing.T, caller, host, path string, s dispatcher.Snapshot, depth *dispatcher.Depth) (int, string) {
	t.Helper()
	handler := Handler(process, sources(s, depth), prometheus.NewRegistry())
	response, request := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
	request.RemoteAddr, request.Host = caller, host
	handler.ServeHTTP(response, request)
	return response.Code, response.Body.String()
}

// CONTRACT: C-95, C-101
func TestReadyzNamesTheCause(t *testing.T) {
	refused := dispatcher.Unavailable(reason.With(reason.ConnectionFailed, errors.New("cannot connect to http://a; check that it runs")))
	for name, c := range map[string]struct {
		change func(*dispatcher.Snapshot)
		want   string // "ok", or the causes
	}{
		"delivering":          {nil, "ok"},
		"one failed delivery": {func(s *dispatcher.Snapshot) { s.LastError, s.LastErrorAt = "a returned 500", started }, "ok"},
		"just started": {func(s *dispatcher.Snapshot) { *s = dispatcher.Snapshot{} },
			"database: not tried yet\nschema: not compared yet\nsink: not tried yet"},
		"wrong password": {func(s *dispatcher.Snapshot) {
			s.Source = down(&pgconn.PgError{Code: "28P01", Message: "password authentication failed"})
		}, "database: AuthenticationFailed: the database: password authentication failed; correct the user and the password, or the server's pg_hba.conf"},
		"no schema": {func(s *dispatcher.Snapshot) {
			s.Schema = dispatcher.Schema{State: dispatcher.SchemaMissing, Required: 1, Message: "run migrate up"}
		}, "schema: Missing: run migrate up"},
		"sink unreachable": {func(s *dispatcher.Snapshot) { s.Sink, s.Breaker = down(refused), dispatcher.BreakerUnreachable },
			"sink: ConnectionFailed: cannot connect to http://a; check that it runs"},
		"sink refuses": {func(s *dispatcher.Snapshot) {
			s.Sink, s.Breaker = down(errors.New("a returned\n 500")), dispatcher.BreakerRefusing
		}, "sink: Refusing: a returned 500"},
		"one topic paused": {func(s *dispatcher.Snapshot) {
			s.PausedTopics = []dispatcher.PausedTopic{{Topic: "a", Breaker: dispatcher.BreakerRefusing, Err: errors.New("x")}}
		}, "ok"},
		"some outcomes refused": {func(s *dispatcher.Snapshot) { s.Outcomes = down(errors.New("not in this table")) }, "ok"},
		"one call stuck":        {func(s *dispatcher.Snapshot) { s.StuckCalls, s.Stuck = 1, make([]dispatcher.StuckCall, 1) }, "ok"},
		"every call stuck": {func(s *dispatcher.Snapshot) { s.StuckCalls, s.Stuck = 16, make([]dispatcher.StuckCall, 16) },
			"sink: CallsStuck: All 16 calls of the sink are stuck: they did not return when delivery.timeout was over. Fix what they wait for, and restart the dispatcher."},
		"stuck calls leave no room": {func(s *dispatcher.Snapshot) {
			s.StuckCalls, s.Stuck, s.NoRoom = 3, make([]dispatcher.StuckCall, 3), true
		},
			"sink: CallsStuck: The events of 3 stuck calls of the sink leave no room in maxInFlightBytes, and nothing is claimed. Fix what the calls wait for, and restart the dispatcher."},
		"stopping": {func(s *dispatcher.Snapshot) { s.Draining = true }, "stopping: no more rows are claimed"},
	} {
		wantCode := http.StatusServiceUnavailable
		if c.want == "ok" {
			wantCode = http.StatusOK
		}
		if code, body := get(t, "/readyz", healthy(c.change), nil); code != wantCode || strings.TrimSpace(body) != c.want {
			t.Errorf("%s: %d %s\nwant %d %s", name, code, body, wantCode, c.want)
		}
	}
}

// A pause must be able to roll out while the destination is unreachable, and claims nothing anyway.
func TestPausedIsReadyWithoutItsSink(t *testing.T) {
	s := healthy(func(s *dispatcher.Snapshot) {
		s.Paused, s.Sink, s.Breaker = true, down(errors.New("x")), dispatcher.BreakerUnreachable
	})
	if causes := unready(statusOf(process, s)); len(causes) != 0 {
		t.Errorf("with the sink unreachable: not ready: %q", causes)
	}
	s.Source = down(errors.New("x"))
	if causes := unready(statusOf(process, s)); len(causes) != 1 {
		t.Errorf("with the database unreachable: %q, want one cause", causes)
	}
}

func TestHealthzIsAboutTheProcessAlone(t *testing.T) {
	now := started.Add(time.Hour)
	for name, c := range map[string]struct {
		s     dispatcher.Snapshot
		stuck bool
	}{
		"everything unreachable": {dispatcher.Snapshot{LookedAt: now, Source: down(errors.New("x")), Sink: down(errors.New("x"))}, false},
		"a slow look":            {dispatcher.Snapshot{LookedAt: now.Add(-stuckAfter)}, false},
		"no look":                {dispatcher.Snapshot{LookedAt: now.Add(-stuckAfter - time.Second)}, true},
		"never a look":           {dispatcher.Snapshot{}, true},
		"a long drain":           {dispatcher.Snapshot{LookedAt: started, Draining: true}, false},
	} {
		if causes := stuck(c.s, started, now); (len(causes) > 0) != c.stuck {
			t.Errorf("%s: %v", name, causes)
		}
	}
	if causes := stuck(dispatcher.Snapshot{}, started, started.Add(time.Second)); causes != nil {
		t.Errorf("a process that has just started: %v", causes)
	}
	if code, body := get(t, "/healthz", dispatcher.Snapshot{LookedAt: time.Now()}, nil); code != 200 || body != "ok\n" {
		t.Errorf("%d %s", code, body)
	}
	if code, body := get(t, "/healthz", dispatcher.Snapshot{LookedAt: started}, nil); code != 503 || !strings.Contains(body, "restart the process") {
		t.Errorf("%d %s", code, body)
	}
}

// CONTRACT: C-95, C-96
func TestStatusSumsTopicsAndDatabase(t *testing.T) {
	early, late := started.Add(-2*time.Hour), started.Add(-time.Hour)
	depth := &dispatcher.Depth{ObservedAt: started, Topics: []dispatcher.TopicDepth{
		{Topic: "a", Pending: dispatcher.Count{N: 1}, Scheduled: dispatcher.Count{N: 2}, Retrying: dispatcher.Count{N: 1}, Processing: dispatcher.Count{N: 3}, Dead: dispatcher.Count{N: 4}, OldestPending: late},
		{Topic: "b", Pending: dispatcher.Count{N: 1_000_000, Estimated: true}, OldestPending: early},
		{Topic: "c"},
	}, BlockedKeys: dispatcher.Count{N: 21}, Blocked: []dispatcher.BlockedKey{{Topic: "a", Key: "k", EventID: uuid.Max, DeadAt: late}}}
	_, body := get(t, status.Path, healthy(func(s *dispatcher.Snapshot) {
		s.InFlightRows, s.InFlightBytes = 7, 700
		s.LastError, s.LastErrorAt = strings.Repeat("x", 1000), started
		s.Sink, s.Breaker = down(reason.With(reason.CertificateInvalid, fmt.Errorf("unknown authority"))), dispatcher.BreakerUnreachable
	}), depth)
	var got status.Status
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if got.Name != "orders" || got.Namespace != "shop" || len(got.Topics) != 2 || got.Version != "v1" || got.Worker != "w" || got.State != "Running" || !got.StartedAt.Equal(started) {
		t.Errorf("identity: %s", body)
	}
	if got.Source.State != status.Reachable || got.Sink.State != status.Unreachable || got.Sink.Reason != "CertificateInvalid" || got.Sink.Message != "unknown authority" || !got.Sink.Since.Equal(started) {
		t.Errorf("links: %s", body)
	}
	if got.Schema != (status.Schema{State: "Ready", Version: 1, Required: 1}) || got.InFlight != (status.InFlight{Rows: 7, Bytes: 700}) {
		t.Errorf("schema and flight: %s", body)
	}
	if !slices.Equal(got.Sharing, []string{"eu/orders"}) {
		t.Errorf("sharing %v", got.Sharing)
	}
	if tx := got.OldestTransaction; tx == nil || *tx != (status.OldestTransaction{Kind: status.Standby, Name: "b", Since: started, Seconds: 9}) {
		t.Errorf("oldest transaction: %s", body)
	}
	wantData := &status.Data{ObservedAt: started, Unserved: 6, Abandoned: 7, OrphansAtLeast: true,
		Windows:      []status.Window{{Window: "5m"}, {Window: "1h", Delivered: 3, Failed: 1, SuccessRate: new(0.75), Dead: 5, DeadAtLeast: true}},
		OrphanTopics: []status.OrphanTopic{{Namespace: "shop", Topic: "x", Unserved: 6, Abandoned: 7}}}
	if !reflect.DeepEqual(got.Data, wantData) {
		t.Errorf("data: %s", body)
	}
	if want := (&status.Journal{ObservedAt: started, Records: 9, Differences: 6, Examples: []string{"Gap of event customer-17: a change"}}); !reflect.DeepEqual(got.Journal, want) {
		t.Errorf("journal: %s", body)
	}
	off := sources(healthy(nil), nil)
	off.Journal = func() *journal.State { return &journal.State{} }
	if s := off.status(process); s.Journal != nil {
		t.Errorf("the journal is off: %+v", s.Journal)
	}
	if got.LastError == nil || len(got.LastError.Message) > 510 {
		t.Errorf("last error: %s", body)
	}
	b := got.Backlog
	if b == nil || b.Pending != 1_000_001 || b.Scheduled != 2 || b.Retrying != 1 || b.Topics[0].Retrying != 1 || b.Processing != 3 || b.Dead != 4 || !b.Estimated || !b.OldestPending.Equal(early) || !b.ObservedAt.Equal(started) {
		t.Fatalf("backlog: %s", body)
	}
	if want := (status.BlockedKey{Topic: "a", Key: "k", EventID: uuid.Max.String(), DeadAt: late}); b.BlockedKeys != 21 || len(b.Blocked) != 1 || b.Blocked[0] != want {
		t.Errorf("blocked keys: %s", body)
	}
	if len(b.Topics) != 3 || b.Topics[0].Estimated || !b.Topics[1].Estimated || b.Topics[2].OldestPending != nil {
		t.Errorf("topics: %s", body)
	}

	if s := sources(dispatcher.Snapshot{}, nil).status(process); s.Backlog != nil || s.Schema.State != "Unknown" || s.Source.State != status.Unknown || s.Sink.State != status.Unknown || s.LastError != nil {
		t.Errorf("before anything is known: %+v", s)
	}
	if s := statusOf(process, dispatcher.Snapshot{Draining: true}); s.State != "Draining" {
		t.Errorf("draining: %+v", s)
	}
	s := statusOf(process, healthy(func(s *dispatcher.Snapshot) {
		s.PausedTopics = []dispatcher.PausedTopic{
			{Topic: "a", Breaker: dispatcher.BreakerRefusing, Err: errors.New("a returned\n 500"), Since: started},
			{Topic: "b", Breaker: dispatcher.BreakerUnreachable, Err: dispatcher.Unavailable(errors.New("refused")), Since: started},
		}
	}))
	want := []status.PausedTopic{
		{Topic: "a", Link: status.Link{State: status.Refusing, Reason: "Refusing", Message: "a returned 500", Since: started}},
		{Topic: "b", Link: status.Link{State: status.Unreachable, Reason: "ConnectionFailed", Message: "refused", Since: started}},
	}
	if !slices.Equal(s.PausedTopics, want) || s.Sink.State != status.Reachable {
		t.Errorf("paused topics: %+v of a sink %+v", s.PausedTopics, s.Sink)
	}
	if s := statusOf(process, healthy(func(s *dispatcher.Snapshot) { s.Paused = true })); s.State != "Paused" || unready(s) != nil {
		t.Errorf("paused, as configured: %+v, %v", s, unready(s))
	}
}
