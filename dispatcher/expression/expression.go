package expression

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// MaxLength is the most characters of an expression.
const MaxLength = 4096

// Expression is a compiled expression. It is safe for concurrent use.
type Expression struct {
	text    string
	ast     *cel.Ast
	program cel.Program
}

// String compiles an expression over event that makes a string: a route.
func String(text string) (*Expression, error) {
	return compile(text, eventEnvironment, "string", cel.StringType)
}

// Bool compiles an expression over event and payload that makes a bool: a rule.
func Bool(text string) (*Expression, error) {
	return compile(text, payloadEnvironment, "bool", cel.BoolType)
}

// JSON compiles an expression over event and payload that makes a map: a transformation.
func JSON(text string) (*Expression, error) {
	return compile(text, payloadEnvironment, "map", cel.MapType(cel.StringType, cel.DynType))
}

// compile makes an expression whose outcome has the type, or dyn, and then is looked at when it is there.
func compile(text string, environment func() (*cel.Env, error), word string, want *cel.Type) (*Expression, error) {
	if n := utf8.RuneCountInString(text); n > MaxLength {
		return nil, fmt.Errorf("it has %d characters; shorten it to %d", n, MaxLength)
	}
	env, err := environment()
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(text)
	if err := issues.Err(); err != nil {
		return nil, located(issues)
	}
	if got := ast.OutputType(); got.Kind() != types.DynKind && !want.IsAssignableType(got) {
		return nil, fmt.Errorf("it makes a %s; write one that makes a %s", got, word)
	}
	if cost, err := env.EstimateCost(ast, sizes{}); err != nil {
		return nil, err
	} else if cost.Max > estimateLimit {
		return nil, fmt.Errorf("it may cost more than %d units when lists have 100 entries; write it with fewer loops inside loops", estimateLimit)
	}
	options := []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize)}
	if loops(ast) {
		options = append(options, cel.CostTracking(costs{}), cel.CostLimit(CostLimit))
	}
	program, err := env.Program(ast, options...)
	if err != nil {
		return nil, err
	}
	return &Expression{text: text, ast: ast, program: program}, nil
}

// located is what the compiler complains about, in one line.
func located(issues *cel.Issues) error {
	var all []string
	for _, e := range issues.Errors() {
		message := strings.ReplaceAll(strings.Join(strings.Fields(e.Message), " "), " (in container '')", "")
		message, _, _ = strings.Cut(message, " expecting ") // a list of all there is
		all = append(all, fmt.Sprintf("line %d, column %d: %s", e.Location.Line(), max(e.Location.Column()+1, 1), message))
	}
	return errors.New(strings.Join(all, "; "))
}

// Text is the expression as it was written.
func (x *Expression) Text() string { return x.text }

// String runs the expression. An error says why it cannot be computed for the event, and holds nothing
// of the event.
func (x *Expression) String(e *dispatcher.Event) (string, error) {
	value, err := x.run(&variables{event: e})
	if err != nil {
		return "", err
	}
	s, ok := value.(types.String)
	if !ok {
		return "", fmt.Errorf("it makes a %s, not a string", value.Type().TypeName())
	}
	return string(s), nil
}

// Bool runs the expression. The payload is what [Decode] made of it. Errors are as those of
// [Expression.String].
func (x *Expression) Bool(e *dispatcher.Event, payload any) (bool, error) {
	value, err := x.run(&variables{event: e, payload: payload})
	if err != nil {
		return false, err
	}
	b, ok := value.(types.Bool)
	if !ok {
		return false, fmt.Errorf("it makes a %s, not a bool", value.Type().TypeName())
	}
	return bool(b), nil
}

// JSON runs the expression and returns an object, made of what [Decode] makes. It shares parts with the
// payload, which stays as it is. Errors are as those of [Expression.String].
func (x *Expression) JSON(e *dispatcher.Event, payload any) (map[string]any, error) {
	value, err := x.run(&variables{event: e, payload: payload})
	if err != nil {
		return nil, err
	}
	made, err := plain(value)
	if err != nil {
		return nil, err
	}
	object, ok := made.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("it makes a %s, not a map", value.Type().TypeName())
	}
	return object, nil
}

func (x *Expression) run(v *variables) (ref.Val, error) {
	value, _, err := x.program.Eval(v)
	if err != nil {
		return nil, x.failure(err)
	}
	return value, nil
}

// phrases are what is told of a failure, by how CEL's own words begin. Those may go on with a value.
var phrases = []struct{ celSays, phrase string }{
	{"no such key", "it asks for a key that is not there; has() tells whether it is"},
	{"no such attribute", "it asks for a key that is not there; has() tells whether it is"},
	{"no such overload", "a value is of a type that is not expected there"},
	{"unsupported conversion", "a value is of a type that is not expected there"},
	{"type conversion error", "a value cannot be converted"},
	{"index", "it asks for an element or a character that is not there; size() tells how many there are"},
	{"division by zero", "it divides by zero"},
	{"modulus by zero", "it divides by zero"},
	{"operation cancelled", "it costs too much for what the event holds"},
}

// failure is why an evaluation failed, where, and nothing of the event.
func (x *Expression) failure(err error) error {
	phrase := "a function does not take what it is given"
	for _, p := range phrases {
		if strings.HasPrefix(err.Error(), p.celSays) {
			phrase = p.phrase
			break
		}
	}
	var at interface{ NodeID() int64 }
	if errors.As(err, &at) && at.NodeID() != 0 {
		if place := x.ast.NativeRep().SourceInfo().GetStartLocation(at.NodeID()); place.Line() > 0 {
			return fmt.Errorf("line %d, column %d: %s", place.Line(), place.Column()+1, phrase)
		}
	}
	return errors.New(phrase)
}
