// Package postgressink inserts events into a table of a PostgreSQL database, effectively once: the event's
// id is the table's primary key. It is an inbox that consumers read with SQL.
//
// # Settings
//
//	setting                 default              meaning
//	----------------------  -------------------  ------------------------------------------------
//	database.dsnFile        one of the three     a file with a connection string
//	database.connection     is required          host, port, database and user, or their files
//	                                             (hostFile, ...); passwordFile
//	database.dsn                                 a connection string, for trying things out
//	database.sslMode        the string's         disable, prefer, require, verify-ca, verify-full;
//	                                             verify-full with caFile
//	database.caFile         none                 the certificates of the server's authority
//	database.clientCertFile none                 the certificate that the login shows, with
//	                                             clientKeyFile
//	database.iam            none                 provider AWS (with region), Google or Azure: a
//	                                             login without a password
//	table                   public.inbox_events  the table, with its schema
//	timeout                 30s                  of a delivery
//
// Of several hosts the one that takes writes is used, also after a failover. Routes do not apply: there
// is one table, and its columns namespace, topic and event_type say what an event is.
//
// # Table
//
// The table is never created by a dispatcher. Its owner runs this, under the name of their choice
// ([Table], inbox.sql):
//
//	create table public.inbox_events (
//	    id                 uuid        primary key,  -- the event's, which consumers know as tracking_id
//	    namespace          text        not null,
//	    topic              text        not null,
//	    event_type         text,
//	    aggregate_type     text,
//	    aggregate_id       text,
//	    partition_key      text        not null,     -- the partition key, else aggregate_id, else the id
//	    tenant_id          uuid,
//	    dedupe_key         text,
//	    sequence           bigint      not null,     -- the outbox's order: of one key it only rises
//	    aggregate_sequence bigint,               -- the event's number in its aggregate, when it has one
//	    fencing_token      bigint      not null,     -- the lease number of the delivery that got here first
//	    headers            jsonb       not null,
//	    payload            jsonb       not null,
//	    created_at         timestamptz not null,     -- on the clock of the outbox's database
//	    received_at        timestamptz not null default clock_timestamp()
//	);
//
// More columns, such as processed_at, do no harm if they have defaults. The primary key must be id
// alone, so the table cannot be partitioned by something else.
//
// # Guarantees
//
// Effectively once: a batch is one statement, INSERT ... ON CONFLICT (id) DO NOTHING, and so one
// transaction. Nothing arrives twice while its row is there, whatever fails and however often it is
// sent: keep rows at least as long as the outbox keeps and replays its own. An event is delivered when
// its transaction is committed; what that is worth says the server's synchronous_commit. An event that
// is there already is delivered, and its row stays as it was.
//
// sequence has gaps that fill late, and received_at is taken before the commit: neither is a cursor.
// Consumers mark rows, or delete them.
//
// # Outcomes
//
//	what happened                                      outcome
//	-------------------------------------------------  ------------------------------------------
//	committed, or there already                        delivered
//	no response: timeout, a lost connection, a server    failed: it may be committed, and then the
//	that shuts down                                    next attempt does nothing
//	no connection: DNS, dial, TLS, login, a file that  unavailable: nothing was sent
//	cannot be used
//	the server only reads (25006)                      unavailable: nothing was inserted
//	a constraint, a trigger or the data refuses it     failed, and the others are inserted
//	too large for an index (54000)                     dead: permanent_failure
//	the table, a column or its primary key is missing  unavailable: nothing was inserted
//	no right to insert                                 unavailable: nothing was inserted
//	out of disk, memory or connections (class 53), or  destination's fault
//	trouble of its system (class 58)
//	any other answer                                   failed
//	ctx ended                                          interrupted, and nothing is sent later
//
// A failed event spends an attempt and is retried by the backoff policy. A destination's fault does so
// while other events of the topic are delivered; while none is, the attempt is given back. An unavailable
// event goes back as it was, and claiming pauses (CONTRACT C-32).
//
// A batch that is refused for one of its events is halved until that one is alone.
//
// # How to secure it
//
// Use sslMode verify-full with caFile, and a login that may do no more than this:
//
//	grant usage on schema public to outbox;
//	grant insert, select (id) on public.inbox_events to outbox;
//
// The select is for ON CONFLICT. Files are read for each connection, so a rotated password needs no
// restart; connections that are open stay.
//
// # Probe
//
// Probe makes a connection of its own, with TLS and login, to a server that takes writes, and has it plan
// the insert without running it (EXPLAIN): the table, its columns, its primary key and the rights are there.
package postgressink
