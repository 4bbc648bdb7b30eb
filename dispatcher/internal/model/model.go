// Package model is the state machine of an outbox row as the documentation of package dispatcher shows
// it: tests read the table there, explore every state that it can reach, and compare the real store
// with it. So neither the documentation nor the store can drift.
package model

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Table is the state machine: what a verb does to a row.
type Table []Transition

// Transition is a line of the table.
type Transition struct {
	From, Verb string
	// Guard are the conditions that must all hold.
	Guard []string
	To    string
	// Attempts is +1, -1, same or 0, and Lease is new or same.
	Attempts, Lease string
}

// Row is what a transition looks at and changes.
type Row struct {
	// Status is pending, processing, delivered, dead, withdrawn or expired.
	Status   string
	Attempts int
	// Lease is the number of the last claim; 0 before the first.
	Lease int
	// Holder is the worker that has the lease, from 1; 0 is none. Over means that the lease has expired.
	Holder int
	Over   bool
	// Due means that next_attempt_at has come.
	Due bool
	// Begun means that its delivery was begun as a suspect as often as it may be.
	Begun bool
	// Late means that the time in which the event is worth sending is over.
	Late bool
}

// Call is a call of the store.
type Call struct {
	// Verb is claim, begin, ack, copy, nack, extend, release, replay or withdraw.
	Verb string
	// Worker makes the call, and Lease is the number of the lease that it was given.
	Worker, Lease int
	// Final is a nack with a reason to be dead, Delayed a release after which the row waits.
	Final, Delayed bool
}

// guards are the conditions that a table may name.
var guards = map[string]func(r Row, c Call, maxAttempts int) bool{
	"due":            func(r Row, _ Call, _ int) bool { return r.Due },
	"lease over":     func(r Row, _ Call, _ int) bool { return r.Over },
	"time over":      func(r Row, _ Call, _ int) bool { return r.Late },
	"begun < 4":      func(r Row, _ Call, _ int) bool { return !r.Begun },
	"begun = 4":      func(r Row, _ Call, _ int) bool { return r.Begun },
	"attempts < max": func(r Row, _ Call, maxAttempts int) bool { return r.Attempts < maxAttempts },
	"attempts = max": func(r Row, _ Call, maxAttempts int) bool { return r.Attempts >= maxAttempts },
	"own lease":      func(r Row, c Call, _ int) bool { return r.Holder == c.Worker && r.Lease == c.Lease },
	"retry":          func(_ Row, c Call, _ int) bool { return !c.Final },
	"final":          func(_ Row, c Call, _ int) bool { return c.Final },
	"by a person":    func(Row, Call, int) bool { return true },
	"never claimed":  func(r Row, _ Call, _ int) bool { return r.Lease == 0 && r.Attempts == 0 },
}

// Read finds the table in a Go file: the lines of a comment from its head to the next empty one.
// It fails when the file has no such table, or a line of it is malformed.
func Read(file string) (Table, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var table Table
	inside := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "//"))
		if columns := split(line); inside && len(columns) == 6 {
			t := Transition{columns[0], columns[1], strings.Split(columns[2], ", "), columns[3], columns[4], columns[5]}
			for _, guard := range t.Guard {
				if guards[guard] == nil {
					return nil, fmt.Errorf("%s: the guard %q of %q is unknown", file, guard, line)
				}
			}
			table = append(table, t)
		} else if inside && line != "" {
			return nil, fmt.Errorf("%s: %q has %d columns, not 6; two spaces part them", file, line, len(columns))
		} else {
			inside = slices.Equal(columns, []string{"from", "verb", "guard", "to", "attempts", "lease"})
		}
	}
	if len(table) == 0 {
		return nil, fmt.Errorf("%s has no table of transitions", file)
	}
	return table, nil
}

// split parts a line where there are two spaces or more.
func split(line string) (columns []string) {
	for part := range strings.SplitSeq(line, "  ") {
		if part = strings.TrimSpace(part); part != "" {
			columns = append(columns, part)
		}
	}
	return columns
}

// Step is what a call does to a row. Without a transition for it, nothing changes.
func (t Table) Step(r Row, c Call, maxAttempts int) (next Row, changed bool) {
	i := t.Line(r, c, maxAttempts)
	if i < 0 {
		return r, false
	}
	line := t[i]
	next = Row{Status: line.To, Attempts: r.Attempts, Lease: r.Lease, Due: r.Due}
	next.Late = r.Late && (line.To == "pending" || line.To == "processing")
	switch line.Attempts {
	case "+1":
		next.Attempts++
	case "-1":
		next.Attempts--
	case "0":
		next.Attempts = 0
	}
	switch line.Lease {
	case "new":
		next.Lease++
	case "0":
		next.Lease = 0
	}
	switch {
	case line.To == "processing" && c.Verb == "claim":
		next.Holder = c.Worker
	case line.To == "processing":
		next.Holder, next.Begun = r.Holder, r.Begun || c.Verb == "begin"
		next.Over = r.Over && c.Verb != "extend"
	case line.To == "pending" && (c.Verb == "nack" || c.Delayed):
		next.Due = false
	}
	return next, true
}

// Line is the index of the transition that a call makes, -1 for none.
func (t Table) Line(r Row, c Call, maxAttempts int) int {
	return slices.IndexFunc(t, func(line Transition) bool {
		fails := func(guard string) bool { return !guards[guard](r, c, maxAttempts) }
		return line.From == r.Status && line.Verb == c.Verb && !slices.ContainsFunc(line.Guard, fails)
	})
}
