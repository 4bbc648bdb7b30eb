package deadletters

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

const event, tenant = "0190a5c8-5d1e-7000-8000-000000000001", "7f3a9c21-0000-4000-8000-00000000000a"

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// whole has every member.
var whole = Filter{
	IDs: []string{event, "42"}, Topic: "orders", Type: "OrderPlaced", Aggregate: "order/17", Tenant: tenant,
	Reason: string(dispatcher.ReasonPermanentFailure), Group: "7f3a9c21", Operation: "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11", ErrorContains: "refused", Since: noon, Until: noon.Add(time.Hour), Resolved: true,
}

// People write a filter in a resource and over HTTP: its names are fixed.
func TestFilterJSON(t *testing.T) {
	text, err := json.Marshal(whole)
	need.OK(t, err)
	want := `{"ids":["` + event + `","42"],"topic":"orders","type":"OrderPlaced","aggregate":"order/17","tenant":"` + tenant +
		`","reason":"permanent_failure","group":"7f3a9c21","operation":"5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11","errorContains":"refused","since":"2026-03-01T12:00:00Z","until":"2026-03-01T13:00:00Z","resolved":true}`
	need.That(t, string(text) == want, "%s\nwant\n%s", text, want)
	if text, _ := json.Marshal(Filter{}); string(text) != "{}" {
		t.Errorf("nothing is %s", text)
	}
	need.That(t, (Filter{Resolved: true}).Empty() && !whole.Empty(), "Empty is wrong")
	need.Want(t, nil, "refused: %v", whole.Validate())
}

// Each member alone makes a filter that chooses something, and a term of the condition.
func TestEveryMemberCounts(t *testing.T) {
	nothing, _ := Filter{}.Where("n", nil)
	for i := range reflect.TypeFor[Filter]().NumField() {
		var f Filter
		reflect.ValueOf(&f).Elem().Field(i).Set(reflect.ValueOf(whole).Field(i))
		name := reflect.TypeFor[Filter]().Field(i).Name
		condition, _ := f.Where("n", nil)
		need.That(t, condition != nothing, "%s does not change the condition", name)
		need.Want(t, name == "Resolved", "%s: empty %v", f.Empty(), name)
	}
	condition, args := whole.Where("default", []string{"orders", "bills"}, "before")
	need.That(t, len(args) == 15 && args[0] == "before" && args[1] == "default" && !strings.Contains(condition, "$1:") && strings.Contains(condition, "$15::timestamptz"),
		"%s\n%v", condition, args)
}

func TestFilterIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		filter Filter
		want   string
	}{
		"too many ids":      {Filter{IDs: make([]string, MaxIDs+1)}, "give 1000 at most, or filter by group"},
		"no id":             {Filter{IDs: []string{"0"}}, `ids: "0" is neither an event's id, a UUID, nor a dead letter's`},
		"a long topic":      {Filter{Topic: strings.Repeat("x", maxText+1)}, "topic: it has more than 8192 bytes"},
		"a NUL":             {Filter{ErrorContains: "\x00"}, "errorContains: it has"},
		"no tenant":         {Filter{Tenant: "acme"}, `tenant: "acme" is not a UUID; correct it`},
		"a tenant's number": {Filter{Tenant: "urn:uuid:" + tenant}, "is not a UUID"},
		"no reason":         {Filter{Reason: "tired"}, `reason: "tired" is unknown; choose one of max_retries_exceeded, poison_message`},
		"no group":          {Filter{Group: "7F3A9C21"}, "group: \"7F3A9C21\" is not a group; give its 8 hex digits, as `dead groups` lists them"},
		"no time":           {Filter{Since: noon, Until: noon}, "exchange them"},
		"two":               {Filter{Group: "2", Tenant: "acme"}, "group: \"2\""},
	} {
		err := c.filter.Validate()
		need.That(t, err != nil && strings.Contains(err.Error(), c.want) && len(err.Error()) <= 400, "%s: %v", name, err)
	}
}
