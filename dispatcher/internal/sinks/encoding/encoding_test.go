package encoding

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/linkedin/goavro/v2"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/registry"
	hackregistry "github.com/outbox-operator/outbox-operator/hack/servers/registry"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// Planted in payloads; it must never come out in an error (CONTRACT C-73).
const secret = "card-4111"

const order = `{"type": "record", "name": "Order", "namespace": "shop", "fields": [
	{"name": "id", "type": "long"},
	{"name": "count", "type": "int", "default": 7},
	{"name": "note", "type": ["null", "string"], "default": null},
	{"name": "mixed", "type": ["string", "long", "double"], "default": ""},
	{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
	{"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 0},
	{"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, "default": "\u0000"},
	{"name": "raw", "type": "bytes", "default": ""},
	{"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}, "default": "NEW"},
	{"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}}, "default": []},
	{"name": "tags", "type": {"type": "map", "values": "string"}, "default": {}},
	{"name": "to", "type": ["null", {"type": "record", "name": "Address", "fields": [{"name": "zip", "type": "string"}]}], "default": null}
]}`

const message = `syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  string customer_name = 2;
  repeated Line lines = 3;
  google.protobuf.Timestamp at = 4;
  map<string, int32> counts = 5;
  Kind kind = 6;
  message Line { string sku = 1; int32 n = 2; }
  enum Kind { NEW = 0; OLD = 1; }
}
message Other { string a = 1; }
`

func codecOf(t *testing.T, encoding spec.KafkaEncoding, text string) codec {
	t.Helper()
	c, err := kinds[encoding].codec(registry.Schema{Text: text})
	need.OK(t, err)
	return c
}

// check encodes a payload behind a prefix; want is the outcome in hex, or what the error says.
func check(t *testing.T, c codec, payload, want string) {
	t.Helper()
	prefix := []byte("prefix")
	got, err := c.appendTo(prefix, []byte(payload))
	switch {
	case err != nil && err.Error() != want:
		t.Errorf("%s:\n\t%v\nwant\n\t%s", payload, err, want)
	case err != nil && strings.Contains(err.Error(), secret):
		t.Errorf("%s: the error holds the payload: %v", payload, err)
	case err == nil && (!bytes.HasPrefix(got, prefix) || hex.EncodeToString(got[len(prefix):]) != want):
		t.Errorf("%s:\n\t%x\nwant\n\t%s", payload, got, want)
	}
}

