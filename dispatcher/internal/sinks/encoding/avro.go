package encoding

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/avro"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/registry"
)

type avroCodec struct{ schema *avro.Schema }

// avroBytes takes strings for bytes and fixed as Avro's JSON writes them, one character for each byte.
// It matches all types: when one is named, the library forgets about its logical types.
var avroBytes = avro.CustomType{GoType: reflect.TypeFor[string](), Encode: bytesOf}

func newAvro(s registry.Schema) (codec, error) {
	var known avro.SchemaCache
	for _, ref := range s.References {
		if _, err := known.Parse(ref.Text, avroBytes); err != nil {
			return nil, err
		}
	}
	schema, err := known.Parse(s.Text, avroBytes)
	if err != nil {
		return nil, err
	}
	return &avroCodec{schema}, nil
}

func bytesOf(v any, node *avro.SchemaNode) (any, error) {
	text, ok := v.(string)
	if !ok || node.Type != "bytes" && node.Type != "fixed" || node.LogicalType != "" {
		return nil, avro.ErrSkipCustomType
	}
	out := make([]byte, 0, len(text))
	for _, r := range text {
		if r > 0xff {
			return nil, errors.New("a character that is not a byte")
		}
		out = append(out, byte(r))
	}
	return out, nil
}

func (c *avroCodec) appendTo(dst, payload []byte) ([]byte, error) {
	var v, back any
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, &misfit{why: "is not JSON"}
	}
	out, err := c.schema.AppendEncode(dst, v)
	if err != nil {
		return nil, avroMisfit(err)
	}
	// The library leaves out what the schema does not have. It must not get lost in silence.
	if _, err := c.schema.Decode(out[len(dst):], &back); err != nil {
		return nil, avroMisfit(err)
	}
	if m := changed(v, back); m != nil {
		return nil, m
	}
	return out, nil
}

// avroMisfit takes the place and the type from the library's error, and not its text: it may quote
// values.
func avroMisfit(err error) error {
	var semantic *avro.SemanticError
	if !errors.As(err, &semantic) {
		return &misfit{why: "has another form"}
	}
	m := &misfit{why: "does not fit the Avro type " + semantic.AvroType}
	if semantic.Field != "" {
		m.path = "/" + strings.ReplaceAll(semantic.Field, ".", "/")
	}
	switch {
	case semantic.Err != nil && semantic.Err.Error() == "missing key":
		m.why = "is missing, and has no default"
	case m.path != "" && semantic.AvroType == "record": // the field's, or that of the record it is in
		m.why = "does not fit its Avro type"
	}
	return m
}

// changed returns the first place at which out is not what in says: a field that is left out, or a number
// that is infinity in an Avro float or double.
func changed(in, out any) *misfit {
	switch in := in.(type) {
	case map[string]any:
		fields, ok := out.(map[string]any)
		if name, value, one := only(in); one && !has(fields, name) && (!ok || isObject(value)) {
			return changed(value, out) // a union's branch with its name: {"string": "x"}
		}
		for _, name := range slices.Sorted(maps.Keys(in)) {
			if !has(fields, name) {
				return &misfit{"/" + pointer(name), "is not in the schema"}
			}
			if m := changed(in[name], fields[name]); m != nil {
				return &misfit{"/" + pointer(name) + m.path, m.why}
			}
		}
	case []any:
		items, _ := out.([]any)
		for i := range min(len(in), len(items)) {
			if m := changed(in[i], items[i]); m != nil {
				return &misfit{"/" + strconv.Itoa(i) + m.path, m.why}
			}
		}
	case json.Number:
		switch f := out.(type) {
		case float64:
			if math.IsInf(f, 0) {
				return &misfit{why: "does not fit the Avro type double"}
			}
		case float32:
			if math.IsInf(float64(f), 0) {
				return &misfit{why: "does not fit the Avro type float"}
			}
		}
	}
	return nil
}

func only(object map[string]any) (name string, value any, one bool) {
	for name, value = range object {
	}
	return name, value, len(object) == 1
}

func has(object map[string]any, name string) bool {
	_, ok := object[name]
	return ok
}

func isObject(v any) bool {
	_, ok := v.(map[string]any)
	return ok
}

// pointer escapes a name for a JSON pointer.
func pointer(name string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(name) }
