// Package cloudevent maps an event of the outbox to a CloudEvent 1.0 (CONTRACT C-70). Every sink
// that speaks CloudEvents uses it, so a consumer finds the same attributes everywhere.
//
// # Attributes
//
// An attribute whose column is empty is left out, unless the table says otherwise.
//
//	attribute        type       from
//	---------------  ---------  ----------------------------------------------------------------
//	id               String     the event id
//	source           URI-ref    /outbox/<namespace>/<topic>, each escaped as one path segment
//	type             String     event_type, else topic
//	subject          String     aggregate_id
//	time             Timestamp  created_at, on the database's clock
//	datacontenttype  String     application/json, always
//	trackingid       String     the event id again, by the name that consumers dedupe on
//	dedupekey        String     dedupe_key
//	fencingtoken     String     the lease number in 19 digits, so that it sorts as text: for one event it
//	                            only rises (CONTRACT C-27)
//	attempt          Integer    the number of this delivery, from 1
//	outboxnamespace  String     namespace
//	topic            String     topic
//	aggregatetype    String     aggregate_type
//	aggregateid      String     aggregate_id
//	tenantid         String     tenant_id
//	sequence         String     seq, as 19 decimal digits with leading zeros, so that it sorts as
//	                            text, which the CloudEvents sequence extension demands. It has
//	                            gaps that fill late: never a cursor
//	partitionkey     String     the partition key, else aggregate_id, else the event id
//	                            (CONTRACT C-71)
//	<header>         String     each of the row's headers; see below
//
// The payload is the data, unchanged.
//
// # The row's headers
//
// A header becomes an extension attribute. CloudEvents allows only a-z and 0-9 in a name, so the
// name is put into lower case and everything else is dropped from it:
//
//	header           attribute
//	---------------  ---------------------------------------------------------------------------
//	traceparent      traceparent
//	tracestate       tracestate
//	correlation_id   correlationid
//	Schema-Version   schemaversion
//	source           headersource    a name of the table above, data, dataschema or specversion is
//	tenant_id        headertenantid  taken: it gets the prefix "header"
//	___              header          nothing is left of the name
//	correlationId    correlationid2  a second header with the same attribute name gets a number;
//	                                 headers are taken in the byte order of their names, those
//	                                 first whose name is an attribute's as it is
//
// No header is dropped, and none replaces an attribute of the dispatcher. Sinks whose messages have headers
// send traceparent and tracestate under these plain names too, but for SQS and SNS, which take ten
// attributes: see [Trace].
//
// # Headers under their own names
//
// A header whose attribute has another name, such as correlation_id, is in addition to the attributes also under its
// own, as the row has it: in Kafka, NATS, RabbitMQ, Pub/Sub and Service Bus, wherever the protocol can carry
// the name and the value. Of one event these are the first 32 by name, and 8 KiB; a message of Pub/Sub has 100
// attributes at most, and as many of them as there is room for. It is not there under a
// name that messages have already (ce_type, content-type). HTTP requests have none of them, because
// servers and gateways act on headers: name those that consumers need in the configuration's
// message.headers. See [Next to].
//
// # Values
//
// CloudEvents forbids control characters and Unicode non-characters in a String. Each of them, and
// each byte that is not UTF-8, becomes U+FFFD, the replacement character. This holds for every
// String attribute, not for the data.
package cloudevent
