// Package kafkasink produces events to Apache Kafka as CloudEvents 1.0, in the binary or structured
// mode of the CloudEvents Kafka binding. Package cloudevent says which attributes they carry.
//
// # Settings
//
//	setting          default            meaning
//	---------------  -----------------  ---------------------------------------------------------
//	brokers          none, required     host:port of some brokers; the others are found
//	topic            the event's topic  where every event goes
//	contentMode      Binary             Binary: attributes as headers ce_<name>, content-type
//	                                    application/json, the payload as value.
//	                                    Structured: one JSON object, and content-type
//	                                    application/cloudevents+json
//	encoding         JSON               what the payload becomes as value: JSON (as it is), Avro or
//	                                    Protobuf, by a schema of schemaRegistry: see package
//	                                    encoding. For contentMode Binary; content-type is then
//	                                    application/avro or application/protobuf
//	subject          <topic>-value      the schema's in the registry; <topic> is the Kafka topic
//	clientID         outbox-dispatcher  the brokers' logs, quotas and metrics know it
//	compression      snappy             none, gzip, snappy, lz4, zstd
//	maxMessageBytes  1000000            of a batch and so of a record, before compression; no
//	                                    more than the topic's max.message.bytes
//	timeout          30s                of a delivery with all retries (delivery.timeout.ms)
//	auth             none               mechanism PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 with basic
//	                                    (username or usernameFile, and passwordFile);
//	                                    OAUTHBEARER with tokenFile; AWS_MSK_IAM with the
//	                                    pod's identity or its environment, see below
//	tls              none               even empty it makes connections TLS; caFile, serverName;
//	                                    clientCertFile and clientKeyFile (mutual TLS)
//
// # Records
//
// The key is the row's own: the partition key, else the aggregate id, else the event id, byte by byte, also where
// the attribute partitionkey has U+FFFD for what CloudEvents forbids. The configuration's message says which
// headers there are in addition to the attributes, and has the formats Plain, Debezium and Storage, whose records have
// no attributes and no content-type: see package pipeline, and dispatcher/sink/README.md.
//
// # Guarantees
//
// At least once: an event is delivered when all in-sync replicas have it (acks=all). The producer is
// idempotent, so its own retries put a record into the log once, and in order. The key is the
// partition key, else the aggregate id, else the event id (CONTRACT C-71), and its partition the one
// that the Java client chooses (murmur2). How many replicas are in sync is the topic's affair: give
// it a replication factor of 3 and min.insync.replicas=2. The record's time is that of the sending;
// the event's is in ce_time. Topics are never created.
//
// # Outcomes
//
//	what happened                                     outcome
//	------------------------------------------------  -------------------------------------------
//	confirmed by all in-sync replicas                 delivered
//	not leader, too few replicas, a lost connection   tried again until timeout
//	the record's partition has no leader              unavailable: nothing was sent
//	it lost its leader while a record waited for its  destination's fault, after 2 to 3 seconds
//	answer                                            without one: it may have been written
//	timeout, and a record may have left               destination's fault: it may have been written
//	timeout, and no record left; no connection: DNS,  unavailable: nothing was sent
//	dial, TLS, login, a file that cannot be used
//	the producer is refused (cluster authorization)   unavailable: nothing was sent
//	the topic is missing, or may not be written       unavailable when every event goes to it (topic
//	                                                  is set, no routes), else destination's fault
//	a broker has trouble of its own, or too few       destination's fault
//	replicas
//	the record is too large                           dead: permanent_failure
//	the payload does not fit its schema               dead: schema_validation_failed
//	the subject is not registered, or its schema      failed
//	cannot be used
//	the registry is unreachable, and the schema was never    unavailable: nothing was sent
//	known
//	any other answer of a broker                      failed
//	ctx ended                                         interrupted, and never sent later
//
// A failed event spends an attempt and is retried by the backoff policy. A destination's fault does so
// while other events of the topic are delivered; while none is, the attempt is given back. An unavailable
// event goes back as it was, and claiming pauses (CONTRACT C-32).
//
// A broker whose disk is full ends, or takes the partitions of that disk away: the outcome is that of a
// lost connection or a missing leader.
//
// A batch that is too large is sent again record by record, each alone in its batch: then it is known
// which one is to blame.
//
// # Sessions
//
// The client of all deliveries is one session, one idempotent producer. A record that may have been
// sent cannot be taken back from it alone: its sequence numbers would have a gap. So when a delivery
// ends without a response, its session is retired: no produce request leaves it any more, and the next
// delivery opens another. Deliveries that waited on the same session fail with it; those are the ones
// that waited for the same brokers.
//
// A partition without a leader does not: its records alone are given up, under a new epoch of the
// producer, and those of other partitions are delivered meanwhile, in the same batch too. What the brokers
// say of the leaders counts: for some seconds they list one that was lost (broker.session.timeout.ms), and
// one that says nothing may be asked first.
//
// # Streams and outages
//
// While events flow, the engine looks for them every 8 ms and has one call of a topic at a time, unless it
// lasts for longer than 50 ms: the brokers get a stream of 500 events a second in about 100 requests. An
// event that comes alone goes at once.
//
// A client tries again what failed after a second at the latest, and the engine asks a destination that is
// away every two seconds: the first event is delivered within about three seconds after the brokers are
// back.
//
// # How to secure it
//
// Use tls with caFile, and SCRAM-SHA-512 or mutual TLS. PLAIN and OAUTHBEARER show the password or
// the token to whoever listens: never without tls. The user needs Describe and Write on the topics,
// and before Kafka 2.8 IdempotentWrite on the cluster. Certificates are read for each connection and
// credentials for each login, so new ones need no restart; connections that are open stay.
//
// AWS_MSK_IAM takes the credentials that AWS's own tools would take, and renews them before they expire.
// Give the pods a service account of their own (spec.serviceAccount) with a role, by IAM
// Roles for Service Accounts or EKS Pod Identity; keys in the environment, as AWS_ACCESS_KEY_ID and
// AWS_SECRET_ACCESS_KEY, work too. The role needs kafka-cluster:Connect and WriteDataIdempotently on the
// cluster, and DescribeTopic and WriteData on the topics. The region is that of the broker's host name,
// else AWS_REGION.
//
// # Tried with
//
// Apache Kafka 4.1 in KRaft mode runs in the tests, with each login but AWS_MSK_IAM: no Amazon MSK could
// be had, so that login was only seen to be refused by a broker that does not know it.
//
// # Probe
//
// Probe makes a connection of its own, with TLS and login, and lists the cluster's brokers. When every
// event goes to one topic, it checks that, and from Kafka 2.3 on whether the user may write it. It sends
// no record. When the schema registry was unreachable, it is queried again.
package kafkasink
