// Package redissink adds events to streams of Redis, of Valkey, or of what speaks their protocol, as
// CloudEvents 1.0. Package cloudevent says which attributes they carry.
//
// # Settings
//
//	setting       default            meaning
//	------------  -----------------  ------------------------------------------------------------
//	addresses     none, required     host:port of the server, or of some nodes of a cluster
//	topology      Standalone         Standalone: one server; or Cluster
//	stream        the event's topic  the key that every event is added to; made if there is none
//	maxLen        0: keep all        about how many entries a stream keeps (MAXLEN ~). The oldest
//	                                 go, read or not
//	contentMode   Binary             Binary: a field for each attribute, and the payload in data.
//	                                 Structured: one JSON object in the field event
//	replicas      0                  how many replicas must have an event (WAIT)
//	timeout       10s                of a delivery
//	database      0                  a cluster has only 0
//	auth          none               basic with username or usernameFile (of the ACL), and
//	                                 passwordFile; or passwordFile for the user default
//	tls           none               even empty it makes connections TLS; caFile, serverName;
//	                                 clientCertFile and clientKeyFile (mutual TLS)
//
// # Entries
//
// CloudEvents has no binding for Redis. With contentMode Binary an entry's fields are named as the
// attributes are, without a prefix: specversion, id, source, type, sequence, partitionkey, and so on;
// the payload is the field data, unchanged. No attribute has the name data. With contentMode Structured the
// entry has the one field event, with the CloudEvent in its JSON format.
//
// The configuration's message adds fields, and has formats without the attributes, whose entries have data and
// those fields: see dispatcher/sink/README.md.
//
// # Guarantees
//
// At least once, and what that is worth is the server's affair. An event is delivered when Redis has
// answered its XADD. By then it is in the server's memory, and
//
//	appendonly yes, appendfsync always    on its disk: a crash loses nothing
//	appendonly yes, appendfsync everysec  lost if the server crashes within about a second; a
//	                                      process that is killed loses nothing
//	appendonly no                         lost with the process, unless a snapshot was made since
//
// Replication is asynchronous: a failover may lose events that were answered. With replicas: n an event
// counts as delivered when n replicas have it too, in their memory. Fewer in half of the timeout: it
// failed, and is retried, though the master keeps it. Even so Redis does not promise that the replica
// with the event becomes the master. Where that is too little, keep delivered rows for a time.
//
// The events of a batch are added in their order. A stream is one key: in a cluster it is on one node,
// and only several streams share the load.
//
// # Outcomes
//
//	what happened                                      outcome
//	-------------------------------------------------  ------------------------------------------
//	answered with an entry's id                        delivered
//	fewer replicas than wanted have it in time         destination's fault: it is in the stream
//	no response: timeout, a lost connection              failed: it may be in the stream
//	no connection: DNS, dial, TLS, login, a file that  unavailable: nothing was sent
//	cannot be used
//	LOADING, READONLY, MASTERDOWN, CLUSTERDOWN,        unavailable: nothing was added
//	TRYAGAIN, BUSY, NOAUTH
//	full: OOM (maxmemory), MISCONF (disk); NOREPLICAS  destination's fault
//	no right: NOPERM; no stream: WRONGTYPE             unavailable when every event goes to the stream
//	                                                   (stream is set, no routes), else destination's
//	                                                   fault
//	larger than proto-max-bulk-len                     dead: permanent_failure
//	MOVED, ASK                                         sent to the node that the response names; at last
//	                                                   destination's fault
//	any other answer                                   failed
//	ctx ended                                          interrupted, and nothing is sent later
//
// A failed event spends an attempt and is retried by the backoff policy. A destination's fault does so
// while other events of the topic are delivered; while none is, the attempt is given back. An unavailable
// event goes back as it was, and claiming pauses (CONTRACT C-32).
//
// All events of a delivery leave in one pipeline, in a cluster in one for each node, on a connection
// that no other delivery uses meanwhile. The client's own retries are off. Behind an event that is too
// large the server reads no more, and says so: the events behind it are sent again.
//
// A connection that was idle for 30 seconds is given up. One that was idle for less is looked at before it
// is used, with TLS too: what the server closed costs no attempt.
//
// # How to secure it
//
// Use tls with caFile, and an ACL user of its own instead of the user default:
//
//	ACL SETUSER outbox on ><password> +xadd +ping +type ~orders
//
// with +wait for replicas, +select for a database, +cluster|slots for a cluster. Without tls the
// password and the events are plain to whoever listens. Certificates and credentials are read for each
// connection, so new ones need no restart; connections that are open stay.
//
// # Tried with
//
// Redis 7.0, alone and as a cluster of three, runs in the tests. Valkey, Redis Sentinel and the clouds'
// servers were not tried.
//
// # Probe
//
// Probe makes a connection of its own, with TLS and login, to every master, sends PING, and checks whether
// the server is a replica (HELLO). When every event goes to one stream, it checks whether that may be written,
// by an XADD with the id 0-0, which Redis never adds, and whether the key is a stream (TYPE). The latter
// takes the right +type: without it a delivery says.
package redissink
