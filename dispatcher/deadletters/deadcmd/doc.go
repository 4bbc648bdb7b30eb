// Package deadcmd has the commands that read dead letters, for any [deadletters.Source]: those of the dispatcher,
// which reads the database, and of kubectl outbox, which reads from a pod.
package deadcmd
