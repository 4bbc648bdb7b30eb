package encoding

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"strconv"
	"unicode/utf8"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/registry"
)

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
