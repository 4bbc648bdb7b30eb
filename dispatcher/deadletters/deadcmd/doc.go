// Package deadcmd has the commands that read dead letters, for any [deadletters.Source]: those of the dispatcher,
// which asks the database, and of kubectl outbox, which asks a pod.
package deadcmd
