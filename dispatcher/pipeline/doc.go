// Package pipeline is what happens to an event on its way to the sink: its payload is validated, then
// transformed, and a route says where in the sink it goes. Package expression says what the expressions
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
//
// Topics and types are names, without wildcards; none means all. An event without a type is in the
// entries for all types only. Attributes and headers are the producer's also after a transformation, and
// the row in the database stays as it is. A transformation sees, and rules do not, what the
// transformations before it made.
//
// # Outcomes
//
//	what happens                                             the event
//	the payload breaks its schema, or a rule is false        dead at once: schema_validation_failed
//	a rule cannot be computed, as for a key that is missing  dead at once: schema_validation_failed
//	a transformation cannot be computed                      failed, an attempt is spent
//	no route takes the topic (CONTRACT C-29)                 failed, an attempt is spent
//	a route cannot be computed, or makes an empty string     failed, an attempt is spent
//	the schema registry was never reached for a schema       back as it was: dispatcher.Unavailable
//	the registry does not have the schema                    failed, an attempt is spent
//	the registry's schema is none, or not a JSON Schema      failed, an attempt is spent
//	any other                                                what the sink says
//
// A rule is about the payload, which will never be another one; so a payload that a rule cannot be
// computed for breaks it, and has() is for what may be missing. Routes, transformations and the registry's
// schemas are about the configuration, which someone may correct: that is why what they fail on is tried
// again, until the event has no attempt left. When all events of a topic fail, the engine holds it, and
// tries some of them now and then. Nothing of an event whose step failed is sent, and other events of its
// batch are not held up by it.
//
// An expression, an inline schema or a schema's file that is wrong stops nobody's event: the dispatcher
// does not start, `dispatcher check` tells what is wrong, and the operator leaves the pods alone that run.
//
// # Schemas
//
// JSON Schema of draft 7 and 2020-12 (also 6, 4 and 2019-09), as $schema says, 2020-12 when it says
// nothing. format is checked by the drafts that ask for it, up to 7. A $ref leads to a place in the
// schema itself, to a reference that the registry has for it, or to a metaschema; nothing is ever loaded
// from a network or a disk for it. Regular expressions are Go's, which take linear time.
//
// A file is read at start, so a new one needs a new start; the operator sees to that. A fixed version
// from the registry is asked for once; for the latest one, and while the registry is away, see package
// registry.
//
// # What is told of an invalid event
//
// The place in the payload and the place in the schema, or the rule with its message; up to 5 of them.
// Never a value (CONTRACT C-73): and as the names in an object may be data too, a place has only those
// that the schema itself names; another one is told as *.
//
// # Cost
//
// Nothing when nothing is configured. Else see the benchmarks: some microseconds an event for decoding,
// and for each schema, rule and transformation.
package pipeline
