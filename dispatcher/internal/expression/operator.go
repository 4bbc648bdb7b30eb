package expression

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"

	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"

	regex "github.com/outbox-operator/outbox-operator/dispatcher/internal/pattern"
)

// equal is ==. Numbers of different types are equal when they are the same number.
func equal(m *meter, node int64, a, b ref.Val) types.Bool {
	if order, ok := compareNumbers(a, b); ok {
		return order == types.IntZero
	}
	switch {
	case length(a) == 0 || length(b) == 0: // at once
	case length(a) <= length(b):
		m.compared(node, a)
	default:
		m.compared(node, b)
	}
	return types.Equal(a, b) == types.True
}

// ordered is <, <=, > and >=.
func ordered(m *meter, node int64, operator string, a, b ref.Val) ref.Val {
	order, ok := compareNumbers(a, b)
	if !ok {
		m.spend(node, min(length(a), length(b))/8)
		comparer, ok := a.(traits.Comparer)
		if !ok {
			return types.NewErr("no such overload")
		}
		order = comparer.Compare(b)
	}
	i, ok := order.(types.Int)
	switch {
	case !ok:
		return order
	case operator == operators.Less:
		return types.Bool(i < 0)
	case operator == operators.LessEquals:
		return types.Bool(i <= 0)
	case operator == operators.Greater:
		return types.Bool(i > 0)
	default:
		return types.Bool(i >= 0)
	}
}

// contained is in.
func contained(m *meter, node int64, element, in ref.Val) ref.Val {
	if elements, ok := in.(traits.Lister); ok {
		m.spend(node, length(in))
		if _, isNumber := number(element); isNumber {
			return hasNumber(elements, element)
		}
		if length(element) > 0 {
			m.compared(node, in)
		}
	}
	container, ok := in.(traits.Container)
	if !ok {
		return types.NewErr("no such overload")
	}
	return container.Contains(element)
}

// hasNumber is in for a number. CEL's own numbers know no long, which the list may hold.
func hasNumber(list traits.Lister, n ref.Val) types.Bool {
	for it := list.Iterator(); it.HasNext() == types.True; {
		if order, ok := compareNumbers(n, it.Next()); ok && order == types.IntZero {
			return true
		}
	}
	return false
}

// added is + for what is not a number.
func added(m *meter, node int64, a, b ref.Val) ref.Val {
	right, isList := b.(traits.Lister)
	if !isList {
		m.text(node, length(a)+length(b))
		m.take(node, length(a)+length(b))
		return celArithmetic(operators.Add, a, b)
	}
	if _, mutable := a.(traits.MutableLister); mutable { // a loop's own list, which grows in place
		for it := right.Iterator(); it.HasNext() == types.True; {
			m.inList(node, it.Next())
		}
	} else { // a view of both, whatever it holds
		m.spend(node, length(a)+length(b))
		m.take(node, valueBytes)
	}
	return celArithmetic(operators.Add, a, b)
}

// length is the number of bytes of a text, of members or of elements, and 0 for all else.
func length(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return len(v)
	case types.Bytes:
		return len(v)
	case traits.Sizer:
		if n, ok := v.Size().(types.Int); ok {
			return int(n)
		}
	}
	return 0
}

// before counts what a function is going to do with its arguments, and what it is going to make when that
// may be more than they are.
func (m *meter) before(node int64, function string, args []ref.Val) {
	for _, arg := range args {
		switch arg.(type) {
		case types.String, types.Bytes:
			m.text(node, length(arg))
		}
	}
	text := func(i int) string {
		if i < len(args) {
			s, _ := args[i].(types.String)
			return string(s)
		}
		return ""
	}
	switch function {
	case "replace":
		if n := strings.Count(text(0), text(1)); len(text(2)) > len(text(1)) {
			m.make(node, n, len(text(2))-len(text(1)))
		}
	case "indexOf", "lastIndexOf":
		m.spend(node, len(text(0))*len(text(1))/16)
	case "split":
		m.make(node, 1+strings.Count(text(0), text(1)), scalarBytes)
	case "join":
		m.make(node, length(args[0]), len(text(1))+2*scalarBytes)
		m.make(node, 1, m.walk(node, args[0]))
	case "format": // 450 is more than any number takes
		m.make(node, strings.Count(text(0), "%"), 450)
		m.make(node, 4, m.walk(node, args[1]))
	case "strings.quote":
		m.make(node, 8, len(text(0))) // it is put together a character at a time
	case "getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getHours", "getMinutes", "getSeconds", "getMilliseconds":
		if len(args) == 2 { // cel-go reads and decodes the time zone at each call
			m.spend(node, 200)
		}
	}
}

// make counts n parts of a size that are going to be made.
func (m *meter) make(node int64, n, size int) {
	if size > 0 && n > int(m.memory)/size {
		m.take(node, int(m.memory)+1)
	}
	m.take(node, n*size)
	m.spend(node, n+n*size/8)
}

// after counts what a function made.
func (m *meter) after(node int64, made ref.Val) ref.Val {
	switch made.(type) {
	case types.String, types.Bytes:
		m.take(node, scalarBytes+length(made))
	}
	return made
}

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
