package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

const (
	event  = "0190a5c8-5d1e-7000-8000-000000000001"
	orders = "/d/shop/orders"
	group  = "7f3a9c21"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// stub is a backend with a dispatcher in trouble, or with nothing wrong. text is added to each text that it returns: see spoil.
type stub struct {
	text    string
	well    bool
	rights  Rights
	failure error
	begun   []Request
	chosen  deadletters.ListRequest
	done    []string
}

func (s *stub) Fleet(context.Context, string) (f Fleet, err error) {
	defer func() { spoil(reflect.ValueOf(&f), s.text) }()
	for i, name := range []string{"orders", "billing", "search", "audit"} {
		ready := Condition{Type: "Ready", Status: []string{"", "True", "True", "Unknown"}[i], Reason: []string{"", "Delivering", "Paused", "NotObserved"}[i], Since: noon}
		f.Reports = append(f.Reports, Report{Namespace: "shop", Name: name, State: "Running", ReadyPods: "2/2", Backlog: &Backlog{}, Conditions: []Condition{ready}})
	}
	f.Reports[0], f.Next = s.report(), "more&"
	if s.well {
		f = Fleet{}
	}
	return f, s.failure
}

// made are the fields whose texts the programs or Kubernetes make.
var made = []string{"Commands", "Event", "Events", "Filter", "Group", "ID", "Name", "Namespace", "Next", "Tenant"}

// spoil adds a text to each text of a value, of lists to those of the first two, that a tenant, a consumer, a destination or a person may have written.
func spoil(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + text)
	case reflect.Pointer:
		if !v.IsNil() {
			spoil(v.Elem(), text)
		}
	case reflect.Slice:
		for i := range min(v.Len(), 2) {
			spoil(v.Index(i), text)
		}
	case reflect.Struct:
		for field, value := range v.Fields() {
			if field.IsExported() && !slices.Contains(made, field.Name) || field.Anonymous {
				spoil(value, text)
			}
		}
	}
}

func (s *stub) report() (r Report) {
	defer func() { spoil(reflect.ValueOf(&r), s.text) }()
	r = Report{Namespace: "shop", Name: "orders", State: "Running", ReadyPods: "1/2"}
	if s.well {
		r.Conditions = []Condition{{Type: "Ready", Status: "True", Reason: "Delivering", Message: "Events are delivered.", Since: noon}}
		r.Backlog, r.Now = &Backlog{ObservedAt: noon}, &status.Status{Backlog: &status.Backlog{}}
		return r
	}
	message := "The destination http://orders does not respond; start it. "
	r.Conditions = []Condition{{Type: "Ready", Status: "False", Reason: "ConnectionFailed", Message: message, Since: noon, Wrong: true}, {Type: "SinkReachable", Status: "False", Reason: "ConnectionFailed", Message: message, Since: noon, Wrong: true},
		{Type: "SchemaReady", Status: "True", Reason: "UpToDate", Since: noon.Add(-24 * time.Hour)}}
	r.ToDo = []ToDo{{What: "SinkReachable is False (ConnectionFailed): " + message}, {What: "Group " + group + ", 10000+ dead: Correct the price.", Group: group, Commands: []string{"kubectl outbox dead replay orders --group " + group + " --canary 10 --reason WHY --dry-run --namespace shop"}}}
	r.Backlog = &Backlog{Pending: 60000, Dead: 10001, Estimated: true, Oldest: noon, ObservedAt: noon, LateSince: noon, ETA: "4m", LimitedBy: "Destination"}
	r.Now = &status.Status{Hour: &status.Hour{Until: status.At(noon), Pending: []int64{-1, 0, 60000, 1500}, Delivered: []int64{0, 12345, 1, 20}}, Data: &status.Data{Windows: []status.Window{{Window: "5m", Delivered: 12345, Failed: 6}, {Window: "1h", Delivered: 654321, Failed: 78}}},
		Backlog: &status.Backlog{Topics: []status.TopicCounts{{Topic: "orders", Counts: status.Counts{Pending: 59000, Retrying: 400, Dead: 10001, Estimated: true, OldestPending: status.At(noon)}},
			{Topic: "refunds", Counts: status.Counts{Pending: 12, Processing: 3}}, {Topic: "gated"}}},
		TopicLimits: []status.TopicLimit{{Topic: "refunds", LimitedBy: "Concurrency", Concurrency: 8}}, Gated: []status.GatedTopic{{Topic: "gated", EventType: "New"}},
		PausedTopics: []status.PausedTopic{{Topic: "orders", Link: status.Link{State: status.Unreachable, Message: "connection refused"}}}}
	r.Pods = []Pod{{Name: "orders-dispatcher-a", Ready: true, Phase: "Running", Node: "node-1", Created: noon}, {Name: "orders-dispatcher-b", Phase: "CrashLoopBackOff", Restarts: 7, Created: noon}}
	r.Owners = []string{"kustomize-controller"}
	return r
}

