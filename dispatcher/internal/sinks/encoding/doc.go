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
