package expression_test

import (
	"go/build"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/expression"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func event() *dispatcher.Event {
	return &dispatcher.Event{
		Namespace: "shop", Topic: "orders", EventType: "OrderPlaced", AggregateType: "order", AggregateID: "order-7",
		PartitionKey: "customer-3", Headers: map[string]string{"region": "eu"},
		TenantID: uuid.NullUUID{UUID: uuid.MustParse("11111111-2222-4333-8444-555555555555"), Valid: true},
	}
}

func TestStringsAreComputed(t *testing.T) {
	for text, want := range map[string]string{
		`'fixed'`:         "fixed",
		`event.namespace`: "shop",
		`event.topic + '.' + event.type.lowerAscii()`: "orders.orderplaced",
		`event.tenant`: "11111111-2222-4333-8444-555555555555",
		`event.aggregateType + event.aggregateId`:                         "orderorder-7",
		`event.partitionKey`:                                              "customer-3",
		`event.headers.region`:                                            "eu",
		`event.headers["region"]`:                                         "eu",
		`event.headers.?zone.orValue("none")`:                             "none",
		`has(event.headers.zone) ? event.headers.zone : event.topic`:      "orders",
		`has(event.type) ? event.type : 'untyped'`:                        "OrderPlaced",
		`event.headers.map(name, name).size() > 0 ? "some" : "none"`:      "some",
		`event.type in ['OrderPlaced', 'OrderShipped'] ? 'orders' : 'no'`: "orders",
	} {
		x, err := expression.String(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := x.String(event()); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
	x, err := expression.String(`has(event.type) && has(event.tenant) ? 'set' : 'empty'`)
	need.OK(t, err)
	if got, _ := x.String(&dispatcher.Event{}); got != "empty" {
		t.Errorf("has of an empty field: %q", got)
	}
}

// The image has no time zones. A machine that runs tests has them, so that it would not miss those of the program.
func TestTimeZonesAreInTheProgram(t *testing.T) {
	pkg, err := build.ImportDir(".", 0)
	need.That(t, err == nil && slices.Contains(pkg.Imports, "time/tzdata"), "the package does not import time/tzdata: %v", err)
}

func TestCompileErrorsNameThePlace(t *testing.T) {
	text := func(s string) error { _, err := expression.String(s); return err }
	rule := func(s string) error { _, err := expression.Bool(s); return err }
	made := func(s string) error { _, err := expression.JSON(s); return err }
	for _, c := range []struct {
		compile    func(string) error
		text, want string
	}{
		{text, `event.topc`, `line 1, column 6: undefined field 'topc'`},
		{text, "'a' +\n  evnt.topic", `line 2, column 3: undeclared reference to 'evnt'`},
		{text, `payload.region`, `line 1, column 1: undeclared reference to 'payload'`},
		{text, `event.topic + 1`, `line 1, column 13: found no matching overload for '_+_' applied to '(string, int)'`},
		{text, `event.headers`, `line 1, column 1: it makes a map(string, string); write one that makes a string`},
		{text, `event.topic +`, `line 1, column 14: Syntax error: mismatched input '<EOF>'`},
		{text, ``, `line 1, column 1: Syntax error: mismatched input '<EOF>'`},
		{text, `"` + strings.Repeat("a", 4096) + `"`, `it has 4098 characters; shorten it to 4096`},
		{rule, `payload.total`, ``}, // its type is known when it is there
		{rule, `payload.size()`, `line 1, column 1: it makes a int; write one that makes a bool`},
		{rule, `payload.a.all(x, payload.b.all(y, payload.c.all(z, x.v + y.v > z.v)))`, `line 1, column 1: it may cost more than 1000000 units`},
		{rule, `payload.a.all(x, payload.b.exists(y, x == y))`, ``},
		{rule, "payload.a == 1 &&\n  payload.b.matches('(')", "line 2, column 20: error parsing regexp: missing closing ): `(`; correct the regular expression"},
		{rule, `payload.a > int('x')`, `line 1, column 16: type conversion error from 'string' to 'int'`},
		{made, `mask(payload.card)`, `line 1, column 1: it makes a string; write one that makes a map`},
		{made, `without(payload, "card")`, `line 1, column 8: found no matching overload for 'without' applied to '(dyn, string)'`},
		{made, `without(payload, ["card"])`, ``},
	} {
		err := c.compile(c.text)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%.40s: %v", c.text, err)
		case c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)):
			t.Errorf("%.40s: error %v\nwant %s", c.text, err, c.want)
		}
	}
}

