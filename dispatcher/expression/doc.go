// Package expression compiles and runs the CEL expressions of a configuration: routes, rules and
// transformations. https://cel.dev describes the language.
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
//	payload               dyn                   the event's JSON, for rules and transformations
//
// has(event.tenant) is false for an empty one. Numbers of the payload are doubles, whatever they look
// like: payload.quantity * payload.price always works, and so does payload.quantity > 5, but in sums a
// literal is written as a double too: payload.quantity + 1.0. Only whole numbers beyond 2^53, which a
// double cannot hold, are ints: ids stay what they are. int(payload.id) makes an int of any.
//
// A key that may be missing is asked for with has(payload.discount), or with a question mark:
// event.headers.?region.orValue("eu").
//
// # Functions
//
// All of CEL's own; its optional values; the string functions of cel-go (lowerAscii, replace, split,
// substring, trim and so on); and for payloads:
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
// # Bounds
//
// An expression has at most 4096 characters. One that could cost more than a million of CEL's units for
// lists and maps of 100 entries and texts of 1000 characters is refused when it is compiled. An
// evaluation that costs more than 100,000, which takes a tenth of a second or two, ends there and fails.
//
// # Errors
//
// What is wrong with an expression is told with line and column when it is compiled. Why one fails on
// an event is told with the place in the expression and a fixed phrase; nothing of the event is in it,
// because CEL's own words may quote what it holds (CONTRACT C-73).
package expression
