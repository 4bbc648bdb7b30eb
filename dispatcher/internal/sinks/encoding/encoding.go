// Package encoding encodes JSON payloads to Avro and Protobuf by the schemas of a schema registry, in
// Confluent's wire format: a zero byte, the schema's id in four bytes, for Protobuf the path to the
// message, and the encoded payload. Schemas are never registered.
//
// The schema is the latest of the subject. A payload that does not fit it is dead at once, with
// schema_validation_failed (CONTRACT C-72); the error has the JSON pointer to the place, and no value.
// Before that the registry is queried for a newer schema; while it is unreachable the event fails, and is tried again.
// A field that the schema does not have does not fit either: it would be lost in silence. Take it out
// of the payload before, or register a schema that has it.
//
// # Avro
//
// The payload is taken as the JSON encoding of Avro's specification, and more freely:
//
//	Avro type             JSON
//	--------------------  -----------------------------------------------------------------------
//	record                an object; a field that is missing gets its default, and null when it is
//	                      a union of null and another type without a default
//	union                 the bare value, which takes the first branch that it fits, or an object
//	                      with the branch's name: {"string": "x"}, {"shop.Address": {...}}
//	int, long             a whole number within the type's range
//	float, double         a number, rounded as the type does; one that would be infinity does not fit
//	bytes, fixed          a string of one character for each byte, from \u0001 to \u00ff (jsonb has no
//	                      \u0000)
//	enum                  the symbol
//	timestamp-*, date     an RFC 3339 string, or a number as the type has it
//	time-*                a number as the type has it
//	decimal               a number, or a string with one; more digits than the scale do not fit
//	uuid                  a string
//
// # Protobuf
//
// The payload is taken as ProtoJSON: names in lowerCamelCase or as in the schema, 64-bit numbers as
// strings or numbers, bytes in base64, timestamps in RFC 3339. The message is the first one of the
// schema. Imports are the schema's references, and google/protobuf/*.
//
// # Tried with
//
// Apicurio Registry 2.6.13, through its Confluent API, runs in the tests. Confluent's own Schema
// Registry could not be run there: its artifacts are in no public Maven repository.
package encoding

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/registry"
)

// The content types of what an encoder returns.
const (
	ContentAvro     = "application/avro"
	ContentProtobuf = "application/protobuf"
)

// codec encodes payloads by one schema. Its methods are safe for concurrent use.
type codec interface {
	// appendTo appends the payload's binary form. An error is a *misfit.
	appendTo(dst, payload []byte) ([]byte, error)
}

// kind is one of the encodings.
type kind struct {
	schemaType, contentType string
	codec                   func(registry.Schema) (codec, error)
	// prefix stands between the schema's id and the encoded payload.
	prefix []byte
}

var kinds = map[spec.KafkaEncoding]kind{
	spec.KafkaAvro: {schemaType: registry.Avro, contentType: ContentAvro, codec: newAvro},
	// The path to the message in its file, which is the first one: [0], which is written as 0.
	spec.KafkaProtobuf: {schemaType: registry.Protobuf, contentType: ContentProtobuf, codec: newProtobuf, prefix: []byte{0}},
}

// Encoder encodes payloads by the latest schemas of subjects. Its methods are safe for concurrent use.
type Encoder struct {
	kind
	registry    *registry.Client
	codecs      sync.Map               // of codec by the schema's id, which never stands for another
	unreachable atomic.Pointer[string] // the subject of the last query that failed
}

// New returns an encoder to Avro or Protobuf. It fails for a configuration that is not valid.
func New(encoding spec.KafkaEncoding, cfg spec.SchemaRegistry) (*Encoder, error) {
	k, ok := kinds[encoding]
	if !ok {
		return nil, fmt.Errorf("encoding %s needs no schema; choose Avro or Protobuf", encoding)
	}
	client, err := registry.New(cfg)
	if err != nil {
		return nil, err
	}
	return &Encoder{kind: k, registry: client}, nil
}

