package expression

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
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
	states  int // of the regular expressions that are written out
}

// String compiles an expression over event that makes a string: a route.
// It fails for an expression that does not compile to that, with line and column.
func String(text string) (*Expression, error) {
	return compile(text, eventEnvironment, "string", cel.StringType)
}

// Bool compiles an expression over event and payload that makes a bool: a rule.
// It fails for an expression that does not compile to that, with line and column.
func Bool(text string) (*Expression, error) {
	return compile(text, payloadEnvironment, "bool", cel.BoolType)
}

// JSON compiles an expression over event and payload that makes a map: a transformation.
// It fails for an expression that does not compile to that, with line and column.
func JSON(text string) (*Expression, error) {
	return compile(text, payloadEnvironment, "map", cel.MapType(cel.StringType, cel.DynType))
}

// compile makes an expression whose outcome has one of the types, or dyn, and then is looked at when it is there.
func compile(text string, environment func() (*environment, error), word string, want ...*cel.Type) (*Expression, error) {
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
	got := ast.OutputType()
	if got.Kind() != types.DynKind && !slices.ContainsFunc(want, func(t *cel.Type) bool { return t.IsAssignableType(got) }) {
		return nil, fmt.Errorf("line 1, column 1: it makes a %s; write one that makes a %s", got, word)
	}
	if cost, err := env.EstimateCost(ast, sizes{}); err != nil {
		return nil, err
	} else if cost.Max > estimateLimit {
		return nil, fmt.Errorf("line 1, column 1: it may cost more than %d units when lists have 100 entries; write it with fewer loops inside loops", estimateLimit)
	}
	x := &Expression{text: text, ast: ast}
	x.program, err = env.Program(ast, cel.CustomDecoratorV2(x.metered(env)), cel.EvalOptions(cel.OptOptimize))
	var constant *types.Err // such as int('x'), which is computed now
	if errors.As(err, &constant) {
		return nil, x.placed(constant.NodeID(), err)
	}
	return x, err
}

// located is the compiler's error in one line.
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

// PatternStates is about how many states the regular expressions have that are written out in the expression.
func (x *Expression) PatternStates() int { return x.states }

// ReadsOnly reports whether these are all the fields of event that the expression reads.
func (x *Expression) ReadsOnly(fields ...string) bool {
	idents := ast.MatchDescendants(ast.NavigateAST(x.ast.NativeRep()), ast.KindMatcher(ast.IdentKind))
	return !slices.ContainsFunc(idents, func(ident ast.NavigableExpr) bool {
		if ident.AsIdent() != "event" {
			return false
		}
		parent, ok := ident.Parent()
		return !ok || parent.Kind() != ast.SelectKind || !slices.Contains(fields, parent.AsSelect().FieldName())
	})
}

// String runs the expression. An error says why it cannot be computed for the event, and holds nothing
// of the event.
func (x *Expression) String(e *dispatcher.Event) (string, error) {
	value, _, err := x.run(context.Background(), e, nil)
	if err != nil {
		return "", err
	}
	s, ok := value.(types.String)
	if !ok {
		return "", fmt.Errorf("line 1, column 1: it makes a %s, not a string", value.Type().TypeName())
	}
	return string(s), nil
}

// Bool runs the expression until the context ends. The payload is what [Decode] made of the event's.
// Errors are as those of [Expression.String]; see [IsMissing].
func (x *Expression) Bool(ctx context.Context, e *dispatcher.Event, payload any) (bool, error) {
	value, _, err := x.run(ctx, e, payload)
	if err != nil {
		return false, err
	}
	b, ok := value.(types.Bool)
	if !ok {
		return false, fmt.Errorf("line 1, column 1: it makes a %s, not a bool", value.Type().TypeName())
	}
	return bool(b), nil
}

// JSON runs the expression until the context ends and returns an object, made of what [Decode] makes. It
// shares parts with the payload, which stays as it is. Errors are as those of [Expression.String].
func (x *Expression) JSON(ctx context.Context, e *dispatcher.Event, payload any) (object map[string]any, err error) {
	value, m, err := x.run(ctx, e, payload)
	if err != nil {
		return nil, err
	}
	defer func() { // the meter's
		if r := recover(); r != nil && m.err == nil {
			panic(r)
		} else if r != nil {
			object, err = nil, x.placed(m.at, m.err)
		}
	}()
	made, err := m.plain(0, value)
	if err != nil {
		return nil, fmt.Errorf("line 1, column 1: %w", err)
	}
	object, ok := made.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("line 1, column 1: it makes a %s, not a map", value.Type().TypeName())
	}
	if most := BaseOutput + OutputPerByte*m.size; written(object, most) > most {
		return nil, fmt.Errorf("line 1, column 1: it makes more than %d KiB of JSON, which is the limit for a payload of %d bytes; write it so that it grows less", most>>10, m.size)
	}
	return object, nil
}

