package pacer

// Decision is why a pacer changed its limit; empty for no change.
type Decision string

// The decisions: what the label reason of outbox_concurrency_decisions_total says.
const (
	Unchanged Decision = ""
	Gained    Decision = "gain"      // more calls deliver more
	NoGain    Decision = "no_gain"   // they did not: back
	Probed    Decision = "probe"     // an experiment begins
	Spared    Decision = "spare"     // fewer calls deliver as much
	Lost      Decision = "loss"      // fewer calls delivered less: back
	Slower    Decision = "slower"    // calls deliver much less than a moment ago
	Refused   Decision = "refused"   // the destination refused or timed out
	Recovered Decision = "recovered" // after an outage
	Bounded   Decision = "bound"     // other processes came, or went
)

// Decisions are all but Unchanged.
var Decisions = [...]Decision{Gained, NoGain, Probed, Spared, Lost, Slower, Refused, Recovered, Bounded}
