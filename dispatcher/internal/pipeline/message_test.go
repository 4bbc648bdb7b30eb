package pipeline_test

import (
	"bytes"
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
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pipeline"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// sent is what goes to the sink for an event.
func sent(t *testing.T, p *pipeline.Pipeline, e *dispatcher.Event) *dispatcher.Event {
	t.Helper()
	inner := &sinktest.Recording{}
	need.OK(t, p.Wrap(inner).Deliver(t.Context(), []*dispatcher.Event{e})[0])
	return inner.Events()[0]
}

// placed is an event with what messages are made of.
func placed(payload string) *dispatcher.Event {
	e := event("OrderPlaced", payload)
	e.Seq, e.LeaseNumber, e.AggregateType, e.AggregateID = 9007199254740993, 7, "order", "order-7"
	e.CreatedAt = time.Unix(1_000_000_000, 0).UTC()
	e.Headers["correlation_id"] = "c-42"
	return e
}

// Headers are computed for each event, in the order of their names; one without a value is left out. They see the
// payload as it is sent. The event that was claimed stays as it is.
//
// CONTRACT: C-70
func TestHeadersAreComputedForEachEvent(t *testing.T) {
	p := compile(t, spec.Config{
		Dispatcher: spec.Dispatcher{
			Message: spec.Message{Headers: []spec.MessageHeader{{Name: "z_type", Expression: `event.type`}, {Name: "a_total", Expression: `payload.total`}, {Name: "m_none", Expression: `event.headers.?zone`}, {Name: "n_card", Expression: `payload.?card`}, {Name: "token", Expression: `event.token`}}, Transform: []spec.Transformation{{Payload: `without(payload, ["card"])`}}},
		},
	}, pipeline.Options{})
	e := placed(`{"total": 9007199254740993, "card": "` + secret + `"}`)
	got := sent(t, p, e)
	want := dispatcher.Message{Headers: []dispatcher.Header{{Name: "a_total", Value: "9007199254740993"}, {Name: "token", Value: "7"}, {Name: "z_type", Value: "OrderPlaced"}}}
	need.That(t, reflect.DeepEqual(got.Message, want), "%+v, want %+v", got.Message, want)
	need.That(t, len(e.Message.Headers) == 0 && strings.Contains(string(e.Payload), secret), "the event was changed: %+v", e)

	p = compile(t, spec.Config{Dispatcher: spec.Dispatcher{Message: spec.Message{Headers: []spec.MessageHeader{{Name: "a_id", Expression: "event.id"}}}}}, pipeline.Options{})
	if got := sent(t, p, event("", "no JSON at all")); got.Message.Headers[0].Value != got.ID.String() {
		t.Errorf("%+v", got.Message) // a payload that no header mentions is not read
	}
}

// CONTRACT: C-33, C-73
func TestHeaderCannotBeComputed(t *testing.T) {
	p := compile(t, spec.Config{Dispatcher: spec.Dispatcher{Message: spec.Message{Headers: []spec.MessageHeader{{Name: "a_total", Expression: `payload.total.size()`}}}}}, pipeline.Options{})
	inner := &sinktest.Recording{}
	bad, good := placed(`{"total": `+"1"+`, "card": "`+secret+`"}`), placed(`{"total": "12"}`)
	errs := p.Wrap(inner).Deliver(t.Context(), []*dispatcher.Event{bad, good})
	need.That(t, errs[1] == nil && len(inner.Events()) == 1 && inner.Events()[0].ID == good.ID, "the other event: %v", errs[1])
	want := "event " + bad.ID.String() + `: message.headers["a_total"] cannot be computed: line 1, column 19: a value is of a type that is not expected there; correct the expression (payload.total.size()), or what is enqueued`
	if err := errs[0]; !dispatcher.IsDestinationFault(err) || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), secret) {
		t.Errorf("%v\nwant %s", err, want)
	}
	cause := dispatcher.CauseOf(errs[0])
	need.That(t, cause.Class == dispatcher.ClassMessage && cause.Code == `message.headers["a_total"]`, "%+v", cause)
	found := pipeline.Findings(errs[0])
	need.That(t, len(found) == 1 && found[0].Field == `message.headers["a_total"]`, "%+v", found)
	_, err := pipeline.New(spec.Config{Dispatcher: spec.Dispatcher{Sink: spec.Sink{Kafka: &spec.KafkaSink{}}, Message: spec.Message{Headers: []spec.MessageHeader{{Name: "a_b", Expression: "paylaod.x"}}}}}, pipeline.Options{})
	need.That(t, err != nil && strings.HasPrefix(err.Error(), `message.headers["a_b"]: line 1, column 1: undeclared reference`), "%v", err)
}