// The bytes are worked out by hand from Avro's specification: numbers are zigzag varints, strings and
// bytes follow their length, a union its branch, an array or a map the number of its items and 0.
//
// CONTRACT: C-72, C-73
func TestAvroBytesFollowTheSpecification(t *testing.T) {
	c := codecOf(t, spec.KafkaAvro, order)
	//                 id count note mixed at day price raw kind lines tags to
	const defaults = "0e" + "00" + "0000" + "00" + "00" + "0200" + "00" + "00" + "00" + "00" + "00"
	for payload, want := range map[string]string{
		`{"id": 1}`:                                       "02" + defaults,
		`{"id": -1}`:                                      "01" + defaults,
		`{"id": 9007199254740993}`:                        "8280808080808020" + defaults, // more than a float64 holds
		`{"id": 1, "note": "a"}`:                          "02" + "0e" + "020261" + "0000" + "00" + "00" + "0200" + "00" + "00" + "00" + "00" + "00",
		`{"id": 1, "note": {"string": "a"}}`:              "02" + "0e" + "020261" + "0000" + "00" + "00" + "0200" + "00" + "00" + "00" + "00" + "00",
		`{"id": 1, "mixed": 3}`:                           "02" + "0e" + "00" + "0206" + "00" + "00" + "0200" + "00" + "00" + "00" + "00" + "00",
		`{"id": 1, "mixed": {"double": 1}}`:               "02" + "0e" + "00" + "04000000000000f03f" + "00" + "00" + "0200" + "00" + "00" + "00" + "00" + "00",
		`{"id": 1, "at": "1970-01-01T00:00:01Z"}`:         "02" + "0e" + "00" + "0000" + "d00f" + "00" + "0200" + "00" + "00" + "00" + "00" + "00",
		`{"id": 1, "at": 1000}`:                           "02" + "0e" + "00" + "0000" + "d00f" + "00" + "0200" + "00" + "00" + "00" + "00" + "00",
		`{"id": 1, "day": "1970-01-03"}`:                  "02" + "0e" + "00" + "0000" + "00" + "04" + "0200" + "00" + "00" + "00" + "00" + "00",
		`{"id": 1, "price": 12.34}`:                       "02" + "0e" + "00" + "0000" + "00" + "00" + "0404d2" + "00" + "00" + "00" + "00" + "00",
		`{"id": 1, "price": "12.3"}`:                      "02" + "0e" + "00" + "0000" + "00" + "00" + "0404ce" + "00" + "00" + "00" + "00" + "00",
		`{"id": 1, "raw": "a\u00ff"}`:                     "02" + "0e" + "00" + "0000" + "00" + "00" + "0200" + "0461ff" + "00" + "00" + "00" + "00",
		`{"id": 1, "kind": "OLD"}`:                        "02" + "0e" + "00" + "0000" + "00" + "00" + "0200" + "00" + "02" + "00" + "00" + "00",
		`{"id": 1, "lines": [{"sku": "b"}]}`:              "02" + "0e" + "00" + "0000" + "00" + "00" + "0200" + "00" + "00" + "02026200" + "00" + "00",
		`{"id": 1, "tags": {"k": "v"}}`:                   "02" + "0e" + "00" + "0000" + "00" + "00" + "0200" + "00" + "00" + "00" + "02026b027600" + "00",
		`{"id": 1, "to": {"zip": "z"}}`:                   "02" + "0e" + "00" + "0000" + "00" + "00" + "0200" + "00" + "00" + "00" + "00" + "02027a",
		`{"id": 1, "to": {"shop.Address": {"zip": "z"}}}`: "02" + "0e" + "00" + "0000" + "00" + "00" + "0200" + "00" + "00" + "00" + "00" + "02027a",

		`{}`:                                        "/id is missing, and has no default",
		`{"id": "card-4111"}`:                       "/id does not fit the Avro type long",
		`{"id": 1.5}`:                               "/id does not fit the Avro type long",
		`{"id": null}`:                              "/id does not fit its Avro type",
		`{"id": 1, "count": 3000000000}`:            "/count does not fit the Avro type int",
		`{"id": 1, "mixed": true}`:                  "/mixed does not fit the Avro type union",
		`{"id": 1, "at": "card-4111"}`:              "/at does not fit the Avro type long",
		`{"id": 1, "price": 12.345}`:                "/price does not fit the Avro type bytes",
		`{"id": 1, "raw": "card-4111 €"}`:           "/raw does not fit its Avro type",
		`{"id": 1, "kind": "card-4111"}`:            "/kind does not fit the Avro type enum",
		`{"id": 1, "to": {"zip": 1}}`:               "/to/zip does not fit the Avro type string",
		`{"id": 1, "to": {"zap": "card-4111"}}`:     "/to/zip is missing, and has no default",
		`{"id": 1, "lines": [{"sku": 3}]}`:          "/lines/sku does not fit the Avro type string",
		`{"id": 1, "extra": "card-4111"}`:           "/extra is not in the schema",
		`{"id": 1, "to": {"zip": "", "a/b": 1}}`:    "/to/a~1b is not in the schema",
		`{"id": 1, "lines": [{"sku": "", "x": 1}]}`: "/lines/0/x is not in the schema",
		`["card-4111"]`:                             "does not fit the Avro type record",
		`card-4111`:                                 "is not JSON",
	} {
		check(t, c, payload, want)
	}
}

// A number that a float or a double cannot hold is none of theirs. What is infinity for one of them is not.
func TestAvroInfinityDoesNotFit(t *testing.T) {
	for text, tests := range map[string]map[string]string{
		`"double"`: {`1e308`: "a0c8eb85f3cce17f", `1e400`: "does not fit the Avro type double", `-1e400`: "does not fit the Avro type double"},
		`"float"`:  {`1.5`: "0000c03f", `1e39`: "does not fit the Avro type float"},
		`{"type":"record","name":"r","fields":[{"name":"a","type":{"type":"array","items":["null","double"]}}]}`: {
			`{"a": [1, 1e400]}`: "/a/1 does not fit the Avro type double", `{"a": [{"double": 1e400}]}`: "/a/0 does not fit the Avro type double"},
	} {
		for payload, want := range tests {
			check(t, codecOf(t, spec.KafkaAvro, text), payload, want)
		}
	}
}

