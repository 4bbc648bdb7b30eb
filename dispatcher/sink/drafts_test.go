package sink_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/objects"
)

// kinds are a sink of each kind at an address, where the messages of an event of topic orders go, and a setting that
// makes another message.
var kinds = map[string]struct{ section, to, at, other string }{
	"copy":       {"topics: [orders.warehouse]", "the topics orders.warehouse", "", ""},
	"http":       {"url: 'http://ADDRESS/in?token=t0k3n'", "http://ADDRESS/in", "", "  contentMode: Structured"},
	"kafka":      {"brokers: [ADDRESS]", "topic orders", "ADDRESS", "  contentMode: Structured"},
	"log":        {"payload: Include", "the log", "", ""},
	"nats":       {"servers: ['nats://ADDRESS']", "subject orders", "nats://ADDRESS", "    stream: S"},
	"postgres":   {"secretRef: {name: inbox}", "table public.inbox_events", "the database of env:INBOX_DSN", ""},
	"pubSub":     {"project: shop-eu\n    endpoint: 'http://ADDRESS'", "topic projects/shop-eu/topics/orders", "", "  contentMode: Structured"},
	"rabbitmq":   {"addresses: [ADDRESS]\n    exchange: events", "exchange events of vhost /, routing key orders", "ADDRESS", "  contentMode: Structured"},
	"redis":      {"addresses: [ADDRESS]", "stream orders", "ADDRESS", "  contentMode: Structured"},
	"serviceBus": {"namespace: shop.servicebus.windows.net\n    endpoint: ADDRESS", "orders of Service Bus at shop.servicebus.windows.net", "", "  contentMode: Structured"},
	"sns":        {"topicARN: 'arn:aws:sns:eu-west-1:123456789012:all'\n    endpoint: 'http://ADDRESS'", "topic arn:aws:sns:eu-west-1:123456789012:all", "", ""},
	"sqs":        {"queueURL: 'http://ADDRESS/1/all'\n    region: eu-west-1", "queue http://ADDRESS/1/all", "", ""},
}

// section is the section sink of the file for a kind at an address. More of the kind can stand below it.
func section(kind, address string) string {
	auth := ""
	if kind == "rabbitmq" { // which needs a login
		auth = "  auth: {type: Plain, secretRef: {name: none}}\n"
	}
	top := ""
	if kind == "copy" {
		top = "topics: [orders]\n"
	}
	return top + "sink:\n" + auth + "  " + kind + ":\n    " + strings.ReplaceAll(kinds[kind].section, "ADDRESS", address) + "\n"
}

func drafts(t *testing.T, sections string) *sink.Drafts {
	t.Helper()
	dir := t.TempDir()
	if os.Getenv("INBOX_DSN") == "" {
		need.OK(t, objects.Secret(dir, "inbox", "dsn", "postgres://u@127.0.0.1/shop"))
	}
	d, err := sink.NewDrafts(outboxtest.Settings(t, filepath.Join(dir, "secrets"), sections))
	need.OK(t, err)
	t.Cleanup(func() {
		if err := d.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return d
}

func draftOf(t *testing.T, d *sink.Drafts, payload string) draft.Message {
	t.Helper()
	m, err := d.Draft(t.Context(), &dispatcher.Event{
		ID: uuid.MustParse("01900000-0000-7000-8000-000000000001"), Namespace: "shop", Topic: "orders", EventType: "Order", AggregateID: "a1",
		CreatedAt: time.Unix(1e9, 0), Headers: map[string]string{"tenant": "x"}, Payload: json.RawMessage(payload), Attempt: 1, LeaseNumber: 7,
	})
	need.OK(t, err)
	return m
}

// Each kind of sink makes its message without a connection. The message is the same each time, and another one for
// another payload, destination, content mode and transformation.
func TestDraftsConnectToNothing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	need.OK(t, err)
	var connections atomic.Int64
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	address := listener.Addr().String()
	t.Setenv("INBOX_DSN", "postgres://u@"+address+"/shop")
	there := func(text string) string { return strings.ReplaceAll(text, "ADDRESS", address) }

	for _, field := range spec.SinkKinds() {
		kind := named(field)
		t.Run(kind, func(t *testing.T) {
			k, ok := kinds[kind]
			if !ok {
				t.Fatalf("no draft of %s is tested", kind)
			}
			section := section(kind, address)
			first := draftOf(t, drafts(t, section), `{"total": 1}`)
			if first.To != there(k.to) || first.At != there(k.at) {
				t.Errorf("it goes to %q at %q; want %q at %q", first.To, first.At, there(k.to), there(k.at))
			}
			if again := draftOf(t, drafts(t, section), `{"total": 1}`); again.Elsewhere(first) || again.Differs(first) != nil {
				t.Errorf("made again, %v differs", again.Differs(first))
			}
			if other := draftOf(t, drafts(t, section), `{"total": 2}`); !reflect.DeepEqual(other.Differs(first), []string{draft.Body}) {
				t.Errorf("of another payload, %v differs; want the body", other.Differs(first))
			}
			if kind == "copy" {
				return // it changes nothing
			}
			masked := draftOf(t, drafts(t, section+"message: {transform: [{payload: '{\"total\": 3}'}]}\n"), `{"total": 1}`)
			if !reflect.DeepEqual(masked.Differs(first), []string{draft.Body}) {
				t.Errorf("transformed, %v differs; want the body", masked.Differs(first))
			}
			if k.other != "" {
				if other := draftOf(t, drafts(t, section+k.other+"\n"), `{"total": 1}`); len(other.Differs(first)) == 0 {
					t.Errorf("with %s it is the same", k.other)
				}
			}
		})
	}
	last, err := net.Dial("tcp", address) // accepted after all others
	need.OK(t, err)
	defer last.Close()
	if _, err := last.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("there were %d connections in addition to the test's own", n-1)
	}
}

