package status

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// fill sets everything in a value, texts to what JSON writes longest.
func fill(v reflect.Value, text string) {
	switch {
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Date(2026, 12, 31, 23, 59, 59, 999_999_999, time.FixedZone("", -12*3600))))
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), text)
		}
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 100, 100))
		for i := range v.Len() {
			fill(v.Index(i), text)
		}
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(1<<31 - 1)
	case v.CanFloat():
		v.SetFloat(-1.7976931348623157e+308)
	}
}

// Everything that a Status says is in a brief one, except what is named here; and however much it says, a
// brief one is small.
func TestBriefHasEverythingButDetails(t *testing.T) {
	for name, text := range map[string]string{"quotes": strings.Repeat(`"`, 100_000), "separators": strings.Repeat("\u2028", 100_000), "controls": strings.Repeat("\x01", 100_000), "broken": strings.Repeat("\xff", 100_000)} {
		var s Status
		fill(reflect.ValueOf(&s).Elem(), text)
		for i := range s.EventTypes { // longer ones are left out
			s.EventTypes[i].Type = text[:EventTypeBytes/3*3]
		}
		brief := s.Brief()
		kept := len(brief.EventTypes) == EventTypesListed
		need.That(t, kept == (name == "quotes" || name == "separators"), "%s: %d event types are kept", name, len(brief.EventTypes))
		var out strings.Builder
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		need.OK(t, encoder.Encode(brief))
		need.That(t, out.Len() <= MaxBrief, "%s: %d bytes, want %d at most", name, out.Len(), MaxBrief)
		t.Logf("%s: %d bytes", name, out.Len())
	}
	var s Status
	fill(reflect.ValueOf(&s).Elem(), "x")
	brief := s.Brief()
	left := []string{}
	for path, v := range map[string]reflect.Value{"": reflect.ValueOf(brief), "Backlog.": reflect.ValueOf(*brief.Backlog), "Retention.": reflect.ValueOf(*brief.Retention)} {
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				left = append(left, path+v.Type().Field(i).Name)
			}
		}
	}
	slices.Sort(left)
	want := []string{"Backlog.Blocked", "Backlog.Topics", "Hour", "LastError", "Notifications", "Retention.Message", "Retention.Pages", "Retention.Position", "Retention.Running", "Retention.Seconds", "Stuck", "Topics"}
	need.WantAll(t, want, "a brief status lacks %v, want it to lack %v", left)
}