func (s *stub) Report(context.Context, Name) (Report, error) { return s.report(), s.failure }
func (s *stub) Open(context.Context, Name) (deadletters.Source, func(), error) {
	return s, func() {}, s.failure
}
func (s *stub) Rights(context.Context, Name) Rights { return s.rights }
func (s *stub) Line(n Name, command, arguments string) string {
	return strings.TrimSpace("kubectl outbox "+command+" "+n.Name+" "+arguments) + " --namespace " + n.Namespace
}

func (s *stub) Begin(_ context.Context, _ Name, r Request) (string, error) {
	if !slices.ContainsFunc(s.begun, func(before Request) bool { return before.ID == r.ID }) {
		s.begun = append(s.begun, r)
	}
	return "orders-" + r.ID, nil
}

func (s *stub) Stop(_ context.Context, _ Name, id string) error {
	s.done = append(s.done, "stop "+id)
	return s.failure
}

func (s *stub) SetState(_ context.Context, _ Name, state spec.State) error {
	s.done = append(s.done, string(state))
	return s.failure
}

func (s *stub) Replays(context.Context, Name) (all []Replay, _ error) {
	defer func() { spoil(reflect.ValueOf(&all), s.text) }()
	if s.well {
		return nil, s.failure
	}
	filter := deadletters.Filter{Group: group, Until: noon}
	return []Replay{
		{ID: "canary", Action: "Replay", By: "ada", Reason: "CHG-812", Began: noon, Canary: 10, State: "Running", Line: "10 of 1500 put back, 7 delivered", Progress: &status.Progress{Matched: 1500, Delivered: 7, Pending: 3}},
		{ID: "runs", Action: "Replay", By: "ada", Reason: "CHG-812", Began: noon, State: "Waiting", Line: "900 of 1500 put back", Why: []string{"The newest failure: 503."}, Progress: &status.Progress{Matched: 1500, Delivered: 700, Failing: 150, DeadAgain: 30, Pending: 20, EndsAt: status.At(noon.Add(3 * time.Hour))}},
		{ID: "dry", Action: "Replay", DryRun: true, By: "ada", Reason: "CHG-812", Began: noon, State: "Finished", Line: "would replay 1499 of 1500", Ended: true, Filter: filter, Progress: &status.Progress{Matched: 1500, Skipped: []status.Skipped{{Reason: "gone", Count: 1}}}},
		{ID: "done", Action: "Replay", By: "ada", Reason: "CHG-812", Began: noon, State: "Finished", Line: "1499 of 1500 put back, 1499 delivered", Ended: true, Progress: &status.Progress{Matched: 1500, Delivered: 1499, Skipped: []status.Skipped{{Reason: "gone", Count: 1}}}},
		{ID: "aborted", Action: "Replay", By: "ada", Reason: "CHG-812", Began: noon, State: "Aborted", Line: "stopped: 10 of 1500 put back", Ended: true, Failed: true, Progress: &status.Progress{Matched: 1500, DeadAgain: 10, Stopped: "too many failures"}},
		{ID: "unseen", Action: "Discard", By: "ada", Reason: "load test", Began: noon, State: "Unseen", Line: "waits for the operator"},
	}, s.failure
}