// ContentType is the content type of what Encode returns.
func (e *Encoder) ContentType() string { return e.contentType }

// Encode returns the payload in Confluent's wire format. A payload that does not fit is dead with
// schema_validation_failed; the error says where and why, and never quotes the payload. It fails alone, and is tried
// again, while it is not known whether the registry has a newer schema at since, when the event was there. While the
// registry cannot be queried for a schema that it never returned, the error is Unavailable.
func (e *Encoder) Encode(ctx context.Context, since time.Time, subject string, payload []byte) ([]byte, error) {
	schema, err := e.schema(ctx, subject)
	if err != nil {
		return nil, err
	}
	value, err := e.encode(subject, schema, payload)
	var why *misfit
	if !errors.As(err, &why) {
		return value, err
	}
	newer, unsure, failed := e.registry.Newer(ctx, subject, since)
	if failed != nil {
		return nil, failed
	}
	if newer.ID != schema.ID {
		value, err = e.encode(subject, newer, payload)
	}
	switch misfits := errors.As(err, &why); {
	case misfits && unsure != nil:
		err = fmt.Errorf("%w; a newer schema could not be read, so it is tried again: %s", err, unsure.Error()) // not wrapped: the failure is the event's
	case misfits:
		err = dispatcher.Permanent(dispatcher.ReasonSchemaValidationFailed, err)
	}
	return value, err
}

// encode encodes by one schema.
func (e *Encoder) encode(subject string, schema registry.Schema, payload []byte) ([]byte, error) {
	c, err := e.compiled(subject, schema)
	if err != nil {
		return nil, err
	}
	value := make([]byte, 0, 5+len(e.prefix)+len(payload))
	value = append(value, 0) // the format's version
	value = binary.BigEndian.AppendUint32(value, uint32(schema.ID))
	value = append(value, e.prefix...)
	if value, err = c.appendTo(value, payload); err != nil {
		return nil, dispatcher.WithCause(dispatcher.Cause{Class: dispatcher.ClassSchema, Code: e.schemaType}, fmt.Errorf(
			"the payload does not fit the schema of subject %s (id %d): %w; correct the row, or register a schema that it fits", subject, schema.ID, err))
	}
	return value, nil
}

// Probe queries the registry again for the subject that failed last.
func (e *Encoder) Probe(ctx context.Context) error {
	if subject := e.unreachable.Load(); subject != nil {
		if _, err := e.schema(ctx, *subject); dispatcher.IsUnavailable(err) {
			return err
		}
	}
	return nil
}

func (e *Encoder) schema(ctx context.Context, subject string) (registry.Schema, error) {
	schema, err := e.registry.Schema(ctx, subject, 0)
	if dispatcher.IsUnavailable(err) {
		e.unreachable.Store(&subject)
	} else if e.unreachable.Load() != nil {
		e.unreachable.Store(nil)
	}
	return schema, err
}

func (e *Encoder) compiled(subject string, schema registry.Schema) (codec, error) {
	if c, ok := e.codecs.Load(schema.ID); ok {
		return c.(codec), nil
	}
	if schema.Type != e.schemaType {
		return nil, fmt.Errorf("the schema of subject %s (id %d) is of type %s, want %s; correct encoding or subject", subject, schema.ID, schema.Type, e.schemaType)
	}
	c, err := e.codec(schema)
	if err != nil {
		return nil, fmt.Errorf("the schema of subject %s (id %d) cannot be used: %w; register one that can", subject, schema.ID, err)
	}
	e.codecs.Store(schema.ID, c)
	return c, nil
}

// misfit says where a payload does not fit its schema, and why.
type misfit struct {
	// path is a JSON pointer, such as /lines/0/price, empty for the whole payload.
	path string
	// why has no value of the payload in it.
	why string
}

func (m *misfit) Error() string {
	if m.path == "" {
		return m.why
	}
	return m.path + " " + m.why
}
