// Package deadletterreplay reconciles DeadLetterReplays: it runs one Job for each, and reports what its pod says.
//
// The set and the progress are rows of the database, under the object's UID. So a pod that is killed, a Job that is
// made again, and a manager that starts anew go on where the replay stands, and the operator opens no connection
// itself. While the Job runs its pod is asked for its progress; what counts in the end is what the pod leaves.
//
// A pod is told by SIGTERM to end after its batch, and cannot tell an eviction, after which the next pod goes on, from
// the deletion of the object. So a deletion is a second Job, `dispatcher replay stop`, which skips what waits in the
// database. A finalizer keeps the object for it, and for two and a half minutes at most: when the database is away
// the object goes without it, an Event says so, and nothing is lost, since no Job is left that moves anything.
package deadletterreplay
