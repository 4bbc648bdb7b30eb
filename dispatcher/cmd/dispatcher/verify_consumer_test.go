package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	consume "github.com/outbox-operator/outbox-operator/dispatcher/client/consumer"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// brokenConsumers need the hooks. Package consumertest has one for each check.
var brokenConsumers = map[string]struct {
	deliver func(context.Context, *service, *consume.Event) error
	hooks   []string
	rules   string
	checks  []string // that name the rules; others follow from them
}{
	"with a record in memory": {func(ctx context.Context, s *service, e *consume.Event) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.known[e.ID] {
			return nil
		}
		if err := s.effect(context.WithoutCancel(ctx), s, e); err != nil {
			return err
		}
		s.known[e.ID] = true
		return nil
	}, []string{"restart", "fail", "crash"}, "RULE-010-002", []string{"duplicates after a restart"}},
	"that swallows errors": {func(ctx context.Context, s *service, e *consume.Event) error {
		if err := right(ctx, s, e); s.is("crash") {
			return err
		}
		return nil
	}, everyHook, "RULE-010-032", []string{"failures are reported"}},
}

// consumerReport is the report of verify-consumer with its members' names, which programs read.
type consumerReport struct {
	URL         string   `json:"url"`
	ContentMode string   `json:"contentMode"`
	Type        string   `json:"type"`
	At          string   `json:"at"`
	Finished    bool     `json:"finished"`
	BrokenRules []string `json:"brokenRules"`
	NotTried    []string `json:"notTried"`
	Checks      []struct {
		Name     string `json:"name"`
		Rule     string `json:"rule"`
		Outcome  string `json:"outcome"`
		Optional bool   `json:"optional"`
		Needs    string `json:"needs"`
		LeftOut  string `json:"leftOut"`
		Evidence string `json:"evidence"`
		Event    string `json:"event"`
		Remedy   string `json:"remedy"`
		Follows  string `json:"follows"`
	} `json:"checks"`
}

func (o output) consumerReport(t *testing.T) (r consumerReport) {
	t.Helper()
	strict := json.NewDecoder(strings.NewReader(o.out))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&r); err != nil {
		t.Fatalf("%v:\n%s%s", err, o.out, o.err)
	}
	return r
}

// Each broken consumer is named by its rules, with evidence and a remedy, and by no other.
//
// CONTRACT: C-81
// REQUIREMENT: RULE-010-001, RULE-010-002, RULE-010-032
func TestVerifyConsumerNamesTheBrokenRule(t *testing.T) {
	t.Parallel()
	for name, broken := range brokenConsumers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, broken.deliver)
			evidence := filepath.Join(t.TempDir(), "evidence.json")
			got := s.verify(t, broken.hooks, "-o", "json", "--evidence", evidence)
			got.ended(t, 3, "dispatcher: the consumer breaks "+broken.rules+"\n")
			r := got.consumerReport(t)
			patch, err := os.ReadFile(evidence)
			check(t, err)
			if want := fmt.Sprintf(`{"spec":{"evidence":{"verifiedAt":%q,"eventType":"OrderPlaced","checks":19,`, r.At); !strings.HasPrefix(string(patch), want) || !strings.Contains(string(patch), broken.rules) {
				t.Errorf("the evidence is %s, want %s and %s", patch, want, broken.rules)
			}
			var checks []string
			for _, c := range r.Checks {
				need.That(t, (c.Outcome == "Broken") == (c.Evidence != "" && c.Remedy != "" && uuid.Validate(c.Event) == nil), "%+v", c)
				if c.Outcome == "Broken" {
					checks = append(checks, c.Name)
				}
			}
			if strings.Join(r.BrokenRules, ", ") != broken.rules || !slices.Equal(checks, broken.checks) || !r.Finished {
				t.Errorf("it breaks %q by %q, want %s by %q:\n%s", r.BrokenRules, checks, broken.rules, broken.checks, got.out)
			}
		})
	}
}

