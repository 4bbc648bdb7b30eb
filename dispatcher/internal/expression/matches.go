package expression

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"

	regex "github.com/outbox-operator/outbox-operator/dispatcher/internal/pattern"
)

const (
	// MaxPattern is the most bytes of a regular expression that is not written out in the expression.
	MaxPattern = 1000
	// MaxStates is the most states of the regular expressions that are written out in one expression, and of one
	// that is not. Each character is one, and a{1000} is a thousand.
	MaxStates = 10_000
)

// pattern is a compiled regular expression. It takes time by the length of the text times its states.
type pattern struct {
	*regexp.Regexp
	states int
}

var errStates = fmt.Errorf("a regular expression has too many states: %d at most, where each repetition of a character counts; use smaller repetitions, or size()", MaxStates)

// compilePattern compiles a regular expression whose states are bounded.
func compilePattern(text string, most int) (*pattern, error) {
	if size, err := regex.Size(text); err != nil {
		return nil, err
	} else if size > most {
		return nil, errStates
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	return &pattern{re, len(program.Inst)}, nil
}

// matches runs a regular expression, which is compiled once when it is a constant.
func (x *Expression) matches(n interpreter.InterpretableCall) (func(*meter, []ref.Val) ref.Val, error) {
	node := n.ID()
	var fixed *pattern
	if constant, ok := n.Args()[1].(interpreter.InterpretableConst); ok {
		if text, ok := constant.Value().(types.String); ok {
			var err error
			if fixed, err = compilePattern(string(text), MaxStates-x.states); err != nil {
				return nil, x.placed(node, fmt.Errorf("%w; correct the regular expression", err))
			}
			x.states += fixed.states
		}
	}
	return func(m *meter, args []ref.Val) ref.Val {
		text, ok := args[0].(types.String)
		of, isText := args[1].(types.String)
		if !ok || !isText {
			return types.NewErr("no such overload")
		}
		p := fixed
		if p == nil {
			if len(of) > MaxPattern {
				m.end(node, fmt.Errorf("a regular expression has more than %d bytes; write a shorter one", MaxPattern))
			}
			m.spend(node, 1000*len(of)) // x{1000} is of a thousand states
			var err error
			if p, err = compilePattern(string(of), MaxStates); errors.Is(err, errStates) {
				m.end(node, err)
			} else if err != nil {
				return types.NewErr("a regular expression is wrong")
			}
		}
		m.spend(node, len(text)*(1+p.states/16))
		return types.Bool(p.MatchString(string(text)))
	}, nil
}
