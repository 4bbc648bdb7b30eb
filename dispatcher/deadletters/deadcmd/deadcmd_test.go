package deadcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/hack/testing/golden"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

var (
	noon  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	cause = dispatcher.Cause{Class: "http", Code: "422", Place: "/items/*/price"}
)

const event = "0190a5c8-5d1e-7000-8000-000000000001"

// source has one event, which was replayed and is dead again. It keeps the last request.
type source struct{ request deadletters.ListRequest }

func failures() []deadletters.Failure {
	return []deadletters.Failure{
		{At: noon.Add(-time.Minute), Attempt: 19, Cause: cause, Error: "the consumer responded 422"},
		{At: noon, Attempt: 20, Cause: cause, Error: "the consumer responded 422\x1b[2J"},
	}
}

func deadLetter(whole, payload bool) deadletters.DeadLetter {
	l := deadletters.DeadLetter{
		ID: 42, Event: event, Group: "7f3a9c21", Topic: "orders", Seq: 7, Type: "OrderPlaced", AggregateType: "order", AggregateID: "17",
		Reason: dispatcher.ReasonMaxRetriesExceeded, Cause: cause, Error: "the consumer responded 422:\n" + strings.Repeat("é", 100) + "\x1b[2J\u0092\u009b\ufffe", Attempts: 20, DeadAt: noon,
	}
	if whole {
		l.Worker, l.Failures, l.Response, l.Status, l.Advice = event, failures(), "<no such item>", "dead", "Correct the price."
	}
	if payload {
		l.Headers, l.Payload = json.RawMessage(`{"trace": "t-1"}`), json.RawMessage(`{"html": "<b>"}`)
	}
	return l
}

func (s *source) Groups(_ context.Context, f deadletters.Filter) (out deadletters.Groups, err error) {
	s.request.Filter = f
	if f.Topic == "none" {
		return deadletters.Groups{Groups: []deadletters.Group{}}, nil
	}
	return deadletters.Groups{More: true, Groups: []deadletters.Group{
		{Group: "7f3a9c21", Topic: "orders", Reason: dispatcher.ReasonMaxRetriesExceeded, Cause: cause, Count: 10000, AtLeast: true, Since: noon.Add(-3 * time.Hour),
			Last: noon, DeadLetter: 42, Event: event, Error: "the consumer responded 422", Advice: "Correct the price."},
		{Group: "00000001", Topic: "bills", Reason: dispatcher.ReasonProcessingTimeout, Count: 1, Since: noon, Last: noon, DeadLetter: 1, Event: event, Advice: "Look."},
	}}, nil
}

func (s *source) CountBy(_ context.Context, f deadletters.Filter, by deadletters.By) (deadletters.Counts, error) {
	s.request.Filter = f
	return deadletters.Counts{By: by, More: true, Counts: []deadletters.Count{
		{Value: "order/\x1b[2J17", Count: 60_000, Groups: 2, Since: noon.Add(-3 * time.Hour), Last: noon},
		{Count: 1, Groups: 1, Since: noon, Last: noon},
	}}, nil
}

func (s *source) List(_ context.Context, r deadletters.ListRequest) (deadletters.Page, error) {
	s.request = r
	if r.Topic == "none" {
		return deadletters.Page{DeadLetters: []deadletters.DeadLetter{}}, nil
	}
	other := deadLetter(false, false)
	other.ID, other.Type, other.AggregateType, other.Resolution = 41, "", "", &deadletters.Resolution{What: "replayed", At: noon, By: "ada"}
	return deadletters.Page{DeadLetters: []deadletters.DeadLetter{deadLetter(false, false), other}, Next: 41}, nil
}

func (s *source) Show(_ context.Context, id string, payload bool) (deadletters.DeadLetter, error) {
	if id != "42" {
		return deadletters.DeadLetter{}, fmt.Errorf("no dead letter %s: %w", id, deadletters.ErrNotFound)
	}
	return deadLetter(true, payload), nil
}

