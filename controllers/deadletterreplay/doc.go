// Package deadletterreplay reconciles DeadLetterReplays: it runs one Job for each, and reports what its pod says.
//
// The set and the progress are rows of the database, under the object's UID. So the replay continues after its pod is
// killed, its Job is created again or the operator restarts, and the operator opens no database connection. While the Job
// runs, the operator reads the progress from its pod. The final result is the pod's termination message.
//
// SIGTERM ends a pod after its batch. When the object is deleted, its Job goes with it and nothing runs the replay any more: a
// minute later another one may claim the dead letters that waited, which are open. The row of the replay stays unfinished
// until retention gives it up.
package deadletterreplay