// Bytes are one character each, wherever they are.
func TestAvroBytesOfEachType(t *testing.T) {
	for text, test := range map[string]struct{ payload, want string }{
		`["null", "bytes"]`:                      {`"a\u00ff"`, "020461ff"},
		`{"type":"fixed","name":"f","size":2}`:   {`"a\u00ff"`, "61ff"},
		`{"type":"array","items":"bytes"}`:       {`["\u00ff"]`, "0202ff00"},
		`{"type":"map","values":"bytes"}`:        {`{"k":"\u00ff"}`, "02026b02ff00"},
		`{"type":"string","logicalType":"uuid"}`: {`"ab"`, "046162"},
		`["string", "bytes"]`:                    {`{"bytes":"\u00ff"}`, "0202ff"},
		`{"type":"fixed","name":"d","size":2,"logicalType":"decimal","precision":4,"scale":2}`: {`"-0.01"`, "ffff"},
	} {
		check(t, codecOf(t, spec.KafkaAvro, text), test.payload, test.want)
	}
}

// The bytes are worked out by hand from Protobuf's description of its encoding.
//
// CONTRACT: C-72, C-73
func TestProtobufBytesFollowTheSpecification(t *testing.T) {
	c := codecOf(t, spec.KafkaProtobuf, message)
	for payload, want := range map[string]string{
		`{}`:                                    "",
		`{"id": 150}`:                           "089601",
		`{"id": "150"}`:                         "089601",
		`{"customerName": "a"}`:                 "120161",
		`{"customer_name": "a"}`:                "120161",
		`{"lines": [{"sku": "b", "n": 3}, {}]}`: "1a050a016210031a00",
		`{"at": "1970-01-01T00:00:05Z"}`:        "22020805",
		`{"counts": {"k": 2}}`:                  "2a050a016b1002",
		`{"kind": "OLD"}`:                       "3001",

		`{"id": "card-4111"}`: "/id does not fit the Protobuf message shop.Order",
		`{"id": 1, "lines": [{"n": 1},` + "\n" + `{"sku": "größe", "n": "card-4111"}]}`: "/lines/1/n does not fit the Protobuf message shop.Order",
		`{"lines": [{"extra": "card-4111"}]}`:                                           "/lines/0/extra does not fit the Protobuf message shop.Order",
		`{"at": "card-4111"}`:                                                           "/at does not fit the Protobuf message shop.Order",
		`{"counts": {"a/b": "card-4111"}}`:                                              "/counts/a~1b does not fit the Protobuf message shop.Order",
		`{"kind": "card-4111"}`:                                                         "/kind does not fit the Protobuf message shop.Order",
		`["card-4111"]`:                                                                 "does not fit the Protobuf message shop.Order",
	} {
		check(t, c, payload, want)
	}
}

// A schema that needs others.
func TestReferencedSchemasAreResolved(t *testing.T) {
	for encoding, s := range map[spec.KafkaEncoding]registry.Schema{
		spec.KafkaAvro: {
			Text:       `{"type":"record","name":"a","fields":[{"name":"b","type":"shop.b"}]}`,
			References: []registry.Reference{{Name: "shop.c", Text: `{"type":"enum","name":"shop.c","symbols":["X","Y"]}`}, {Name: "shop.b", Text: `{"type":"record","name":"shop.b","fields":[{"name":"c","type":"shop.c"}]}`}},
		},
		spec.KafkaProtobuf: {
			Text:       `syntax = "proto3"; import "b.proto"; message A { B b = 1; }`,
			References: []registry.Reference{{Name: "c.proto", Text: `syntax = "proto3"; enum C { X = 0; Y = 1; }`}, {Name: "b.proto", Text: `syntax = "proto3"; import "c.proto"; message B { C c = 1; }`}},
		},
	} {
		c, err := kinds[encoding].codec(s)
		if err != nil {
			t.Errorf("%s: %v", encoding, err)
			continue
		}
		check(t, c, `{"b": {"c": "Y"}}`, map[spec.KafkaEncoding]string{spec.KafkaAvro: "02", spec.KafkaProtobuf: "0a020801"}[encoding])
	}
}

