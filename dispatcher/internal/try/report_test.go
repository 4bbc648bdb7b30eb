package try

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func sent(to, body string) made {
	return made{outcome: Sent, message: draft.Message{To: to, At: "a", Body: []byte(body)}}
}

func TestCompareNamesEachDifference(t *testing.T) {
	moved := sent("x", "1")
	moved.message.At = "b"
	keyed := sent("x", "1")
	keyed.message.Key, keyed.message.Query = "k", "q"
	dead, paused := made{outcome: Dead}, made{outcome: Paused}
	for name, c := range map[string]struct {
		now, before made
		want        Outcome
		parts       string
		to          string
	}{
		"the same":        {sent("x", "1"), sent("x", "1"), Same, "", ""},
		"elsewhere":       {sent("y", "1"), sent("x", "1"), Moved, "", "y"},
		"and other bytes": {sent("y", "2"), sent("x", "1"), Moved, "body", "y"},
		"another server":  {moved, sent("x", "1"), Moved, "", "x at b"},
		"another body":    {sent("x", "2"), sent("x", "1"), Changed, "body", ""},
		"another key":     {keyed, sent("x", "1"), Changed, "key query", ""},
		"both dead":       {dead, dead, Same, "", ""},
		"both paused":     {paused, paused, Same, "", ""},
		"dead now":        {dead, paused, Dead, "", ""},
		"paused now":      {paused, sent("x", "1"), Paused, "", ""},
		"sent now":        {sent("x", "1"), dead, Sent, "", ""},
	} {
		got := compare(c.now, c.before)
		key := (&side{}).keys(&dispatcher.Event{Topic: "t"}, got, c.now, c.before)[0]
		need.That(t, got == c.want && key.parts == c.parts && key.to == c.to && key.topic == "t", "%s: %s, %+v; want %s, parts %q, to %q", name, got, key, c.want, c.parts, c.to)
	}
}

// Without another configuration, a dead row is dead, and any other is taken for one that is sent.
func TestRowStandsWithoutAnotherConfiguration(t *testing.T) {
	for name, c := range map[string]struct {
		status string
		reason dispatcher.DeadReason
		now    made
		want   Outcome
	}{
		"delivered, and would be":         {"delivered", "", sent("x", "1"), Same},
		"delivered, and would be dead":    {"delivered", "", made{outcome: Dead}, Dead},
		"waits, and would be paused":      {"pending", "", made{outcome: Paused}, Paused},
		"refused, and is again":           {"dead", dispatcher.ReasonSchemaValidationFailed, made{outcome: Dead}, Same},
		"refused, and is paused":          {"dead", dispatcher.ReasonSchemaValidationFailed, made{outcome: Paused}, Same},
		"refused, and is not":             {"dead", dispatcher.ReasonSchemaValidationFailed, sent("x", "1"), Sent},
		"dead of the destination":         {"dead", dispatcher.ReasonPermanentFailure, sent("x", "1"), Same},
		"dead of it, and would be anyhow": {"dead", dispatcher.ReasonMaxRetriesExceeded, made{outcome: Dead}, Same},
	} {
		need.Want(t, c.want, "%s: %s, want %s", compare(c.now, stands(pgstore.PastRow{Status: c.status, Reason: c.reason}, c.now)), name)
	}
}

// Memory and output are bounded, whatever routes make of events, and the order does not depend on a map's.
func TestReportIsBounded(t *testing.T) {
	var first []Group
	for range 3 {
		r, groups := &Report{Outcomes: map[Outcome]int{}}, map[groupKey]*Group{}
		for n := range 1000 {
			e := &dispatcher.Event{ID: uuid.NewSHA1(uuid.Nil, fmt.Append(nil, n)), Topic: "t", CreatedAt: time.Unix(int64(n), 0)}
			now, before := sent(fmt.Sprintf("place %d", n%200), "1"), sent("x", "1")
			r.add(groups, e, Moved, (&side{}).keys(e, Moved, now, before), errors.New("event "+e.ID.String()+": "+strings.Repeat("é\n", 3000)))
		}
		r.close(groups)
		if len(r.Groups) != maxGroups || r.Ungrouped != 500 || r.Outcomes[Moved] != 1000 || r.Different != 1000 {
			t.Fatalf("%d groups, %d ungrouped, %d moved of %d different", len(r.Groups), r.Ungrouped, r.Outcomes[Moved], r.Different)
		}
		if g := r.Groups[0]; len(g.Samples) != maxSamples || g.Count != 5 || len(g.Error) > maxError+3 || !strings.HasPrefix(g.Error, "é é") {
			t.Fatalf("%d samples of %d, an error of %d bytes: %.50s", len(g.Samples), g.Count, len(g.Error), g.Error)
		}
		if first == nil {
			first = r.Groups
		} else if !reflect.DeepEqual(r.Groups, first) {
			t.Fatal("the order is another one")
		}
	}
}
