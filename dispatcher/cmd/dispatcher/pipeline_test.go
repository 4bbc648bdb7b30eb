package main

import (
	"strings"
	"testing"
)

// check and the start compile routes, validations and transformations, and report an error with line and column.
// CONTRACT: C-72, C-101
func TestPipelineIsChecked(t *testing.T) {
	t.Parallel()
	o := installed(t)
	good := dispatching(`{http: {url: 'http://127.0.0.1:1/'}, routes: [{topics: [orders], to: '"/" + event.type'}]}`) + `
message:
  validation: [{types: [Placed], schema: {inline: '{"type": "object"}'}, rules: [{rule: payload.total > 0, message: positive}]}]
  transform: [{payload: 'without(payload, ["card"])'}]
`
	run(t, "", "check", "-f", o.file(t, o.dispatcher, good)).ended(t, 1, "ok   config: ",
		`ok   sink.routes[0]: orders: "/" + event.type`+"\n",
		"ok   message.validation[0]: Placed: an inline schema; payload.total > 0\n",
		`ok   message.transform[0]: every type: without(payload, ["card"])`+"\n",
		"FAIL sink: ")
	bad := o.file(t, o.dispatcher, dispatching("{log: {}}")+`
message: {validation: [{schema: {inline: '{"type": "objekt"}'}, rules: [{rule: payload.total >, message: positive}]}]}
`)
	refused := run(t, "", "check", "-f", bad)
	if strings.Contains(refused.out, "ok   config") {
		t.Errorf("a file that does not compile is called valid:\n%s", refused.out)
	}
	refused.ended(t, 78, "FAIL config: message.validation[0].schema.inline: it is not a JSON Schema: ",
		"FAIL config: message.validation[0].rules[0].rule: line 1, column 16: Syntax error")
	run(t, "", "once", "-f", bad).ended(t, 78, "message.validation[0].schema.inline: it is not a JSON Schema: ")
	run(t, "", "run", "-f", bad).ended(t, 78, "message.validation[0].rules[0].rule: line 1, column 16: Syntax error")
	run(t, "", "check", "-f", o.file(t, o.dispatcher, dispatching("{log: {}, routes: [{to: event.topic}]}"))).ended(t, 78, "FAIL config: sink.routes are for sinks that have several destinations")
}