func newEncoder(t *testing.T, encoding spec.KafkaEncoding) (*srfake.Registry, *Encoder) {
	t.Helper()
	f := srfake.New()
	t.Cleanup(f.Close)
	e, err := New(encoding, spec.SchemaRegistry{URL: f.URL()})
	need.OK(t, err)
	return f, e
}

// CONTRACT: C-72, C-73
func TestEncodeFramesWithTheSchemaID(t *testing.T) {
	for encoding, test := range map[spec.KafkaEncoding]struct {
		schema       sr.Schema
		content, hex string // of a schema with id 1
	}{
		spec.KafkaAvro:     {sr.Schema{Schema: `{"type":"record","name":"a","fields":[{"name":"b","type":"long"}]}`}, "application/avro", "00" + "00000001" + "0a"},
		spec.KafkaProtobuf: {sr.Schema{Schema: `syntax = "proto3"; message A { int64 b = 1; }`, Type: sr.TypeProtobuf}, "application/protobuf", "00" + "00000001" + "00" + "0805"},
	} {
		f, e := newEncoder(t, encoding)
		if _, err := e.Encode(t.Context(), time.Now(), "orders", []byte(`{"b":5}`)); !errors.Is(err, registry.ErrNotFound) || dispatcher.IsUnavailable(err) {
			t.Errorf("%s: a missing subject: %v", encoding, err)
		}
		f.SeedSchema("orders-value", 1, 1, test.schema)
		got, err := e.Encode(t.Context(), time.Now(), "orders-value", []byte(`{"b":5}`))
		if err != nil || hex.EncodeToString(got) != test.hex || e.ContentType() != test.content {
			t.Errorf("%s: %x, %v, %s; want %s", encoding, got, err, e.ContentType(), test.hex)
		}
		_, err = e.Encode(t.Context(), time.Now(), "orders-value", []byte(`{"b":"`+secret+`"}`))
		if why, dead := dispatcher.PermanentReason(err); !dead || why != dispatcher.ReasonSchemaValidationFailed || strings.Contains(err.Error(), secret) ||
			!strings.Contains(err.Error(), "the payload does not fit the schema of subject orders-value (id 1): /b does not fit") {
			t.Errorf("%s: a payload that does not fit: %v", encoding, err)
		}
		f.SeedSchema("other", 1, 2, sr.Schema{Schema: `{}`, Type: sr.TypeJSON})
		if _, err := e.Encode(t.Context(), time.Now(), "other", []byte(`{}`)); err == nil || !strings.HasSuffix(err.Error(), "; correct encoding or subject") {
			t.Errorf("%s: a JSON Schema: %v", encoding, err)
		}
	}
	f, e := newEncoder(t, spec.KafkaProtobuf)
	f.SeedSchema("broken", 1, 1, sr.Schema{Schema: `syntax = "proto3"; message {`, Type: sr.TypeProtobuf})
	_, err := e.Encode(t.Context(), time.Now(), "broken", []byte(`{}`))
	if _, dead := dispatcher.PermanentReason(err); err == nil || dead || !strings.Contains(err.Error(), "cannot be used") {
		t.Errorf("a schema that is none: %v", err)
	}
}

