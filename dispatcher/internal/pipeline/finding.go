package pipeline

import "errors"

// Finding is a part of the configuration that an event does not pass. It holds no value of the event, and
// events with one fault have the same, so that it groups them.
type Finding struct {
	// Field is the field of the configuration: message.validation[0].schema, message.validation[0].rules[1],
	// message.transform[0].payload or sink.routes[2].to. It is payload for a payload that no step can read.
	Field string
	// Place is the place in the payload that a schema refuses: /lines/*/price, with * for the index of an array and
	// for what may be data. Empty for the payload itself, and where there is no schema.
	Place string
	// What is the place in the schema, or the message of the rule and the rule. Empty for others.
	What string
}

// Findings are what an error of this package's sink or route is about, in the order of the configuration. None
// for an error that is not about a step of the pipeline.
func Findings(err error) []Finding {
	var found *foundError
	if errors.As(err, &found) {
		return found.findings
	}
	return nil
}

// foundError is an error with its findings.
type foundError struct {
	error
	findings []Finding
}

func (e *foundError) Unwrap() error { return e.error }
