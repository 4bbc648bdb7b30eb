package sink_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

var update = flag.Bool("update", false, "write the messages of the consumers' page")

const consumersPage = "../consumer/languages.md"

var messageBlock = regexp.MustCompile("(?s)(<!-- message (\\w+) ?(\\w*) -->\n```\n)(.*?)(```\n<!-- end of message -->)")

// The consumers' page shows each sink's message in each of its modes, as the sink makes it.
func TestConsumersPageShowsTheMessages(t *testing.T) {
	text, err := os.ReadFile(consumersPage)
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	want := messageBlock.ReplaceAllStringFunc(string(text), func(block string) string {
		part := messageBlock.FindStringSubmatch(block)
		shown[part[2]] = true
		return part[1] + message(t, part[2], part[3]) + part[5]
	})
	for kind := range kinds {
		if !shown[kind] && kind != "postgres" { // whose message is a row
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
