// Package engine delivers the events of an outbox: a [Dispatcher] claims them from a [dispatcher.Store], hands
// them to a [dispatcher.Sink], and writes the outcomes back. Package dispatcher has the guarantees, the words
// and the state machine of a row.
//
//	d, err := engine.New(store, sink, dispatcher.Config{})
//	if err != nil { … }
//	err = d.Run(ctx)
package engine