func (x *Expression) run(ctx context.Context, e *dispatcher.Event, payload any) (ref.Val, *meter, error) {
	m := newMeter(ctx, len(e.Payload))
	value, _, err := x.program.Eval(&variables{event: e, payload: payload, meter: m})
	switch {
	case m.err != nil:
		return nil, nil, x.placed(m.at, m.err)
	case err != nil:
		return nil, nil, x.failure(err)
	}
	return value, m, nil
}

// phrases replace CEL's own messages, by how these begin: they may end with a value.
var phrases = []struct {
	celSays string
	phrase  error
}{
	{"no such key", errNoKey},
	{"no such attribute", errNoKey},
	{"index out of bounds", errNoElement},
	{"index '", errNoElement},
	{"no such overload", errors.New("a value is of a type that is not expected there")},
	{"unsupported conversion", errors.New("a value is of a type that is not expected there")},
	{"type conversion error", errors.New("a value cannot be converted")},
	{"index out of range", errors.New("it reads a character that is not there; size() counts them")},
	{"division by zero", errors.New("it divides by zero")},
	{"modulus by zero", errors.New("it divides by zero")},
	{"unknown time zone", errors.New("it names a time zone that is not known")},
}

var (
	errNoKey     = errors.New("it reads a key that is not there; test it with has()")
	errNoElement = errors.New("it reads an element that is not there; size() counts them")
)

// IsMissing reports whether an expression could not be computed because the payload or the event does not
// have a key, or a list an element, that it reads: that is about the event. All else is about the
// expression as well.
func IsMissing(err error) bool { return errors.Is(err, errNoKey) || errors.Is(err, errNoElement) }

// failure is why an evaluation failed, where, and nothing of the event.
func (x *Expression) failure(err error) error {
	phrase := errors.New("a function does not take what it is given")
	for _, p := range phrases {
		if strings.HasPrefix(err.Error(), p.celSays) {
			phrase = p.phrase
			break
		}
	}
	var at interface{ NodeID() int64 }
	if errors.As(err, &at) {
		return x.placed(at.NodeID(), phrase)
	}
	return x.placed(0, phrase)
}

// placed is an error with the line and the column of a node; 0 is the expression itself.
func (x *Expression) placed(node int64, err error) error {
	line, column := 1, 1
	if place := x.ast.NativeRep().SourceInfo().GetStartLocation(node); place.Line() > 0 {
		line, column = place.Line(), place.Column()+1
	}
	return fmt.Errorf("line %d, column %d: %w", line, column, err)
}

// MaxHeader is the most bytes of a header's value.
const MaxHeader = 8 << 10

// headerTypes are what a header's expression may make, also as an optional value.
var headerTypes = []*cel.Type{cel.StringType, cel.IntType, cel.UintType, cel.DoubleType, cel.BoolType, cel.TimestampType, cel.NullType}

// Header compiles an expression over event and payload that makes the value of a message's header.
// It fails for an expression that does not compile to that, with line and column.
func Header(text string) (*Expression, error) {
	want := headerTypes
	for _, t := range append(headerTypes, cel.DynType) {
		want = append(want, cel.OptionalType(t))
	}
	return compile(text, payloadEnvironment, "text, a number, a bool or a timestamp, or an optional one", want...)
}

// ReadsPayload reports whether the expression mentions payload. One that does not is run with nil for it.
func (x *Expression) ReadsPayload() bool {
	for _, reference := range x.ast.NativeRep().ReferenceMap() {
		if reference.Name == "payload" {
			return true
		}
	}
	return false
}

// Header runs the expression until the context ends, and returns the header's value. It is empty for no header.
// Errors are as those of [Expression.String].
func (x *Expression) Header(ctx context.Context, e *dispatcher.Event, payload any) (string, error) {
	value, m, err := x.run(ctx, e, payload)
	if err != nil {
		return "", err
	}
	if optional, ok := value.(*types.Optional); ok {
		if !optional.HasValue() {
			return "", nil
		}
		value = optional.GetValue()
	}
	var text string
	switch value.Type() {
	case types.MapType, types.ListType:
		err = fmt.Errorf("it makes a %s, which no header can hold", value.Type().TypeName())
	default:
		var made any
		made, err = m.plain(0, value)
		switch v := made.(type) {
		case string:
			text = v
		case json.Number:
			text = v.String()
		case bool:
			text = strconv.FormatBool(v)
		}
	}
	if err == nil && len(text) > MaxHeader {
		err = errors.New("it makes more than 8 KiB, which is the limit of a header")
	}
	if err != nil {
		return "", fmt.Errorf("line 1, column 1: %w", err)
	}
	return text, nil
}
