package expression

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// Decode reads a payload: objects, lists, strings, bools, nil, and numbers as they are written
// (json.Number). Its error holds nothing of the payload.
func Decode(payload []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more follows")
		}
	}
	if err != nil {
		return nil, errors.New("the payload is not JSON; correct the row")
	}
	return v, nil
}

// Encode writes what [Expression.JSON] or [Decode] made. A number that no expression has touched stands
// there as it was read. It fails for a value that JSON does not have.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, errors.New("the new payload cannot be written as JSON") // its own words may quote a value
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'}), nil
}

// payloadFunctions declares the functions that [payloadFunction] runs.
func payloadFunctions() []cel.EnvOption {
	object, paths := cel.MapType(cel.StringType, cel.DynType), cel.ListType(cel.StringType)
	return []cel.EnvOption{
		cel.Function("without", cel.Overload("outbox_without", []*cel.Type{object, paths}, object)),
		cel.Function("with", cel.Overload("outbox_with", []*cel.Type{object, object}, object)),
		cel.Function("mask",
			cel.Overload("outbox_mask_string", []*cel.Type{cel.StringType}, cel.StringType),
			cel.Overload("outbox_mask_paths", []*cel.Type{object, paths}, object)),
	}
}

// payloadFunction is with, without or mask.
func payloadFunction(n interpreter.InterpretableCall, adapter types.Adapter) func(*meter, []ref.Val) ref.Val {
	function := n.Function()
	return func(m *meter, args []ref.Val) ref.Val {
		e := editor{m, n.ID()}
		if len(args) == 1 {
			s, ok := args[0].(types.String)
			if !ok {
				return types.NewErr("no such overload")
			}
			return types.String(e.maskedText(string(s)))
		}
		var made any
		var err error
		switch function {
		case "with":
			made, err = e.with(args[0], args[1])
		case "without":
			made, err = e.edited(args[0], args[1], func(any) (any, bool) { return nil, false })
		default:
			made, err = e.edited(args[0], args[1], func(v any) (any, bool) { return e.masked(v), true })
		}
		if err != nil {
			return types.WrapErr(err)
		}
		return adapter.NativeToValue(made)
	}
}

// editor changes payloads at a node, at the meter's expense.
type editor struct {
	*meter
	node int64
}

func (e editor) with(m, members ref.Val) (any, error) {
	object, err := e.object(m)
	if err != nil {
		return nil, err
	}
	added, err := e.object(members)
	if err != nil {
		return nil, err
	}
	e.makeMap(e.node, len(object)+len(added))
	made := make(map[string]any, len(object)+len(added))
	maps.Copy(made, object)
	maps.Copy(made, added)
	return made, nil
}

// edited is m changed at each of the paths.
func (e editor) edited(m, paths ref.Val, change func(any) (any, bool)) (any, error) {
	object, err := e.object(m)
	if err != nil {
		return nil, err
	}
	list, ok := paths.(traits.Lister)
	if !ok {
		return nil, errors.New("no such overload: no list of paths")
	}
	var made any = object
	for it := list.Iterator(); it.HasNext() == types.True; {
		path, ok := it.Next().(types.String)
		if !ok {
			return nil, errors.New("no such overload: a path is not a string")
		}
		e.text(e.node, len(path))
		e.make(e.node, strings.Count(string(path), ".")+1, scalarBytes)
		made = e.edit(made, strings.Split(string(path), "."), change)
	}
	return made, nil
}

// object returns an argument as an object of a payload.
func (e editor) object(v ref.Val) (map[string]any, error) {
	made, err := e.plain(e.node, v)
	if err != nil {
		return nil, err
	}
	object, ok := made.(map[string]any)
	if !ok {
		return nil, errors.New("no such overload: not a map")
	}
	return object, nil
}

// edit returns v with what is at the path changed, or left out when change says false. What it changes
// it copies first.
func (e editor) edit(v any, path []string, change func(old any) (changed any, keep bool)) any {
	next := change
	if len(path) > 1 {
		next = func(old any) (any, bool) { return e.edit(old, path[1:], change), true }
	}
	switch v := v.(type) {
	case map[string]any:
		e.makeMap(e.node, len(v))
		if path[0] == "*" {
			made := make(map[string]any, len(v))
			for name, old := range v {
				if member, keep := next(old); keep {
					made[name] = member
				}
			}
			return made
		}
		old, ok := v[path[0]]
		if !ok {
			return v
		}
		made := maps.Clone(v)
		if member, keep := next(old); keep {
			made[path[0]] = member
		} else {
			delete(made, path[0])
		}
		return made
	case []any:
		if path[0] != "*" {
			return v
		}
		e.spend(e.node, len(v))
		e.take(e.node, scalarBytes*len(v))
		made := make([]any, 0, len(v))
		for _, old := range v {
			if element, keep := next(old); keep {
				made = append(made, element)
			}
		}
		return made
	}
	return v
}

