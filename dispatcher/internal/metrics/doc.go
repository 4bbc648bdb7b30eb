// Package metrics exports what a dispatcher does to Prometheus.
//
// # Names
//
// All metrics with their types, labels and meanings are in README.md, which a test compares with what this
// package registers. The names of 13 of them are fixed by CONTRACT C-95, and [New] and
// [Metrics.Watch] must keep them. Two of these end in _events_count, which Prometheus' conventions leave to
// histograms. All other names follow the conventions.
//
// A failed delivery counts in at most one of the three errors counters; what counts in none was refused by the
// destination for another cause.
//
// # Labels
//
// Every series has dispatcher, outbox_namespace and sink: the dispatcher's name, the outbox namespace that it
// serves, and the kind of its sink, such as kafka. Counters of a topic are 0 from the moment that the topic is
// known: those of the configuration at the start, others when they are first counted. All other labels are bounded: reason, outcome, state, kind and table
// are words of this project; topic has at most [MaxTopics] values, of histograms [MaxHistogramTopics], and [OtherTopics]. No label holds a key, an
// id, a tenant, an address or an error's text.
//
// Counters and histograms are this process's own: sum them over the replicas. The gauges of the backlog and the
// tables are about the whole outbox, and every replica shows the same: take their maximum.
//
// # Exemplars
//
// The histograms of durations and latencies carry the trace_id of an event whose producer sampled its trace: from
// a slow bucket to the trace of an event in it. Prometheus keeps them with --enable-feature=exemplar-storage; it
// requests OpenMetrics by itself.
package metrics
