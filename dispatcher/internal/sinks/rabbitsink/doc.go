// Package rabbitsink publishes events to RabbitMQ by AMQP 0-9-1 as CloudEvents 1.0, in the binary or
// structured mode. Package cloudevent says which attributes they carry.
//
// # Settings
//
//	setting         default            meaning
//	--------------  -----------------  ----------------------------------------------------------
//	addresses       none, required     host:port of nodes, in the order in which they are tried:
//	                                   the first that lets the dispatcher in is used
//	vhost           /                  the virtual host
//	exchange        default exchange   where every event goes; in the default exchange, routing
//	                                   keys are the names of queues
//	routingKey      the event's topic  that of every event
//	contentMode     Binary             Binary: attributes as headers ce-<name>, and the payload
//	                                   as body. Structured: one JSON object, and
//	                                   content-type application/cloudevents+json
//	attributePrefix ce-                begins those headers' names: ce-, cloudEvents: or cloudEvents_
//	channels        4                  so many deliveries publish side by side, on one connection
//	connectionName  outbox-dispatcher  RabbitMQ lists the connection by it
//	heartbeat       10s                a connection is dead after three times of it in silence
//	timeout         30s                of the wait for confirmations
//	auth            none, required     mechanism PLAIN with basic (username or usernameFile, and
//	                                   passwordFile), or EXTERNAL with the certificate of tls
//	tls             none               even empty it makes connections TLS; caFile, serverName;
//	                                   clientCertFile and clientKeyFile (mutual TLS)
//
// # Messages
//
// ContentMode Binary is that of the RabbitMQ Protocol Binding for CloudEvents, of Knative's eventing-rabbitmq, which
// the CloudEvents SDK for Python reads. A consumer that speaks AMQP 1.0 with RabbitMQ finds the headers as
// application properties with these names. For the AMQP 1.0 binding of CloudEvents set attributePrefix to
// cloudEvents:, which the SDKs for Go, C# and Python read, or to cloudEvents_, which that binding prefers
// and the SDK for Go does not read. In both modes the properties are
//
//	content-type   application/json, or application/cloudevents+json with contentMode Structured
//	message-id     the event id: consumers dedupe on it
//	type           the event type; left out when it has more than 255 bytes
//	timestamp      when the event was made, in whole seconds; ce-time has the fraction
//	delivery-mode  2, persistent
//
// To spread the keys over queues in their order, use an x-consistent-hash exchange with the hash-header
// ce-partitionkey (CONTRACT C-71), with the prefix that is set; without CloudEvents, one of message.headers
// that is made of event.key.
//
// # Guarantees
//
// At least once: an event is delivered when the broker has confirmed it. It confirms a persistent message
// when all queues that it was routed to have it on disk: a quorum queue on most of its replicas, a
// durable classic queue on one. Quorum queues are the safer choice, and the faster one with confirms.
// Messages are mandatory: one that no queue takes is a failure, not a loss. Exchanges and queues are
// never declared.
//
// # Outcomes
//
//	what happened                                     outcome
//	------------------------------------------------  -------------------------------------------
//	confirmed (basic.ack)                             delivered
//	the exchange is missing, or may not be written    unavailable, and with it what waited on the
//	                                                  channel
//	returned: no queue takes the routing key          destination's fault; unavailable when every
//	                                                  event goes to one queue (the default exchange,
//	                                                  routingKey is set, no routes)
//	refused (basic.nack): a queue is full or failed   destination's fault
//	the routing key may not be used                   destination's fault
//	larger than max_message_size, headers larger      dead: permanent_failure
//	than a frame, a header's name of more than 255
//	bytes with its prefix
//	any other reason to close the channel             failed
//	timeout, or a lost connection: a message was      destination's fault: it may have been written
//	written in whole or in part
//	the same, and nothing of it was written; no       unavailable: nothing was sent
//	connection: DNS, dial, TLS, login, vhost, a file
//	that cannot be used
//	the broker blocks publishers (low on memory or    unavailable: nothing was sent; one that was
//	on disk)                                          sent before waits for timeout
//	ctx ended                                         interrupted, and never sent later
//
// A failed event spends an attempt and is retried by the backoff policy. A destination's fault does so
// while other events of the topic are delivered; while none is, the attempt is given back. An unavailable
// event goes back as it was, and claiming pauses (CONTRACT C-32).
//
// When the broker closes a channel because of one message, it does not say which. Those without an
// answer are sent again, each alone. Some of them may then be there twice, with the same attempt.
//
// # Connection
//
// All channels are of one connection, which the next delivery makes again when it broke. On a new
// connection one message goes first and alone: RabbitMQ tells only those who publish that it blocks
// them, and takes what they sent by then. When a timeout ends without a word from the broker, not even a
// heartbeat, the connection is given up; with a word only the channel is.
//
// # How to secure it
//
// Use tls with caFile; PLAIN shows the password to whoever listens without it. EXTERNAL needs no
// password: the broker takes the user's name from the client certificate. The user needs the permission
// to write to the exchange, in its vhost, and no other:
//
//	rabbitmqctl set_permissions -p VHOST USER '^$' '^EXCHANGE$' '^$'
//
// For the default exchange that is '^amq[.]default$'. Files are read for each connection, so new
// credentials and certificates need no restart; a connection that is open stays.
//
// # Tried with
//
// RabbitMQ 3.10, one node, runs in the tests. RabbitMQ 4 and clusters were not tried.
//
// # Probe
//
// Probe makes a connection of its own, with TLS and login, opens a channel, and checks whether the
// exchange exists (a passive declaration, for which RabbitMQ asks no permission). In place of the default
// exchange it checks the queue, when every event goes to one. It publishes nothing, so it learns that publishers are blocked only from the connection that does.
package rabbitsink