func (s *source) Event(_ context.Context, id string, payload bool) (deadletters.History, error) {
	first := deadLetter(true, false)
	first.ID, first.DeadAt, first.Failures = 41, noon.Add(-time.Hour), nil
	first.Resolution = &deadletters.Resolution{What: "replayed", At: noon.Add(-30 * time.Minute), By: "ada", Reason: "CHG-812", Replay: event}
	h := deadletters.History{DeadLetters: []deadletters.DeadLetter{deadLetter(true, false), first}}
	if id == "gone" {
		return h, nil
	}
	h.Event = &deadletters.Event{ID: event, Topic: "orders", Seq: 7, Type: "OrderPlaced", DedupeKey: "order-17", SizeBytes: 35, CreatedAt: noon.Add(-2 * time.Hour),
		UpdatedAt: noon, Status: "dead", Attempts: 20, Lease: 7, Reason: dispatcher.ReasonMaxRetriesExceeded, LastError: "the consumer responded 422", Failures: failures()}
	if id == "withdrawn" || id == "expired" {
		h.DeadLetters, h.Event = nil, &deadletters.Event{ID: event, Topic: "orders", Seq: 7, SizeBytes: 35, CreatedAt: noon.Add(-2 * time.Hour), UpdatedAt: noon, Status: id}
	}
	if id == "copied" {
		h.DeadLetters, h.Event = nil, &deadletters.Event{ID: event, Topic: "orders.eu", Seq: 7, SizeBytes: 35, CreatedAt: noon.Add(-2 * time.Hour), UpdatedAt: noon, Status: "delivered", Lease: 7}
		h.Original, h.Copies = &deadletters.Related{Topic: "orders", ID: event}, []deadletters.Related{{Topic: "orders.billing", ID: event, Status: "dead"}, {Topic: "orders.warehouse", ID: event, Status: "pending"}}
	}
	if payload {
		h.Event.Payload = json.RawMessage(`{"html": "<b>"}`)
	}
	return h, nil
}

// ran is the result of a command.
type ran struct {
	out, stderr string
	err         error
	request     deadletters.ListRequest
}