const order = `{"id": 9007199254740993, "huge": 18446744073709551615, "total": 10.50, "qty": 3, "status": "paid", "note": null,
	"card": "4111111111111111", "pin": "1234", "customer": {"name": "Ann", "email": "ann@example.com"},
	"items": [{"sku": "a", "serial": 12345678}, {"sku": "b"}], "tags": ["x", "y"], "big": 123456789012345678901234567890}`

func TestConditionsAreComputed(t *testing.T) {
	payload, err := expression.Decode([]byte(order))
	need.OK(t, err)
	for text, want := range map[string]bool{
		`payload.total > 0`: true,
		`timestamp("2026-07-01T12:00:00Z").getHours("Europe/Berlin") == 14`: true,
		`payload.total == 10`:                            false,
		`payload.qty == 3`:                               true,
		`payload.qty * payload.total == 31.5`:            true,
		`payload.qty + 1.0 == 4.0`:                       true,
		`payload.id == 9007199254740993`:                 true,
		`payload.id == 9007199254740992`:                 false,
		`payload.huge == 18446744073709551615u`:          true,
		`payload.big > 1e29`:                             true,
		`payload.qty / 2 == 1.5`:                         true,
		`int(payload.qty) / 2 == 1`:                      true,
		`string(int(payload.qty)) == '3'`:                true,
		`payload.status in ['paid', 'open']`:             true,
		`payload.note == null`:                           true,
		`has(payload.discount)`:                          false,
		`has(payload.customer.email)`:                    true,
		`payload.items.all(i, i.sku.size() == 1)`:        true,
		`payload.items.exists(i, has(i.serial))`:         true,
		`payload.tags == ['x', 'y']`:                     true,
		`payload.?customer.?tier.orValue('none') != ''`:  true,
		`event.type == 'OrderPlaced' && payload.qty > 5`: false,
		`payload.customer.email.matches('^[^@]+@.+$')`:   true,
		`size(payload) == 12`:                            true,
	} {
		x, err := expression.Bool(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := x.Bool(t.Context(), event(), payload); err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestJSONIsComputed(t *testing.T) {
	for text, want := range map[string]string{
		// Numbers that are only copied keep their text.
		`without(payload, ["card", "pin", "customer", "items", "tags", "note", "status", "qty"])`: `{"big":123456789012345678901234567890,"huge":18446744073709551615,"id":9007199254740993,"total":10.50}`,
		`without({"a": payload.customer, "b": payload.tags}, ["a.email", "b.nothing", "c"])`:      `{"a":{"name":"Ann"},"b":["x","y"]}`,
		`without({"items": payload.items}, ["items.*.serial"])`:                                   `{"items":[{"sku":"a"},{"sku":"b"}]}`,
		`without({"items": payload.items}, ["items.*"])`:                                          `{"items":[]}`,
		`without(payload.customer, ["*"])`:                                                        `{}`,
		`mask({"c": payload.card, "p": payload.pin, "n": payload.id}, ["c", "p", "n", "x"])`:      `{"c":"************1111","n":"************0993","p":"****"}`,
		`mask({"c": payload.customer, "t": payload.tags, "n": payload.note}, ["c", "t", "n"])`:    `{"c":{"email":"***********.com","name":"***"},"n":null,"t":["*","*"]}`,
		`mask({"items": payload.items}, ["items.*.serial"])`:                                      `{"items":[{"serial":"****5678","sku":"a"},{"sku":"b"}]}`,
		`{"c": mask(payload.card), "u": mask("äöüäöüäöü")}`:                                       `{"c":"************1111","u":"*****üäöü"}`,
		`with(payload.customer, {"name": "Bob", "id": payload.id, "q": payload.qty})`:             `{"email":"ann@example.com","id":9007199254740993,"name":"Bob","q":3}`,
		`with(without(payload.customer, ["name"]), {"n": payload.customer.name})`:                 `{"email":"ann@example.com","n":"Ann"}`,
		`{"ids": [payload.id], "both": payload.tags + ["z"], "f": 0.1, "i": 7, "u": 7u}`:          `{"both":["x","y","z"],"f":0.1,"i":7,"ids":[9007199254740993],"u":7}`,
		`{"at": timestamp("2026-01-02T03:04:05Z"), "d": duration("90s"), "b": b"hi", "t": true}`:  `{"at":"2026-01-02T03:04:05Z","b":"aGk=","d":"1m30s","t":true}`,
		`{"skus": payload.items.map(i, i.sku), "html": "<b>"}`:                                    `{"html":"<b>","skus":["a","b"]}`,
		`payload`: `{"big":123456789012345678901234567890,"card":"4111111111111111","customer":{"email":"ann@example.com","name":"Ann"},"huge":18446744073709551615,"id":9007199254740993,"items":[{"serial":12345678,"sku":"a"},{"sku":"b"}],"note":null,"pin":"1234","qty":3,"status":"paid","tags":["x","y"],"total":10.50}`,
	} {
		payload, err := expression.Decode([]byte(order))
		need.OK(t, err)
		before, _ := expression.Encode(payload)
		x, err := expression.JSON(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		made, err := x.JSON(t.Context(), event(), payload)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, err := expression.Encode(made)
		need.That(t, err == nil && string(got) == want, "%s:\ngot  %s, %v\nwant %s", text, got, err, want)
		after, _ := expression.Encode(payload)
		need.That(t, string(after) == string(before), "%s changed the payload itself: %s", text, after)
	}
}

// The error of an evaluation has place and cause, and nothing of the payload.
//
// CONTRACT: C-73
func TestFailuresNamePlaceAndCause(t *testing.T) {
	payload, err := expression.Decode([]byte(`{"secret": "card-4111", "n": 0, "list": [1, 2], "o": {"a": 1}, "max": 1e999, "text": "x"}`))
	need.OK(t, err)
	for text, want := range map[string]string{
		`payload.nothing > 0`:                                                          "it reads a key that is not there; test it with has()",
		`{"a": true}[payload.secret]`:                                                  "it reads a key that is not there",
		`payload.secret > 3`:                                                           "line 1, column 16: a value is of a type that is not expected there",
		`payload.secret.size() > 0 && payload.n`:                                       "line 1, column 27: a value is of a type",
		`payload.list[5] == 1.0`:                                                       "line 1, column 13: it reads an element that is not there",
		`1 / int(payload.n) == 1`:                                                      "it divides by zero",
		`int(payload.secret) == 1`:                                                     "a value cannot be converted",
		`timestamp(payload.secret) < timestamp(0)`:                                     "a value cannot be converted",
		`duration(payload.secret) < duration('1s')`:                                    "a value cannot be converted",
		`payload.secret.matches(payload.secret + '(')`:                                 "a function does not take what it is given",
		`payload.text.substring(payload.n + 0.5) == ''`:                                "line 1, column 23: a value is of a type",
		`event.createdAt.getHours(payload.secret) == 1`:                                "line 1, column 25: it names a time zone that is not known",
		`payload.secret`:                                                               "it makes a string, not a bool",
		`without(payload.secret, ['a']).size() > 0`:                                    "line 1, column 8: a value is of a type",
		`payload.secret.startsWith(payload.n)`:                                         "line 1, column 26: a value is of a type",
		`payload.text.replace('x', 'yyyyyyyyyy').substring(50) == ''`:                  "it reads a character that is not there",
		`mask(payload.n) == ''`:                                                        "line 1, column 5: a value is of a type",
		`[1,2,3,4,5,6,7,8,9].all(a, payload.list.all(b, payload.secret[b] == 'card'))`: "",
	} {
		x, err := expression.Bool(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		_, err = x.Bool(t.Context(), event(), payload)
		need.That(t, err != nil && strings.Contains(err.Error(), want), "%s: error %v\nwant %s", text, err, want)
		need.That(t, err == nil || !strings.Contains(err.Error(), "4111"), "%s: the error quotes the payload: %v", text, err)
	}
}

// Whatever the payload holds, no error quotes it. CONTRACT: C-73
func TestErrorsQuoteNothing(t *testing.T) {
	values := []string{`"pSECRET"`, `7777`, `77.77`, `9007199254740993777`, `true`, `null`, `[]`, `["pSECRET", 7777]`, `{"pSECRET": 7777}`, `{"a": "pSECRET"}`}
	failed := 0
	for _, text := range []string{
		`payload.a + payload.b`, `payload.a - payload.b`, `payload.a / payload.b`, `payload.a < payload.b`, `payload.a in payload.b`, `payload.a[payload.b]`,
		`payload[payload.a]`, `!payload.a`, `-payload.a`, `payload.a && payload.b`, `payload.a ? payload.b : payload.a`, `size(payload.a)`, `int(payload.a)`,
		`uint(payload.a)`, `double(payload.a)`, `bool(payload.a)`, `string(payload.a)`, `bytes(payload.a)`, `timestamp(payload.a)`, `duration(payload.a)`,
		`payload.a.matches(payload.b)`, `payload.a.startsWith(payload.b)`, `payload.a.all(x, x.y)`, `payload.a.exists_one(x, x[payload.b])`, `payload.a.map(x, x.pSECRET)`,
		`payload.a.charAt(payload.b)`, `payload.a.substring(int(payload.b))`, `payload.a.split(payload.b)`, `payload.a.replace(payload.b, payload.b)`, `payload.a.join(payload.b)`,
		`payload.a.format([payload.b])`, `"%d".format([payload.a])`, `strings.quote(payload.a)`, `payload.a.getFullYear()`, `type(payload.a)`, `payload.?a.b.c.orValue(payload.b).d`,
		`without(payload.a, [payload.b])`, `with(payload, payload.a)`, `mask(payload.a)`, `mask(payload, payload.b)`, `{payload.a: 1, payload.b: 2}`, `{"x": payload.a}[payload.b]`,
		`optional.of(payload.a).value().b`, `payload.a.b.c`, `has(payload.a.b.c)`, `[payload.a][payload.b]`,
	} {
		x, err := expression.JSON(`{"made": ` + text + `}`)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for _, a := range values {
			for _, b := range values {
				payload, err := expression.Decode([]byte(`{"a": ` + a + `, "b": ` + b + `}`))
				need.OK(t, err)
				if _, err = x.JSON(t.Context(), event(), payload); err == nil {
					continue
				}
				if failed++; strings.Contains(strings.ReplaceAll(err.Error(), text, ""), "SECRET") || strings.Contains(err.Error(), "77") {
					t.Errorf("%s for %s and %s: %v", text, a, b, err)
				}
			}
		}
	}
	need.That(t, failed >= 1000, "only %d failed", failed)
}

func TestDecodeRefusesOtherThanJSON(t *testing.T) {
	for _, bad := range []string{``, `{`, `{"a": secret}`, `1 2`, `{} x`} {
		_, err := expression.Decode([]byte(bad))
		need.That(t, err != nil && err.Error() == "the payload is not JSON; correct the row", "%s: %v", bad, err)
	}
}

// claimed is an event with all that a claim gives it.
func claimed() *dispatcher.Event {
	e := event()
	e.ID = uuid.MustParse("0197a1e0-0000-7000-8000-000000000001")
	e.Seq, e.LeaseNumber, e.Attempt, e.DedupeKey = 9007199254740993, 9007199254740997, 3, "order-7-placed"
	e.CreatedAt = time.Date(2026, 3, 4, 5, 6, 7, 890_123_000, time.UTC)
	return e
}

// CONTRACT: C-70
func TestHeaderValuesOfEachType(t *testing.T) {
	payload, err := expression.Decode([]byte(`{"id": 9007199254740993, "long": 123456789012345678901234567890, "price": 0.1234567890123456789012345,
		"yes": true, "nothing": null, "name": "Zoë", "empty": "", "list": [1], "object": {}, "big": "` + strings.Repeat("x", expression.MaxHeader+1) + `"}`))
	need.OK(t, err)
	for text, want := range map[string]string{
		`event.id`:                              "0197a1e0-0000-7000-8000-000000000001",
		`event.sequence`:                        "9007199254740993",
		`event.token`:                           "9007199254740997",
		`event.attempt`:                         "3",
		`event.dedupeKey`:                       "order-7-placed",
		`event.key`:                             "customer-3",
		`event.createdAt`:                       "2026-03-04T05:06:07.890123Z",
		`string(event.createdAt.getFullYear())`: "2026",
		`event.createdAt < timestamp("2027-01-01T00:00:00Z") ? "old" : "new"`: "old",
		`event.sequence + 1`:                      "9007199254740994",
		`event.headers.?region`:                   "eu",
		`event.headers.?zone`:                     "",
		`event.headers.?zone.orValue("none")`:     "none",
		`payload.id`:                              "9007199254740993",
		`payload.long`:                            "123456789012345678901234567890",
		`payload.price`:                           "0.1234567890123456789012345",
		`payload.?id`:                             "9007199254740993",
		`payload.yes`:                             "true",
		`payload.nothing`:                         "",
		`payload.?missing`:                        "",
		`payload.name`:                            "Zoë",
		`payload.empty`:                           "",
		`"a" + payload.name.replace("o", "\r\n")`: "aZ\r\në",
	} {
		x, err := expression.Header(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := x.Header(t.Context(), claimed(), payload); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
		if reads := strings.Contains(text, "payload"); x.ReadsPayload() != reads {
			t.Errorf("%s: that it reads the payload is %v", text, x.ReadsPayload())
		}
	}
	for text, want := range map[string]string{
		`payload.list`:    "it makes a list, which no header can hold",
		`payload.object`:  "it makes a map, which no header can hold",
		`payload.missing`: "it reads a key that is not there",
		`payload.big`:     "it makes more than 8 KiB",
	} {
		x, err := expression.Header(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := x.Header(t.Context(), claimed(), payload); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %.40q, %v, want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		`[1, 2]`:      "line 1, column 1: it makes a list(int); write one that makes a text, a number, a bool or a timestamp, or an optional one",
		`{"a": 1}`:    "it makes a map(string, int)",
		`event.rows`:  "undefined field 'rows'",
		`[event.id]`:  "it makes a list(string)",
		`event.id + `: "line 1, column 12: Syntax error",
	} {
		_, err := expression.Header(text)
		need.That(t, err != nil && strings.Contains(err.Error(), want), "%s: %v, want %q", text, err, want)
	}
}

// The fields of an event are in rules, transformations and routes as well, and whole numbers are exact.
//
// CONTRACT: C-70, C-72
func TestEventFieldsInEveryKind(t *testing.T) {
	x, err := expression.JSON(`with(payload, {"metadata": with(event.headers, {"outbox_id": event.id, "sequence_number": event.sequence, "made": event.createdAt})})`)
	need.OK(t, err)
	made, err := x.JSON(t.Context(), claimed(), map[string]any{"metadata": "gone"})
	need.OK(t, err)
	want := `{"metadata":{"made":"2026-03-04T05:06:07.890123Z","outbox_id":"0197a1e0-0000-7000-8000-000000000001","region":"eu","sequence_number":9007199254740993}}`
	if got, err := expression.Encode(made); err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	rule, err := expression.Bool(`event.attempt == 3 && event.token > 9007199254740996 && event.sequence == 9007199254740993 && has(event.dedupeKey)`)
	need.OK(t, err)
	if holds, err := rule.Bool(t.Context(), claimed(), nil); err != nil || !holds {
		t.Errorf("the rule: %v, %v", holds, err)
	}
	route, err := expression.String(`event.id + "/" + string(event.sequence)`)
	need.OK(t, err)
	if to, err := route.String(claimed()); err != nil || to != "0197a1e0-0000-7000-8000-000000000001/9007199254740993" {
		t.Errorf("the route: %s, %v", to, err)
	}
}
