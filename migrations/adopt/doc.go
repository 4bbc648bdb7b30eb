// Package adopt takes over a service's outbox table of another layout, without a change of its producers and consumers
// (CONTRACT C-91).
//
// A shadow is a trigger on their table. It makes the event of each row that is inserted, checks it as enqueue does, and notes
// it beside, in outbox_adopted: nothing is sent. [Read] compares the notes with their table in one snapshot. Their
// table stays what says which rows are sent, so what their worker does needs no following.
//
// The cut-over is one transaction with their table locked. Rows that are open there, whether they wait, are due later or
// are in a worker's hands, become events with their due time and attempts, in their order, and are marked complete in
// their own terms. From then on the trigger does the same with each row that a producer inserts or opens again, in the
// producer's transaction. For producers it is as if a worker completed each row at once; a worker that still runs finds
// nothing. The trigger's function is replaced, rather than told by a table, so that a transaction with an old snapshot
// has the new one too.
//
// What a worker of theirs has in its hands at the cut-over may be sent twice, with the same id: the event waits for the
// rest of the five minutes of M10, and a minute for other layouts, so that a late failure of that worker finds it undelivered.
//
// The way back makes open rows of the events that are not delivered, and removes them here.
//
// No error of the trigger reaches a producer. A row that the outbox does not take, such as one that is too large, is
// noted with the reason, counted, and left open in their table.
package adopt