// The handler of package consumer passes all checks, in both modes, with each login; the probe at the same host gets the
// same headers.
//
// CONTRACT: C-81
// REQUIREMENT: cpt-cf-mini-chat-actor-outbox-consumer
func TestVerifyConsumerPassesTheRightOne(t *testing.T) {
	t.Parallel()
	for mode, contentType := range map[string]string{"Binary": "application/json", "Structured": "application/cloudevents+json"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := newService(t, nil)
			token, key := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "key")
			check(t, os.WriteFile(token, []byte(secret+"\n"), 0o600))
			check(t, os.WriteFile(key, []byte(secret+"-key\n"), 0o600))
			got := s.verify(t, everyHook, "--content-mode", mode, "--token-file", token, "--header", "X-Key=@"+key)
			got.ok(t, "/events, type OrderPlaced, contentMode "+mode+": of 19 checks 18 passed, 0 passed partly, 0 found a rule broken, 1 were not run\n",
				"RULE-010-012  crash between effect and record  Passed")
			login := " Bearer " + secret + " " + secret + "-key"
			need.That(t, len(s.seen) == 2 && s.seen["POST "+contentType+login] && s.seen["GET "+login], "the requests were %v", s.seen)
		})
	}
}

// A probe at another host gets neither the login nor the headers, which are for the consumer alone.
//
// CONTRACT: C-73, C-81
func TestVerifyConsumerProbeElsewhere(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	took, sent := 0, []string{}
	consumer := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { mu.Lock(); took++; mu.Unlock() }))
	t.Cleanup(consumer.Close)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, r.Header.Get("Authorization")+r.Header.Get("X-Key"))
		fmt.Fprint(w, 0)
	}))
	t.Cleanup(elsewhere.Close)
	token := filepath.Join(t.TempDir(), "token")
	check(t, os.WriteFile(token, []byte(secret), 0o600))
	got := run(t, "", "verify-consumer", "--url", consumer.URL, "--token-file", token, "--header", "X-Key=@"+token, "--probe", elsewhere.URL+"/{id}")
	got.ended(t, 3, "handles an event: lost: an event that was delivered once is acknowledged and has no effect")
	need.That(t, took != 0 && len(sent) != 0 && strings.Join(sent, "") == "", "%d deliveries, and the probe was sent %q, want no credentials", took, sent)
}

// Without a probe the responses are judged, and the report says what was not checked and which flag checks it.
//
// CONTRACT: C-81
func TestVerifyConsumerWithoutProbe(t *testing.T) {
	t.Parallel()
	idle := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(idle.Close)
	got := run(t, "", "verify-consumer", "--url", idle.URL+"?key="+secret, "--fail", "true {state}", "-o", "json")
	got.ended(t, 3, "the consumer breaks RULE-010-032\n")
	r := got.consumerReport(t)
	outcomes := map[string]int{}
	for _, c := range r.Checks {
		outcomes[c.Outcome+" "+c.Needs]++
	}
	want := map[string]int{"Partly --probe or --probe-command": 9, "NotRun --probe or --probe-command": 1, "NotRun --optional": 1, "NotRun --restart": 1,
		"NotRun --fail-record": 1, "NotRun --crash": 1, "NotRun --probe-token-member": 1, "NotRun ": 2, "Passed ": 1, "Broken ": 1}
	if fmt.Sprint(outcomes) != fmt.Sprint(want) || r.URL != idle.URL || r.Type != "ConsumerVerified" || r.ContentMode != "Binary" || r.At == "" {
		t.Errorf("%v, want %v:\n%s", outcomes, want, got.out)
	}
	table := run(t, "", "verify-consumer", "--url", idle.URL, "--probe-command", "printf '{\"effects\": 0}' # {id}", "--probe-member", "effects")
	table.ended(t, 3, "\nRULE-010-002 broken: handles an event: lost: an event that was delivered once is acknowledged and has no effect (event 0",
		")\n  Acknowledge an event when its effect is committed", "RULE-010-012  crash between effect and record  NotRun  set --crash\n", "RULE-010-002  duplicates                       NotRun  follows from handles an event\n",
		"the consumer breaks RULE-010-002\n")
}