// What is drafted is what is delivered, but for what is made again for each sending.
func TestDraftIsWhatIsDelivered(t *testing.T) {
	var body []byte
	var header http.Header
	var path string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
		header, path = r.Header, "http://"+r.Host+r.URL.Path
	}))
	t.Cleanup(server.Close)
	cfg := spec.Config{Dispatcher: spec.Dispatcher{Sink: spec.Sink{HTTP: &spec.HTTPSink{URL: server.URL + "/in", Headers: []spec.HTTPHeader{{Name: "X-Team", Value: "shop"}}}}}}
	cfg.Sink.Routes = []spec.Route{{To: `"/of/" + event.topic`}}
	s, err := sink.New(cfg, io.Discard)
	need.OK(t, err)
	d, err := sink.NewDrafts(cfg)
	need.OK(t, err)
	e := &dispatcher.Event{ID: uuid.New(), Namespace: "shop", Topic: "orders", Payload: json.RawMessage(`{"total": 1}`), Headers: map[string]string{"tenant": "x"}, Attempt: 1}
	m, err := d.Draft(t.Context(), e)
	if err != nil || body != nil {
		t.Fatalf("error %v, sent %q", err, body)
	}
	need.OK(t, s.Deliver(t.Context(), []*dispatcher.Event{e})[0])
	if string(m.Body) != string(body) || m.To != path {
		t.Errorf("drafted %q to %s; sent %q to %s", m.Body, m.To, body, path)
	}
	for _, added := range []string{"Accept-Encoding", "Content-Length"} { // by net/http
		header.Del(added)
	}
	if len(header) != len(m.Headers) {
		t.Errorf("drafted %v; sent %v", m.Headers, header)
	}
	for name := range header {
		need.Want(t, m.Headers[name], "header %s: drafted %q, sent %q", header.Get(name), name, m.Headers[name])
	}
}

var update = flag.Bool("update", false, "write the messages of the consumers' page")

const consumersPage = "../client/consumer/languages.md"

var messageBlock = regexp.MustCompile("(?s)(<!-- message (\\w+) ?(\\w*) -->\n```\n)(.*?)(```\n<!-- end of message -->)")

// The consumers' page shows each sink's message in each of its modes, as the sink makes it.
func TestConsumersPageShowsTheMessages(t *testing.T) {
	text, err := os.ReadFile(consumersPage)
	need.OK(t, err)
	shown := map[string]bool{}
	want := messageBlock.ReplaceAllStringFunc(string(text), func(block string) string {
		part := messageBlock.FindStringSubmatch(block)
		shown[part[2]] = true
		return part[1] + message(t, part[2], part[3]) + part[5]
	})
	for kind := range kinds {
		if !shown[kind] && kind != "postgres" && kind != "copy" { // whose messages are rows
			t.Errorf("it shows no message of %s", kind)
		}
	}
	switch {
	case want == string(text):
	case *update:
		err = os.WriteFile(consumersPage, []byte(want), 0o600)
	default:
		t.Errorf("%s does not show the messages as they are; run the test with -update", consumersPage)
	}
	need.OK(t, err)
}

// message is an event as a sink sends it.
func message(t *testing.T, kind, mode string) string {
	t.Helper()
	section := section(kind, "example:80")
	if mode != "" {
		section += "  contentMode: " + mode + "\n"
	}
	m, err := drafts(t, section).Draft(t.Context(), &dispatcher.Event{
		ID: uuid.MustParse("019aa7c4-1d2f-7c3e-9b54-6f2d7e1a0b42"), Seq: 4711, Namespace: "shop", Topic: "orders", EventType: "OrderPlaced",
		AggregateType: "order", AggregateID: "o-42", DedupeKey: "placed-o-42", CreatedAt: time.Date(2026, 11, 20, 9, 30, 0, 123456000, time.UTC),
		Headers: map[string]string{"correlation_id": "c-1"}, Payload: []byte(`{"cents": 4200, "currency": "EUR"}`), Attempt: 1, LeaseNumber: 88,
	})
	need.OK(t, err)
	var out strings.Builder
	if kind == "http" {
		fmt.Fprintf(&out, "POST /events HTTP/1.1\n")
	} else {
		name := kind
		if mode != "" {
			name += ", contentMode " + mode
		}
		fmt.Fprintf(&out, "%s: %s\n", name, strings.Replace(m.To, "http://example:80/1/", "", 1))
		if m.Key != "" {
			fmt.Fprintf(&out, "key: %s\n", m.Key)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		if name != "User-Agent" { // it has the version
			fmt.Fprintf(&out, "%s: %s\n", name, m.Headers[name])
		}
	}
	fmt.Fprintf(&out, "\n%s\n", strings.TrimSuffix(string(m.Body), "\n"))
	return out.String()
}
