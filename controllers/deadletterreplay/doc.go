// Package deadletterreplay reconciles DeadLetterReplays: it runs one Job for each, and reports what its pod says.
//
// The set and the progress are rows of the database, under the object's UID. So the replay continues after its pod is
// killed, its Job is created again or the operator restarts, and the operator opens no database connection. While the Job
// runs, the operator reads the progress from its pod. The final result is the pod's termination message.
//
// SIGTERM ends a pod after its batch. The pod cannot distinguish an eviction, after which the next pod continues, from
// the deletion of the object. So a deletion creates a second Job, `dispatcher replay stop`, which skips what waits in the
// database. A finalizer keeps the object until then, for two and a half minutes at most. When the database is unreachable,
// the object is deleted without it, with an Event. Nothing is lost, since no Job is left that replays anything.
package deadletterreplay
