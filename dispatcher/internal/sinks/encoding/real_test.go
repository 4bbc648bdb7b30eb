package encoding

import (
	"context"
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/linkedin/goavro/v2"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/registry"
	hackregistry "github.com/outbox-operator/outbox-operator/hack/servers/registry"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// A real registry, and what was encoded by its schemas read by others than those who wrote it: for Avro
// another library, for Protobuf generated code.
//
// CONTRACT: C-72
func TestRealRegistry(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	server, err := hackregistry.Start(ctx)
	need.Server(t, err, hackregistry.ErrMissing)
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	admin, err := sr.NewClient(sr.URLs(server.URL()))
	if err != nil {
		t.Fatal(err)
	}
	register := func(t *testing.T, subject string, s sr.Schema) sr.SubjectSchema {
		t.Helper()
		made, err := admin.CreateSchema(ctx, subject, s)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	cfg := config.SchemaRegistry{URL: server.URL()}

	t.Run("client", func(t *testing.T) {
		c, err := registry.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
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
			if !errors.Is(err, registry.ErrNotFound) {
				t.Errorf("%s that is not there: %v", what, err)
			}
		}
	})

	encode := func(t *testing.T, encoding config.KafkaEncoding, subject, payload string) (id int, data []byte) {
		t.Helper()
		e, err := New(encoding, cfg)
		if err != nil {
			t.Fatal(err)
		}
		value, err := e.Encode(ctx, time.Now(), subject, []byte(payload))
		if err != nil || len(value) < 5 || value[0] != 0 {
			t.Fatalf("%x, %v", value, err)
		}
		return int(binary.BigEndian.Uint32(value[1:])), value[5:]
	}

	t.Run("Avro", func(t *testing.T) {
		made := register(t, "orders-value", sr.Schema{Schema: order})
		id, data := encode(t, config.KafkaAvro, "orders-value", `{"id": 42, "note": "größe", "mixed": 2.5, "at": "2026-01-02T03:04:05.678Z",
			"price": "-12.34", "raw": "a\u00ff", "kind": "OLD", "lines": [{"sku": "x"}, {"sku": "y"}], "tags": {"k": "v"}, "to": {"zip": "10115"}}`)
		read, err := admin.SchemaByID(ctx, id)
		if err != nil || id != made.ID {
			t.Fatalf("id %d, want %d: %v", id, made.ID, err)
		}
		reader, err := goavro.NewCodecForStandardJSONFull(read.Schema)
		if err != nil {
			t.Fatal(err)
		}
		native, rest, err := reader.NativeFromBinary(data)
		if err != nil || len(rest) != 0 {
			t.Fatalf("%v, %d bytes too many", err, len(rest))
		}
		back, err := reader.TextualFromNative(nil, native)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{`"id":42`, `"count":7`, `"note":"gr\u00F6\u00DFe"`, `"mixed":2.5`, `"at":1767323045678`, `"raw":"a\u00FF"`, `"kind":"OLD"`,
			`"lines":[{"sku":"x"},{"sku":"y"}]`, `"tags":{"k":"v"}`, `"to":{"zip":"10115"}`, `"price":"\u00FB."`} {
			if !strings.Contains(string(back), part) {
				t.Errorf("read as %s, without %s", back, part)
			}
		}
	})

	t.Run("Protobuf", func(t *testing.T) {
		register(t, "span", sr.Schema{Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; package shop; message Span { int64 seconds = 1; int32 nanos = 2; }`})
		_, data := encode(t, config.KafkaProtobuf, "span", `{"seconds": "-9007199254740993", "nanos": -5}`)
		got := &durationpb.Duration{}
		if err := proto.Unmarshal(data[1:], got); err != nil || data[0] != 0 || got.Seconds != -9007199254740993 || got.Nanos != -5 {
			t.Errorf("%x is read as %v, %v", data, got, err)
		}
	})
}
