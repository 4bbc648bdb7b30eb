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
		{"OneRow", game{table: table, rows: 1, maxAttempts: 3, maxClaims: 4}},
		{"KeyOrder", game{table: table, rows: 2, maxAttempts: 2, maxClaims: 3, ordered: true}},
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
	with := func(table Table, from, verb, guard, to, attempts, lease string) Table {
		return append(table, Transition{from, verb, strings.Split(guard, ", "), to, attempts, lease})
	}
	one := func(table Table) game { return game{table: table, rows: 1, maxAttempts: 2, maxClaims: 3} }
	key := func(rule func(*game)) game {
		g := game{table: read(t), rows: 2, maxAttempts: 2, maxClaims: 3, ordered: true}
		rule(&g)
		return g
	}
	for _, test := range []struct {
		name string
		game
		want string
	}{
		{"ack by anybody", one(with(without("processing", "ack", "own lease"), "processing", "ack", "due", "delivered", "same", "same")), "no longer holds it"},
		{"nack by anybody", one(with(read(t), "processing", "nack", "retry", "pending", "same", "same")), "no longer holds it"},
		{"release by anybody", one(with(read(t), "processing", "release", "due", "pending", "-1", "same")), "no longer holds it"},
		{"release by the worker of an older lease", one(with(read(t), "processing", "release", "own worker", "pending", "-1", "same")), "no longer holds it"},
		{"claim of a leased row", one(with(read(t), "processing", "claim", "attempts < max", "processing", "+1", "new")), "changes hands before"},
		{"a lease that ends spends an attempt", one(with(without("processing", "claim", "lease over, begun < 4"), "processing", "claim", "lease over, begun < 4", "processing", "+1", "new")), "more than 2"},
		{"claim without a token", one(with(without("pending", "claim", "due, attempts < max"), "pending", "claim", "due, attempts < max", "processing", "+1", "same")), "delivered twice under"},
		{"replay begins again at the first token", one(with(without("dead", "replay", "by a person"), "dead", "replay", "by a person", "pending", "0", "0")), "falls from"},
		{"no second claim", one(without("processing", "claim", "lease over, begun < 4")), "for ever"},
		{"no burial", one(without("processing", "claim", "lease over, begun = 4")), "for ever"},
		{"delivered is not final", one(with(read(t), "delivered", "claim", "attempts < max", "processing", "+1", "new")), "leaves delivered"},
		{"dead is retried", one(with(read(t), "dead", "claim", "attempts < max", "processing", "+1", "new")), "leaves dead"},
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

// A guard that no line of the table has: the worker alone.
func init() {
	guards["own worker"] = func(r Row, c Call, _ int) bool { return r.Holder == c.Worker }
}

func read(t *testing.T) Table {
	t.Helper()
	table, err := Read("../../doc.go")
	if err != nil {
		t.Fatal(err)
	}
	return table
}