// A producer may have registered a newer schema for the event, and used it at once.
//
// CONTRACT: C-32, C-72
func TestMisfitIsFinalByTheNewestSchemaAlone(t *testing.T) {
	f, e := newEncoder(t, spec.KafkaAvro)
	e.registry.StaleWait = time.Minute
	f.SeedSchema("orders", 1, 1, sr.Schema{Schema: `{"type":"record","name":"a","fields":[{"name":"b","type":"long"}]}`})
	encode := func(payload string) (string, error) {
		value, err := e.Encode(t.Context(), time.Now(), "orders", []byte(payload))
		return hex.EncodeToString(value), err
	}
	need.OK(t, need.Err(encode(`{"b":5}`)))
	f.SeedSchema("orders", 2, 2, sr.Schema{Schema: `{"type":"record","name":"a","fields":[{"name":"b","type":"long"},{"name":"c","type":"long","default":0}]}`})
	if got, err := encode(`{"b":5,"c":6}`); got != "00000000020a0c" || err != nil {
		t.Errorf("an event with a new field: %s, %v", got, err)
	}
	if _, err := encode(`{"d":7}`); !permanent(err) || !strings.Contains(err.Error(), "(id 2)") {
		t.Errorf("an event that fits neither: %v", err)
	}
	f.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "", http.StatusServiceUnavailable)
		return true
	})
	if _, err := encode(`{"b":5,"e":8}`); err == nil || permanent(err) || dispatcher.IsUnavailable(err) || !strings.Contains(err.Error(), "/e is not in the schema") ||
		!strings.Contains(err.Error(), "; a newer schema could not be read, so it is tried again: schema registry "+f.URL()+": subject orders: status 503") {
		t.Errorf("while the registry is unreachable: %v; want a failure that is tried again", err)
	}
}

func permanent(err error) bool {
	_, dead := dispatcher.PermanentReason(err)
	return dead
}

// That the registry is unreachable is not the event's fault, and a probe says when it has recovered.
//
// CONTRACT: C-32
func TestUnreachableRegistryIsUnavailable(t *testing.T) {
	f, e := newEncoder(t, spec.KafkaAvro)
	f.SeedSchema("known", 1, 1, sr.Schema{Schema: `"string"`})
	f.SeedSchema("unknown", 1, 2, sr.Schema{Schema: `"string"`})
	encode := func(ctx context.Context, subject string) error {
		_, err := e.Encode(ctx, time.Now(), subject, []byte(`"a"`))
		return err
	}
	need.OK(t, encode(t.Context(), "known"))
	if err := e.Probe(t.Context()); err != nil {
		t.Errorf("a probe: %v", err)
	}
	f.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "", http.StatusServiceUnavailable)
		return true
	})
	if err := encode(t.Context(), "unknown"); !dispatcher.IsUnavailable(err) {
		t.Errorf("a schema that was never requested: %v", err)
	}
	if err := e.Probe(t.Context()); !dispatcher.IsUnavailable(err) {
		t.Errorf("a probe: %v", err)
	}
	if err := encode(t.Context(), "known"); err != nil {
		t.Errorf("a schema that is known: %v", err)
	}
}

func TestNewRefusesJSON(t *testing.T) {
	if _, err := New(spec.KafkaJSON, spec.SchemaRegistry{URL: "http://a"}); err == nil || !strings.HasSuffix(err.Error(), "; choose Avro or Protobuf") {
		t.Errorf("JSON: %v", err)
	}
}

