// Package retention removes rows after their retention (CONTRACT C-60): delivered rows, resolved dead rows with their
// dead letters, and, only where that is set, unresolved dead rows. It also makes and removes the daily
// partitions of the journal (CONTRACT C-61), whose retention is set in the database.
//
// A [Sweeper] works in short statements, and no statement waits for a locked row. Delivered rows are found by
// reading the pages of the table one after the other, so they cost producers and dispatchers no index. A live row is
// never touched: only a replay makes a dead row live, and the row's lock excludes it.
//
// Of all processes that sweep a database, one works at a time: the holder of the lease, a row of the table
// outbox_sweeps, which ends on the database's clock when its holder is gone. The next one continues where the last
// one was. Nothing is kept in a session, so it works behind PgBouncer.
package retention
