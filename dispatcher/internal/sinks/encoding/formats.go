package encoding

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/bufbuild/protocompile"
	"github.com/twmb/avro"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

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

type protobufCodec struct {
	message protoreflect.MessageDescriptor
	types   *dynamicpb.Types // for google.protobuf.Any
}

// mainFile is what the compiler calls a schema, which has no name of its own.
const mainFile = "-.proto"

func newProtobuf(s registry.Schema) (codec, error) {
	sources := map[string]string{mainFile: s.Text}
	for _, ref := range s.References {
		sources[ref.Name] = ref.Text
	}
	compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
		Accessor: protocompile.SourceAccessorFromMap(sources),
	})}
	files, err := compiler.Compile(context.Background(), mainFile)
	if err != nil {
		return nil, err
	}
	if files[0].Messages().Len() == 0 {
		return nil, errors.New("it has no message")
	}
	all := &protoregistry.Files{}
	if err := addFile(all, files[0]); err != nil {
		return nil, err
	}
	return &protobufCodec{files[0].Messages().Get(0), dynamicpb.NewTypes(all)}, nil
}

// addFile adds a file and all that it imports.
func addFile(to *protoregistry.Files, file protoreflect.FileDescriptor) error {
	if _, err := to.FindFileByPath(file.Path()); err == nil {
		return nil
	}
	imports := file.Imports()
	for i := range imports.Len() {
		if err := addFile(to, imports.Get(i).FileDescriptor); err != nil {
			return err
		}
	}
	return to.RegisterFile(file)
}

func (c *protobufCodec) appendTo(dst, payload []byte) ([]byte, error) {
	m := dynamicpb.NewMessage(c.message)
	if err := (protojson.UnmarshalOptions{Resolver: c.types}).Unmarshal(payload, m); err != nil {
		return nil, c.misfit(payload, err)
	}
	out, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(dst, m)
	if err != nil {
		return nil, c.misfit(payload, err)
	}
	return out, nil
}

var position = regexp.MustCompile(`\(line (\d+):(\d+)\)`)

// misfit takes the place from the library's error, and not its text: it quotes values.
func (c *protobufCodec) misfit(payload []byte, err error) error {
	m := &misfit{why: "does not fit the Protobuf message " + string(c.message.FullName())}
	if at := position.FindStringSubmatch(err.Error()); at != nil {
		line, _ := strconv.Atoi(at[1]) // they are digits
		column, _ := strconv.Atoi(at[2])
		m.path = pathAt(payload, offsetOf(payload, line, column))
	}
	return m
}

// offsetOf turns a line and a column of characters, both from 1, into a place.
func offsetOf(text []byte, line, column int) int {
	at := 0
	for ; line > 1; line-- {
		at += bytes.IndexByte(text[at:], '\n') + 1
	}
	for ; column > 1 && at < len(text); column-- {
		_, n := utf8.DecodeRune(text[at:])
		at += n
	}
	return at
}

// level is an object or an array on the way to a place.
type level struct {
	array bool
	index int    // of the item
	name  string // of the field
	named bool   // the field's value comes next
}

// pathAt returns the JSON pointer to the value or the name at a place.
func pathAt(payload []byte, offset int) string {
	var way []level
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			return render(way)
		}
		if token == json.Delim('}') || token == json.Delim(']') {
			way = way[:len(way)-1]
			continue
		}
		if n := len(way) - 1; n >= 0 {
			top := &way[n]
			switch {
			case top.array:
				top.index++
			case top.named:
				top.named = false
			default:
				top.name, top.named = token.(string), true
			}
		}
		if d.InputOffset() > int64(offset) {
			return render(way)
		}
		if delim, ok := token.(json.Delim); ok {
			way = append(way, level{array: delim == '[', index: -1})
		}
	}
}

func render(way []level) string {
	path := ""
	for _, l := range way {
		if l.array {
			path += "/" + strconv.Itoa(l.index)
		} else {
			path += "/" + pointer(l.name)
		}
	}
	return path
}
