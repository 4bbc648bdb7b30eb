// Package natssink publishes events to streams of NATS JetStream as CloudEvents 1.0, in the binary or
// structured mode of the CloudEvents NATS binding. Package cloudevent says which attributes they carry.
//
// # Settings
//
//	setting      default            meaning
//	-----------  -----------------  -----------------------------------------------------------------
//	servers      none, required     nats://host:port or tls://host:port of the servers; which one is
//	                                connected to is left to chance. One tls:// means TLS for all
//	subject      the event's topic  where every event goes
//	stream       any                the stream that must take the events (Nats-Expected-Stream):
//	                                another refuses them
//	contentMode  Binary             Binary: attributes as headers ce-<name>, content-type
//	                                application/json, the payload as data.
//	                                Structured: one JSON object, and content-type
//	                                application/cloudevents+json
//	timeout      10s                of a delivery with its confirmation; of a connection, at most 10s
//	auth         none               exactly one of credentialsFile (a .creds file: JWT and seed),
//	                                nkeyFile (a seed), tokenFile, and basic with username or
//	                                usernameFile, and passwordFile
//	tls          none               even empty it makes connections TLS; caFile, serverName; clientCertFile
//	                                and clientKeyFile (mutual TLS)
//
// # Headers
//
// The configuration's message adds headers, and has formats without attributes, whose messages keep Nats-Msg-Id: see
// dispatcher/sink/README.md. A value that is not printable ASCII is percent-encoded.
//
// # Guarantees
//
// At least once: an event is delivered when its stream confirms it (PubAck). What that is worth is the
// stream's affair: give it storage file, and 3 replicas, of which most have the message then. A server
// that is killed loses nothing that it confirmed. A machine that loses its power may lose the last two
// minutes of a stream with one replica, unless the server writes each message through to the disk, with
// sync_interval: always in its section jetstream, at some hundred to a thousand messages a second.
//
// Nats-Msg-Id is the event's id, at each attempt. So the stream stores a retry once, within its duplicate
// window (--dupe-window, 2 minutes when not set): let it be longer than the longest backoff. What it has
// is the first attempt, with that one's fencing token. A person's replay within the window is such a
// retry too: when the stream has the event, the replay confirms it and adds nothing, also if the event
// was removed from the stream since, or the replay has another subject. After the window it is stored
// again.
//
// A stream has one order. The engine delivers one event of a key at a time when it keeps their order, so
// a stream has each key's events in order; the key is in the attribute partitionkey (CONTRACT C-71).
// Streams are never created. Subjects of the servers' own ($JS, $SYS, _INBOX) are refused, whatever the
// topic is named.
//
// # Outcomes
//
//	what happened                                     outcome
//	------------------------------------------------  -------------------------------------------
//	confirmed, also as a duplicate                    delivered
//	no stream takes it (no responders): none captures published again after 250 ms, twice; then
//	the subject, or it has no leader just now         unavailable when every event goes to it
//	answered by what is not a stream, by another stream  (subject is set, no routes), else
//	than stream, by a sealed one                      destination's fault
//	the user may not publish to the subject           the same
//	stream, account or server full; too many          destination's fault
//	requests; trouble of the servers' own
//	any other refusal                                 failed
//	larger than the server's max_payload or the       dead: permanent_failure
//	stream's max_msg_size, or 64 KB of headers
//	timeout, or the connection was lost               destination's fault: it may have been stored
//	the connection was lost before the message left;  unavailable: nothing was sent
//	no connection: DNS, dial, TLS, login, a user who
//	may not subscribe, a file that cannot be used
//	ctx ended                                         interrupted, and never sent later
//
// A failed event spends an attempt and is retried by the backoff policy. A destination's fault does so
// while other events of the topic are delivered; while none is, the attempt is given back. An unavailable
// event goes back as it was, and claiming pauses (CONTRACT C-32).
//
// A stream without a majority of its servers is silent at first, and then has no leader. A subject with subscribers and no stream is silent too, because the
// servers only tell that nobody at all is there.
//
// # Sessions
//
// All deliveries share one connection, which never reconnects by itself: nats.go would keep messages and
// send them after their delivery ended. When it breaks, or a delivery ends without a response, it is
// closed with what it still holds, and the next delivery opens another one. Deliveries that waited on it
// fail with it; their retries are duplicates to the stream. A server that announces its end (lame duck
// mode, as in a rolling upgrade) is left before it stops: what is in flight is confirmed first.
//
// # How to secure it
//
// Use tls with caFile, and a .creds file, an NKey or mutual TLS, which show no secret to who listens;
// a password or token never without tls. The user needs two permissions: publish to the subjects, and
// subscribe to _INBOX.>, where the confirmations come. Of JetStream's API, nothing but what Probe asks. All files are
// read for each connection, so new ones need no restart; connections that are open stay.
//
// # Probe
//
// Probe makes a connection of its own, with TLS and login, subscribes as deliveries do, and has the
// server response. It publishes no event. When every event goes to one subject, it also asks JetStream which
// streams take that ($JS.API.STREAM.NAMES), and the server what the user may publish to
// ($SYS.REQ.USER.INFO). Allow the user to publish to these two, so that Probe and dispatcher check find
// what is missing; where a user may not ask, a delivery says. A stream of another account, or of another
// JetStream domain, is not found so: deny $JS.API.STREAM.NAMES to a user whose subject is imported.
package natssink
