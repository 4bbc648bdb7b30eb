// Package journal compares the journal of an outbox with its rows (CONTRACT C-61): the records that triggers in the
// database write for each change of a row, while the journal is on. It needs PostgreSQL and nothing else of this module.
//
// [Check] only reads. It reports each row that is not as its last record says, each record that does not follow from the
// previous one, and each change that no engine makes. It works in short statements of some thousand records, so it holds
// no snapshot for long, and keeps only the differences in memory.
package journal