// CONTRACT: C-70, C-71
func TestFormatDebeziumHasItsRecords(t *testing.T) {
	cfg := spec.Config{Dispatcher: spec.Dispatcher{Message: spec.Message{Format: spec.FormatDebezium, Headers: []spec.MessageHeader{{Name: "eventType", Expression: "event.type"}}}}}
	p := compile(t, cfg, pipeline.Options{})
	e := placed(`{"total":10.10,"id":9007199254740993}`)
	if to, err := p.Route()(e); err != nil || to != "outbox.event.order" {
		t.Errorf("%q, %v", to, err)
	}
	got := sent(t, p, e)
	want := dispatcher.Message{Bare: true, Headers: []dispatcher.Header{{Name: "eventType", Value: "OrderPlaced"}, {Name: "id", Value: e.ID.String()}}}
	need.That(t, reflect.DeepEqual(got.Message, want) && string(got.Payload) == string(e.Payload), "%+v %s, want %+v", got.Message, got.Payload, want)
	e.AggregateType = ""
	if to, err := p.Route()(e); err != nil || to != "outbox.event.orders" {
		t.Errorf("without an aggregate type: %q, %v", to, err)
	}

	cfg.Sink.Routes = []spec.Route{{To: `"mine"`}}
	if to, _ := compile(t, cfg, pipeline.Options{}).Route()(e); to != "mine" {
		t.Errorf("with a route of its own: %q", to)
	}
	cfg.Sink.Routes, cfg.Sink = nil, spec.Sink{Kafka: &spec.KafkaSink{Topic: "fixed"}}
	fixed, err := pipeline.New(cfg, pipeline.Options{})
	need.That(t, err == nil && fixed.Route() == nil, "with a topic, there is a route: %v", err)
}

// CONTRACT: C-70
// REQUIREMENT: STORAGE-32, STORAGE-33
func TestFormatStorageHasItsMembers(t *testing.T) {
	p := compile(t, spec.Config{
		Dispatcher: spec.Dispatcher{
			Message: spec.Message{Format: spec.FormatStorage, Transform: []spec.Transformation{{Payload: `with(payload, {"first": true})`}}},
		},
	}, pipeline.Options{})
	e := placed(`{"id": 9007199254740993, "price": 0.1234567890123456789012345, "long": 123456789012345678901234567890, "metadata": "gone"}`)
	got := sent(t, p, e)
	payload := `{"first":true,"id":9007199254740993,"long":123456789012345678901234567890,"metadata":{"correlation_id":"c-42","outbox_id":"` + e.ID.String() +
		`","region":"eu","sequence_number":9007199254740993},"price":0.1234567890123456789012345}`
	need.That(t, string(got.Payload) == payload, "%s\nwant %s", got.Payload, payload)
	want := dispatcher.Message{Bare: true, Headers: []dispatcher.Header{{Name: "aggregate_id", Value: "order-7"}, {Name: "correlation_id", Value: "c-42"}, {Name: "event_type", Value: "OrderPlaced"}}}
	need.That(t, reflect.DeepEqual(got.Message, want), "%+v, want %+v", got.Message, want)
	e.AggregateSequence = 3
	if got := sent(t, p, e); !strings.Contains(string(got.Payload), `"sequence_number":3}`) {
		t.Errorf("%s, want the number in the aggregate", got.Payload)
	}
	e.Headers["outbox_id"] = "outbox_1"
	if got := sent(t, p, e); !strings.Contains(string(got.Payload), `"outbox_id":"outbox_1"`) {
		t.Errorf("%s, want the id that the header has", got.Payload)
	}
	delete(e.Headers, "correlation_id")
	e.AggregateID = ""
	if got := sent(t, p, e).Message.Headers; len(got) != 1 || got[0].Name != "event_type" {
		t.Errorf("what the event does not have: %+v", got)
	}
	p = compile(t, spec.Config{Dispatcher: spec.Dispatcher{Message: spec.Message{Format: spec.FormatStorage}}}, pipeline.Options{})
	err := p.Wrap(&sinktest.Recording{}).Deliver(t.Context(), []*dispatcher.Event{placed(`[1]`)})[0]
	need.That(t, dispatcher.IsDestinationFault(err) && strings.Contains(err.Error(), "message.format cannot be computed"), "a payload that is not an object: %v", err)
}