func run(t *testing.T, named bool, args ...string) ran {
	t.Helper()
	s := &source{}
	c := Commands{
		Program: "dispatcher", Whose: "-f FILE", Example: "-f orders.yaml", Named: named, Now: func() time.Time { return noon.Add(90 * time.Minute) },
		Open: func(_ *cobra.Command, name string) (deadletters.Source, func(), error) {
			if named != (name == "orders") {
				return nil, nil, errors.New("the wrong name: " + name)
			}
			return s, func() {}, nil
		},
	}
	root := &cobra.Command{Use: "dispatcher", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(c.Dead(), c.Events())
	var out, stderr bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return ran{out.String(), stderr.String(), err, s.request}
}

// People and scripts read what the commands print, so it changes only on purpose. UPDATE_GOLDEN=1 writes it.
// YAML has what JSON has.
func TestOutputMatchesGoldenFiles(t *testing.T) {
	for name, args := range map[string][]string{
		"groups": {"dead", "groups"}, "by": {"dead", "groups", "--by", "aggregate"}, "list": {"dead", "list"}, "show": {"dead", "show", "42"}, "payload": {"dead", "show", "42", "--payload"},
		"event": {"events", "show", event}, "gone": {"events", "show", "gone"}, "withdrawn": {"events", "show", "withdrawn"}, "expired": {"events", "show", "expired"}, "copied": {"events", "show", "copied"}, "none": {"dead", "list", "--topic", "none"}, "no_groups": {"dead", "groups", "--topic", "none"},
		"help": {"dead", "list", "--help"},
	} {
		printed := func(format string) string {
			r := run(t, false, append(slices.Clone(args), "--output", format)...)
			need.That(t, r.err == nil && !strings.ContainsAny(r.out, "\x1b\u0092\u009b\ufffe"), "%s as %s: %v, or it has a control sequence:\n%s", name, format, r.err, r.out)
			if r.stderr == "" {
				return r.out
			}
			need.That(t, format == "table", "%s as %s writes to standard error: %s", name, format, r.stderr)
			return r.out + "--- standard error\n" + r.stderr
		}
		golden.Check(t, "printed.golden", name+".table", printed("table"))
		if name == "help" {
			continue
		}
		asJSON, asYAML := printed("json"), printed("yaml")
		if name != "show" && name != "gone" && name != "withdrawn" && name != "expired" { // payload.json and event.json have more
			golden.Check(t, "printed.golden", name+".json", asJSON)
		}
		if name == "payload" {
			golden.Check(t, "printed.golden", "payload.yaml", asYAML)
		}
		var fromJSON, fromYAML any
		err := errors.Join(json.Unmarshal([]byte(asJSON), &fromJSON), yaml.Unmarshal([]byte(asYAML), &fromYAML))
		need.That(t, err == nil && reflect.DeepEqual(fromJSON, fromYAML), "%s: YAML differs from JSON, %v:\n%s\nwant\n%s", name, err, asYAML, asJSON)
	}
}

func TestFlagsMakeTheFilter(t *testing.T) {
	r := run(t, true, "dead", "list", "orders", "--id", event, "--id", "42", "--topic", "a", "--type", "b", "--aggregate", "c", "--tenant", event, "--dead-reason", "poison_message",
		"--group", "7f3a9c21", "--error", "d", "--since", "2h", "--until", "2026-03-01T13:00:00Z", "--resolved", "--limit", "7", "--after", "9")
	want := deadletters.ListRequest{Limit: 7, After: 9, Filter: deadletters.Filter{IDs: []string{event, "42"}, Topic: "a", Type: "b", Aggregate: "c", Tenant: event,
		Reason: string(dispatcher.ReasonPoisonMessage), Group: "7f3a9c21", ErrorContains: "d", Since: noon.Add(-30 * time.Minute), Until: noon.Add(time.Hour), Resolved: true}}
	if got, want := fmt.Sprint(r.request), fmt.Sprint(want); got != want || r.err != nil {
		t.Errorf("the request is %s, %v\nwant %s", got, r.err, want)
	}
	if r := run(t, true, "dead", "groups", "orders", "--group", "7f3a9c21"); r.request.Group == "" || r.err != nil {
		t.Errorf("groups: %+v", r)
	}
}

func TestWrongCommandLinesAreRefused(t *testing.T) {
	for want, args := range map[string][]string{
		`--output is "xml"; choose table, json or yaml`:                      {"dead", "list", "-o", "xml"},
		`--since is "yesterday"; write a time such as`:                       {"dead", "list", "--since", "yesterday"},
		"the filter is wrong: reason: \"x\" is unknown; choose":              {"dead", "groups", "--dead-reason", "x"},
		"--limit is 0; set it from 1 to 500":                                 {"dead", "list", "--limit", "0"},
		"0 arguments, want 1: dispatcher dead show -f FILE ID; see --help":   {"dead", "show"},
		"2 arguments, want 1: dispatcher events show -f FILE ID; see --help": {"events", "show", "a", "b"},
		"the ID is empty; give the one that `dispatcher dead list` prints":   {"events", "show", ""},
		"--id is empty; give it a value, or leave it out":                    {"dead", "list", "--id", ""},
		"--topic is empty; give it a value, or leave it out":                 {"dead", "groups", "--topic", ""},
		"no dead letter 7: not found":                                        {"dead", "show", "7"},
		"unknown flag: --resolved":                                           {"dead", "groups", "--resolved"},
	} {
		r := run(t, false, args...)
		need.That(t, r.err != nil && strings.Contains(r.err.Error(), want) && r.out == "", "%v: %v\nwant %s", args, r.err, want)
	}
}