func (s *stub) Groups(_ context.Context, f deadletters.Filter) (g deadletters.Groups, err error) {
	defer func() { spoil(reflect.ValueOf(&g), s.text) }()
	if s.well {
		return g, nil
	}
	g.Groups = []deadletters.Group{{Group: group, Topic: "orders", Reason: dispatcher.ReasonMaxRetriesExceeded, Cause: dispatcher.Cause{Class: "http", Code: "422", Place: "/items/*/price"}, Count: 10000, AtLeast: true,
		Since: noon.Add(-2 * time.Hour), Last: noon.Add(1500 * time.Millisecond), Event: event, Error: "the consumer responded 422: price is negative", Advice: "Fix what the destination refuses the event for, and replay; or discard what it need not get."}}
	if f.Group == "" {
		g.Groups = append(g.Groups, deadletters.Group{Group: "00000001", Topic: "bills", Reason: dispatcher.ReasonProcessingTimeout, Cause: dispatcher.Cause{Class: "lease"}, Count: 1, Since: noon, Last: noon, Event: event, Advice: "See why the consumer takes so long, and replay."})
	}
	return g, nil
}

func (s *stub) CountBy(_ context.Context, _ deadletters.Filter, by deadletters.By) (c deadletters.Counts, err error) {
	defer func() { spoil(reflect.ValueOf(&c), s.text) }()
	return deadletters.Counts{By: by, Counts: []deadletters.Count{{Value: "order/17", Count: 60000, Groups: 2, Since: noon, Last: noon}, {Count: 1, Groups: 1, Since: noon, Last: noon}}}, nil
}

func (s *stub) deadLetters(payload bool) (out []deadletters.DeadLetter) {
	defer func() { spoil(reflect.ValueOf(&out), s.text) }()
	for i := range 12 {
		l := deadletters.DeadLetter{ID: int64(42 - i), Event: event, Group: group, Topic: "orders", Type: "OrderPlaced", AggregateType: "order", AggregateID: fmt.Sprint(170 + i), Tenant: event, Reason: dispatcher.ReasonMaxRetriesExceeded,
			Error: "the consumer responded 422: price is negative", Attempts: 20, DeadAt: noon.Add(-time.Duration(i) * time.Minute), Response: `{"error": "price is negative"}`, Status: "dead", Advice: "Correct the price.",
			Failures: []deadletters.Failure{{At: noon.Add(-time.Minute), Attempt: 19, Error: "503"}, {At: noon, Attempt: 20, Error: "422"}}}
		if payload {
			l.Payload, l.Headers = []byte(`{"price": -1, "note": `+strconv.Quote(strings.ReplaceAll(s.text, "\x1b", ""))+`}`), []byte(`{"trace": "t-1"}`)
		}
		out = append(out, l)
	}
	return out
}

func (s *stub) List(_ context.Context, r deadletters.ListRequest) (deadletters.Page, error) {
	s.chosen = r
	if s.well {
		return deadletters.Page{}, nil
	}
	return deadletters.Page{DeadLetters: s.deadLetters(false), Next: 30}, nil
}

func (s *stub) Show(_ context.Context, id string, payload bool) (deadletters.DeadLetter, error) {
	if id != "42" {
		return deadletters.DeadLetter{}, fmt.Errorf("no dead letter %s: %w", id, deadletters.ErrNotFound)
	}
	return s.deadLetters(payload)[0], nil
}

func (s *stub) Event(_ context.Context, id string, payload bool) (h deadletters.History, err error) {
	defer func() { spoil(reflect.ValueOf(&h), s.text) }()
	h.DeadLetters = s.deadLetters(false)[:1]
	h.DeadLetters[0].Resolution = &deadletters.Resolution{What: "replayed", At: noon, By: "ada", Reason: "CHG-811", Outcome: "dead_again"}
	h.Journal = []deadletters.Record{{At: noon, Operation: "edit", Before: "dead", After: "dead", Login: "ada", Reason: "topic", Topic: "orders"}}
	h.Original, h.Copies = &deadletters.Related{Topic: "all", ID: group}, []deadletters.Related{{Topic: "billing", ID: event, Status: "pending"}}
	if id != "gone" {
		h.Event = &deadletters.Event{ID: event, Topic: "orders", Type: "OrderPlaced", DedupeKey: id, SizeBytes: 35, CreatedAt: noon.Add(-2 * time.Hour), UpdatedAt: noon, Status: "dead", Attempts: 20, LastError: "422",
			Content: s.deadLetters(payload)[0].Content}
	}
	return h, nil
}

