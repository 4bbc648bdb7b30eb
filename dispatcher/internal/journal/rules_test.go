package journal

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/model"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// The legal changes are those of the table in the documentation of package dispatcher, and those of producers,
// retention and workers of M10.
func TestRulesAreTheTable(t *testing.T) {
	table, err := model.Read("../../doc.go")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{
		"insert:  -> pending 0 same": true, "ack: processing ->  same same": true,
		"delete: delivered ->  same same": true, "delete: withdrawn ->  same same": true, "delete: expired ->  same same": true, "delete: dead ->  same same": true,
	}
	for _, line := range table {
		operation := line.Verb
		switch line.Verb {
		case "claim", "nack":
			operation = cmp.Or(map[string]string{"dead": "dead", "expired": "expire"}[line.To], line.Verb)
		case "copy":
			operation = "ack"
		}
		want[fmt.Sprintf("%s: %s -> %s %s %s", operation, line.From, line.To, line.Attempts, line.Lease)] = true
	}
	var got []string
	for _, r := range rules {
		got = append(got, fmt.Sprintf("%s: %s -> %s %s %s", r.operation, r.before, r.after, r.attempts, r.lease))
	}
	for _, r := range got {
		need.That(t, want[r], "%s is not in the table", r)
	}
	for r := range want {
		need.That(t, slices.Contains(got, r), "%s of the table is missing", r)
	}
}
