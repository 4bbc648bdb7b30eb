package model

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// CONTRACT: C-17, C-19, C-20, C-21, C-22, C-23, C-24, C-26, C-27, C-50
func TestEveryStateKeepsTheRules(t *testing.T) {
	table := read(t)
	for _, test := range []struct {
		name string
		game
	}{
		{"OneRow", game{table: table, rows: 1, maxAttempts: 3, maxClaims: 4}},
		{"Expires", game{table: table, rows: 1, maxAttempts: 2, maxClaims: 3, expires: true}},
		{"Copies", game{table: table, rows: 1, maxAttempts: 2, maxClaims: 3, copies: true}},
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
	late := func(table Table) game {
		return game{table: table, rows: 1, maxAttempts: 2, maxClaims: 3, expires: true}
	}
	copying := func(table Table) game {
		return game{table: table, rows: 1, maxAttempts: 2, maxClaims: 3, copies: true}
	}
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
		{"claim without a token", one(with(slices.DeleteFunc(without("pending", "claim", "due, attempts < max"), func(t Transition) bool { return t.Verb == "withdraw" }), "pending", "claim", "due, attempts < max", "processing", "+1", "same")), "delivered twice under"},
		{"replay begins again at the first token", one(with(without("dead", "replay", "by a person"), "dead", "replay", "by a person", "pending", "0", "0")), "falls from"},
		{"no second claim", one(without("processing", "claim", "lease over, begun < 4")), "for ever"},
		{"no burial", one(without("processing", "claim", "lease over, begun = 4")), "for ever"},
		{"delivered is not final", one(with(read(t), "delivered", "claim", "attempts < max", "processing", "+1", "new")), "leaves delivered"},
		{"dead is retried", one(with(read(t), "dead", "claim", "attempts < max", "processing", "+1", "new")), "leaves dead"},
		{"a withdrawal of what was claimed", one(with(read(t), "pending", "withdraw", "due", "withdrawn", "same", "same")), "withdrawn, and was delivered"},
		{"a withdrawal of what is leased", one(with(read(t), "processing", "withdraw", "due", "withdrawn", "same", "same")), "withdrawn, and was delivered"},
		{"withdrawn is claimed", one(with(read(t), "withdrawn", "claim", "attempts < max", "processing", "+1", "new")), "leaves withdrawn"},
		{"expired is claimed", late(with(read(t), "expired", "claim", "attempts < max", "processing", "+1", "new")), "leaves expired"},
		{"a claim of what is late", late(without("pending", "claim", "due, time over")), "its time was over"},
		{"a copy by anybody", copying(with(read(t), "processing", "copy", "due", "delivered", "same", "same")), "copies row 0, and no longer holds it"},
		{"a copy without an ack", copying(with(without("processing", "copy", "own lease"), "processing", "copy", "own lease", "processing", "same", "same")), "is copied twice"},
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

const (
	workers = 2
	most    = 4 // claims of a row in any exploration
)

// phase is how far a worker has come with a lease that it was given.
type phase byte

const (
	gone      phase = iota // never had, or its outcome is written, or the worker forgot it
	queued                 // not begun
	sending                // the destination may or may not have it
	acking                 // an outcome is sent to the store, perhaps more than once
	nacking                //
	failing                //
	releasing              // due as before, or to wait
)

// row is what the store holds, in small.
type row struct {
	status, attempts, lease, holder byte
	over, due, begun, late          bool
}

// world is a state: what the store holds, and what the workers believe and have under way. A worker
// that is slow, stopped or cut off acts on its beliefs later, or never; so a state in which they are
// out of date is nothing special.
type world struct {
	rows   [2]row
	leases [2][workers][most + 1]phase // by row, worker, lease number
	// begun are the lease numbers that were published, as bits. confirmed is what the destination has,
	// becameDead what was dead at some time.
	begun                 [2]byte
	confirmed, becameDead [2]bool
	replayed              bool
}

var statuses = []string{"pending", "processing", "delivered", "dead", "withdrawn", "expired"}

// game is what is explored.
type game struct {
	table       Table
	results     map[callIn]result
	rows        int
	maxAttempts int
	maxClaims   byte // of a row, at most; what would need more is not explored
	// ordered rows are of one key, and are claimed by the prefix rule.
	ordered bool
	expires bool // the time of a row may be over
	copies  bool // the destination is the store: it has a row with the ack
	// Rules of the engine that are broken, to see that the invariants notice.
	loosePrefix bool // a claim takes rows behind one that it cannot have
	beginAny    bool // a worker does not wait for the earlier rows of a key
	keepRest    bool // nor gives the later ones back when one does not succeed
}

// step is a state that follows, and why: what a worker does with a row under a lease, where there are
// such.
type step struct {
	what               string
	worker, row, lease int
	to                 world
}

func (s step) String() string {
	return fmt.Sprintf("%s (worker %d, row %d, lease %d)", s.what, s.worker, s.row, s.lease)
}

// next lists all that can happen in a state. broken is not empty when something must never happen.
func (g game) next(w world) (steps []step, broken string) {
	add := func(s step) { s.to = g.tidy(s.to); steps = append(steps, s) }
	for r := range g.rows {
		if w.rows[r].status == 1 && !w.rows[r].over {
			to := w
			to.rows[r].over = true
			add(step{what: "the lease expires", row: r, to: to})
		}
		if w.rows[r].status == 0 && !w.rows[r].due {
			to := w
			to.rows[r].due = true
			add(step{what: "becomes due", row: r, to: to})
		}
		if w.rows[r].status < 2 && !w.rows[r].late && g.expires {
			to := w
			to.rows[r].late = true
			add(step{what: "its time is over", row: r, to: to})
		}
		if to, ok := g.call(w, r, Call{Verb: "replay"}); ok && !w.replayed && !g.ordered {
			to.replayed = true // what was under way before may still come
			add(step{what: "replay", row: r, to: to})
		}
		if to, ok := g.call(w, r, Call{Verb: "withdraw"}); ok {
			add(step{what: "withdraw", row: r, to: to})
		}
	}
	for worker := range workers {
		g.claims(w, worker, add)
		crashed := w
		for r := range g.rows {
			crashed.leases[r][worker] = world{}.leases[r][worker]
		}
		add(step{what: "crashes, and forgets", worker: worker, to: crashed})
		for r := range g.rows {
			for lease := range most + 1 {
				if what := g.acts(w, r, worker, lease, add); what != "" {
					return nil, what
				}
			}
		}
	}
	return steps, ""
}

// call lets the store do as the table says.
func (g game) call(w world, r int, c Call) (world, bool) {
	now := w.rows[r]
	a, known := g.results[callIn{now, c}]
	if !known {
		after, changed := g.table.Step(Row{statuses[now.status], int(now.attempts), int(now.lease), int(now.holder), now.over, now.due, now.begun, now.late}, c, g.maxAttempts)
		a = result{row{byte(slices.Index(statuses, after.Status)), byte(after.Attempts), byte(after.Lease), byte(after.Holder), after.Over, after.Due, after.Begun, after.Late}, changed}
		g.results[callIn{now, c}] = a
	}
	w.rows[r] = a.row
	w.becameDead[r] = w.becameDead[r] || a.status == 3
	return w, a.changed
}

// callIn and result cache what the table says.
type callIn struct {
	row
	Call
}

type result struct {
	row
	changed bool
}

// outcomes are the calls by which a worker writes an outcome back.
var outcomes = map[phase]Call{acking: {Verb: "ack"}, nacking: {Verb: "nack"}, failing: {Verb: "nack", Final: true}, releasing: {Verb: "release"}}

// tidy makes states equal that differ in nothing that matters: a write-back that the store refuses, of
// a lease that it no longer knows, will never do anything; and with order it does not matter here when
// a row becomes due.
func (g game) tidy(w world) world {
	for r := range g.rows {
		if g.ordered {
			w.rows[r].due = true
		}
		for worker := range workers {
			for lease, p := range w.leases[r][worker] {
				c, writes := outcomes[p]
				c.Worker, c.Lease = worker+1, lease
				if writes && !w.rows[r].heldBy(c) {
					if _, changes := g.call(w, r, c); !changes {
						w.leases[r][worker][lease] = gone
					}
				}
			}
		}
	}
	return w
}

// heldBy reports whether the caller has the lease that the row is under.
func (r row) heldBy(c Call) bool { return int(r.holder) == c.Worker && int(r.lease) == c.Lease }

// claims are the ways in which a worker can claim: each row by itself, and with order a prefix of the
// key's live rows.
func (g game) claims(w world, worker int, add func(step)) {
	to := w
	for r := range g.rows {
		if g.ordered && to.rows[r].status >= 2 { // it is final or dead: it delays no other row
			continue
		}
		from := w
		if g.ordered {
			from = to
		}
		got, ok := g.call(from, r, Call{Verb: "claim", Worker: worker + 1})
		if !ok && g.ordered && !g.loosePrefix {
			return
		} else if !ok {
			continue
		}
		lease := got.rows[r].lease
		if lease > g.maxClaims {
			return
		}
		if got.rows[r].status == 1 {
			got.leases[r][worker][lease] = queued
		}
		add(step{"claim, up to this row", worker, r, int(lease), got})
		if to = got; g.ordered && got.rows[r].status == 3 {
			return // the later ones are for the next claim
		}
	}
}

// acts are what a worker can do with a lease, on time or late. It is not empty when an invariant
// breaks on the way.
func (g game) acts(w world, r, worker, lease int, add func(step)) (broken string) {
	set := func(p phase) world { to := w; to.leases[r][worker][lease] = p; return to }
	next := func(to world, what string) { add(step{what, worker, r, lease, to}) }

	p := w.leases[r][worker][lease]
	if p == queued || p == sending {
		if to, ok := g.call(w, r, Call{Verb: "extend", Worker: worker + 1, Lease: lease}); ok {
			next(to, "extend")
		} else {
			next(g.releaseRest(set(gone), r, worker), "lost, and now known")
		}
	}
	switch p {
	case queued:
		next(g.releaseRest(set(releasing), r, worker), "gives back")
		if g.ordered && !g.beginAny && r > 0 && g.busy(w, r-1, worker) {
			break
		}
		if w.begun[r]&(1<<lease) != 0 {
			return fmt.Sprintf("row %d is delivered twice under the fencing token %d", r, lease)
		}
		to := set(sending)
		to.begun[r] |= 1 << lease
		next(to, "begins")
		if to, ok := g.call(to, r, Call{Verb: "begin", Worker: worker + 1, Lease: lease}); ok && !g.ordered {
			next(to, "begins, for the last time as a suspect")
		}
	case sending:
		if g.ordered && r > 0 && !w.confirmed[r-1] && !w.becameDead[r-1] && w.rows[r-1].status != 4 {
			return fmt.Sprintf("row %d arrives before row %d", r, r-1)
		}
		arrived, what := g.arrives(set(acking), r, Call{Verb: "copy", Worker: worker + 1, Lease: lease})
		if what != "" {
			return what
		}
		next(arrived, "delivers")
		failed := nacking
		if int(w.rows[r].attempts) >= g.maxAttempts {
			failed = failing
		}
		for _, to := range []world{w, arrived} { // the destination may have it all the same
			to.leases[r][worker][lease] = failed
			next(g.releaseRest(to, r, worker), "fails")
			to.leases[r][worker][lease] = releasing
			next(g.releaseRest(to, r, worker), "fails, and the fault is the destination's")
		}
		final := set(failing)
		next(g.releaseRest(final, r, worker), "refused for good")
	case acking, nacking, failing, releasing:
		c := outcomes[p]
		c.Worker, c.Lease = worker+1, lease
		for _, delayed := range []bool{false, true} {
			if c.Delayed = delayed; delayed && p != releasing {
				break
			}
			to, changed := g.call(w, r, c)
			if changed && !w.rows[r].heldBy(c) {
				return fmt.Sprintf("worker %d writes back %s of row %d, lease %d, and no longer holds it", worker, c.Verb, r, lease)
			}
			next(to, c.Verb+", and the response is lost") // and so it tries again
			to.leases[r][worker][lease] = gone
			next(to, c.Verb)
		}
	}
	return ""
}

// arrives lets the destination have a row, or the store copy it.
func (g game) arrives(w world, r int, c Call) (to world, broken string) {
	to, changed := w, true
	if g.copies {
		to, changed = g.call(w, r, c)
	}
	switch {
	case g.copies && changed && !w.rows[r].heldBy(c):
		return to, fmt.Sprintf("worker %d copies row %d, and no longer holds it", c.Worker, r)
	case g.copies && changed && w.confirmed[r]:
		return to, fmt.Sprintf("row %d is copied twice", r)
	}
	to.confirmed[r] = to.confirmed[r] || changed
	return to, ""
}

// busy reports whether a worker has an earlier row of the key in its hands.
func (g game) busy(w world, r, worker int) bool {
	return slices.ContainsFunc(w.leases[r][worker][:], func(p phase) bool { return p == queued || p == sending })
}

// releaseRest gives the queued later rows of a key back, when an earlier one did not succeed.
func (g game) releaseRest(w world, r, worker int) world {
	for later := r + 1; g.ordered && !g.keepRest && later < g.rows; later++ {
		for lease, p := range w.leases[later][worker] {
			if p == queued {
				w.leases[later][worker][lease] = releasing
			}
		}
	}
	return w
}

// explore visits every state, and returns how many there are, and what is broken with the way there.
func (g game) explore() (states int, broken string) {
	g.results = map[callIn]result{}
	var start world
	for r := range g.rows {
		start.rows[r].due = true
	}
	number := map[world]int32{start: 0}
	all, reached := []world{start}, []step{{}} // each state, and the step that came there first
	came := []int32{0}                         // from which state
	before := [][]int32{nil}                   // the states from which a step leads here
	way := func(i int32) (text string) {
		for ; i != 0; i = came[i] {
			text = "\n  " + reached[i].String() + text
		}
		return text
	}
	for i := int32(0); int(i) < len(all); i++ {
		steps, what := g.next(all[i])
		if what != "" {
			return len(all), what + way(i)
		}
		for _, s := range steps {
			if what := g.check(all[i], s.to); what != "" {
				return len(all), what + way(i) + "\n  " + s.String()
			}
			j, known := number[s.to]
			if !known {
				j = int32(len(all))
				number[s.to] = j
				all, before, came = append(all, s.to), append(before, nil), append(came, i)
				s.to = world{}
				reached = append(reached, s)
			}
			before[j] = append(before[j], i)
		}
	}
	if i := g.lost(all, before); i >= 0 {
		return len(all), "a row is neither delivered nor dead for ever" + way(i)
	}
	return len(all), ""
}

// lost finds a state from which there is no way to one where every row is delivered or dead, or to the end
// of what is explored; -1 for none.
func (g game) lost(all []world, before [][]int32) int32 {
	fine := make([]bool, len(all))
	var queue []int32
	for i, w := range all {
		if fine[i] = g.done(w); fine[i] {
			queue = append(queue, int32(i))
		}
	}
	for len(queue) > 0 {
		i := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, b := range before[i] {
			if !fine[b] {
				fine[b] = true
				queue = append(queue, b)
			}
		}
	}
	return int32(slices.Index(fine, false))
}

// done reports whether every row is delivered or dead, or one of the others has had all its claims.
func (g game) done(w world) bool {
	live := false
	for _, r := range w.rows[:g.rows] {
		if r.status < 2 && r.lease == g.maxClaims {
			return true
		}
		live = live || r.status < 2
	}
	return !live
}

// check compares a state with the one before.
func (g game) check(was, is world) string {
	for r := range g.rows {
		a, b := was.rows[r], is.rows[r]
		switch {
		case int(b.attempts) > g.maxAttempts:
			return fmt.Sprintf("row %d has %d attempts, more than %d", r, b.attempts, g.maxAttempts)
		case a.status == 2 && b.status != 2:
			return fmt.Sprintf("row %d leaves delivered", r)
		case a.status == 3 && b.status != 3 && was.replayed == is.replayed:
			return fmt.Sprintf("row %d leaves dead, and it was not replayed", r)
		case a.status == 4 && b.status != 4:
			return fmt.Sprintf("row %d leaves withdrawn", r)
		case a.status == 5 && b.status != 5:
			return fmt.Sprintf("row %d leaves expired", r)
		case a.late && a.lease < b.lease:
			return fmt.Sprintf("row %d is claimed, and its time was over", r)
		case b.status == 4 && is.begun[r] != 0:
			return fmt.Sprintf("row %d is withdrawn, and was delivered", r)
		case b.status == 2 && !is.confirmed[r]:
			return fmt.Sprintf("row %d is marked delivered, and no worker has it", r)
		case b.status == 1 && b.holder == 0, b.status != 1 && b.holder != 0:
			return fmt.Sprintf("row %d is %s and held by %d", r, statuses[b.status], b.holder)
		case a.status == 1 && b.status == 1 && a.holder != b.holder && !a.over:
			return fmt.Sprintf("row %d changes hands before its lease is over", r)
		case b.lease < a.lease:
			return fmt.Sprintf("the token of row %d falls from %d to %d", r, a.lease, b.lease)
		}
	}
	return ""
}
