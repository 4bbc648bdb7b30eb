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

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
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
// there as it was read.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, errors.New("the new payload cannot be written as JSON") // its own words may quote a value
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'}), nil
}

const (
	overloadWithout   = "outbox_without"
	overloadWith      = "outbox_with"
	overloadMask      = "outbox_mask_string"
	overloadMaskPaths = "outbox_mask_paths"
)

func payloadFunctions(adapter types.Adapter) []cel.EnvOption {
	object, paths := cel.MapType(cel.StringType, cel.DynType), cel.ListType(cel.StringType)
	atPaths := func(change func(any) (any, bool)) cel.OverloadOpt {
		return cel.BinaryBinding(func(m, list ref.Val) ref.Val {
			made, err := edited(m, list, change)
			if err != nil {
				return types.WrapErr(err)
			}
			return adapter.NativeToValue(made)
		})
	}
	drop := func(any) (any, bool) { return nil, false }
	hide := func(v any) (any, bool) { return masked(v), true }
	return []cel.EnvOption{
		cel.Function("without", cel.Overload(overloadWithout, []*cel.Type{object, paths}, object, atPaths(drop))),
		cel.Function("mask",
			cel.Overload(overloadMask, []*cel.Type{cel.StringType}, cel.StringType, cel.UnaryBinding(func(s ref.Val) ref.Val {
				return types.String(maskedText(string(s.(types.String))))
			})),
			cel.Overload(overloadMaskPaths, []*cel.Type{object, paths}, object, atPaths(hide))),
		cel.Function("with", cel.Overload(overloadWith, []*cel.Type{object, object}, object, cel.BinaryBinding(func(m, members ref.Val) ref.Val {
			made, err := with(m, members)
			if err != nil {
				return types.WrapErr(err)
			}
			return adapter.NativeToValue(made)
		}))),
	}
}

func with(m, members ref.Val) (any, error) {
	object, err := plainObject(m)
	if err != nil {
		return nil, err
	}
	added, err := plainObject(members)
	if err != nil {
		return nil, err
	}
	made := make(map[string]any, len(object)+len(added))
	maps.Copy(made, object)
	maps.Copy(made, added)
	return made, nil
}

// edited is m changed at each of the paths.
func edited(m, paths ref.Val, change func(any) (any, bool)) (any, error) {
	object, err := plainObject(m)
	if err != nil {
		return nil, err
	}
	var made any = object
	for it := paths.(traits.Lister).Iterator(); it.HasNext() == types.True; {
		path, ok := it.Next().(types.String)
		if !ok {
			return nil, errors.New("no such overload: a path is no string")
		}
		made = edit(made, strings.Split(string(path), "."), change)
	}
	return made, nil
}

// edit returns v with what is at the path changed, or left out when change says false. What it changes
// it copies first.
func edit(v any, path []string, change func(old any) (changed any, keep bool)) any {
	next := change
	if len(path) > 1 {
		next = func(old any) (any, bool) { return edit(old, path[1:], change), true }
	}
	switch v := v.(type) {
	case map[string]any:
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

// masked is v without what it says.
func masked(v any) any {
	switch v := v.(type) {
	case string:
		return maskedText(v)
	case json.Number:
		return maskedText(v.String())
	case map[string]any:
		return edit(v, []string{"*"}, func(old any) (any, bool) { return masked(old), true })
	case []any:
		return edit(v, []string{"*"}, func(old any) (any, bool) { return masked(old), true })
	}
	return v
}

// maskedText keeps the length and, from 8 characters on, the last 4.
func maskedText(s string) string {
	runes := []rune(s)
	shown := 0
	if len(runes) >= 8 {
		shown = 4
	}
	return strings.Repeat("*", len(runes)-shown) + string(runes[len(runes)-shown:])
}

func plainObject(v ref.Val) (map[string]any, error) {
	made, err := plain(v)
	if err != nil {
		return nil, err
	}
	object, ok := made.(map[string]any)
	if !ok {
		return nil, errors.New("no such overload: not a map")
	}
	return object, nil
}

// plain is a value as [Decode] makes them. What comes from the payload is taken as it is.
func plain(v ref.Val) (any, error) {
	switch v := v.(type) {
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
		return number(float64(v))
	case types.Bytes:
		return base64.StdEncoding.EncodeToString(v), nil
	case types.Timestamp:
		return v.UTC().Format(time.RFC3339Nano), nil
	case types.Duration:
		return v.String(), nil
	case traits.Mapper:
		return plainMap(v)
	case traits.Lister:
		return plainList(v)
	}
	return nil, fmt.Errorf("it makes a %s, which JSON cannot hold", v.Type().TypeName())
}

// number is written as JSON writes it.
func number(f float64) (any, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, errors.New("it makes a number that JSON cannot hold, such as infinity")
	}
	b, err := json.Marshal(f)
	return json.Number(b), err
}

func plainMap(m traits.Mapper) (any, error) {
	if native, ok := m.Value().(map[string]any); ok {
		return native, nil
	}
	made := map[string]any{}
	for it := m.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, ok := key.(types.String)
		if !ok {
			return nil, fmt.Errorf("it makes a map with a key of type %s; JSON takes strings only", key.Type().TypeName())
		}
		member, err := plain(m.Get(key))
		if err != nil {
			return nil, err
		}
		made[string(name)] = member
	}
	return made, nil
}

func plainList(l traits.Lister) (any, error) {
	made := []any{}
	for it := l.Iterator(); it.HasNext() == types.True; {
		element, err := plain(it.Next())
		if err != nil {
			return nil, err
		}
		made = append(made, element)
	}
	return made, nil
}
