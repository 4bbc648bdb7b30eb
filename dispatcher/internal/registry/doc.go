// Package registry reads schemas from a schema registry: Confluent's, or what speaks its API. It never
// writes there.
//
// # Memory
//
// A fixed version and an id are asked for once. The latest version of a subject is asked for again
// after the refresh time (5m). While the registry cannot be asked, the last known answer holds,
// however old: an outage of the registry stops only what was never asked before, and that is
// dispatcher.Unavailable, which spends no attempt of an event. A registry that does not answer at all
// holds up one caller for a second now and then.
//
// That a subject does not exist is an answer, [ErrNotFound]. It is asked again after two seconds.
//
// # Security
//
// Use https, and credentials in files, basic or bearer. Files are read each time the registry is
// asked, so new ones need no restart. Errors never quote credentials or an answer's body.
package registry
