package sink_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/sr"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
	"github.com/outbox-operator/outbox-operator/hack/servers/registry"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// Every kind of sink that a file can have is made, and is in README.md. Each of its fields is read by the
// sink, and is on the kind's page.
//
// CONTRACT: C-100
func TestEveryKindIsMadeAndDocumented(t *testing.T) {
	page, err := os.ReadFile("README.md")
	need.OK(t, err)
	packages := packagesOfKinds(t)
	for _, field := range spec.SinkKinds() {
		kind, section := named(field), field.Type.Elem()
		var cfg spec.Config
		reflect.ValueOf(&cfg.Sink).Elem().FieldByIndex(field.Index).Set(reflect.New(section))
		if _, err := sink.New(cfg, io.Discard); err != nil && !strings.HasPrefix(err.Error(), "spec.sink.") {
			t.Errorf("%s: an empty section makes %v, want a sink or what is wrong with the section", kind, err)
		}
		if !strings.Contains(string(page), "\n| `"+kind+"` |") {
			t.Errorf("%s: README.md has no row for it", kind)
		}
		used := map[string]bool{}
		for _, dir := range []string{packages[kind], sinks + "files"} {
			selected(t, dir, used)
		}
		if !used["Timeout"] && kind != "log" {
			t.Errorf("%s: nothing in %s reads the timeout", kind, packages[kind])
		}
		own, err := os.ReadFile(kind + ".md")
		need.OK(t, err)
		text := string(own)
		if place := "<!-- fields of OutboxDispatcher.spec.sink." + kind + " -->"; !strings.Contains(text, place) {
			t.Errorf("%s.md has no %s", kind, place)
		}
		fields(section, kind, func(path, name string) {
			if !used[name] {
				t.Errorf("sink.%s: nothing in %s or files reads it", path, packages[kind])
			}
			if word := path[strings.LastIndexByte(path, '.')+1:]; !regexp.MustCompile(`\b` + word + `\b`).MatchString(text) {
				t.Errorf("sink.%s: %s.md does not have it; run 'make generate'", path, kind)
			}
		})
	}
}

// What is next to the kind of a sink is read by package files, and is on README.md.
func TestAccessIsRead(t *testing.T) {
	page, err := os.ReadFile("README.md")
	need.OK(t, err)
	used := map[string]bool{}
	selected(t, sinks+"files", used)
	for section, typ := range map[string]reflect.Type{"auth": reflect.TypeFor[spec.Auth](), "tls": reflect.TypeFor[spec.TLS]()} {
		fields(typ, section, func(path, name string) {
			if !used[name] {
				t.Errorf("sink.%s: nothing in files reads it", path)
			}
			if word := path[strings.LastIndexByte(path, '.')+1:]; !regexp.MustCompile(`\b` + word + `\b`).Match(page) {
				t.Errorf("sink.%s: README.md does not have it", path)
			}
		})
	}
}

// sinks is the folder of the packages of all kinds.
const sinks = "../internal/sinks/"

// packagesOfKinds are the packages that sink.go and cloud.go make the kinds with.
func packagesOfKinds(t *testing.T) map[string]string {
	t.Helper()
	packages := map[string]string{}
	inspect := func(n ast.Node) bool {
		c, ok := n.(*ast.CaseClause)
		if !ok || len(c.List) != 1 {
			return true
		}
		kind, ok := c.List[0].(*ast.BasicLit)
		if !ok {
			return true
		}
		name, err := strconv.Unquote(kind.Value)
		need.OK(t, err)
		ast.Inspect(c, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && packages[name] == "" {
				packages[name] = sinks + fmt.Sprint(call.Fun.(*ast.SelectorExpr).X)
			}
			return true
		})
		return false
	}
	for _, file := range []string{"sink.go", "cloud.go"} {
		ast.Inspect(parse(t, file), inspect)
	}
	return packages
}

// selected adds the names that a package's code selects, such as Timeout of cfg.Timeout.
func selected(t *testing.T, dir string, names map[string]bool) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no code in %q: %v", dir, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		ast.Inspect(parse(t, file), func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				names[s.Sel.Name] = true
			}
			return true
		})
	}
}

func parse(t *testing.T, file string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	need.OK(t, err)
	return f
}

// fields visits the fields of a section that have values, but [spec.Access], which is not in the section. What iam
// has, package database reads.
func fields(typ reflect.Type, path string, see func(path, name string)) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		if named(f) == "-" {
			continue
		}
		at, inner := path+"."+named(f), f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case inner == reflect.TypeFor[spec.IAM](), inner == reflect.TypeFor[spec.SecretRef](), inner == reflect.TypeFor[spec.ConfigMapRef](), f.Name == "UsernameKey": // package spec makes files of these
		case inner.Kind() == reflect.Struct:
			fields(inner, at, see)
		default:
			see(at, f.Name)
		}
	}
}

