package status

import "time"

// Data is how the outbox's data are. Each process of a dispatcher says the same of Windows, and each dispatcher of a
// database the same of orphaned rows.
type Data struct {
	// ObservedAt is the database's time of the look.
	ObservedAt time.Time `json:"observedAt"`
	// Windows are how deliveries of the dispatcher ended in the last 5 minutes, and in the last hour.
	Windows []Window `json:"windows"`
	// Unserved counts due rows of topics that no process of a dispatcher serves, and Abandoned rows that are leased to
	// a worker that is gone and that nobody has taken over: in all namespaces of the database, for a minute at least.
	Unserved  int64 `json:"unserved"`
	Abandoned int64 `json:"abandoned"`
	// OrphansAtLeast is true when there may be more of them.
	OrphansAtLeast bool `json:"orphansAtLeast,omitempty"`
	// OrphanTopics are the topics that have such rows: the first 20 by name.
	OrphanTopics []OrphanTopic `json:"orphanTopics,omitempty"`
}

// Window is how deliveries ended over a time that has just passed.
type Window struct {
	// Window is that time, as 5m or 1h.
	Window string `json:"window"`
	// Delivered events were marked so by a process that still runs, and Failed are its attempts that failed.
	Delivered int64 `json:"delivered"`
	Failed    int64 `json:"failed"`
	// SuccessRate is the part of the attempts that succeeded, from 0 to 1. Absent when there was none.
	SuccessRate *float64 `json:"successRate,omitempty"`
	// Died counts the events that became dead. DiedAtLeast is true when there may be more.
	Died        int64 `json:"died"`
	DiedAtLeast bool  `json:"diedAtLeast,omitempty"`
}

// OrphanTopic is a topic with orphaned rows.
type OrphanTopic struct {
	Namespace string `json:"namespace"`
	Topic     string `json:"topic"`
	Unserved  int64  `json:"unserved"`
	Abandoned int64  `json:"abandoned"`
}
