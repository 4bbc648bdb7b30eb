package document

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	yaml3 "go.yaml.in/yaml/v3"

	"github.com/outbox-operator/outbox-operator/api/spec/schema"
)

// step is a name or an index of a path.
var step = regexp.MustCompile(`[^.\[\]]+`)

// field is the path of a problem's field: that of an unknown one is in the message.
func field(p schema.Problem) (path string, unknown bool) {
	if name, ok := strings.CutPrefix(p.Message, "unknown field "); ok && p.Path == "" {
		path, _ = strconv.Unquote(name)
		return path, true
	}
	return p.Path, false
}

// place is the line and the column of a problem, in a document that begins after so many lines: of the field, or of what is
// there of the fields that it is in.
func place(text string, before int, p schema.Problem) string {
	var document yaml3.Node
	if yaml3.Unmarshal([]byte(text), &document) != nil || len(document.Content) == 0 {
		return ""
	}
	path, _ := field(p)
	node, at := document.Content[0], document.Content[0]
	for _, name := range step.FindAllString(path, -1) {
		if node.Kind == yaml3.AliasNode {
			node = node.Alias
		}
		var next *yaml3.Node
		switch i, err := strconv.Atoi(name); {
		case node.Kind == yaml3.SequenceNode && err == nil && i < len(node.Content):
			next = node.Content[i]
			at = next
		case node.Kind == yaml3.MappingNode:
			for k := 0; k+1 < len(node.Content); k += 2 {
				if node.Content[k].Value == name {
					at, next = node.Content[k], node.Content[k+1]
				}
			}
		}
		if next == nil {
			break
		}
		node = next
	}
	return fmt.Sprintf("line %d, column %d: ", before+at.Line, at.Column)
}

// suggestion is what to do about an unknown field.
func suggestion(s *schema.Schema, p schema.Problem) string {
	path, unknown := field(p)
	if !unknown {
		return ""
	}
	names := step.FindAllString(path, -1)
	for _, name := range names[:len(names)-1] {
		if s.Items != nil {
			s = s.Items
		} else if s = s.Properties[name]; s == nil {
			return ""
		}
	}
	return "; " + correction(names[len(names)-1], slices.Sorted(maps.Keys(s.Properties)))
}

// correction is what to do about a name that no field has.
func correction(name string, known []string) string {
	nearest, least := "", 3
	for _, other := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(other)); d < least {
			nearest, least = other, d
		}
	}
	if nearest == "" {
		return "correct its name, or remove it"
	}
	return "did you mean " + nearest + "?"
}

// distance is how many characters differ between two names: those to add, to remove and to replace.
func distance(a, b string) int {
	before := make([]int, len(b)+1)
	for j := range before {
		before[j] = j
	}
	for i := range len(a) {
		now := []int{i + 1}
		for j := range len(b) {
			replaced := before[j]
			if a[i] != b[j] {
				replaced++
			}
			now = append(now, min(replaced, before[j+1]+1, now[j]+1))
		}
		before = now
	}
	return before[len(b)]
}
