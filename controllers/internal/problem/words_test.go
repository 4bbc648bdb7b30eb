package problem

import (
	"errors"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func TestSentenceIsCapitalizedEndedAndCut(t *testing.T) {
	for text, want := range map[string]string{
		"http://a responded 500":        "http://a responded 500.",        // a URL is written as it is
		"spec.sink.routes[0].to is bad": "spec.sink.routes[0].to is bad.", // and so is a field
		"":                              "",
		"it failed":                     "It failed.",
		"Done. ":                        "Done.",
		strings.Repeat("é", 1000):       "É" + strings.Repeat("é", 499) + "…",
	} {
		need.Want(t, want, "Sentence(%q) = %q, want %q", Sentence(text), text)
	}
}

// CONTRACT: C-101
func TestIncompleteNamesTheFieldThatIsMissing(t *testing.T) {
	type object = map[string]any
	for _, c := range []struct {
		kind string
		spec any
		want string
	}{
		{"OutboxDispatcher", object{"namespace": "shop", "sink": object{"log": nil}, "database": object{"schema": "outbox"}}, "spec.database.secretRef is missing; set it."},
		{"OutboxDispatcher", object{"namespace": "shop", "sink": object{}, "outboxRef": object{"name": "shop"}, "replicas": 2}, ""},
		{"OutboxDispatcher", object{"namespace": "shop", "sink": object{}}, "spec.database.secretRef is missing; set it."},
		{"Outbox", object{"secretRef": object{}}, "spec.secretRef.name is missing; set it."},
		{"Outbox", object{"schema": "outbox"}, "spec.secretRef.name is missing; set it."},
		{"OutboxConsumer", object{"eventTypes": []string{"a"}, "ownerTeam": "a"}, "spec.idempotencyMechanism is missing; set it."},
		{"DeadLetterReplay", object{"reason": "a", "requestedBy": "a", "selector": object{}}, "spec.action is missing; set it."},
	} {
		var p *Problem
		err := Incomplete("Ready", c.kind, "", c.spec)
		need.That(t, errors.As(err, &p) == (c.want != "") && (p == nil || p.Stalled && strings.HasPrefix(p.Message, c.want)), "%s: %v, want %q", c.kind, err, c.want)
	}
}
