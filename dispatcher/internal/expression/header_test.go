package expression_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/expression"
)

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
	if err != nil {
		t.Fatal(err)
	}
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
		if _, err := expression.Header(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// The fields of an event are in rules, transformations and routes as well, and whole numbers are exact.
//
// CONTRACT: C-70, C-72
func TestEventFieldsInEveryKind(t *testing.T) {
	x, err := expression.JSON(`with(payload, {"metadata": with(event.headers, {"outbox_id": event.id, "sequence_number": event.sequence, "made": event.createdAt})})`)
	if err != nil {
		t.Fatal(err)
	}
	made, err := x.JSON(t.Context(), claimed(), map[string]any{"metadata": "gone"})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"metadata":{"made":"2026-03-04T05:06:07.890123Z","outbox_id":"0197a1e0-0000-7000-8000-000000000001","region":"eu","sequence_number":9007199254740993}}`
	if got, err := expression.Encode(made); err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	rule, err := expression.Bool(`event.attempt == 3 && event.token > 9007199254740996 && event.sequence == 9007199254740993 && has(event.dedupeKey)`)
	if err != nil {
		t.Fatal(err)
	}
	if holds, err := rule.Bool(t.Context(), claimed(), nil); err != nil || !holds {
		t.Errorf("the rule: %v, %v", holds, err)
	}
	route, err := expression.String(`event.id + "/" + string(event.sequence)`)
	if err != nil {
		t.Fatal(err)
	}
	if to, err := route.String(claimed()); err != nil || to != "0197a1e0-0000-7000-8000-000000000001/9007199254740993" {
		t.Errorf("the route: %s, %v", to, err)
	}
}
