// Package expression compiles and runs the CEL expressions of a configuration: routes, rules,
// transformations and headers. https://cel.dev describes the language.
//
// # Variables
//
//	variable              type                  what it is
//	event.namespace       string                the outbox namespace
//	event.topic           string                the topic
//	event.type            string                what happened, empty for none
//	event.tenant          string                the tenant's UUID, empty for none
//	event.aggregateType   string                empty for none
//	event.aggregateId     string                empty for none
//	event.partitionKey    string                the producer's explicit key, empty for none
//	event.headers         map(string, string)   the producer's headers
//	event.id              string                the event id: what consumers dedupe on
//	event.dedupeKey       string                the producer's idempotency key, empty for none
//	event.key             string                what messages are partitioned by: the partition key, else the
//	                                            aggregate id, else the event id
//	event.sequence        int                   the order of insertion; it has gaps that fill late
//	event.aggregateSequence int                 the number in its aggregate, without gaps; 0 when the producer
//	                                            requested none
//	event.createdAt       timestamp             when the event was made, on the database's clock
//	event.attempt         int                   the number of this delivery, from 1
//	event.token           int                   the fencing token, which only rises for an event
//	payload               dyn                   the event's JSON, for rules, transformations and headers
//
// has(event.tenant) is false for an empty one, and has(event.aggregateSequence) for 0. attempt and token differ from one attempt to the next: a
// payload that holds them is another one each time.
//
// # Numbers
//
// JSON has one kind of number, and CEL has three. A whole number of the payload is an int, however it is
// written (3, 3.0, 3e0), or a uint when only a uint holds it; any other is a double. A number that none of
// them holds, such as one of 30 digits or 1e999, is computed as a double, and keeps its text where no
// expression changes it. Numbers of different types are compared, added, subtracted, multiplied and divided
// without a conversion: payload.quantity + 1 > 0 and payload.quantity * 1.19 work for every number. A whole
// result is exact while an int or a uint holds it; a longer one is a double. Division with a number of the
// payload keeps the fraction: payload.quantity / 2 is 3.5 for 7. Division of ints that are known as such is CEL's own:
// 7 / 2 and int(payload.quantity) / 2 are 3. A function that takes an int takes every whole number:
// payload.name.substring(payload.from).
//
// A key that may be missing is tested with has(payload.discount), or read as an optional value:
// event.headers.?region.orValue("eu").
//
// # Functions
//
// All of CEL's own, with all time zones, such as event.createdAt.getHours("Europe/Berlin"); its optional values; the
// string functions of cel-go (lowerAscii, replace, split, substring, trim and so on); and for payloads:
//
//	without(payload, ["card", "customer.email"])   the payload without these members
//	mask(payload, ["card", "items.*.serial"])      the payload with their values masked
//	mask(payload.card)                             a string masked
//	with(payload, {"total": payload.price})        the payload with these members added or replaced
//
// A path is names with dots between them; * stands for each element of a list, or each member of an
// object. A path that leads nowhere is passed over. A masked text keeps its length and, from 8
// characters on, the last 4; a number is masked as its text, an object or a list in all that it holds;
// true, false and null stay. with takes no paths; to rename a member:
//
//	with(without(payload, ["qty"]), {"quantity": payload.qty})
//
// # Headers
//
// A header is a text, a number, a bool or a timestamp (RFC 3339), or optional: event.headers.?region. Numbers
// keep their digits. No value, null and an empty text make no header. It has at most 8 KiB.
//
// # Bounds
//
// An expression has at most 4096 characters. One that could cost more than a million of CEL's units for
// lists and maps of 100 entries and texts of 1000 characters is refused when it is compiled: such as a
// loop inside a loop inside a loop.
//
// The limits of an evaluation grow with the event's payload, of n bytes:
//
//	work                    1,000,000 + 4 n units   a unit is a step of the expression, or some characters of a text
//	memory that is taken    8 MiB + 64 n bytes      freed memory counts too
//	a transformation's JSON 1 MiB + 2 n bytes
//	a regular expression    1000 bytes              that is not written out in the expression
//
// So a rule over all elements of a list is computed however long the list is: 60,000 elements in 1 MiB, with
// two comparisons each, take a sixth of the work, which is less than 0.1 seconds of a CPU. A loop over all
// elements for each element ends at the limit, for 1 MiB after 0.2 to 0.7 seconds (BenchmarkLimit). A function that makes more than
// it is given (replace, join, split, format, +, a list that grows, with) is measured before it makes
// anything, so that 80 KB are never grown to more than some MiB. An evaluation also ends with the delivery
// that it is part of.
//
// # Errors
//
// A fault of an expression is an error with line and column when it is compiled. The error of one that fails on
// an event has the place in the expression and a fixed phrase; nothing of the event is in it,
// because CEL's own words may quote what it holds (CONTRACT C-73). [IsMissing] distinguishes a key or an element
// that the event does not have from what is the expression's fault as well.
package expression
