// Package metrics tells Prometheus what a dispatcher does.
//
// # Names
//
// CONTRACT C-95 keeps the names of the source Storage, section "Key Metrics":
//
//	source                              type       labels          here
//	outbox_events_published_total       counter    topic           events that the sink confirmed
//	outbox_events_delivered_total       counter    topic           events marked delivered; fewer than published when a lease was lost
//	outbox_events_failed_total          counter    topic           deliveries that failed, each attempt of its own
//	outbox_events_dlq_total             counter    topic, reason   events that became dead; reason is one of CONTRACT C-40
//	outbox_delivery_duration_seconds    histogram  topic, outcome  one call of the sink: confirmed or failed; 1 ms to 5 min
//	outbox_retry_delay_seconds          histogram  topic           how long a row waits after a failure; 0.1 s to 1 h
//	outbox_end_to_end_latency_seconds   histogram  topic           creation to marked delivered; 1 ms to 4 h
//	outbox_validation_errors_total      counter    topic           payload against its schema or a rule: dead, schema_validation_failed
//	outbox_network_errors_total         counter    topic           no connection, a broken one, or a certificate not accepted
//	outbox_timeout_errors_total         counter    topic           no answer in time
//	outbox_table_size_bytes             gauge      table           on disk with indexes: outbox_events, outbox_dead_letters
//	outbox_pending_events_count         gauge      topic           due now
//	outbox_dlq_events_count             gauge      topic           dead, and nobody has handled them
//
// A failed delivery is in at most one of the three errors counters; what is in none was refused by the
// destination for another cause. The two names that end in _events_count are against Prometheus'
// conventions, which leave that ending to histograms; the source fixes them. Our own names, for claims,
// leases, the breaker, what holds vacuum back and the links, follow the conventions. Two are histograms:
//
//	outbox_dispatch_latency_seconds     histogram  topic           creation to the beginning of a first delivery that succeeds; 0.5 ms to 4 h
//	outbox_claim_size_events            histogram  topic           rows of a topic in a claim; 1 to 10,000
//
// The dispatch latency is the dispatcher's part of the way, without the destination's: what an event
// waited to be found and for a free call, and no retry. Creation is the beginning of the transaction that
// enqueued it, so one that committed late, or was enqueued with a delay, counts that too. When most claims
// are as large as batchSize, the dispatcher is behind.
//
// # Labels
//
// Every series has dispatcher, namespace and sink: the dispatcher's name, the namespace that it
// serves, and the kind of its sink, such as kafka. All other labels are bounded: reason, outcome,
// state, kind and table are words of this project; topic has at most [MaxTopics] values and
// [OtherTopics]. No label holds a key, an id, a tenant, an address or an error's text.
//
// Counters and histograms are this process's own: sum them over the replicas. The gauges of the
// backlog and the tables are about the whole outbox, and every replica shows the same: take their
// maximum.
//
// # Exemplars
//
// The histograms of durations and latencies carry the trace_id of an event whose producer sampled its trace: from a
// slow bucket to the trace of an event in it. Prometheus keeps them with --enable-feature=exemplar-storage;
// it asks for OpenMetrics by itself.
package metrics
