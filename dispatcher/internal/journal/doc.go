// Package journal compares the journal of an outbox with its rows (CONTRACT C-61): the records that triggers in the
// database write of each change of a row, while the journal is on. It needs PostgreSQL and nothing else of this module.
//
// [Check] reads. It names each row that is not as its last record says, each record that does not follow from the one
// before, and each change that no engine makes. It works in short statements of some thousand records, so it holds no
// snapshot for long, and keeps in memory the differences alone.
package journal
