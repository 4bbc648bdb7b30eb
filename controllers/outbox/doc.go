// Package outbox reconciles Outboxes: it runs the one migration Job of a database, and sums up what the
// OutboxDispatchers that refer to it report.
//
// The operator opens no connection to the database. What is known comes from the Job and from the status of
// the dispatchers, whose changes wake the reconciler; so a pass asks no pod, and comes again by itself only
// while a migration is under way.
package outbox