// A consumer that responds too late or never is broken, and the report says when the response came and what to change.
//
// CONTRACT: C-81
func TestVerifyConsumerFindsLateResponses(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]time.Duration{"one came after ": 21 * time.Second, "none came in 40s either": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stop := make(chan struct{})
			s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				select {
				case <-time.After(wait):
				case <-stop:
				}
			}))
			t.Cleanup(s.Close)
			t.Cleanup(func() { close(stop) })
			got := run(t, "", "verify-consumer", "--url", s.URL, "--request-timeout", "20s", "--timeout", "10m")
			got.ended(t, 3, "RULE-010-022 broken: responds in time: an event: no response within 20s, when a dispatcher gives it up and delivers again; "+name,
				"\n  Respond sooner: ", "raise timeout of the sink, and --request-timeout to the same", "RULE-010-002  handles an event                 NotRun  follows from responds in time\n",
				"the consumer breaks RULE-010-022\n")
		})
	}
}

// The fence is checked where the probe has the token, and what a consumer declares is left out and in no list of what was not tried.
//
// CONTRACT: C-81
func TestVerifyConsumerFenceAndDeclarations(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	effects, tokens := map[string]bool{}, map[string]string{}
	consumer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodGet {
			id := r.FormValue("id")
			n := map[bool]int{true: 1}[effects[id]]
			fmt.Fprintf(w, `{"count": %d, "token": %q}`, n, cmp.Or(tokens[id], "0")) // the text that came
			return
		}
		id := r.Header.Get("ce-id")
		effects[id], tokens[id] = true, r.Header.Get("ce-fencingtoken") // whatever was there
	}))
	t.Cleanup(consumer.Close)
	got := run(t, "", "verify-consumer", "--url", consumer.URL, "--any-type", "--no-record", "--latest-only",
		"--probe", consumer.URL+"?id={id}", "--probe-token-member", "token", "-o", "json")
	got.ended(t, 3, "the consumer breaks RULE-010-003\n")
	r := got.consumerReport(t)
	var leftOut []string
	for _, c := range r.Checks {
		if c.LeftOut != "" {
			leftOut = append(leftOut, c.LeftOut)
		}
		if c.Outcome == "Broken" && !strings.Contains(c.Evidence, "the token is 100 now") {
			t.Error(c.Evidence)
		}
	}
	want := []string{"RULE-010-032 (failures are reported)", "RULE-010-012 (failures are made good)", "RULE-010-002 (duplicates after a restart)"}
	need.That(t, slices.Equal(r.NotTried, want) && strings.Join(leftOut, " ") == "--latest-only --any-type --no-record --no-record", "not tried: %q, left out by %q", r.NotTried, leftOut)
}

