// Package deadletters is what people ask of an outbox's dead letters, and what they are told: the filter, the
// groups, the dead letters, and the history of an event. It is plain data, which the control plane may import too.
//
// A [Source] answers. Package pgreader is the one on PostgreSQL. [Handler] serves a source over HTTP, and
// [Client] is the source at the other end of it. Package deadcmd has the commands, which work on any of them.
//
// Everything here reads (CONTRACT C-42 has what changes). A payload and headers are told only to those who ask
// for them.
package deadletters
