package pattern

import (
	"regexp/syntax"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// The size is about that of the program, before it is made.
//
// CONTRACT: C-35
func TestSizeOfAPatternIsKnownBeforeItIsMade(t *testing.T) {
	for _, text := range []string{
		"", "a", "^[0-9a-f]{8}-[0-9a-f]{4}$", "(a|b)*c+?", `^\p{L}{1,100}$`, "(" + strings.Repeat("a", 300) + "){1000}",
		"((a{10}){10}){10}", "a{3,}", "a{0,7}", "(?i)straße", "(?:)", "a{0}", strings.Repeat("[a-z]", 1000), strings.Repeat("(a?){30}", 30),
	} {
		got, err := Size(text)
		need.Must(t, err == nil, "%.20s: %v", text, err)
		parsed, err := syntax.Parse(text, syntax.Perl)
		need.OK(t, err)
		program, err := syntax.Compile(parsed.Simplify())
		need.OK(t, err)
		if states := len(program.Inst); got < states/3 || got > 3*states+200 {
			t.Errorf("%.20s: %d, and the program has %d", text, got, states)
		}
	}
	for _, text := range []string{"(", "a{2000}", strings.Repeat("a", MaxLength+1)} {
		if _, err := Size(text); err == nil {
			t.Errorf("%.20s has a size", text)
		}
	}
}
