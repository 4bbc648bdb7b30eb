package monitor

import (
	"context"
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

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/journal"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

var (
	started = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	process = Process{Name: "orders", Namespace: "shop", Topics: []string{"a", "b"}, Version: "v1", Worker: "w", StartedAt: started}
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
				Windows:   []dispatcher.Outcomes{{Window: 5 * time.Minute}, {Window: time.Hour, Delivered: 3, Failed: 1, Dead: dispatcher.Count{N: 5, Estimated: true}}},
				Adoptions: []dispatcher.AdoptionRows{{Adoption: "orders", Namespace: "shop", State: "refused"}, {Adoption: "each", State: "refused", N: 1}, {Adoption: "orders", Namespace: "shop", State: "waiting", N: -1}},
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
	odd := &dispatcher.RefusedRow{ID: uuid.Max, Topic: "a", Err: errors.New("not this one")}
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
		"too few connections": {func(s *dispatcher.Snapshot) {
			s.Source = down(&pgconn.PgError{Code: "53300", Message: "too many connections for role"})
		}, "database: TooFewConnections: the database: too many connections for role; raise the login's connection limit to 4 at least for each process (alter role), or the server's max_connections, or use a connection pooler"},
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
		"some claims refused":   {func(s *dispatcher.Snapshot) { s.Claims = down(odd) }, "ok"},
		"all claims refused": {func(s *dispatcher.Snapshot) { s.Claims, s.ClaimsStopped = down(fmt.Errorf("no event: %w", odd)), true },
			`database: ClaimsRefused: The database refuses to lease the events, and nothing is delivered. Fix what refuses them; single ones are tried meanwhile. Topic "a": not this one`},
		"one call stuck": {func(s *dispatcher.Snapshot) { s.StuckCalls, s.Stuck = 1, make([]dispatcher.StuckCall, 1) }, "ok"},
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
		code, body := get(t, "/readyz", healthy(c.change), nil)
		need.That(t, code == wantCode && strings.TrimSpace(body) == c.want, "%s: %d %s\nwant %d %s", name, code, body, wantCode, c.want)
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
		causes := stuck(c.s, started, now)
		need.That(t, (len(causes) > 0) == c.stuck, "%s: %v", name, causes)
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
	need.OK(t, json.Unmarshal([]byte(body), &got))
	need.That(t, got.Name == "orders" && got.Namespace == "shop" && len(got.Topics) == 2 && got.Version == "v1" && got.Worker == "w" && got.State == "Running" && got.StartedAt.Equal(started),
		"identity: %s", body)
	need.That(t, got.Source.State == status.Reachable && got.Sink.State == status.Unreachable && got.Sink.Reason == "CertificateInvalid" && got.Sink.Message == "unknown authority" && got.Sink.Since.Equal(started),
		"links: %s", body)
	need.That(t, got.Schema == (status.Schema{State: "Ready", Version: 1, Required: 1}) && got.InFlight == (status.InFlight{Rows: 7, Bytes: 700}), "schema and flight: %s", body)
	need.WantAll(t, []string{"eu/orders"}, "sharing %v", got.Sharing)
	tx := got.OldestTransaction
	need.That(t, tx != nil && *tx == (status.OldestTransaction{Kind: status.Standby, Name: "b", Since: started, Seconds: 9}), "oldest transaction: %s", body)
	wantData := &status.Data{ObservedAt: started, Unserved: 6, Abandoned: 7, OrphansAtLeast: true,
		Windows:      []status.Window{{Window: "5m"}, {Window: "1h", Delivered: 3, Failed: 1, SuccessRate: new(0.75), Dead: 5, DeadAtLeast: true}},
		OrphanTopics: []status.OrphanTopic{{Namespace: "shop", Topic: "x", Unserved: 6, Abandoned: 7}},
		Adoptions:    []status.AdoptedRows{{Adoption: "orders", State: "uncounted", Rows: -1}}}
	need.That(t, reflect.DeepEqual(got.Data, wantData), "data: %s", body)
	need.That(t, reflect.DeepEqual(got.Journal, (&status.Journal{ObservedAt: started, Records: 9, Differences: 6, Examples: []string{"Gap of event customer-17: a change"}})), "journal: %s", body)
	off := sources(healthy(nil), nil)
	off.Journal = func() *journal.State { return &journal.State{} }
	if s := off.status(process); s.Journal != nil {
		t.Errorf("the journal is off: %+v", s.Journal)
	}
	need.That(t, got.LastError != nil && len(got.LastError.Message) <= 510, "last error: %s", body)
	b := got.Backlog
	if b == nil || b.Pending != 1_000_001 || b.Scheduled != 2 || b.Retrying != 1 || b.Topics[0].Retrying != 1 || b.Processing != 3 || b.Dead != 4 || !b.Estimated || b.OldestPending != status.At(early) || !b.ObservedAt.Equal(started) {
		t.Fatalf("backlog: %s", body)
	}
	if want := (status.BlockedKey{Topic: "a", Key: "k", EventID: uuid.Max.String(), DeadAt: late}); b.BlockedKeys != 21 || len(b.Blocked) != 1 || b.Blocked[0] != want {
		t.Errorf("blocked keys: %s", body)
	}
	need.That(t, len(b.Topics) == 3 && !b.Topics[0].Estimated && b.Topics[1].Estimated && b.Topics[2].OldestPending == 0, "topics: %s", body)

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
	need.That(t, slices.Equal(s.PausedTopics, want) && s.Sink.State == status.Reachable, "paused topics: %+v of a sink %+v", s.PausedTopics, s.Sink)
	s = statusOf(process, healthy(func(s *dispatcher.Snapshot) {
		s.Claims = down(&dispatcher.RefusedRow{ID: uuid.Max, Err: errors.New("no")})
	}))
	need.That(t, s.Source.State == status.Refusing && s.Source.Reason == status.ClaimsRefused && !s.Source.Stopped && s.Source.EventID == uuid.Max.String() && s.Brief().Source.EventID == "", "a claim is refused: %+v", s.Source)
	if s := statusOf(process, healthy(func(s *dispatcher.Snapshot) { s.Paused = true })); s.State != "Paused" || unready(s) != nil {
		t.Errorf("paused, as configured: %+v, %v", s, unready(s))
	}
}

// huge is a snapshot and a depth with as much as they can hold, in texts that JSON writes as long as it can.
func huge() (dispatcher.Snapshot, *dispatcher.Depth) {
	long := strings.Repeat(strings.Repeat("\x01", 100)+"\"\\<\u2028", 250) // a control character is six bytes of JSON
	depth := &dispatcher.Depth{ObservedAt: started, BlockedKeys: dispatcher.Count{N: 21}}
	s := healthy(func(s *dispatcher.Snapshot) {
		s.Outcomes, s.Schema.Message, s.LastError = down(errors.New(long)), long, long
		s.StuckCalls, s.Stuck = 1, []dispatcher.StuckCall{{Topic: "a", EventID: uuid.Max}}
	})
	for i := range 100 {
		topic := fmt.Sprintf("topic-%03d%s", i, long)
		s.PausedTopics = append(s.PausedTopics, dispatcher.PausedTopic{Topic: topic, Breaker: dispatcher.BreakerRefusing, Err: errors.New(long)})
		depth.Topics = append(depth.Topics, dispatcher.TopicDepth{Topic: topic, Pending: dispatcher.Count{N: 1}})
		depth.Blocked = append(depth.Blocked, dispatcher.BlockedKey{Topic: topic, Key: "customer-17", EventID: uuid.Max})
		depth.Groups = append(depth.Groups, dispatcher.DeadGroup{Topic: topic, Cause: dispatcher.Cause{Code: long, Place: long}, Sample: uuid.Max, Error: "customer-17"})
	}
	return s, depth
}

func TestBriefStatusFitsItsBound(t *testing.T) {
	s, depth := huge()
	for name, c := range map[string]struct {
		caller, host, path string
		brief              bool
	}{
		"port-forward":           {"127.0.0.1:4711", "localhost:8080", status.Path, false},
		"port-forward over IPv6": {"[::1]:4711", "[::1]:8080", status.Path, false},
		"a page in a browser":    {"127.0.0.1:4711", "evil.example", status.Path, true},
		"the operator":           {"10.0.0.7:4711", "10.0.0.9:8080", status.BriefPath, true},
		"a stranger":             {"10.0.0.7:4711", "localhost", status.Path, true},
		"a stranger over IPv6":   {"[fd00::7]:4711", "localhost", status.Path, true},
		"a mesh's proxy":         {"127.0.0.6:4711", "localhost", status.Path, true},
		"brief path":             {"127.0.0.1:4711", "localhost", status.BriefPath, true},
		"unknown caller":         {"", "localhost", status.Path, true},
	} {
		_, body := getFrom(t, c.caller, c.host, c.path, s, depth)
		secret := strings.Contains(body, "customer-17") || strings.Contains(body, uuid.Max.String()) || strings.Contains(body, "lastError")
		need.That(t, secret != c.brief, "%s: keys, ids and errors of single deliveries are shown: %v", name, secret)
		need.That(t, !c.brief || len(body) <= status.MaxBrief, "%s: %d bytes, want %d at most", name, len(body), status.MaxBrief)
	}

	_, body := get(t, status.BriefPath, s, depth)
	var got status.Status
	need.OK(t, json.Unmarshal([]byte(body), &got))
	need.That(t, got.Name == "orders" && got.Sink.State == status.Reachable && got.Source.Reason == status.OutcomesRefused && got.Schema.Version == 1 && got.StuckCalls == 1,
		"what it is, links and schema: %+v", got)
	need.That(t, got.PausedTopicCount == 100 && got.AllTopicsPaused && len(got.PausedTopics) == 8 && strings.HasPrefix(got.PausedTopics[7].Topic, "topic-007") && strings.HasSuffix(got.PausedTopics[7].Message, "…"),
		"paused topics: %d, all: %v, %+v", got.PausedTopicCount, got.AllTopicsPaused, got.PausedTopics)
	b := got.Backlog
	need.That(t, b != nil && b.Pending == 100 && b.BlockedKeys == 21 && b.Topics == nil && b.Blocked == nil && b.ObservedAt.Equal(started), "totals: %+v", b)
	tx := got.OldestTransaction
	need.That(t, tx != nil && tx.Kind == status.Standby && tx.Seconds == 9, "oldest transaction: %+v", tx)
	before := (status.Status{}).Brief()
	need.That(t, before.Backlog == nil && before.OldestTransaction == nil && before.PausedTopics == nil, "before anything is known: %+v", before)
}

func TestAllTopicsPausedOnlyWithoutAnotherWaiting(t *testing.T) {
	waits := func(topics ...string) (counts []status.TopicCounts) {
		for _, topic := range topics {
			counts = append(counts, status.TopicCounts{Topic: topic, Counts: status.Counts{Scheduled: 1}})
		}
		return append(counts, status.TopicCounts{Topic: "idle", Counts: status.Counts{Dead: 3}})
	}
	paused := []status.PausedTopic{{Topic: "a"}, {Topic: "b"}}
	for name, c := range map[string]struct {
		paused []status.PausedTopic
		gated  []status.GatedTopic
		topics []status.TopicCounts
		want   bool
	}{
		"all that have events":      {paused, nil, waits("a", "b"), true},
		"one of them":               {paused, nil, waits("b"), true},
		"another is delivered":      {paused, nil, waits("a", "b", "c"), false},
		"no events":                 {paused, nil, waits(), false},
		"none paused":               {nil, nil, waits("a"), false},
		"all gated":                 {nil, []status.GatedTopic{{Topic: "a"}}, waits("a"), true},
		"some paused, others gated": {paused, []status.GatedTopic{{Topic: "c"}}, waits("a", "c"), true},
	} {
		need.Want(t, c.want, "%s: %v, want %v", allTopicsPaused(c.paused, c.gated, c.topics), name)
	}
}

// fakeSource returns everything, and counts requests for a payload.
type fakeSource struct {
	deadletters.Source
	requests, payloads int
}

func (s *fakeSource) Groups(context.Context, deadletters.Filter) (deadletters.Groups, error) {
	s.requests++
	return deadletters.Groups{Groups: []deadletters.Group{{Group: "7f3a9c21"}}}, nil
}

func (s *fakeSource) List(_ context.Context, r deadletters.ListRequest) (deadletters.Page, error) {
	s.requests++
	return deadletters.Page{DeadLetters: []deadletters.DeadLetter{{Topic: r.Topic}}}, nil
}

func (s *fakeSource) Show(_ context.Context, id string, payload bool) (deadletters.DeadLetter, error) {
	s.requests++
	if payload {
		s.payloads++
	}
	if id == "99" {
		return deadletters.DeadLetter{}, fmt.Errorf("no dead letter 99: %w", deadletters.ErrNotFound)
	}
	return deadletters.DeadLetter{Event: id}, nil
}

func (s *fakeSource) Event(_ context.Context, id string, payload bool) (deadletters.History, error) {
	s.requests++
	if payload {
		s.payloads++
	}
	return deadletters.History{Event: &deadletters.Event{ID: id}}, nil
}

// Dead letters are shown to callers in the pod, by GET, and to no other.
func TestDeadLettersAreShownInThePodAlone(t *testing.T) {
	source := &fakeSource{}
	from := sources(dispatcher.Snapshot{}, nil)
	from.DeadLetters = source
	handler := Handler(process, from, prometheus.NewRegistry())
	host := "localhost:8080"
	request := func(method, caller, path string) (int, string) {
		response, r := httptest.NewRecorder(), httptest.NewRequest(method, path, nil)
		r.RemoteAddr, r.Host = caller, host
		handler.ServeHTTP(response, r)
		return response.Code, strings.TrimSpace(response.Body.String())
	}
	const here = "127.0.0.1:4711"
	for path, want := range map[string]string{
		"/dead/groups": `"group":"7f3a9c21"`, "/dead?topic=orders&limit=3": `"topic":"orders"`, "/dead/42": `"event":"42"`,
		"/events/a%2Fb": `"id":"a/b"`, "/dead/42?payload=false": `"event":"42"`,
	} {
		for _, caller := range []string{here, "[::1]:4711"} {
			code, body := request(http.MethodGet, caller, path)
			need.That(t, code == http.StatusOK && strings.Contains(body, want), "%s from %s: %d %s", path, caller, code, body)
		}
		before := source.requests
		for _, caller := range []string{"10.0.0.7:4711", "127.0.0.6:4711", "[fd00::7]:4711", ""} {
			code, body := request(http.MethodGet, caller, path)
			need.That(t, code == http.StatusForbidden && strings.Contains(body, "use kubectl outbox"), "%s from %q: %d %s", path, caller, code, body)
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			code, body := request(method, here, path)
			need.That(t, code == http.StatusMethodNotAllowed, "%s %s: %d %s", method, path, code, body)
		}
		need.That(t, source.requests == before, "%s: the source was queried for a caller who may not", path)
	}
	need.Want(t, 0, "%d payloads were shown without a request", source.payloads)
	for path, want := range map[string]int{
		"/dead/42?payload=true": http.StatusOK, "/events/42?payload=true": http.StatusOK, "/dead/42?payload=yes": http.StatusBadRequest,
		"/dead/99": http.StatusNotFound, "/dead?topik=orders": http.StatusBadRequest, "/dead?limit=501": http.StatusBadRequest,
		"/dead?since=yesterday": http.StatusBadRequest, "/dead/groups?group=2": http.StatusBadRequest,
	} {
		code, body := request(http.MethodGet, here, path)
		need.That(t, code == want, "%s: %d %s", path, code, body)
	}
	need.Want(t, 2, "%d payloads were shown, want 2", source.payloads)
	for name, want := range map[string]int{
		"localhost": http.StatusOK, "127.0.0.1:40001": http.StatusOK, "[::1]:8080": http.StatusOK, "::1": http.StatusOK,
		"evil.example:8080": http.StatusForbidden, "localhost.evil.example": http.StatusForbidden, "10.0.0.7:8080": http.StatusForbidden, "": http.StatusForbidden,
	} {
		host = name
		code, _ := request(http.MethodGet, here, "/dead")
		need.Want(t, want, "requested as %q: %d, want %d", code, name)
	}
	if code, _ := getFrom(t, here, "localhost", "/dead", dispatcher.Snapshot{}, nil); code != http.StatusNotFound {
		t.Errorf("without dead letters: %d", code)
	}
}
