package main

// verb is what made a transition, as far as the row reports.
type verb string

const (
	insert   verb = "insert"
	claim    verb = "claim"
	reclaim  verb = "claim again"
	ack      verb = "ack"
	nack     verb = "nack"
	release  verb = "release"
	postpone verb = "postpone" // a release that waits
	toDead   verb = "dead"
	replay   verb = "replay"
	withdraw verb = "withdraw"
	illegal  verb = "illegal"
)

// verbOf names a transition of a row by the state machine of package dispatcher; illegal is one that it
// does not have. Nothing here extends a lease or counts a suspect (the witness leaves that out), or removes a row that was delivered. That a claim's
// lease number is a new one is a rule of its own: see ledger.
func verbOf(from, to state) verb {
	gain := to.attempts - from.attempts
	free := to.worker == state{}.worker && to.until.IsZero()
	same := to.lease == from.lease
	switch [2]string{from.status, to.status} {
	case [2]string{"", "pending"}:
		return legal(insert, to.attempts == 0 && to.lease == 0 && free)
	case [2]string{"pending", "processing"}:
		return legal(claim, gain == 1 && !free)
	case [2]string{"processing", "processing"}:
		return legal(reclaim, gain == 0 && !free)
	case [2]string{"processing", "delivered"}:
		return legal(ack, gain == 0 && same && free)
	case [2]string{"processing", ""}: // delete at ack
		return ack
	case [2]string{"processing", "pending"}:
		if gain == 0 {
			return legal(nack, same && free)
		}
		back := release
		if to.waits {
			back = postpone
		}
		return legal(back, gain == -1 && same && free)
	case [2]string{"processing", "dead"}, [2]string{"pending", "dead"}:
		return legal(toDead, gain == 0 && same && free)
	case [2]string{"pending", "withdrawn"}:
		return legal(withdraw, to.attempts == 0 && to.lease == 0 && gain == 0 && same && free)
	case [2]string{"withdrawn", ""}: // by retention, where delivered rows are not kept
		return withdraw
	case [2]string{"dead", "pending"}:
		return legal(replay, to.attempts == 0 && same && free)
	default:
		return illegal
	}
}

func legal(v verb, guard bool) verb {
	if guard {
		return v
	}
	return illegal
}