// A check that cannot run is reported with a remedy, is not a broken rule, and ends in time.
//
// CONTRACT: C-81, C-73
func TestVerifyConsumerFailures(t *testing.T) {
	t.Parallel()
	serve := func(handler http.HandlerFunc) string {
		s := httptest.NewServer(handler)
		t.Cleanup(s.Close)
		return s.URL
	}
	closed := httptest.NewServer(nil)
	closed.Close()
	idle := serve(func(http.ResponseWriter, *http.Request) {})
	status := func(code int) string {
		return serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
	}
	list := filepath.Join(t.TempDir(), "list.json")
	check(t, os.WriteFile(list, []byte(`["`+secret+`"]`), 0o600))
	for name, test := range map[string]struct {
		args []string
		says []string
	}{
		"no url":           {nil, []string{"--url"}},
		"not reached":      {[]string{"--url", closed.URL}, []string{"cannot be reached", "connection refused"}},
		"refused":          {[]string{"--url", status(422)}, []string{"the first event is refused", "422", "--payload", `"finished": false`}},
		"no login":         {[]string{"--url", status(401)}, []string{"401"}},
		"mode":             {[]string{"--url", idle, "--content-mode", "Batch"}, []string{"set it to Binary or Structured"}},
		"no object":        {[]string{"--url", idle, "--payload", list}, []string{"does not hold a JSON object"}},
		"no such field":    {[]string{"--url", idle, "--optional", "currency"}, []string{"--optional currency: the payload has no such field"}},
		"two probes":       {[]string{"--url", idle, "--probe", "a{id}", "--probe-command", "b"}, []string{"set one of them"}},
		"probe of nothing": {[]string{"--url", idle, "--probe", idle + "/effects"}, []string{"has no {id}"}},
		"no state":         {[]string{"--url", idle, "--fail", "true"}, []string{"--fail has no {state}"}},
		"authorization":    {[]string{"--url", idle, "--header", "Authorization=x"}, []string{"set --token-file"}},
		"request timeout":  {[]string{"--url", idle, "--request-timeout", "11s"}, []string{"at most a thirtieth of --timeout (5m0s), or raise that"}},
		"token of nothing": {[]string{"--url", idle, "--probe-token-member", "token"}, []string{"set --probe or --probe-command"}},
		"settle":           {[]string{"--url", idle, "--settle", "30s"}, []string{"less than a tenth of --timeout"}},
		"probe":            {[]string{"--url", idle, "--probe", status(500) + "/?key=" + secret + "&id={id}"}, []string{"--probe: it responded with 500"}},
		"no number":        {[]string{"--url", idle, "--probe", serve(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, secret) }) + "/{id}"}, []string{"neither a number", "--probe-member"}},
		"command":          {[]string{"--url", idle, "--any-type", "--restart", "exit 7"}, []string{"--restart: the command failed: exit status 7"}},
		"hook does nothing": {[]string{"--url", idle, "--any-type", "--probe-command", "echo 1 # {id}", "--fail", "true {state}"},
			[]string{"it made no effect fail"}},
		"crash does nothing": {[]string{"--url", idle, "--crash", "true {state}"}, []string{"did not crash"}},
		"time is up":         {[]string{"--url", idle, "--timeout", "30s", "--probe-command", "exec sleep 600 # {id}"}, []string{`"finished": false`}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, "", append([]string{"verify-consumer", "-o", "json"}, test.args...)...).ended(t, 1, test.says...)
		})
	}
}

// A consumer that an adoption keeps reads its own format. A plain message has no type, and such a consumer takes each.
//
// CONTRACT: C-81
func TestVerifyConsumerOfOtherFormats(t *testing.T) {
	t.Parallel()
	typed := func(deliver func(context.Context, *service, *consume.Event) error) func(context.Context, *service, *consume.Event) error {
		return func(ctx context.Context, s *service, e *consume.Event) error {
			e.EventType = "OrderPlaced"
			return deliver(ctx, s, e)
		}
	}
	twice := brokenConsumers["with a record in memory"]
	for name, test := range map[string]struct {
		flags         []string
		deliver, lost func(context.Context, *service, *consume.Event) error
	}{
		"Storage": {[]string{"--format", "Storage"}, nil, twice.deliver},
		"Plain":   {[]string{"--format", "Plain", "--message-header", "id=event.id", "--any-type"}, typed(right), typed(twice.deliver)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newService(t, test.deliver).verify(t, everyHook, test.flags...).ok(t, "0 passed partly, 0 found a rule broken")
			newService(t, test.lost).verify(t, everyHook, test.flags...).ended(t, 3, "breaks "+twice.rules)
		})
	}
	newService(t, nil).verify(t, everyHook, "--format", "Plain").ended(t, 1, "the first event is refused")
	newService(t, nil).verify(t, everyHook, "--format", "Avro").ended(t, 1, "--format")
	newService(t, nil).verify(t, everyHook, "--message-header", "id").ended(t, 1, "--message-header is not NAME=EXPRESSION")
}

// service is an HTTP consumer, with the parts that the broken ones are made of. What the hooks' commands write into the
// files of dir it obeys at the next request.
type service struct {
	*pgxpool.Pool
	*httptest.Server
	dir     string
	handler *consume.Consumer[consume.PGX, pgx.Tx]

	mu     sync.Mutex
	hidden bool // processed_events is renamed
	known  map[uuid.UUID]bool
	seen   map[string]bool // Content-Type and login of the requests
}

var errCrash = errors.New("killed")

// execer is a transaction or the pool, where each statement commits.
type execer interface {
	Exec(ctx context.Context, statement string, args ...any) (pgconn.CommandTag, error)
}

