package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/outbox-operator/outbox-operator/hack/testing/commands"
)

func TestCommandsAndFlagsAreOnAPage(t *testing.T) {
	commands.Check(t, rootCommand("dev"), "../../..", "dispatcher/README.md")
}

// The last line is one line of at most 1,000 bytes, whatever the error says.
//
// CONTRACT: C-101
func TestReasonIsOneBoundedLine(t *testing.T) {
	long := strings.Repeat("é", 3000)
	many := make([]error, 64)
	for i := range many {
		many[i] = fmt.Errorf("%s: line 1,\tcolumn 2: a sentence of some length that says what is wrong%s", "routes[0].to", "\n\n")
	}
	for name, c := range map[string]struct {
		err        error
		begin, end string
	}{
		"short":      {errors.New(strings.Join([]string{"a", "  b ", ""}, "\n")), "a; b", "a; b"},
		"one long":   {errors.New(long), "é", "é…"},
		"many":       {errors.Join(many...), "routes[0].to: line 1, column 2: a sentence", "more)"},
		"long first": {errors.Join(errors.New(long), errors.New("b")), "é", "… (and 1 more)"},
		"long later": {errors.Join(errors.New("a"), errors.New(long), errors.New("c")), "a (and 2 more)", "a (and 2 more)"},
	} {
		got := brief(c.err)
		if len(got) > maxReason || strings.ContainsAny(got, "\n\t") || !utf8.ValidString(got) || !strings.HasPrefix(got, c.begin) || !strings.HasSuffix(got, c.end) {
			t.Errorf("%s: %d bytes: %s", name, len(got), got)
		}
	}
}
