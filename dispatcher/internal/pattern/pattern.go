// Package pattern measures regular expressions before they are compiled: a compiled one can take a hundred
// thousand times the memory of its text.
package pattern

import (
	"fmt"
	"regexp/syntax"
)

// MaxLength is the most bytes of a regular expression's text.
const MaxLength = 8192

// most is where counting ends.
const most = 1 << 30

// Size is about how many states a regular expression has when it is compiled. One takes about 100 bytes. The
// error says what is wrong with the text.
func Size(text string) (int, error) {
	if len(text) > MaxLength {
		return 0, fmt.Errorf("a regular expression has %d bytes; shorten it to %d", len(text), MaxLength)
	}
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return 0, err
	}
	states, runes := measure(re)
	return min(states+runes/10, most), nil
}

// measure counts the states, of which repetitions make copies, and the bounds of classes, of which they do not.
func measure(re *syntax.Regexp) (states, runes int) {
	for _, sub := range re.Sub {
		s, r := measure(sub)
		states, runes = min(states+s, most), min(runes+r, most)
	}
	switch re.Op {
	case syntax.OpLiteral:
		states += len(re.Rune)
	case syntax.OpCharClass:
		runes += len(re.Rune)
	case syntax.OpRepeat:
		switch {
		case re.Max < 0: // without an end
			states *= re.Min + 1
		case re.Max > re.Min:
			states = (states + 1) * re.Max
		default:
			states *= re.Max
		}
	}
	return min(states+1, most), runes
}
