// Package outbox reconciles Outboxes: it runs the one migration Job of a database, and sums up what the
// OutboxDispatchers that refer to it report.
//
// The operator opens no connection to the database. What is known comes from the Job and from the status of
// the dispatchers, whose changes trigger a pass; so a pass polls no pod, and is repeated only
// while a migration is under way.
package outbox
