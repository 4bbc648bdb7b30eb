package dispatcher

// Recovery says in one sentence or two what to do about events that are dead for a reason and whose cause has a
// class. It is the one place that does: commands, messages and pages have it from here.
func Recovery(reason DeadReason, class string) string {
	if reason == ReasonProcessingTimeout {
		return "Look why the worker of the last attempt ended or hung, and replay."
	}
	switch class {
	case ClassDecode:
		return "Correct the part of the row that the error names, and replay; or correct the producer, and discard."
	case ClassSchema:
		return "Correct the schema, and replay; or correct the producer, and discard."
	case ClassRule:
		return "Correct the rule, and replay; or correct the producer, and discard."
	case ClassRoute:
		return "Add or correct a route that takes the event, and replay."
	case ClassMask:
		return "Correct the transformation, or the schema of what reaches it, and replay."
	case ClassMessage:
		return "Correct the header's expression in message.headers, and replay."
	}
	switch reason {
	case ReasonPoisonMessage:
		return "Fix the handler or the sink that panicked, and replay; or discard."
	case ReasonSchemaValidationFailed:
		return "Correct what the event is checked against, and replay; or correct the producer, and discard."
	case ReasonPermanentFailure:
		return "Fix what the destination refuses the event for, and replay; or discard."
	default:
		return "Fix the destination, and replay; or discard what it need not get."
	}
}
