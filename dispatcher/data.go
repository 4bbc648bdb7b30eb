package dispatcher

import (
	"fmt"
	"time"
)

// Windows are the most recent periods over which outcomes are counted: [Outcomes].
var Windows = [...]time.Duration{5 * time.Minute, time.Hour}

// Data is how the outbox's data are at one moment (CONTRACT C-95). Every process of a dispatcher reports the same
// Windows, and every dispatcher of a database the same Orphans, its own namespace first.
type Data struct {
	// ObservedAt is the database's time of the look.
	ObservedAt time.Time
	// Windows has one entry for each of [Windows].
	Windows []Outcomes
	Orphans Orphans
}

// Outcomes are how deliveries of a dispatcher ended over a time that has just passed.
type Outcomes struct {
	Window time.Duration
	// Delivered events were marked so by a process of the dispatcher that still runs, and Failed are its attempts that
	// failed. An event whose row is gone is not taken for a delivered one.
	Delivered, Failed int64
	// Dead counts the events of its topics that became dead, by whichever worker, resolved since or not. With Estimated
	// set there may be more.
	Dead Count
}

// Name is the window as people write it, in whole hours or minutes: 1h, 5m.
func (o Outcomes) Name() string {
	if o.Window%time.Hour == 0 {
		return fmt.Sprintf("%dh", o.Window/time.Hour)
	}
	return fmt.Sprintf("%dm", o.Window/time.Minute)
}

// SuccessRate is the part of the attempts that succeeded, from 0 to 1. known is false when there was none.
func (o Outcomes) SuccessRate() (rate float64, known bool) {
	if o.Delivered+o.Failed == 0 {
		return 0, false
	}
	return float64(o.Delivered) / float64(o.Delivered+o.Failed), true
}

// Orphans are due rows of the whole database, whatever their namespace, that no worker has served for a minute at
// least. A Count with Estimated set may be higher.
type Orphans struct {
	// Unserved are pending rows of topics that no process of a dispatcher serves.
	Unserved Count
	// Abandoned are rows that are leased to a worker that is gone, and that no other has taken over.
	Abandoned Count
	// Topics are those that have such rows: those of the dispatcher's namespace first, and by name, at most
	// OrphanTopicsListed, so that they stay the same while their numbers change.
	Topics []OrphanTopic
}

// OrphanTopicsListed is the most entries of [Orphans.Topics].
const OrphanTopicsListed = 20

// OrphanTopic is a topic with orphaned rows.
type OrphanTopic struct {
	Namespace, Topic    string
	Unserved, Abandoned Count
}
