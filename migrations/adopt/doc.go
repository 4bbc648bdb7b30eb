// Package adopt takes over a service's outbox table of another layout, without a change of its producers and consumers
// (CONTRACT C-91). README.md in its folder has the steps, and the limits of Debezium's table.
//
// One deferred constraint trigger on their table reads each row as it will be committed. In the shadow it makes the event of the row
// and marks it, undoes both, and notes what failed in outbox_adopted. Their table stays what says which rows are sent, so what their
// worker does needs no following. [Read] compares the notes with their table in one snapshot.
//
// The cut-over is one transaction with their table locked. Open rows become events with their due time and attempts, in their order, and
// are marked complete in their own terms. From then on the trigger does the same for each row that a producer inserts or opens again:
// for producers it is as if a worker completed each row at once. The trigger's function is replaced, rather than steered by a
// table, so that a transaction with an old snapshot has the new one too. The way back makes open rows of the events that are not delivered.
//
// A table that Debezium reads has no column that says what was sent: the connector's replication slot does. The cut-over wants
// the connector stopped, and peeks at the slot with the table locked. It takes whole transactions by the positions of their commits, and
// never compares the positions of rows. The way back moves the slot to its end, since all that it holds is the outbox's, and inserts the
// rows that are not delivered again, so that the connector reads them.
//
// No error of the trigger reaches a producer, but class 40, which only the whole transaction can repeat: a row that the outbox does not take
// is noted with the reason, counted, and left open in their table.
package adopt
