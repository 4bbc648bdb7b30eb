// Package registry reads schemas from a schema registry: Confluent's, or what speaks its API. It never
// writes there.
//
// # Memory
//
// A fixed version and an id are fetched once. The latest version of a subject is fetched again
// after the refresh time (5m). While the registry is unreachable, the last known schema stays in use,
// however old: an outage of the registry stops only schemas that were never fetched. Their error is
// dispatcher.Unavailable, which spends no attempt of an event. A registry that does not respond at all
// holds up one caller for a second now and then.
//
// For events that do not fit, the latest version is fetched at once, at most four times in a second
// ([Client.Newer]): a producer may have registered a newer one for them. Their callers wait for it for a second, or for
// twice as long as the last fetch took: else an event that does not fit would never be final where the registry is slow.
//
// A subject that does not exist is [ErrNotFound]. It is looked up again after two seconds.
//
// # Security
//
// Use https, and credentials in files, basic or bearer. Files are read for each request to the
// registry, so new ones need no restart. Errors never quote credentials or a response's body.
package registry
