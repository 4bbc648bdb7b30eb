// Package postgressink inserts events into a table of a PostgreSQL database, effectively once: the event's
// id is the table's primary key. It is an inbox that consumers read with SQL.
//
// dispatcher/sink/postgres.md has the settings, guarantees, outcomes and how to secure it.
package postgressink
