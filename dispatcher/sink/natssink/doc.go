// Package natssink publishes events to streams of NATS JetStream as CloudEvents 1.0, in the binary or
// structured mode of the CloudEvents NATS binding. Package cloudevent says which attributes they carry.
//
// # Settings
//
//	setting  default            meaning
//	-------  -----------------  -----------------------------------------------------------------
//	servers  none, required     nats://host:port or tls://host:port of the servers; which one is
//	                            connected to is left to chance. One tls:// means TLS for all
//	subject  the event's topic  where every event goes
//	stream   any                the stream that must take the events (Nats-Expected-Stream):
//	                            another refuses them
//	mode     Binary             Binary: attributes as headers ce-<name>, content-type
//	                            application/json, the payload as data.
//	                            Structured: one JSON object, and content-type
//	                            application/cloudevents+json
//	timeout  10s                of a delivery with its confirmation; of a connection, at most 10s
//	auth     none               exactly one of credentialsFile (a .creds file: JWT and seed),
//	                            nkeyFile (a seed), basic with usernameFile and passwordFile,
//	                            tokenFile
//	tls      none               even empty it makes connections TLS; caFile, certFile and keyFile
//	                            (mutual TLS), serverName
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
//	the subject, or it has no leader just now         failed
//	refused: stream or account full, too many         failed
//	requests, sealed, not the expected stream
//	the user may not publish to the subject           failed
//	larger than the server's max_payload or the       dead: permanent_failure
//	stream's max_msg_size, or 64 KB of headers
//	answered by what is no stream                     failed
//	timeout, or the connection was lost               failed: it may have been stored
//	the connection was lost before the message left;  unavailable: nothing was sent
//	no connection: DNS, dial, TLS, login, a user who
//	may not subscribe, a file that cannot be used
//	ctx ended                                         interrupted, and never sent later
//
// A failed event spends an attempt and is retried by the backoff policy. An unavailable one goes back as
// it was, and claiming pauses (CONTRACT C-32).
//
// A stream without a majority of its servers is silent at first, then has no leader: events fail, and
// spend attempts, until it is back. A subject with subscribers and no stream is silent too, because the
// servers only tell that nobody at all is there.
//
// # Sessions
//
// All deliveries share one connection, which never reconnects by itself: nats.go would keep messages and
// send them after their delivery ended. When it breaks, or a delivery ends without an answer, it is
// closed with what it still holds, and the next delivery opens another one. Deliveries that waited on it
// fail with it; their retries are duplicates to the stream. A server that announces its end (lame duck
// mode, as in a rolling upgrade) is left before it stops: what is in flight is confirmed first.
//
// # How to secure it
//
// Use tls with caFile, and a .creds file, an NKey or mutual TLS, which show no secret to who listens;
// a password or token never without tls. The user needs two permissions: publish to the subjects, and
// subscribe to _INBOX.>, where the confirmations come. None of JetStream's API ($JS.API.>). All files are
// read for each connection, so new ones need no restart; connections that are open stay.
//
// # Probe
//
// Probe makes a connection of its own, with TLS and login, subscribes as deliveries do, and has the
// server answer. It publishes nothing, and does not ask for JetStream or a stream, which would need
// another permission: that one is missing, a delivery says.
package natssink