func TestMain(m *testing.M) { pgtest.Main(m) }

const outboxConfig = `
sink:
  http: {url: %s}
  contentMode: Structured
  routes:
  - topics: [orders, returns]
    to: '"/orders/" + event.headers.region'
  - topics: [refunds, gifts]
    to: '"/refunds"'
message:
  validation:
  - types: [Placed]
    schema: {configMapRef: {name: schemas, key: order.json}}
    rules:
    - rule: payload.total > 0
      message: an order has a total
  transform:
  - payload: mask(without(payload, ["card"]), ["email"])
`

// The engine, the database and a destination: what is invalid is dead with its reason and its details,
// and does not arrive; what is valid arrives where its route leads, without what must not leave; and what
// the payloads hold is in no log, error or record.
//
// CONTRACT: C-29, C-72, C-73
// REQUIREMENT: STORAGE-36, STORAGE-38, STORAGE-39
func TestOutboxDeliversWhatIsValidAndRouted(t *testing.T) {
	target := newTarget(t)
	dir := t.TempDir()
	need.OK(t, os.Mkdir(filepath.Join(dir, "schemas"), 0o700))
	write(t, filepath.Join(dir, "schemas", "order.json"), `{"required": ["total"], "properties": {"total": {"type": "number"}, "currency": {"enum": ["EUR"]}}, "additionalProperties": {"type": "string"}}`)
	var log bytes.Buffer
	s, err := sink.New(outboxtest.Settings(t, dir, fmt.Sprintf(outboxConfig, target.URL)), io.Discard)
	need.OK(t, err)
	defer func() {
		need.Want(t, nil, "%v", s.Close(context.WithoutCancel(t.Context())))
	}()

	pool := pgtest.Pool(t, pgtest.Migrated(t))
	add := func(topic, kind, region, payload string) string {
		id := uuid.Must(uuid.NewV7())
		_, err := pool.Exec(t.Context(), `insert into outbox.outbox_events (id, namespace, topic, event_type, headers, payload)
			values ($1, 'shop', $2, nullif($3, ''), case when $4 = '' then '{}' else jsonb_build_object('region', $4::text) end, $5)`, id, topic, kind, region, payload)
		need.OK(t, err)
		return id.String()
	}
	planted := `"card": "4111-PLANTED", "email": "PLANTED@example.com"`
	valid := add("orders", "Placed", "eu", `{"total": 9.50, "currency": "EUR", `+planted+`}`)
	refund := add("refunds", "Refunded", "", `{"id": 9007199254740993, `+planted+`}`)
	wrongType := add("orders", "Placed", "eu", `{"total": "PLANTED", `+planted+`}`)
	wrongEnum := add("orders", "Placed", "eu", `{"total": 1, "currency": "PLANTED"}`)
	wrongName := add("orders", "Placed", "eu", `{"total": 1, "PLANTED": 5}`)
	wrongRule := add("orders", "Placed", "eu", `{"total": -1, `+planted+`}`)
	missing := add("orders", "Placed", "eu", `{`+planted+`}`)
	noRoute := add("strange", "", "", `{`+planted+`}`)
	// Nothing else is of their topics: next to an event that is delivered first, these would be charged.
	noRegion := add("returns", "Shipped", "", `{`+planted+`}`)
	noObject := add("gifts", "", "", `["PLANTED"]`)

	store := pgstore.New(pool, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Worker: uuid.New()})
	d, err := engine.New(store, s, dispatcher.Config{MaxAttempts: 5, Logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	need.OK(t, err)
	outcome, err := d.RunOnce(t.Context(), 100)
	if err != nil || outcome.Delivered != 2 || outcome.Dead != 5 || outcome.Failed != 1 || outcome.Released < 2 { // what is released may be claimed again
		t.Errorf("%+v, %v", outcome, err)
	}

	rows := collect(t, pool, `select e.id::text, e.status || ':' || coalesce(e.dead_reason, '') || ':' || e.attempts, coalesce(e.last_error, '') || coalesce(d::text, '')
		from outbox.outbox_events e left join outbox.outbox_dead_letters d on d.event_id = e.id`)
	dead := "dead:schema_validation_failed:1"
	for id, want := range map[string][]string{
		valid:     {"delivered::1"},
		refund:    {"delivered::1"},
		wrongType: {dead, "at /total: #/properties/total/type (number, not string)"},
		wrongEnum: {dead, "at /currency: #/properties/currency/enum"},
		wrongName: {dead, "at /*: #/additionalProperties/type (string, not number)"},
		wrongRule: {dead, "message.validation[0].rules[0]: an order has a total (payload.total > 0)"},
		missing:   {dead, "#/required (total)", "cannot be computed"},
		noRoute:   {"pending::1", `topic "strange"`, "no handler for the topic", "add one to sink.routes"},
		noRegion:  {"pending::0", "sink.routes[0].to cannot be computed: line 1, column 27: it reads a key that is not there"},
		noObject:  {"pending::0", "message.transform[0].payload cannot be computed"},
	} {
		row := rows[id]
		need.That(t, row.state == want[0], "%s is %s, want %s: %s", id, row.state, want[0], row.says)
		for _, part := range want[1:] {
			need.That(t, strings.Contains(row.says, part), "%s says %s\nwithout %s", id, row.says, part)
		}
		need.That(t, !strings.Contains(row.says, "PLANTED"), "the payload is in what is recorded: %s", row.says)
	}
	need.That(t, !strings.Contains(log.String(), "PLANTED") && strings.Contains(log.String(), "schema_validation_failed"),
		"the payload is in the log, or nothing is: %s", log.String())
	if strings.Contains(d.Snapshot().LastError, "PLANTED") {
		t.Errorf("the payload is in the status: %s", d.Snapshot().LastError)
	}

	want := []arrival{
		{"/orders/eu", valid, `{"currency":"EUR","email":"***************.com","total":9.50}`},
		{"/refunds", refund, `{"email":"***************.com","id":9007199254740993}`},
	}
	need.WantAll(t, want, "arrived\n%v\nwant\n%v", target.arrived())
	var kept bool
	if err := pool.QueryRow(t.Context(), `select payload->>'card' = '4111-PLANTED' from outbox.outbox_events where id = $1`, valid).Scan(&kept); err != nil || !kept {
		t.Errorf("the row was changed (%v)", err)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	need.OK(t, os.WriteFile(file, []byte(text), 0o600))
}

type row struct{ state, says string }

func collect(t *testing.T, pool *pgxpool.Pool, sql string) map[string]row {
	t.Helper()
	found, err := pool.Query(t.Context(), sql)
	need.OK(t, err)
	all := map[string]row{}
	var id string
	var r row
	need.OK(t, need.Err(pgx.ForEachRow(found, []any{&id, &r.state, &r.says}, func() error { all[id] = r; return nil })))
	return all
}

// arrival is an event as it arrived.
type arrival struct{ path, id, payload string }

// target is a destination that keeps what arrives.
type target struct {
	*httptest.Server
	mu  sync.Mutex
	all []arrival
}

func newTarget(t *testing.T) *target {
	d := &target{}
	d.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var event struct {
			ID   string
			Data json.RawMessage
		}
		need.Want(t, nil, "%v", json.NewDecoder(r.Body).Decode(&event))
		d.mu.Lock()
		defer d.mu.Unlock()
		d.all = append(d.all, arrival{r.URL.Path, event.ID, string(event.Data)})
	}))
	t.Cleanup(d.Close)
	return d
}