// masked returns v with its values masked.
func (e editor) masked(v any) any {
	switch v := v.(type) {
	case string:
		return e.maskedText(v)
	case json.Number:
		return e.maskedText(v.String())
	case map[string]any, []any:
		return e.edit(v, []string{"*"}, func(old any) (any, bool) { return e.masked(old), true })
	}
	return v
}

// maskedText keeps the length and, from 8 characters on, the last 4.
func (e editor) maskedText(s string) string {
	e.text(e.node, len(s))
	e.take(e.node, scalarBytes+len(s))
	runes := []rune(s)
	shown := 0
	if len(runes) >= 8 {
		shown = 4
	}
	return strings.Repeat("*", len(runes)-shown) + string(runes[len(runes)-shown:])
}

// plain is a value as [Decode] makes them. What comes from the payload is taken as it is.
func (m *meter) plain(node int64, v ref.Val) (any, error) {
	switch v := v.(type) {
	case long:
		return json.Number(v.text), nil
	case list:
		return v.native, nil
	case types.Null:
		return nil, nil
	case types.Bool:
		return bool(v), nil
	case types.String:
		return string(v), nil
	case types.Int:
		return json.Number(fmt.Sprint(int64(v))), nil
	case types.Uint:
		return json.Number(fmt.Sprint(uint64(v))), nil
	case types.Double:
		return jsonNumber(float64(v))
	case types.Bytes:
		return base64.StdEncoding.EncodeToString(v), nil
	case types.Timestamp:
		return v.UTC().Format(time.RFC3339Nano), nil
	case types.Duration:
		return v.String(), nil
	case traits.Mapper:
		return m.plainMap(node, v)
	case traits.Lister:
		return m.plainList(node, v)
	}
	return nil, fmt.Errorf("it makes a %s, which JSON cannot hold", v.Type().TypeName())
}

// jsonNumber is written as JSON writes it.
func jsonNumber(f float64) (any, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, errors.New("it makes a number that JSON cannot hold, such as infinity")
	}
	b, err := json.Marshal(f)
	return json.Number(b), err
}

func (m *meter) plainMap(node int64, v traits.Mapper) (any, error) {
	if native, ok := v.Value().(map[string]any); ok {
		return native, nil
	}
	m.makeMap(node, length(v.(ref.Val)))
	made := map[string]any{}
	for it := v.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, ok := key.(types.String)
		if !ok {
			return nil, fmt.Errorf("it makes a map with a key of type %s; JSON takes strings only", key.Type().TypeName())
		}
		member, err := m.plain(node, v.Get(key))
		if err != nil {
			return nil, err
		}
		made[string(name)] = member
	}
	return made, nil
}

func (m *meter) plainList(node int64, v traits.Lister) (any, error) {
	m.spend(node, length(v.(ref.Val)))
	m.take(node, scalarBytes*(1+length(v.(ref.Val))))
	made := []any{}
	for it := v.Iterator(); it.HasNext() == types.True; {
		element, err := m.plain(node, it.Next())
		if err != nil {
			return nil, err
		}
		made = append(made, element)
	}
	return made, nil
}

// written counts the bytes of a value as JSON, and stops where they are more than most.
func written(v any, most int) int {
	n := 4
	switch v := v.(type) {
	case string:
		n += len(v)
		for _, r := range v {
			switch {
			case r < ' ', r == utf8.RuneError, r == '\u2028', r == '\u2029': // \u0001
				n += 5
			case r == '"', r == '\\':
				n++
			}
		}
	case json.Number:
		n += len(v)
	case map[string]any:
		for name, member := range v {
			if n > most {
				return n
			}
			n += written(name, most-n)
			n += written(member, most-n)
		}
	case []any:
		for _, element := range v {
			if n > most {
				return n
			}
			n += written(element, most-n)
		}
	}
	return n
}