// A real registry, and what was encoded by its schemas read by others than those who wrote it: for Avro
// another library, for Protobuf generated code.
//
// CONTRACT: C-72
func TestRealRegistryServesTheSchemas(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), need.Install)
	defer cancel()
	server, err := hackregistry.Start(ctx)
	need.Server(t, err, hackregistry.ErrMissing)
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	admin, err := sr.NewClient(sr.URLs(server.URL()))
	need.OK(t, err)
	register := func(t *testing.T, subject string, s sr.Schema) sr.SubjectSchema {
		t.Helper()
		made, err := admin.CreateSchema(ctx, subject, s)
		need.OK(t, err)
		return made
	}
	cfg := spec.SchemaRegistry{URL: server.URL()}

	t.Run("client", func(t *testing.T) {
		c, err := registry.New(cfg)
		need.OK(t, err)
		first := register(t, "shop.Line", sr.Schema{Schema: `{"type":"record","name":"Line","namespace":"shop","fields":[{"name":"sku","type":"string"}]}`})
		second := register(t, "shop.Line", sr.Schema{Schema: `{"type":"record","name":"Line","namespace":"shop","fields":[{"name":"sku","type":"string"},{"name":"n","type":"int","default":1}]}`})
		for version, want := range map[int]sr.SubjectSchema{0: second, 1: first, 2: second} {
			if got, err := c.Schema(ctx, "shop.Line", version); err != nil || got.ID != want.ID || got.Type != registry.Avro || got.Text != want.Schema.Schema {
				t.Errorf("version %d: %+v, %v; want %+v", version, got, err, want)
			}
		}
		if got, err := c.SchemaByID(ctx, first.ID); err != nil || got.Text != first.Schema.Schema {
			t.Errorf("id %d: %+v, %v", first.ID, got, err)
		}
		register(t, "referring", sr.Schema{Schema: `{"type":"record","name":"Order","fields":[{"name":"line","type":"shop.Line"}]}`, References: []sr.SchemaReference{{Name: "shop.Line", Subject: "shop.Line", Version: 1}}})
		if got, err := c.Schema(ctx, "referring", 0); err != nil || !reflect.DeepEqual(got.References, []registry.Reference{{Name: "shop.Line", Text: first.Schema.Schema}}) {
			t.Errorf("references: %+v, %v", got, err)
		}
		register(t, "json", sr.Schema{Schema: `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object"}`, Type: sr.TypeJSON})
		if got, err := c.Schema(ctx, "json", 0); err != nil || got.Type != registry.JSON {
			t.Errorf("JSON Schema: %+v, %v", got, err)
		}
		_, subject := c.Schema(ctx, "missing", 0)
		_, version := c.Schema(ctx, "json", 9)
		_, id := c.SchemaByID(ctx, 987654)
		for what, err := range map[string]error{"a subject": subject, "a version": version, "an id": id} {
			need.That(t, errors.Is(err, registry.ErrNotFound), "%s that is not there: %v", what, err)
		}
	})

	encode := func(t *testing.T, encoding spec.KafkaEncoding, subject, payload string) (id int, data []byte) {
		t.Helper()
		e, err := New(encoding, cfg)
		need.OK(t, err)
		value, err := e.Encode(ctx, time.Now(), subject, []byte(payload))
		need.Must(t, err == nil && len(value) >= 5 && value[0] == 0, "%x, %v", value, err)
		return int(binary.BigEndian.Uint32(value[1:])), value[5:]
	}

	t.Run("Avro", func(t *testing.T) {
		made := register(t, "orders-value", sr.Schema{Schema: order})
		id, data := encode(t, spec.KafkaAvro, "orders-value", `{"id": 42, "note": "größe", "mixed": 2.5, "at": "2026-01-02T03:04:05.678Z",
			"price": "-12.34", "raw": "a\u00ff", "kind": "OLD", "lines": [{"sku": "x"}, {"sku": "y"}], "tags": {"k": "v"}, "to": {"zip": "10115"}}`)
		read, err := admin.SchemaByID(ctx, id)
		need.Must(t, err == nil && id == made.ID, "id %d, want %d: %v", id, made.ID, err)
		reader, err := goavro.NewCodecForStandardJSONFull(read.Schema)
		need.OK(t, err)
		native, rest, err := reader.NativeFromBinary(data)
		need.Must(t, err == nil && len(rest) == 0, "%v, %d bytes too many", err, len(rest))
		back, err := reader.TextualFromNative(nil, native)
		need.OK(t, err)
		for _, part := range []string{`"id":42`, `"count":7`, `"note":"gr\u00F6\u00DFe"`, `"mixed":2.5`, `"at":1767323045678`, `"raw":"a\u00FF"`, `"kind":"OLD"`,
			`"lines":[{"sku":"x"},{"sku":"y"}]`, `"tags":{"k":"v"}`, `"to":{"zip":"10115"}`, `"price":"\u00FB."`} {
			need.That(t, strings.Contains(string(back), part), "read as %s, without %s", back, part)
		}
	})

	t.Run("Protobuf", func(t *testing.T) {
		register(t, "span", sr.Schema{Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; package shop; message Span { int64 seconds = 1; int32 nanos = 2; }`})
		_, data := encode(t, spec.KafkaProtobuf, "span", `{"seconds": "-9007199254740993", "nanos": -5}`)
		got := &durationpb.Duration{}
		if err := proto.Unmarshal(data[1:], got); err != nil || data[0] != 0 || got.Seconds != -9007199254740993 || got.Nanos != -5 {
			t.Errorf("%x is read as %v, %v", data, got, err)
		}
	})
}
