package consumercheck

// check is one thing that is tried.
type check struct {
	name, rule string
	// needs is the hook without which it is left out, and optional is true where not every consumer has what it tries.
	needs    Hook
	optional bool
	// unless is a declaration that leaves it out.
	unless Hook
	// effects is true when the responses alone show nothing of it.
	effects bool
	// follows are the checks that explain it: when one of them is broken, this one is not made, since it would be broken
	// for the same cause.
	follows []string
	remedy  string
	run     func(*run)
}

// Remedies of more than one check.
const (
	respondSooner = "Respond sooner: hand longer work to a queue of your own, in the transaction of the record. Or " +
		"raise timeout of the sink, and --request-timeout to the same."
	acknowledgeLater = "Acknowledge an event when its effect is committed, and not before: nothing sends an acknowledged event again."
	wholeID          = "Dedupe on the event's whole id alone: not on aggregate, type, payload, sequence, time or a part of the id."
	oneTransaction   = "Write record and effect in one transaction."
	idAlone          = "Dedupe on the event id alone, without token and attempt."
)

// Checks that explain others.
var (
	repeats = []string{"duplicates", "replays"}
	records = []string{"duplicates", "replays", "duplicates at the same time", "a delivery that was given up", "failures are made good"}
)

// checks are all of them, in the order in which they are made. All others follow from the first two.
var checks = []check{
	{name: "responds in time", rule: "RULE-010-022", run: respondsInTime, remedy: respondSooner},
	{name: "handles an event", rule: "RULE-010-002", run: handles,
		remedy: "Take an event that is as the first one was; the consumer's log says why it did not. Where the payload has an id that must be new for each event, make it from the event's."},
	{name: "duplicates", rule: "RULE-010-002", run: duplicates,
		remedy: "Keep the id of each event that was handled, skip one that is there, and acknowledge it."},
	{name: "replays", rule: "RULE-010-002", follows: repeats, run: replays, remedy: idAlone},
	{name: "duplicates at the same time", rule: "RULE-010-012", follows: repeats, run: simultaneous,
		remedy: "Let the record's unique key decide, in the effect's transaction, and respond when that has ended."},
	{name: "a delivery that was given up", rule: "RULE-010-012", follows: append(repeats, "duplicates at the same time"), run: givenUp, remedy: oneTransaction},
	{name: "older tokens", rule: "RULE-010-002", effects: true, follows: repeats, run: olderTokens, remedy: idAlone},
	{name: "another order", rule: "RULE-010-020", run: anotherOrder,
		remedy: "Accept any order; where one is needed, compare the sequence with that of the last event applied to the aggregate. A consumer that skips older ones on purpose declares it (LatestOnly, --latest-only)."},
	{name: "several events at once", rule: "RULE-010-002", unless: LatestOnly, follows: []string{"duplicates at the same time", "another order"}, run: several,
		remedy: acknowledgeLater},
	{name: "unknown fields", rule: "RULE-010-021", run: unknownFields,
		remedy: "Ignore fields and attributes that you do not know."},
	{name: "missing fields", rule: "RULE-010-021", needs: Optional, optional: true, run: missingFields,
		remedy: "Use a default for an optional field that is missing."},
	{name: "failures are reported", rule: "RULE-010-032", needs: FailEffect, run: failuresAreReported,
		remedy: "Return the error of the effect, so that the event comes again."},
	{name: "failures are made good", rule: "RULE-010-012", needs: FailEffect, follows: []string{"failures are reported"}, run: failuresAreMadeGood,
		remedy: oneTransaction + " After a failure roll back, and begin a new one."},
	{name: "an unknown type", rule: "RULE-010-032", unless: AnyType, follows: []string{"failures are reported"}, run: unknownType,
		remedy: "Refuse an event of a type that you do not know, with 422: it is kept as a dead letter, and can be replayed. A consumer that takes or skips any type on purpose declares it (AnyType, --any-type)."},
	{name: "effect before the check", rule: "RULE-010-031", needs: FailRecord, unless: NoRecord, effects: true, follows: append(repeats, "failures are reported"), run: effectBeforeCheck,
		remedy: "Check before the effect, and fail when the check does."},
	{name: "duplicates after a restart", rule: "RULE-010-002", needs: Restart, follows: append(repeats, "failures are made good"), run: restarts,
		remedy: "Keep what was handled in a database, and acknowledge when effect and record are committed there."},
	{name: "crash between effect and record", rule: "RULE-010-012", needs: Crash, unless: NoRecord, follows: append(records, "failures are reported", "duplicates after a restart"), run: crash,
		remedy: oneTransaction},
	{name: "the fence", rule: "RULE-010-003", needs: Token, optional: true, follows: []string{"failures are reported", "failures are made good"}, run: fence,
		remedy: "Outside of the database, compare fencing tokens, and let no delivery replace what one with a higher token has left."},
	{name: "late duplicates", rule: "RULE-010-011", follows: append(repeats, "another order", "failures are made good", "duplicates after a restart"), run: lateDuplicates,
		remedy: "Remember what was handled for as long as the outbox keeps its events, which is 7 days at least: not in a cache, and not the last ones alone."},
}
