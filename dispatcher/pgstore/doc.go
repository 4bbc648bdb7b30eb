// Package pgstore is the [dispatcher.Store] on PostgreSQL.
//
// Each verb is one transaction and one round trip, and its SQL is a statement of that name under sql/.
// Nothing depends on the session, so a pool behind PgBouncer in transaction mode works.
//
// # What a crash or a failover can undo
//
// Claims, acks, extensions, retries and releases do not wait for the disk (synchronous_commit is off for
// their transactions): when the database crashes, one of the last moments may be lost, and its event is
// delivered again, under a higher fencing token. A transaction that makes a row dead waits for the disk.
//
// A failover to a standby that was behind loses more: what the old primary committed last and never
// sent. A lost claim, ack or retry means that its event is delivered again, a lost dead letter that it is tried once
// more. The fencing token is higher each time (CONTRACT C-27). An event whose insert is
// lost may have been delivered all the same. Where that matters, make the standby synchronous
// (synchronous_standby_names): then events and dead letters survive, and claims and acks are as above.
//
// # Errors
//
// The statements are made for READ COMMITTED. Where the login's default is another level and a pooler keeps the
// dispatcher from setting it, they may fail with a serialization error. A transaction that fails with one, or
// with a deadlock, is tried again at once, three times in all, and from the second time on at READ COMMITTED.
//
// [dispatcher.Refused] marks errors of a trigger, a check or a missing right: they are about the rows of the
// statement. Timeouts, full disks, shutdowns, lost connections and a schema that is too old are not.
//
// The server sends the rows of a claim before it commits. A worker that stops reading them, because its process is
// frozen or its node is gone, keeps them locked and unleased meanwhile. tcp_user_timeout, set for the claim
// alone, ends that after a third of the lease. Over a Unix socket, or on a server whose system does not have the
// option (its log says so), the claim ends when the process continues or exits.
//
// # Order per key
//
// Two keys are the same when the column key_hash is: the hash of the partition key, else of the aggregate id,
// with namespace and topic. The aggregate's type is not in it: order 42 and customer 42 of one topic wait for
// each other.
//
// While something holds vacuum back, such as a long transaction, a slot or a standby, the index of keys keeps an entry
// of each row that was delivered meanwhile. A store remembers, of up to 1,000 keys, below which seq no row is live, and its
// claims do not read what lies there: with 100 and 500 keys and 100,000 deliveries under a held snapshot a claim
// reads 1.1 times the buffers of one on a fresh table. Such a frontier is a fact, not a guess: it ends where a
// transaction may still commit an earlier row, and is not used for a key with a resolved dead letter, whose row may
// have been replayed, nor after a restart of the server. Where it does not reach, a claim reads all entries of the key:
// the first four or so claims of a process, a claim while a producer keeps a transaction open, and keys beyond
// the first 1,000. The cost ends with the next vacuum after the snapshot is gone. [Store.OldestTransaction] reports
// its holder.
//
// With OnDead Block it is the open dead letter that blocks a key, not the dead row. Whoever removes dead rows must
// resolve or remove their dead letters in the same transaction, or their keys wait for ever.
//
// PostgreSQL promises the values of its hash functions within a major version only. After a move to another one the owner
// runs outbox_moved, which computes the stored hashes again: else waiting and new rows of a key do not see each other.
package pgstore