// arrived returns what arrived, by path.
func (d *target) arrived() []arrival {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := slices.Clone(d.all)
	slices.SortFunc(all, func(a, b arrival) int { return strings.Compare(a.path, b.path) })
	return all
}

// What the payload says is final: a rule that is false, a key or an element that is not there. What stops a
// rule from being computed is the configuration's as well: no event becomes dead by it at once.
//
// CONTRACT: C-33, C-72, C-73
func TestRuleCannotBeComputed(t *testing.T) {
	items := `{"items": [{"q":1,"p":12.5}` + strings.Repeat(`,{"q":1,"p":12.5}`, 59_999) + `]}`
	grown := `{"a": "` + strings.Repeat("x", 40_000) + `", "b": "` + strings.Repeat("y", 40_000) + `"}`
	for _, c := range []struct{ rule, payload, dead, held string }{
		{`payload.quantity + 1 > 0`, `{"quantity": 3}`, "", ""},
		{`payload.quantity + 1 > 0`, `{"quantity": 3.5}`, "", ""},
		{`payload.quantity + 1 > 0`, `{"quantity": 9007199254740993}`, "", ""},
		{`payload.quantity + 1 > 0`, `{"quantity": 18446744073709551615}`, "", ""},
		{`payload.quantity + 1 > 0`, `{"quantity": -3}`, "m (payload.quantity + 1 > 0)", ""},
		{`payload.items.all(i, i.q > 0 && i.p > 0)`, items, "", ""},
		{`payload.quantity > 0`, `{}`, "line 1, column 8: it reads a key", ""},
		{`payload.items[0] > 0`, `{"items": []}`, "line 1, column 14: it reads an element", ""},
		{`payload.quantity + 1 > 0`, `{"quantity": "` + secret + `"}`, "", "line 1, column 18: a value is of a type that is not expected there"},
		{`payload.quantity`, `{"quantity": "` + secret + `"}`, "", "line 1, column 1: it makes a string, not a bool"},
		{`1 / payload.quantity > 0`, `{"quantity": 0}`, "", "line 1, column 3: it divides by zero"},
		{`timestamp(payload.at) > timestamp(0)`, `{"at": "` + secret + `"}`, "", "line 1, column 10: a value cannot be converted"},
		{`payload.items.all(i, payload.items.all(j, i.q == j.q))`, items, "", "it costs more than a payload of 1020012 bytes may"},
		{"payload.a.size() > 0 &&\n  payload.a.replace('x', payload.b).size() > 0", grown, "", "line 2, column 20: it makes more than a payload of 80018 bytes may (12 MiB)"},
	} {
		p := compile(t, spec.Config{Dispatcher: spec.Dispatcher{Message: spec.Message{Validation: []spec.Validation{{Rules: []spec.Rule{{Rule: c.rule, Message: "m"}}}}}}}, pipeline.Options{})
		inner := &sinktest.Recording{}
		e := event("", c.payload)
		err := p.Wrap(inner).Deliver(t.Context(), []*dispatcher.Event{e})[0]
		reason, dead := dispatcher.PermanentReason(err)
		switch {
		case c.dead == "" && c.held == "":
			need.That(t, err == nil && len(inner.Events()) == 1, "%s of %.40s: %v", c.rule, c.payload, err)
		case c.dead != "":
			need.That(t, reason == dispatcher.ReasonSchemaValidationFailed && strings.Contains(err.Error(), c.dead), "%s of %.40s: %v", c.rule, c.payload, err)
		case dead || !dispatcher.IsDestinationFault(err):
			t.Errorf("%s of %.40s does not hold the event: %v", c.rule, c.payload, err)
		default:
			for _, part := range []string{"event " + e.ID.String() + ": message.validation[0].rules[0] (m) cannot be computed: ", c.held, "; correct the expression ("} {
				need.That(t, strings.Contains(err.Error(), part), "%s of %.40s: %v\nwithout %s", c.rule, c.payload, err, part)
			}
		}
		need.That(t, c.dead+c.held == "" || (len(inner.Events()) == 0 && !strings.Contains(fmt.Sprint(err), "4111")),
			"%s of %.40s: it arrived, or is quoted: %v", c.rule, c.payload, err)
	}
}

