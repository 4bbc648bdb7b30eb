package cli

import (
	"fmt"
	"slices"
	"strings"
)

// typesFile makes an engine deliver events of those types alone that a file lists (CONTRACT C-82).
type typesFile struct {
	watchedFile
	engine interface {
		Admit(func(eventType string) bool)
	}
	last []string // nil before the file was read once
}

// refresh reads the file, and applies a change.
func (f *typesFile) refresh() {
	types, err := readTypes(f.path)
	if !f.note(err) || f.last != nil && slices.Equal(types, f.last) {
		return
	}
	f.last = types
	f.log.Info("events of these types are delivered, and others wait: they have a verified consumer", "types", len(types))
	f.engine.Admit(covering(types))
}

// maxTypes bounds the file: what a ConfigMap can hold.
const maxTypes = 1 << 20

// readTypes returns the event types and beginnings of some that the file lists. It is not nil.
func readTypes(path string) (types []string, err error) {
	text, err := readFile("verifiedTypesFile", path, "write the event types with a verified consumer into it, one a line", maxTypes+1)
	if err != nil {
		return nil, err
	}
	if len(text) > maxTypes {
		return nil, fmt.Errorf("verifiedTypesFile: %s has more than %d bytes; list fewer event types, or the beginnings of some with *", path, maxTypes)
	}
	types = []string{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"); line != "" {
			types = append(types, line)
		}
	}
	return types, nil
}

// covering reports of an event type whether one of the list stands for it: itself, or its beginning with * at the end.
func covering(types []string) func(eventType string) bool {
	exact, beginnings := map[string]bool{}, []string{}
	for _, listed := range types {
		if beginning, some := strings.CutSuffix(listed, "*"); some {
			beginnings = append(beginnings, beginning)
		} else {
			exact[listed] = true
		}
	}
	return func(eventType string) bool {
		return exact[eventType] || slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(eventType, b) })
	}
}
