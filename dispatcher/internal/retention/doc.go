// Package retention removes what an outbox need not keep any longer (CONTRACT C-60): delivered rows, dead rows
// that a person resolved, with their dead letters, and, only where that is asked for, dead rows that nobody resolved. It
// also keeps the days of the journal (CONTRACT C-61), whose retention is set in the database.
// It needs PostgreSQL and nothing else of this module, so that a Go service may sweep without a dispatcher.
//
// A [Sweeper] works in short statements, and no statement waits for a row that somebody has locked. Delivered
// rows are found by reading the pages of the table one after the other, so they cost producers and dispatchers
// no index. A live row is never touched: the delivered and the dead never become live by themselves, and a
// replay that comes between is met by the row's lock.
//
// Of all processes that sweep a database, one works at a time: who has the lease, which is a row of the table
// outbox_sweeps, and which ends on the database's clock when its holder is gone. The next one goes on where the
// last one was. Nothing is kept in a session, so it works behind PgBouncer.
package retention
