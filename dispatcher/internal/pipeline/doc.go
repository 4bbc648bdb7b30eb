// Package pipeline is what happens to an event on its way to the sink: its payload is validated, then
// transformed, headers are made for its message, and a route says where in the sink it goes. Package expression says what the expressions
// may say.
//
//	routes:                                # the first route that takes the topic holds
//	- topics: [refunds]
//	  to: '"shop.refunds." + event.headers.?region.orValue("eu")'
//	- to: '"shop." + event.topic'          # without topics: all the rest
//	validation:                            # every entry that is for the event's type holds
//	- types: [OrderPlaced]
//	  schema:
//	    file: /etc/shop/order.json         # or inline, or registry: {subject: orders-value, version: 3}
//	  rules:
//	  - rule: payload.total > 0 || has(payload.voucher)
//	    message: an order has a total, or a voucher
//	transform:                             # every entry that is for the event's type, in this order
//	- types: [OrderPlaced]
//	  payload: mask(without(payload, ["card"]), ["customer.email"])
//	message:                               # what is sent with the payload, and a format that is short for all of it
//	  format: CloudEvents
//	  headers:
//	    event_type: event.type
//
// Topics and types are names, without wildcards; none means all. An event without a type is in the
// entries for all types only. Attributes and headers are the producer's also after a transformation, and
// the row in the database stays as it is. A transformation sees, and rules do not, what the
// transformations before it made. Headers see the payload as it is sent, and are in [dispatcher.Event]'s Message,
// which sinks read.
//
// # Outcomes
//
//	what happens                                             the event
//	the payload breaks its schema, or a rule is false        dead at once: schema_validation_failed
//	it breaks the registry's latest schema, of which there   failed, an attempt is spent
//	may be a newer one, while the registry is unreachable
//	a rule reads a key or an element that is not there       dead at once: schema_validation_failed
//	a rule cannot be computed for any other reason           kept: dispatcher.DestinationFault
//	a schema takes more work than the payload may            kept: dispatcher.DestinationFault
//	a transformation cannot be computed                      kept: dispatcher.DestinationFault
//	a route cannot be computed, or makes an empty string     kept: dispatcher.DestinationFault
//	a header cannot be computed                              kept: dispatcher.DestinationFault
//	no route takes the topic (CONTRACT C-29)                 failed, an attempt is spent
//	the schema registry was never reached for a schema       back as it was: dispatcher.Unavailable
//	the registry does not have the schema                    failed, an attempt is spent
//	the registry's schema is none, or not a JSON Schema      failed, an attempt is spent
//	any other                                                what the sink says
//
// What a rule says about a payload is final, because the payload will never be another one. A key that a
// rule reads is part of that, and has() is for one that may be missing. Any other failure of a rule
// is a matter of the configuration, too, which someone may correct: a value is of a type that the rule does not
// expect, a text cannot be converted, it divides by zero, or the rule costs more than it may. So such an event
// never becomes dead at once. Nothing of it is sent; its last_error names the event, the rule, the line and the
// column, what stopped it, and what to do. While nothing of its topic is delivered, its attempt is given
// back, and the engine pauses the topic and tries some of its events now and then: a rule that is wrong for
// all makes none dead. Where others of the topic are delivered between its tries, it is retried by the backoff and
// spends its attempts (CONTRACT C-32), after which it is dead with max_retries_exceeded and can be replayed. To have
// payloads of a wrong type dead-lettered at once, say the type in a schema: what breaks a schema or another rule is
// dead, whether or not a rule can be computed.
//
// The same holds for transformations and routes, for which a missing key is the configuration's, too, and for a schema that
// takes more work than it may: one that refers to itself in two places takes 2 to the power of the payload's depth. The
// registry's schemas are about the configuration as well: what they fail on is tried again until the event has
// no attempt left. Nothing of an event whose step failed is sent, and other events of its batch are not
// held up by it.
//
// An expression, an inline schema or a schema's file that is wrong stops no event: the dispatcher
// does not start, `dispatcher check` reports what is wrong, and the operator leaves running pods alone.
//
// # Schemas
//
// JSON Schema of draft 7 and 2020-12 (also 6, 4 and 2019-09), as $schema says, 2020-12 when it says
// nothing. format is checked by the drafts that require it, up to 7. A $ref leads to a place in the
// schema itself, to a reference that the registry has for it, or to a metaschema; nothing is ever loaded
// from a network or a disk for it. Regular expressions are Go's, which take linear time.
//
// A file is read again when it changes, also when it is a symbolic link that changes. A schema that compiles is
// used from then on, within a second. One that does not leaves the one before it, and [Pipeline.FileProblems]
// reports it. All schemas together have at most [MaxSchemas] bytes, and all regular expressions, in schemas and in
// expressions, at most [MaxPatterns] states: more is refused before it is compiled. A fixed version
// from the registry is fetched once; for the latest one, and while the registry is unreachable, see package
// registry. The latest one is fetched before an event that breaks it is dead.
//
// # What errors say of an invalid event
//
// The place in the payload and the place in the schema, or the rule with its message; up to 5 of them, of the first 100 of
// each schema.
// Never a value (CONTRACT C-73): and as the names in an object may be data too, a place has only those
// that the schema itself names; another one is shown as *.
//
// # Cost
//
// Nothing when nothing is configured. Else see the benchmarks: some microseconds an event for decoding,
// and for each schema, rule and transformation. A payload takes up to about 50 times its size when it is
// decoded, and an expression what package expression says under Bounds; of payloads over 64 KiB, only as many
// are decoded at once as there are CPUs, so that this much is taken only so many times (CONTRACT C-35).
//
// To hold a payload of n bytes against a schema takes at most 250,000 + 4 n steps. A part of the schema that is applied to a
// value is one, and so is each member or element of that value, and each 16 characters of a text or a number. Each
// counts double where the payload is nested 16 levels deep, three times for 32, and so on. The library keeps some hundred
// bytes for each step that fails, until it has them all. One payload at a time is held against a schema, and that ends
// with the delivery that it is part of.
package pipeline