func (s *stub) Try(context.Context, Name) (t Tried, _ error) {
	defer func() { spoil(reflect.ValueOf(&t), s.text) }()
	t = Tried{Against: "old.yaml", Rows: 1000, Oldest: noon.Add(-time.Hour), Newest: noon, Command: "--against old.yaml"}
	if !s.well {
		t.Different, t.Note = 12, "The search ended."
		t.Differences = []Difference{{Before: "sent", After: "dead", Topic: "orders", What: "rules[0]: no price", Count: 12, Events: []string{event}}}
	}
	return t, s.failure
}

func (s *stub) console() *Console {
	return &Console{Backend: s, Where: "prod · https://10.0.0.1:6443 · as vera", Now: func() time.Time { return noon.Add(5 * time.Minute) }}
}

// do sends a request: header has names and values, and a body makes it a form.
func do(h http.Handler, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://127.0.0.1:8123"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(header); i += 2 {
		if r.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func form(what string) url.Values {
	return url.Values{"filter": {"group=" + group + "&until=2026-03-01T12:00:02Z"}, "once": {"A"}, "reason": {"CHG-812"}, "canary": {"10"}, "rate": {"100"}, "do": {what}}
}

var everyPage = []string{"/", orders, orders + "/groups", orders + "/groups?by=tenant", orders + "/dead?group=" + group, orders + "/dead?resolved=true", orders + "/dead/42", orders + "/dead/42?payload=true",
	orders + "/events?id=order-17", orders + "/events?id=gone", orders + "/events?id=order-17&payload=true", orders + "/replays", orders + "/replays/canary", orders + "/replays/runs", orders + "/replays/dry",
	orders + "/try", orders + "/replays/done", orders + "/replays/aborted", orders + "/replays/unseen"}

// Whoever has not the token, or comes from another origin, sees and does nothing.
func TestOthersAreKeptOut(t *testing.T) {
	s := &stub{}
	c := s.console()
	h, token := c.Guarded()
	orders := c.below + orders
	opened := do(h, "GET", orders+"?token="+token, "")
	need.Want(t, http.StatusOK, "the link responds %d, want %d", opened.Code)
	cookie := opened.Result().Cookies()[0]
	need.That(t, cookie.HttpOnly && cookie.Path == c.below+"/" && strings.Contains(opened.Body.String(), "url="+orders) && cookie.SameSite == http.SameSiteStrictMode, "the cookie is %v", cookie)
	known := cookie.Name + "=" + cookie.Value
	replay := form("replay").Encode()
	for name, attack := range map[string]struct {
		method, path, body string
		header             []string
		want               int
	}{
		"the cookie":                      {"GET", orders, "", []string{"Cookie", known}, 200},
		"the cookie, by name and port":    {"GET", orders, "", []string{"Cookie", known, "Host", "localhost:9000"}, 200},
		"the token again":                 {"GET", orders + "?token=" + token, "", nil, 403},
		"another token":                   {"GET", orders + "?token=" + token[1:], "", nil, 403},
		"no cookie":                       {"GET", orders, "", nil, 403},
		"no cookie, the style":            {"GET", c.below + "/style.css", "", nil, 403},
		"the cookie, another path":        {"GET", "/d/shop/orders", "", []string{"Cookie", known}, 403},
		"half an address":                 {"GET", orders + "/dead?group=%7", "", []string{"Cookie", known}, 400},
		"another cookie":                  {"GET", orders, "", []string{"Cookie", cookie.Name + "=A"}, 403},
		"a foreign host":                  {"GET", orders, "", []string{"Cookie", known, "Host", "evil.example"}, 421},
		"a foreign host with a port":      {"GET", orders, "", []string{"Cookie", known, "Host", "evil.example:8123"}, 421},
		"a host that begins as ours":      {"GET", orders, "", []string{"Cookie", known, "Host", "127.0.0.1.evil.example:8123"}, 421},
		"a form without cookie":           {"POST", orders + "/replays", replay, nil, 403},
		"a form of another site":          {"POST", orders + "/replays", replay, []string{"Cookie", known, "Sec-Fetch-Site", "cross-site"}, 403},
		"a form of another port":          {"POST", orders + "/replays", replay, []string{"Cookie", known, "Sec-Fetch-Site", "same-site"}, 403},
		"a form of another origin":        {"POST", orders + "/replays", replay, []string{"Cookie", known, "Origin", "http://127.0.0.1:9"}, 403},
		"a form of no origin":             {"POST", orders + "/state", "state=Paused", []string{"Cookie", known, "Origin", "null"}, 403},
		"a form by GET":                   {"GET", orders + "/state?state=Paused", "", []string{"Cookie", known}, 405},
		"a form of a mebibyte":            {"POST", orders + "/replays", replay + strings.Repeat("x", 1<<20), []string{"Cookie", known}, 400},
		"a form of another console":       {"POST", orders + "/replays", strings.Replace(replay, "once=A", "once=", 1), []string{"Cookie", known}, 400},
		"a form without end of the set":   {"POST", orders + "/replays", strings.Replace(replay, "until", "since", 1), []string{"Cookie", known}, 400},
		"a form for everything":           {"POST", orders + "/replays", strings.Replace(replay, "filter=", "filter=%25zz", 1), []string{"Cookie", known}, 400},
		"a form with a filter of its own": {"POST", orders + "/replays", strings.Replace(replay, "group", "grp", 1), []string{"Cookie", known}, 400},
		"a form of resolved ones":         {"POST", orders + "/replays", strings.Replace(replay, "group", "resolved%3Dtrue%26group", 1), []string{"Cookie", known}, 400},
		"a form of another operation's":   {"POST", orders + "/replays", strings.Replace(replay, "group", "operation%3D"+event+"%26group", 1), []string{"Cookie", known}, 400},
		"a form with a wrong rate":        {"POST", orders + "/replays", strings.Replace(replay, "rate=100", "rate=1e9", 1), []string{"Cookie", known}, 400},
		"a form with a wrong expiry":      {"POST", orders + "/replays", replay + "&expires=7d", []string{"Cookie", known}, 400},
		"a form without why":              {"POST", orders + "/replays", strings.Replace(replay, "CHG-812", "+", 1), []string{"Cookie", known}, 400},
		"an action that is not there":     {"POST", orders + "/replays", strings.Replace(replay, "do=replay", "do=delete", 1), []string{"Cookie", known}, 400},
		"a state that is not there":       {"POST", orders + "/state", "state=Deleted", []string{"Cookie", known}, 400},
	} {
		got := do(h, attack.method, attack.path, attack.body, attack.header...)
		need.Want(t, attack.want, name+": %d, want %d", got.Code)
		need.That(t, got.Header().Get("Content-Security-Policy") == policy && got.Header().Get("Cache-Control") == "no-store", "%s: the headers are %v", name, got.Header())
	}
	need.That(t, len(s.begun)+len(s.done) == 0, "something was done: %v %v", s.begun, s.done)
}

// A form does what its line says, once: Back, a reload and a double click send the same form.
func TestFormBeginsOneOperation(t *testing.T) {
	s := &stub{}
	h := s.console().Handler()
	for range 2 {
		w := do(h, "POST", orders+"/replays", form("dry-replay").Encode())
		need.That(t, w.Code == http.StatusSeeOther && w.Header().Get("Location") == orders+"/replays/orders-"+s.begun[0].ID, "%d to %s", w.Code, w.Header().Get("Location"))
	}
	want := Request{ID: s.begun[0].ID, Action: spec.ActionReplay, Reason: "CHG-812", Rate: 100, Canary: 10, DryRun: true, Filter: deadletters.Filter{Group: group, Until: noon.Add(2 * time.Second)}}
	need.Want(t, fmt.Sprint([]Request{want}), "began %s, want %s", fmt.Sprint(s.begun))
	for _, other := range []string{"replay", "discard"} {
		do(h, "POST", orders+"/replays", form(other).Encode()+map[string]string{"replay": "&expires=1h"}[other])
	}
	need.That(t, len(s.begun) == 3 && s.begun[1].ID != want.ID && !s.begun[1].DryRun && s.begun[1].Expires == time.Hour && s.begun[2].Action == spec.ActionDiscard, "began %v", s.begun)
	need.Want(t, orders, "pausing leads to %s, want %s", do(h, "POST", orders+"/state", "state=Paused").Header().Get("Location"))
	need.Want(t, orders+"/replays", "stopping leads to %s, want %s", do(h, "POST", orders+"/replays/runs/stop", "").Header().Get("Location"))
	need.WantAll(t, []string{"Paused", "stop runs"}, "done: %v, want %v", s.done)

	s.failure = errors.New("the line is down")
	for _, path := range []string{"/state", "/replays/runs/stop"} {
		w := do(h, "POST", orders+path, "state=Running")
		need.That(t, w.Code == http.StatusBadGateway && strings.Contains(w.Body.String(), "This was not done") && strings.Contains(w.Body.String(), "the line is down"), "%s: %d %s", path, w.Code, w.Body)
	}
}

// What a page shows short is whole in its links and its forms: half a filter would choose more.
func TestLongValuesChooseNoMore(t *testing.T) {
	s := &stub{text: strings.Repeat("ж", 2500)}
	h := s.console().Handler()
	page := do(h, "GET", orders+"/groups?by=aggregate", "").Body.String()
	link := regexp.MustCompile(`href="([^"]*/dead\?aggregate=[^"]*)"`).FindStringSubmatch(page)
	page = do(h, "GET", html.UnescapeString(link[1]), "").Body.String()
	need.Want(t, "order/17"+s.text, "the link chooses %q, want %q", s.chosen.Aggregate)
	values := form("replay")
	values.Set("filter", html.UnescapeString(regexp.MustCompile(`name="filter" value="([^"]*)"`).FindStringSubmatch(page)[1]))
	do(h, "POST", orders+"/replays", values.Encode())
	need.That(t, len(s.begun) == 1 && s.begun[0].Filter.Aggregate == s.chosen.Aggregate, "the form chooses %v", s.begun)
	need.That(t, strings.Contains(page, s.text+"&#39; --until 2026-03-01T12:00:02Z --canary 10 --rate 100 --reason WHY --dry-run --namespace shop</code>"), "the line is not whole")
	for _, path := range []string{"/dead?aggregate=%d0%b6&group=%7", "/dead?aggregate=%d0%9", "/groups?by=%zz"} {
		need.Want(t, 400, path+": %d, want %d", do(h, "GET", orders+path, "").Code)
	}
	page = do(h, "GET", orders+"/events?id=%e2%80%ae", "").Body.String()
	need.That(t, strings.Contains(page, "cannot be seen") && !strings.Contains(page, "<code class"), "a line has a mark:\n%s", page)
}

// What a person reads on each page, in each state. A row has what the page has, and after "not:" what it has not.
func TestPagesSayWhatIsAndWhatToDo(t *testing.T) {
	viewer := &stub{rights: Rights{Replay: "You may look; request the role.", State: "You may not pause."}}
	down := &stub{failure: errors.New("dial tcp 10.0.0.1:6443: connection refused")}
	for _, row := range []struct {
		s    *stub
		path string
		code int
		want []string
	}{
		{&stub{}, "/", 200, []string{"Something to do at 1 of 4 dispatchers", "Not delivering: 1 · dead events, which wait for a person: ~10,001 · not observed: 1", "<caption>Need a person", "<caption>Not observed", "<caption>Well", "prod · https://10.0.0.1:6443 · as vera", `<span aria-hidden="true">✕</span> ConnectionFailed`, "‖</span> Paused", "~60,000", `href="/d/shop/orders/groups">~10,001<`, "?next=more%26", `title="2026-03-01 12:00:00 UTC">5m<`}},
		{&stub{well: true}, "/", 200, []string{"No dispatchers here"}},
		{&stub{}, orders, 200, []string{"SinkReachable is False", "See group 7f3a9c21", "kubectl outbox dead replay orders --group 7f3a9c21", "paused: Unreachable: connection refused", "Concurrency, 8 calls at once", "no verified consumer of the type", "654,321",
			`aria-label="Pending at the end of each minute: 1,500 at last, 60,000 at most, 0 at least in 4 minutes, not known in 1 of them"`, `x="590" y="97" width="9" height="3"><title>12:00 UTC: 1,500<`, `height="100"><title>11:58 UTC: 12,345<`,
			"set by kustomize-controller", `value="Paused"><button>Pause delivery`, "kubectl outbox pause orders --namespace shop", "CrashLoopBackOff"}},
		{&stub{well: true}, orders, 200, []string{"each check is well, and no event is dead", "each event was delivered, or none was enqueued", "not:<figure"}},
		{viewer, orders, 200, []string{"You may not pause.", "kubectl outbox pause orders", "not:<button>Pause"}},
		{&stub{}, orders + "/groups", 200, []string{"<h1>10,001+ dead</h1>", "price is negative", "orders · max_retries_exceeded · http 422 /items/*/price", "Fix what the destination refuses", "/dead?group=7f3a9c21"}},
		{&stub{well: true}, orders + "/groups", 200, []string{"No dead letters", "was delivered, or is still tried"}},
		{&stub{}, orders + "/groups?by=aggregate", 200, []string{"Dead letters by aggregate", "order%2F17", "60,000"}},
		{&stub{}, orders + "/groups?by=color", 400, []string{"by: &#34;color&#34; is unknown"}},
		{&stub{}, orders + "/dead?group=" + group, 200, []string{"Group 7f3a9c21: 10,000+ dead", `class="main" name="do" value="dry-replay"`, `name="expires"`, "became dead before 2026-03-01 12:00:02 UTC", `name="filter" value="group=7f3a9c21&amp;until=2026-03-01T12%3A00%3A02Z"`,
			"kubectl outbox dead replay orders --group 7f3a9c21 --until 2026-03-01T12:00:02Z --canary 10 --rate 100 --reason WHY --dry-run --namespace shop", "after=30", "order/170"}},
		{viewer, orders + "/dead?group=" + group, 200, []string{"You may look; request the role.", "kubectl outbox dead replay", "not:value=\"replay\""}},
		{&stub{well: true}, orders + "/dead?group=" + group, 200, []string{"was replayed, or discarded"}},
		{&stub{}, orders + "/dead?resolved=true", 200, []string{"Resolved dead letters", "not:value=\"replay\""}},
		{&stub{}, orders + "/dead?operation=" + event, 200, []string{"10,001+ dead", "not:value=\"replay\""}},
		{&stub{}, orders + "/dead?group=x", 400, []string{"is not a group"}},
		{&stub{}, orders + "/dead/42", 200, []string{"Dead letter 42", "Correct the price.", "attempt 19", "not:<dt>Error", "not:<dt>Resolution", "?payload=true", "kubectl outbox dead show orders 42", "not:t-1"}},
		{&stub{}, orders + "/dead/42?payload=true", 200, []string{"&#34;price&#34;: -1", "t-1"}},
		{&stub{}, orders + "/dead/7", 404, []string{"Not found", "no dead letter 7", "Try again"}},
		{&stub{}, orders + "/events?id=order-17", 200, []string{"<h1>This event is dead</h1>", "enqueued", "after 20 attempts", "Dedupe key", "✕</span> dead", "not:-1,",
			`<dt>Copy of</dt><dd><a href="/d/shop/orders/events?id=` + group + `">all ` + group + `: gone</a></dd>`, `?id=` + event + `">billing ` + event + `: pending</a>`}},
		{&stub{}, orders + "/events?id=gone", 200, []string{"Its row is gone"}},
		{&stub{}, orders + "/events?id=", 400, []string{"the id is empty"}},
		{&stub{}, orders + "/replays", 200, []string{"<h1>Under way: ", "CHG-812", "10 of 1500 put back, 7 delivered", "Dry run: replay"}},
		{&stub{well: true}, orders + "/replays", 200, []string{"was replayed or discarded here"}},
		{&stub{}, orders + "/replays/canary", 200, []string{`http-equiv="refresh"`, "The canary: 10 go first", "Stop it", "kubectl outbox dead stop orders canary", "✓</span> 7<"}},
		{&stub{}, orders + "/replays/canary?still", 200, []string{"The canary: 10 go first", "not:http-equiv"}},
		{viewer, orders + "/replays/runs", 200, []string{"The newest failure: 503.", "in 2h", `class="bad" x="566" width="20"`, "not:Stop it"}},
		{&stub{}, orders + "/replays/dry", 200, []string{"Now do it", `class="main" name="do" value="replay"`, "All 1,499 that match", `value="CHG-812" placeholder`, "Would be done", "not:<svg", "not:http-equiv"}},
		{viewer, orders + "/replays/dry", 200, []string{"request the role", "not:value=\"replay\""}},
		{&stub{}, orders + "/replays/done", 200, []string{"See what is dead now", "✓</span> Finished", "not:Now do it"}},
		{&stub{}, orders + "/replays/aborted", 200, []string{"✕</span> Aborted", "See what is dead now"}},
		{&stub{}, orders + "/replays/unseen", 200, []string{"waits for the operator", `http-equiv="refresh"`}},
		{&stub{}, orders + "/replays/other", 404, []string{"it was stopped and removed"}},
		{&stub{}, orders + "/try", 200, []string{"12 of 1,000 past events come out otherwise", "✕</span> dead", "compared with old.yaml", "rules[0]: no price", "/events?id=" + event, "kubectl outbox try orders --against old.yaml", `aria-current="page">Try the file`}},
		{&stub{well: true}, orders + "/try", 200, []string{"0 of 1,000", "does with each event what was done before"}},
		{down, orders + "/try", 502, []string{"connection refused"}},
		{down, "/", 502, []string{"This could not be read", "connection refused", "Try again"}},
		{down, orders + "/groups", 502, []string{"connection refused", `href="/d/shop/orders/groups">Try again`}},
	} {
		w := do(row.s.console().Handler(), "GET", row.path, "")
		need.Want(t, row.code, row.path+": %d, want %d", w.Code)
		for _, want := range row.want {
			text, not := strings.CutPrefix(want, "not:")
			need.That(t, strings.Contains(w.Body.String(), text) != not, "%s: %q is wrong in\n%s", row.path, want, w.Body)
		}
	}
}

var unsafe = regexp.MustCompile(`(?i)<(script|iframe|object|img|style)|<[^>]* (on\w+|style)=|javascript:`)

// quoted is the value of an attribute, which ends at its quote.
var quoted = regexp.MustCompile(`"[^"]*"`)

// Whatever a tenant, a consumer or a person has written is text of bounded length, on every page.
func TestTextsOfTenantsAreHarmless(t *testing.T) {
	text := "\"'><script>alert(1)</script><b onclick=x style=y>\x1b[2J\u202egnp.exe\u2066" + strings.Repeat("é", 1<<19)
	h := (&stub{text: text}).console().Handler()
	for _, path := range everyPage {
		w := do(h, "GET", path, "")
		body := w.Body.String()
		found := cmp.Or(unsafe.FindString(quoted.ReplaceAllString(body, `""`)), invisible.FindString(body))
		need.That(t, w.Code == 200 && found == "" && len(body) < 1<<20 && utf8.ValidString(body), "%s: %d, %q in %d bytes", path, w.Code, found, len(body))
		need.Want(t, 1, path+": %d titles, want %d", strings.Count(body, "<h1>"))
	}
}
