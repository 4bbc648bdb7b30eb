package status

import "time"

// Data is the health of the outbox's rows. Windows is the same in each process of a dispatcher, and orphaned rows are the
// same in each dispatcher of a database.
type Data struct {
	// ObservedAt is the database's time of the observation.
	ObservedAt time.Time `json:"observedAt"`
	// Windows are how deliveries of the dispatcher ended in the last 5 minutes, and in the last hour.
	Windows []Window `json:"windows" brief:"4"`
	// Unserved counts due rows of topics that no dispatcher serves, and Abandoned rows that are leased to a worker that
	// does not run any more: in all namespaces of the database, for at least a minute.
	Unserved  int64 `json:"unserved"`
	Abandoned int64 `json:"abandoned"`
	// OrphansAtLeast is true when there may be more of them.
	OrphansAtLeast bool `json:"orphansAtLeast,omitempty"`
	// OrphanTopics are the topics that have such rows, at most 20: those of the dispatcher's namespace first, and by name.
	OrphanTopics []OrphanTopic `json:"orphanTopics,omitempty" brief:"5"`
}

// Window counts how deliveries ended in a time up to now.
type Window struct {
	// Window is that time, as 5m or 1h.
	Window string `json:"window"`
	// Delivered events were marked so by a process that still runs, and Failed are its attempts that failed.
	Delivered int64 `json:"delivered"`
	Failed    int64 `json:"failed"`
	// SuccessRate is the part of the attempts that succeeded, from 0 to 1. Absent when there was none.
	SuccessRate *float64 `json:"successRate,omitempty"`
	// Dead counts the events that became dead. DeadAtLeast is true when there may be more.
	Dead        int64 `json:"dead"`
	DeadAtLeast bool  `json:"deadAtLeast,omitempty"`
}

// OrphanTopic is a topic with orphaned rows.
type OrphanTopic struct {
	Namespace string `json:"namespace" brief:"48"`
	Topic     string `json:"topic" brief:"48"`
	Unserved  int64  `json:"unserved"`
	Abandoned int64  `json:"abandoned"`
}

// Journal is what was found when the journal of the last day was compared with the rows, a part with each look.
type Journal struct {
	// ObservedAt is the database's time of the newest look, and Records is how many records it read.
	ObservedAt time.Time `json:"observedAt"`
	Records    int64     `json:"records,omitempty" brief:"-"`
	// Differences counts what the last whole pass found, or the pass under way when it has found more. Examples are sentences about
	// the first of them.
	Differences int64    `json:"differences"`
	Examples    []string `json:"examples,omitempty" brief:"-"`
}