// What the payload breaks is final also where another rule cannot be computed.
func TestBrokenAndNotComputed(t *testing.T) {
	p := compile(t, spec.Config{Dispatcher: spec.Dispatcher{Message: spec.Message{Validation: []spec.Validation{{Rules: []spec.Rule{
		{Rule: `payload.a > 1`, Message: "first"}, {Rule: `payload.b > 1`, Message: "second"}}}}}}}, pipeline.Options{})
	err := p.Wrap(&sinktest.Recording{}).Deliver(t.Context(), []*dispatcher.Event{event("", `{"a": "x", "b": 1}`)})[0]
	reason, _ := dispatcher.PermanentReason(err)
	need.That(t, reason == dispatcher.ReasonSchemaValidationFailed && strings.Contains(err.Error(), "second (payload.b > 1)"), "error %v", err)
}

// A schema that refers to itself in two places takes 2 to the power of the payload's depth. It ends, and holds the event
// as a rule does.
//
// CONTRACT: C-33, C-35
func TestSchemaTakesTooMuchWork(t *testing.T) {
	const union = `"$defs": {"part": {"oneOf": [{"type": "number"}, {"$ref": "#/$defs/and"}, {"$ref": "#/$defs/or"}]},
		"and": {"type": "object", "properties": {"op": {"const": "and"}, "args": {"type": "array", "items": {"$ref": "#/$defs/part"}}}},
		"or": {"type": "object", "properties": {"op": {"const": "or"}, "args": {"type": "array", "items": {"$ref": "#/$defs/part"}}}}}`
	nested := func(levels int, before, innermost, after string) string {
		return strings.Repeat(before, levels) + innermost + strings.Repeat(after, levels)
	}
	and := func(levels int, innermost string) string {
		return nested(levels, `{"args": [`, innermost, `], "op": "and"}`)
	}
	for _, c := range []struct {
		schema, payload string
		held            bool
	}{
		{`{"$ref": "#/$defs/part", ` + union + `}`, and(8, "1"), false},
		{`{"$ref": "#/$defs/part", ` + union + `}`, and(40, "1"), true},
		{`{"$ref": "#/$defs/part", ` + union + `}`, and(40, `"`+secret+`"`), true},
		{`{"$schema": "http://json-schema.org/draft-07/schema#", "not": {"$ref": "#/$defs/part"}, ` + union + `}`, and(40, "1"), true},
		{`{"not": {"$ref": "#/$defs/list"}, "$defs": {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}, "contains": {"$ref": "#/$defs/list"}}}}`, nested(40, "[", "1", "]"), true},
		{`{"type": "array", "items": {"$ref": "#"}}`, nested(5000, "[", "1", "]"), true}, // the names of all levels, for each level
		{`{"allOf": [{}` + strings.Repeat(`, {"pattern": "a$"}`, 200) + `]}`, `"` + strings.Repeat("a", 64<<10) + `"`, true},
		{`{"items": {"oneOf": [{"type": "string"}, {"minimum": 0}]}}`, `[1` + strings.Repeat(",1", 500_000) + `]`, false},
	} {
		s := compile(t, spec.Config{Dispatcher: spec.Dispatcher{Message: spec.Message{Validation: []spec.Validation{{Schema: schema(c.schema)}}}}}, pipeline.Options{}).Wrap(&sinktest.Recording{})
		e := event("", c.payload)
		err := s.Deliver(t.Context(), []*dispatcher.Event{e})[0]
		_, dead := dispatcher.PermanentReason(err)
		if dead || dispatcher.IsDestinationFault(err) != c.held || !c.held && err != nil ||
			c.held && !strings.HasPrefix(err.Error(), "event "+e.ID.String()+": message.validation[0].schema cannot be applied: it takes more work than") {
			t.Errorf("%.80s of %.40s: %v", c.schema, c.payload, err)
		}
		if !c.held {
			continue
		}
		ctx, cancel := context.WithCancel(t.Context())
		if err := s.Deliver(&lateContext{ctx, cancel, 20}, []*dispatcher.Event{e})[0]; !errors.Is(err, context.Canceled) || dispatcher.IsDestinationFault(err) {
			t.Errorf("%.80s of %.40s after the end of its delivery: %v", c.schema, c.payload, err)
		}
	}
}

