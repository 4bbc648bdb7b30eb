// Package deadletters reads an outbox's dead letters: the filter, the groups, the dead letters, and the history of an
// event. It is plain data, which the control plane may import too.
//
// A [Source] reads. Package pgreader has the one on PostgreSQL. [Handler] serves a source over HTTP, and
// [Client] is the source at the other end of it. Package deadcmd has the commands, which work on any of them.
//
// Nothing here writes (CONTRACT C-42 has what changes dead letters). A payload and headers are returned on request only.
package deadletters