func named(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func TestNewMakesTheSinkThatIsSet(t *testing.T) {
	http := &spec.HTTPSink{URL: "https://consumer.example/events", BatchSize: 7}
	for name, test := range map[string]struct {
		cfg  spec.Sink
		want string
	}{
		"none":    {spec.Sink{}, "spec.sink: Required value"},
		"invalid": {spec.Sink{HTTP: &spec.HTTPSink{}}, "spec.sink.http.url: Required value"},
	} {
		if got, err := sink.New(spec.Config{Dispatcher: spec.Dispatcher{Sink: test.cfg}}, nil); err == nil || !strings.HasPrefix(err.Error(), test.want) || got != nil {
			t.Errorf("%s: got %v, %v; want the error %q", name, got, err, test.want)
		}
	}
	s, err := sink.New(spec.Config{Dispatcher: spec.Dispatcher{Sink: spec.Sink{HTTP: http, ContentMode: spec.Batch}}}, nil)
	if err != nil || s.BatchSize() != 7 {
		t.Errorf("the http sink: %v, %v", s, err)
	}
	s, err = sink.New(spec.Config{Dispatcher: spec.Dispatcher{Sink: spec.Sink{Kafka: &spec.KafkaSink{Brokers: []string{"kafka.example:9092"}}}}}, nil)
	if err != nil || s.BatchSize() != 500 {
		t.Errorf("the kafka sink: %v, %v", s, err)
	}
	var out strings.Builder
	s, err = sink.New(spec.Config{Dispatcher: spec.Dispatcher{Sink: spec.Sink{Log: &spec.LogSink{}}}}, &out)
	need.OK(t, err)
	e := &dispatcher.Event{ID: uuid.New(), Topic: "orders"}
	if err := s.Deliver(t.Context(), []*dispatcher.Event{e})[0]; err != nil || !strings.Contains(out.String(), e.ID.String()) {
		t.Errorf("the log sink wrote %q, %v", out.String(), err)
	}
}

// Places are what topics and routes name; a destination that depends on more of an event is none.
func TestPlacesAreWhatTheFileNames(t *testing.T) {
	const kafka = "{kafka: {brokers: ['kafka:9092']}}"
	for name, test := range map[string]struct {
		sink, file string
		want       []string
		err        string
	}{
		"topics":               {sink: kafka, file: "topics: [orders, payments]", want: []string{"orders", "payments"}},
		"all topics":           {sink: kafka, file: "topics: []"},
		"one topic":            {sink: "{kafka: {brokers: ['kafka:9092'], topic: all}}", file: "topics: [orders]"},
		"subjects":             {sink: "{nats: {servers: ['nats://nats:4222']}}", file: "topics: [orders]", want: []string{"orders"}},
		"queues":               {sink: "{rabbitmq: {addresses: ['rabbit:5672']}, auth: {type: Plain, username: u, secretRef: {name: p}}}", file: "topics: [orders]", want: []string{"orders"}},
		"an exchange":          {sink: "{rabbitmq: {addresses: ['rabbit:5672'], exchange: shop}, auth: {type: Plain, username: u, secretRef: {name: p}}}", file: "topics: [orders]"},
		"streams":              {sink: "{redis: {addresses: ['redis:6379']}}", file: "topics: [orders]", want: []string{"orders"}},
		"Pub/Sub":              {sink: "{pubSub: {project: shop-eu}}", file: "topics: [orders]", want: []string{"orders"}},
		"Service Bus":          {sink: "{serviceBus: {namespace: shop.servicebus.windows.net}}", file: "topics: [orders]", want: []string{"orders"}},
		"an address":           {sink: "{http: {url: 'http://consumer/'}}", file: "topics: [orders]"},
		"routes":               {sink: kafka, file: `{topics: [orders, refunds], sink: {routes: [{topics: [orders], to: '"shop-" + event.topic'}, {to: '"others"'}]}}`, want: []string{"shop-orders", "others"}},
		"routes of all topics": {sink: kafka, file: `{sink: {routes: [{topics: [a, b], to: 'event.namespace + "-" + event.topic'}, {to: '"others"'}]}}`, want: []string{"shop-a", "shop-b", "others"}},
		"an event's topic":     {sink: kafka, file: `{sink: {routes: [{to: 'event.topic'}]}}`},
		"an event's type":      {sink: kafka, file: `{topics: [orders], sink: {routes: [{to: 'event.type == "x" ? "x" : event.topic'}]}}`},
		"a header":             {sink: kafka, file: `{topics: [orders], sink: {routes: [{to: 'event.headers["region"]'}]}}`},
		"no route": {sink: kafka, file: `{topics: [orders, typo], sink: {routes: [{topics: [orders], to: '"o"'}]}}`, want: []string{"o"},
			err: `topic "typo": no handler for the topic: no route takes it; add one to sink.routes, or one without topics, or leave the topic out of this dispatcher`},
	} {
		cfg := spec.Config{Dispatcher: spec.Dispatcher{Namespace: "shop"}}
		for _, part := range []string{"sink: " + test.sink, test.file} {
			if err := yaml.UnmarshalStrict([]byte(part), &cfg); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		places, err := sink.Places(cfg)
		var names []string
		for _, p := range places {
			names = append(names, p.Name)
			if again, err := sink.Places(p.Config); len(again) > 0 || err != nil {
				t.Errorf("%s: %s has places of its own, %v, %v", name, p.Name, again, err)
			}
		}
		var said string
		if err != nil {
			said = err.Error()
		}
		if !slices.Equal(names, test.want) || said != test.err {
			t.Errorf("%s: got %q and the error %q, want %q and %q", name, names, said, test.want, test.err)
		}
	}
}

// The schemas of a real registry as validation sees them: the latest and a fixed version, with the
// schemas that they refer to, and from memory when the registry is gone.
//
// CONTRACT: C-32, C-72
// REQUIREMENT: STORAGE-36, STORAGE-57
func TestRealRegistryServesValidation(t *testing.T) {
	server, err := registry.Start(t.Context())
	need.Server(t, err, registry.ErrMissing)
	stop := sync.OnceFunc(func() {
		if err := server.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
	defer stop()
	admin, err := sr.NewClient(sr.URLs(server.URL()), sr.HTTPClient(&http.Client{Timeout: need.Wait}))
	need.OK(t, err)
	register := func(subject, text string, references ...sr.SchemaReference) {
		t.Helper()
		need.OK(t, need.Err(admin.CreateSchema(t.Context(), subject, sr.Schema{Type: sr.TypeJSON, Schema: text, References: references})))
	}
	register("address", `{"$schema": "http://json-schema.org/draft-07/schema#", "required": ["zip"]}`)
	register("orders", `{"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"to": {"$ref": "address.json"}}}`,
		sr.SchemaReference{Name: "address.json", Subject: "address", Version: 1})
	register("orders", `{"$schema": "http://json-schema.org/draft-07/schema#", "required": ["total"]}`)
	register("number", `{"$schema": "http://json-schema.org/draft-07/schema#", "type": "number"}`)
	need.OK(t, need.Err(admin.CreateSchema(t.Context(), "avro", sr.Schema{Schema: `"string"`})))

	of := func(kind, subject string, version int32) spec.Validation {
		return spec.Validation{Types: []string{kind}, Schema: &spec.PayloadSchema{Registry: &spec.RegistrySchema{Subject: subject, Version: version}}}
	}
	s, err := sink.New(spec.Config{
		Dispatcher: spec.Dispatcher{
			Sink: spec.Sink{Log: &spec.LogSink{}}, Message: spec.Message{SchemaRegistry: &spec.SchemaRegistry{URL: server.URL()},
				Validation: []spec.Validation{of("Latest", "orders", 0), of("First", "orders", 1), of("Late", "number", 0), of("Missing", "missing", 0), of("Avro", "avro", 0)}},
		},
	}, io.Discard)
	need.OK(t, err)
	// deliver wants no error, or a dead event by the schema, or a failed attempt, or that the registry is unreachable, by
	// parts of texts.
	deliver := func(kind, payload, wantDead, fails, unreachable string) {
		t.Helper()
		err := s.Deliver(t.Context(), []*dispatcher.Event{{ID: uuid.New(), Topic: "orders", EventType: kind, Payload: []byte(payload)}})[0]
		why, dead := dispatcher.PermanentReason(err)
		switch {
		case wantDead+fails+unreachable == "":
			if err != nil {
				t.Errorf("%s %s: %v", kind, payload, err)
			}
		case err == nil || !strings.Contains(err.Error(), wantDead+fails+unreachable):
			t.Errorf("%s %s: the error %v does not say %q", kind, payload, err, wantDead+fails+unreachable)
		case dead != (wantDead != "") || dead && why != dispatcher.ReasonSchemaValidationFailed || dispatcher.IsUnavailable(err) != (unreachable != ""):
			t.Errorf("%s %s: of the wrong kind: %v", kind, payload, err)
		}
	}
	known := func() {
		t.Helper()
		deliver("Latest", `{"total": 1, "to": {}}`, "", "", "")
		deliver("First", `{"to": {"zip": "10115"}}`, "", "", "")
		deliver("First", `{"to": {}}`, "at /to: schema:///address.json#/required (zip)", "", "")
	}
	known()
	deliver("Latest", `{}`, "#/required (total)", "", "")
	deliver("Missing", `{}`, "", "subject missing: it is not registered; register it there", "")
	deliver("Avro", `{}`, "", "is of type AVRO; name a subject that has a JSON Schema", "")
	stop()
	known()
	deliver("Latest", `{}`, "", "a newer schema could not be read, so it is tried again", "") // that may have it
	deliver("Late", `1`, "", "", "connection refused; check that it runs")
}

// digits are numbers that no float holds, and a text that JSON writers escape. The spaces are PostgreSQL's.
const digits = `{"n": 9007199254740993, "long": 123456789012345678901234567890, "price": 0.1234567890123456789012345, "scale": 10.10, "huge": 1e400, "text": "<ü&>"}`

func draftedEvent() *dispatcher.Event {
	return &dispatcher.Event{
		ID: uuid.MustParse("01900000-0000-7000-8000-000000000001"), Seq: 9007199254740993, Namespace: "shop", Topic: "orders", EventType: "OrderPlaced",
		AggregateType: "order", AggregateID: "order-7", CreatedAt: time.Unix(1e9, 0), Payload: json.RawMessage(digits), Attempt: 1, LeaseNumber: 7,
		Headers: map[string]string{"correlation_id": "c-42"},
	}
}

// headerPlaces are how drafts name the header X of a message, by the kind of sink.
func headerPlace(kind, name string) string {
	switch kind {
	case "rabbitmq":
		return "header " + name
	case "http":
		return "X-Type"
	}
	return name
}

// Every kind of sink whose messages have headers takes those of the configuration, in addition to the attributes and in their
// place; in the latter case the body is the payload, byte by byte, and no attribute is there.
//
// CONTRACT: C-70
func TestMessageOfEveryKindHasTheHeaders(t *testing.T) {
	for _, field := range spec.SinkKinds() {
		kind := named(field)
		section := section(kind, "127.0.0.1:1")
		if kind == "copy" || kind == "log" || kind == "postgres" {
			continue // config refuses it: TestMessageValidate
		}
		t.Run(kind, func(t *testing.T) {
			name := "x-type"
			for _, format := range []string{"CloudEvents", "Plain"} {
				m, err := drafts(t, section+"message: {format: "+format+", headers: [{name: "+name+", expression: 'event.type + \"-\" + string(event.sequence)'}]}\n").Draft(t.Context(), draftedEvent())
				need.OK(t, err)
				if got := m.Headers[headerPlace(kind, name)]; got != "OrderPlaced-9007199254740993" {
					t.Errorf("%s: the header is %q among %q", format, got, m.Headers)
				}
				attributes := slices.ContainsFunc(slices.Collect(maps.Keys(m.Headers)), func(name string) bool {
					return strings.HasSuffix(strings.ToLower(name), "fencingtoken")
				})
				if attributes == (format == "Plain") {
					t.Errorf("%s: the headers are %q", format, m.Headers)
				}
				if format == "Plain" && string(m.Body) != digits {
					t.Errorf("the body is %s", m.Body)
				}
			}
		})
	}
}

// A number keeps its digits in the message of every sink and mode, also where an expression has changed another
// part of the payload.
//
// CONTRACT: C-70
func TestNumbersKeepTheirDigits(t *testing.T) {
	want := []string{`9007199254740993`, `123456789012345678901234567890`, `0.1234567890123456789012345`, `10.10`, `1e400`}
	for _, field := range spec.SinkKinds() {
		kind := named(field)
		section := section(kind, "127.0.0.1:1")
		for _, mode := range []string{"", "  contentMode: Structured\n"} {
			if mode != "" && !strings.Contains(kinds[kind].other, "contentMode") && kind != "nats" {
				continue
			}
			for _, transform := range []string{"", "message: {transform: [{payload: 'with(without(payload, [\"text\"]), {\"added\": payload.n})'}]}\n"} {
				if kind == "copy" && transform != "" {
					continue
				}
				m, err := drafts(t, section+mode+transform).Draft(t.Context(), draftedEvent())
				if err != nil {
					t.Fatalf("%s: %v", kind, err)
				}
				for _, number := range want {
					if !strings.Contains(string(m.Body), number) {
						t.Errorf("%s %s%s: the body has no %s: %s", kind, mode, transform, number, m.Body)
					}
				}
				if transform != "" && !strings.Contains(string(m.Body), `"added":`+want[0]) {
					t.Errorf("%s %s: what was added lost digits: %s", kind, mode, m.Body)
				}
			}
		}
	}
}
