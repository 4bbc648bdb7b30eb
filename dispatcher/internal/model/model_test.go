package model

import (
	"slices"
	"strings"
	"testing"
)

// CONTRACT: C-20, C-21, C-22, C-23, C-24, C-26, C-27, C-50
func TestEveryState(t *testing.T) {
	table := read(t)
	for _, test := range []struct {
		name string
		game
	}{
		{"OneRow", game{table: table, rows: 1, maxAttempts: 3}},
		{"KeyOrder", game{table: table, rows: 2, maxAttempts: 2, ordered: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			states, broken := test.explore()
			t.Logf("%d states", states)
			if broken != "" {
				t.Error(broken)
			}
		})
	}
}

// Each rule is needed: without it the exploration finds what goes wrong.
func TestEveryRuleIsNeeded(t *testing.T) {
	// without gives the table without a guard of a line, or without the line.
	without := func(from, verb, guard string) Table {
		table := read(t)
		for i, line := range table {
			if line.From == from && line.Verb == verb && strings.Join(line.Guard, ", ") == guard {
				return slices.Delete(table, i, i+1)
			}
		}
		t.Fatalf("no line %s %s %s", from, verb, guard)
		return nil
	}
	with := func(table Table, from, verb, guard, to, attempts string) Table {
		return append(table, Transition{from, verb, strings.Split(guard, ", "), to, attempts})
	}
	one := func(table Table) game { return game{table: table, rows: 1, maxAttempts: 2} }
	key := func(rule func(*game)) game {
		g := game{table: read(t), rows: 2, maxAttempts: 2, ordered: true}
		rule(&g)
		return g
	}
	for _, test := range []struct {
		name string
		game
		want string
	}{
		{"ack by anybody", one(with(without("processing", "ack", "own lease"), "processing", "ack", "due", "delivered", "same")), "no longer holds it"},
		{"nack by anybody", one(with(read(t), "processing", "nack", "retry", "pending", "same")), "no longer holds it"},
		{"nack of an unspent attempt by anybody", one(with(read(t), "processing", "nack", "unspent", "pending", "-1")), "no longer holds it"},
		{"release by anybody", one(with(read(t), "processing", "release", "due", "pending", "-1")), "no longer holds it"},
		{"claim of a leased row", one(with(read(t), "processing", "claim", "attempts < max", "processing", "+1")), "changes hands before"},
		{"claim without end", one(with(without("processing", "claim", "lease over, attempts = max"), "processing", "claim", "lease over", "processing", "+1")), "more than 2"},
		{"claim without a token", one(with(without("pending", "claim", "due, attempts < max"), "pending", "claim", "due, attempts < max", "processing", "same")), "delivered twice under"},
		{"nack gives the attempt back", one(with(without("processing", "nack", "own lease, retry"), "processing", "nack", "own lease, retry", "pending", "-1")), "takes back the token"},
		{"no second claim", one(without("processing", "claim", "lease over, attempts < max")), "for ever"},
		{"no burial", one(without("processing", "claim", "lease over, attempts = max")), "for ever"},
		{"delivered is not final", one(with(read(t), "delivered", "claim", "attempts < max", "processing", "+1")), "leaves delivered"},
		{"dead is retried", one(with(read(t), "dead", "claim", "attempts < max", "processing", "+1")), "leaves dead"},
		{"a begun delivery is released", key(func(g *game) { g.releaseBegun = true }), "takes back the token"},
		{"a release hits the next lease", key(func(g *game) { g.retryStale = true }), "takes back the token"},
		{"claims beyond the prefix", key(func(g *game) { g.loosePrefix = true }), "arrives before"},
		{"a worker does not wait in its queue", key(func(g *game) { g.beginAny = true }), "arrives before"},
		{"a failure keeps the rest of the key", key(func(g *game) { g.keepRest = true }), "arrives before"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			states, broken := test.explore()
			if !strings.Contains(broken, test.want) {
				t.Errorf("after %d states: found %q, want it to find %q", states, broken, test.want)
			}
		})
	}
}

func read(t *testing.T) Table {
	t.Helper()
	table, err := Read("../../doc.go")
	if err != nil {
		t.Fatal(err)
	}
	return table
}
