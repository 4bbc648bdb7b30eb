// Package adopt takes over a service's outbox table of another layout, without a change of its producers and consumers
// (CONTRACT C-91).
//
// A shadow is a trigger on their table. It makes the event of each row that is inserted, checks it as enqueue does, and notes
// it in outbox_adopted: nothing is sent. [Read] compares the notes with their table in one snapshot. Their
// table stays what says which rows are sent, so what their worker does needs no following.
//
// The cut-over is one transaction with their table locked. Rows that are open there, whether they wait, are due later or
// are in a worker's hands, become events with their due time and attempts, in their order, and are marked complete in
// their own terms. From then on the trigger does the same with each row that a producer inserts or opens again, in the
// producer's transaction. For producers it is as if a worker completed each row at once; a worker that still runs finds
// nothing. The trigger's function is replaced, rather than steered by a table, so that a transaction with an old snapshot
// has the new one too.
//
// What a worker of theirs has in its hands at the cut-over may be sent twice, with the same id: the event waits for the
// rest of the five minutes of M10, and a minute for other layouts, so that a late failure of that worker finds it undelivered.
//
// The way back makes open rows of the events that are not delivered, and removes them here.
//
// # Debezium
//
// A table that Debezium reads has no column that says what was sent, and producers may delete a row at once. What is
// still to be sent is what the connector's replication slot has not confirmed. So its shadow checks rows and notes the refused
// ones, and nothing is compared. The cut-over wants the connector stopped, and peeks at the slot with the table locked.
// It takes whole transactions by the positions of their commits, and never compares the positions of rows. What was
// committed without waiting for the disk is brought there first. From then on the trigger keeps a copy of each row until its event is
// delivered. The way back moves the slot to its end, since all that it holds is the outbox's, and then inserts the
// rows that are not delivered again, so that the connector reads them.
//
// Its limits:
//
//   - The slot has the plugin pgoutput, and the publication has the table.
//   - The connector captures the table alone, but for its heartbeat: the way back passes over what it has not sent of others.
//   - It has finished its snapshot: rows from before the slot are in no slot.
//   - It keeps its slot when it stops: slot.drop.on.stop is false.
//   - What it has sent and not confirmed is sent by both, with the same id. After a crash of the server the slot may be
//     further back than it was.
//   - A null payload is refused, and so is one that is not JSON.
//   - The columns of the router alone become the event; others stay in the row that the way back inserts.
//   - A slot without a reader keeps WAL until the disk is full. In the state Live it may be dropped, and is made again before
//     the way back.
//   - After the way back the connector's own offset may be older than the slot: remove it (DELETE /connectors/NAME/offsets with
//     the connector stopped), and start the connector with snapshot.mode no_data.
//
// # Errors
//
// No error of the trigger reaches a producer. A row that the outbox does not take, such as one that is too large, is
// noted with the reason, counted, and left open in their table.
package adopt