// is reports whether a hook's command has set the state.
func (s *service) is(hook string) bool {
	state, _ := os.ReadFile(filepath.Join(s.dir, hook))
	return strings.TrimSpace(string(state)) == "on"
}

// effect writes an effect.
func (s *service) effect(ctx context.Context, tx execer, e *consume.Event) error {
	switch {
	case e.EventType != "OrderPlaced":
		return consume.Refuse(errors.New("an unknown type"))
	case s.is("fail"):
		return errors.New("the effect failed")
	}
	if _, err := tx.Exec(ctx, "insert into effects values ($1)", e.ID); err != nil {
		return err
	}
	if s.is("crash") {
		return errCrash
	}
	return nil
}

// right keeps all the rules.
func right(ctx context.Context, s *service, e *consume.Event) error {
	_, err := s.handler.Handle(ctx, s, e, func(tx pgx.Tx) error { return s.effect(ctx, tx, e) })
	return err
}

// obey does what the hooks' commands have requested.
func (s *service) obey(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if os.Remove(filepath.Join(s.dir, "restart")) == nil {
		s.known = map[uuid.UUID]bool{}
	}
	if hidden := s.is("record"); hidden != s.hidden {
		from, to := "processed_events", "hidden"
		if s.hidden {
			from, to = to, from
		}
		if _, err := s.Exec(ctx, "alter table "+from+" rename to "+to); err != nil {
			return err
		}
		s.hidden = hidden
	}
	return nil
}

// newService serves a consumer: deliver is nil for the one that a service in Go has.
func newService(t *testing.T, deliver func(context.Context, *service, *consume.Event) error) *service {
	s := &service{Pool: pgtest.Pool(t, pgtest.Empty(t)), dir: t.TempDir(), known: map[uuid.UUID]bool{}, seen: map[string]bool{}}
	s.handler = consume.New(consume.Options{ID: "billing", Logger: slog.New(slog.DiscardHandler)})
	_, err := s.Exec(t.Context(), consume.SQL("")+"create table effects (tracking_id uuid)")
	check(t, err)
	events := s.handler.HTTP(s, func(ctx context.Context, tx pgx.Tx, e *consume.Event) error { return s.effect(ctx, tx, e) })
	if deliver != nil {
		events = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			all, err := consume.FromHTTP(r.Header, body)
			if err == nil {
				err = deliver(r.Context(), s, all[0])
			}
			if err != nil {
				http.Error(w, "it failed", http.StatusInternalServerError)
			}
		})
	}
	mux := http.NewServeMux()
	mux.Handle("POST /events", events)
	mux.HandleFunc("GET /effects", func(w http.ResponseWriter, r *http.Request) {
		var n int
		if err := s.QueryRow(r.Context(), "select count(*) from effects where tracking_id = $1", r.FormValue("id")).Scan(&n); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
		fmt.Fprint(w, n)
	})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.obey(r.Context()); err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		s.seen[strings.Join([]string{r.Method, r.Header.Get("Content-Type"), r.Header.Get("Authorization"), r.Header.Get("X-Key")}, " ")] = true
		s.mu.Unlock()
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Server.Close)
	return s
}

// hook is a flag whose command writes into a file of the service.
func (s *service) hook(name string) []string {
	switch path := filepath.Join(s.dir, name); name {
	case "restart":
		return []string{"--restart", "touch " + path}
	case "record":
		return []string{"--fail-record", "echo {state} > " + path}
	default:
		return []string{"--" + name, "echo {state} > " + path}
	}
}

// verify runs the command against the service with a probe, a payload and hooks.
func (s *service) verify(t *testing.T, hooks []string, more ...string) output {
	payload := filepath.Join(t.TempDir(), "order.json")
	check(t, os.WriteFile(payload, []byte(`{"order": 7, "currency": "EUR"}`), 0o600))
	args := []string{"verify-consumer", "--url", s.URL + "/events", "--type", "OrderPlaced", "--payload", payload,
		"--optional", "currency", "--probe", s.URL + "/effects?id={id}"}
	for _, name := range hooks {
		args = append(args, s.hook(name)...)
	}
	return run(t, "", append(args, more...)...)
}

var everyHook = []string{"restart", "fail", "record", "crash"}