// A rule that takes long ends with the delivery, and says nothing of the rule.
func TestSlowRuleEndsWithItsDelivery(t *testing.T) {
	p := compile(t, spec.Config{
		Dispatcher: spec.Dispatcher{
			Message: spec.Message{Validation: []spec.Validation{{Rules: []spec.Rule{{Rule: `payload.all(x, payload.exists(y, y > x))`, Message: "m"}}}}},
		},
	}, pipeline.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	payload := `[1` + strings.Repeat(",1", 400_000) + `]`
	errs := p.Wrap(&sinktest.Recording{}).Deliver(&lateContext{ctx, cancel, 2}, []*dispatcher.Event{event("", payload)})
	need.That(t, errors.Is(errs[0], context.Canceled) && !dispatcher.IsDestinationFault(errs[0]) && strings.Contains(errs[0].Error(), "before anything was sent"), "error %v", errs[0])
}

// Of large payloads, as many are decoded at once as there are CPUs, and small ones wait for none of them.
//
// CONTRACT: C-35
func TestLargePayloadsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := compile(t, spec.Config{Dispatcher: spec.Dispatcher{Message: spec.Message{Validation: []spec.Validation{{Rules: []spec.Rule{{Rule: `payload.all(x, x > 0)`, Message: "m"}}}}}}}, pipeline.Options{})
		s := p.Wrap(&sinktest.Recording{})
		cpus := runtime.GOMAXPROCS(0)
		var inside atomic.Int32
		release := make(chan struct{})
		deliver := func(elements int) {
			ctx := &gate{Context: t.Context(), inside: &inside, release: release}
			go s.Deliver(ctx, []*dispatcher.Event{event("", `[1`+strings.Repeat(",1", elements)+`]`)})
		}
		for range cpus + 3 {
			deliver(40_000)
		}
		synctest.Wait()
		need.That(t, int(inside.Load()) == cpus, "%d large payloads at once with %d CPUs", inside.Load(), cpus)
		deliver(10_000)
		synctest.Wait()
		need.That(t, int(inside.Load()) == cpus+1, "a small payload waits for large ones")
		close(release)
		synctest.Wait()
		need.That(t, int(inside.Load()) == cpus+4, "%d payloads were decoded in the end", inside.Load())
	})
}

// gate holds an evaluation when it looks at its context for the first time.
type gate struct {
	context.Context
	inside  *atomic.Int32
	release chan struct{}
	calls   int
}

// Err is called once before the payload is decoded.
func (g *gate) Err() error {
	if g.calls++; g.calls == 2 {
		g.inside.Add(1)
		<-g.release
	}
	return g.Context.Err()
}

// lateContext ends when its error has been read a number of times.
type lateContext struct {
	context.Context
	cancel context.CancelFunc
	calls  int
}

// Err ends the context, at last.
func (c *lateContext) Err() error {
	if c.calls--; c.calls == 0 {
		c.cancel()
	}
	return c.Context.Err()
}
