package pipeline

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// steps are what happens to events of one type; nil for nothing.
type steps struct {
	checks     []*check
	transforms []*transform
	// versions are accepted by checks that have a schema and versions. Where there are some, no other version passes.
	versions []string
}

// selected are the steps by the type of an event.
type selected struct {
	// byType has the checks of the types that are named, byPrefix the others by the longest prefix that the type
	// has, and others those for what is left.
	byType, byPrefix map[string]*steps
	others           *steps
	// lengths of the prefixes, the longest first.
	lengths []int
}

// prefix is what names begin with that an entry of a list is for, if the entry is not one name.
func prefix(entry string) (string, bool) { return strings.CutSuffix(entry, "*") }

// names reports whether a list is for a name: it is empty, or has the name or a prefix of it.
func names(list []string, name string) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(entry string) bool {
		start, ok := prefix(entry)
		return ok && strings.HasPrefix(name, start) || !ok && entry == name
	})
}

// index finds the steps of each type. An event with a prefix has those of all shorter prefixes too, and these are
// prefixes of that one: so the longest decides.
func (p *Pipeline) index() selected {
	all := selected{byType: map[string]*steps{}, byPrefix: map[string]*steps{}}
	var entries []string
	for _, c := range p.checks {
		entries = append(entries, c.types...)
	}
	for _, t := range p.transforms {
		entries = append(entries, t.types...)
	}
	for _, entry := range entries {
		if start, ok := prefix(entry); ok {
			all.byPrefix[start] = p.stepsOf(func(types []string) bool {
				return len(types) == 0 || slices.ContainsFunc(types, func(other string) bool {
					shorter, ok := prefix(other)
					return ok && strings.HasPrefix(start, shorter)
				})
			})
		} else {
			all.byType[entry] = p.stepsOf(func(types []string) bool { return names(types, entry) })
		}
	}
	all.others = p.stepsOf(func(types []string) bool { return len(types) == 0 })
	lengths := map[int]bool{}
	for start := range all.byPrefix {
		lengths[len(start)] = true
	}
	all.lengths = slices.SortedFunc(maps.Keys(lengths), func(a, b int) int { return b - a })
	return all
}

func (p *Pipeline) stepsOf(concerns func(types []string) bool) *steps {
	s := &steps{}
	for _, c := range p.checks {
		if concerns(c.types) {
			s.checks = append(s.checks, c)
			if c.schema != nil {
				s.versions = append(s.versions, c.versions...)
			}
		}
	}
	for _, t := range p.transforms {
		if concerns(t.types) {
			s.transforms = append(s.transforms, t)
		}
	}
	if len(s.checks)+len(s.transforms) == 0 {
		return nil
	}
	return s
}

// steps are those for the event.
func (s *selected) steps(e *dispatcher.Event) *steps {
	if found, ok := s.byType[e.EventType]; ok {
		return found
	}
	for _, n := range s.lengths {
		if n <= len(e.EventType) {
			if found, ok := s.byPrefix[e.EventType[:n]]; ok {
				return found
			}
		}
	}
	return s.others
}

// firstVersion is the version of events that have none.
const firstVersion = "1.0.0"

// versionOf is the version of the event, by which schemas are chosen.
func versionOf(e *dispatcher.Event) string {
	for _, name := range []string{"event_version", "schema_version"} {
		if version := e.Headers[name]; version != "" {
			return version
		}
	}
	return firstVersion
}

// checksOf are the checks for the event's version. Where checks of its type have a schema and versions, a version that none of
// these names is refused, also where another check has a schema for all versions.
func (s *steps) checksOf(e *dispatcher.Event) ([]*check, error) {
	if s == nil {
		return nil, nil
	}
	every := func(c *check) bool { return len(c.versions) == 0 }
	if !slices.ContainsFunc(s.checks, func(c *check) bool { return !every(c) }) {
		return s.checks, nil
	}
	version := versionOf(e)
	if len(s.versions) > 0 && !names(s.versions, version) {
		at := s.checks[slices.IndexFunc(s.checks, func(c *check) bool { return !every(c) && c.schema != nil })].field
		what := fmt.Sprintf("the event's version is none that has a schema (%s)", clip(strings.Join(s.versions, ", ")))
		cause := dispatcher.Cause{Class: dispatcher.ClassSchema, Code: "version"}
		return nil, failed(cause, dispatcher.Permanent(dispatcher.ReasonSchemaValidationFailed,
			fmt.Errorf("%s.versions: %s; add an entry for its header event_version", at, what)), Finding{Field: at + ".versions", What: what})
	}
	return slices.DeleteFunc(slices.Clone(s.checks), func(c *check) bool { return !names(c.versions, version) }), nil
}

// concerned says which events a check is for.
func (c *check) concerned() string {
	if len(c.versions) == 0 {
		return named("type", c.types)
	}
	return named("type", c.types) + ", version " + clip(strings.Join(c.versions, ", "))
}
