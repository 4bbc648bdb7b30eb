package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Store is the outbox table as the engine uses it, bound to one worker and one namespace. What
// each method must do is spelled out, and tested, by storetest.Exercise. Package pgstore is the
// implementation.
//
// All methods are safe for concurrent use. None retries: an error means that the outcome is
// unknown, and the caller may call again.
type Store interface {
	// Claim leases rows that are due: pending with next_attempt_at in the past and attempts < MaxAttempts, or
	// processing with an expired lease, which spends no attempt (CONTRACT C-20, C-21). Each topic's rows
	// come in order of (next_attempt_at, id). Rows found with no attempt left become dead on the
	// way and are returned in Claimed.Dead (CONTRACT C-22). There may be more rows due than a claim
	// returns, but one without rows, expired ones among them, means that none is. Only where it takes long to know can rows that
	// became due late (an expired lease, a late commit, a release) be missed, for some seconds: when very
	// many rows are gone that vacuum may not remove yet or, with Keys, wait for others of their keys.
	// Rows that another worker is claiming at this moment are not seen; with Keys neither are, for a
	// moment, those that it might claim.
	//
	// An error means that no row is leased, or that the outcome is not known because the connection
	// failed. One that the database makes for the rows is Refused; for a single row it is a [RefusedRow], where the store finds
	// it. A row that cannot be decoded is not an error: it comes in Claimed.Unreadable (CONTRACT C-33).
	Claim(ctx context.Context, req ClaimRequest) (Claimed, error)

	// Begin counts in Event.Suspicion that the delivery of suspects begins. A row whose lease ends after its fourth one
	// has no attempt left (CONTRACT C-21, C-22). It returns the leases that this worker no longer held.
	// It fails when the store cannot be reached.
	Begin(ctx context.Context, leases []Lease) (lost []Lease, err error)

	// Outlive takes back what Begin counted of deliveries that still run: their begin ended no process. It returns the leases
	// that this worker no longer held, or of which nothing is counted. It fails when the store cannot be reached.
	Outlive(ctx context.Context, leases []Lease) (lost []Lease, err error)

	// Ack marks the leases' rows delivered, or removes them, if the store does not keep them (CONTRACT
	// C-60). It returns those that this worker no longer held; their rows are unchanged (CONTRACT C-23).
	// It fails when the store cannot be reached.
	Ack(ctx context.Context, leases []Lease) (lost []Lease, err error)

	// Nack records failed attempts, which are spent: each row goes back to pending with its delay, or
	// becomes dead with its reason and a dead-letter record in the same transaction (CONTRACT C-24, C-41). A row that an
	// earlier call with the same failure made dead is not lost: so a caller that did not learn of it does.
	Nack(ctx context.Context, failures []Failure) (lost []Lease, err error)

	// Extend moves the leases' end to now + lease on the database's clock (CONTRACT C-31).
	// It fails when the store cannot be reached.
	Extend(ctx context.Context, leases []Lease, lease time.Duration) (lost []Lease, err error)

	// Release puts rows back to pending, and gives the attempt back: the delivery never began, or its
	// failure is the destination's (CONTRACT C-30, C-32).
	// It fails when the store cannot be reached.
	Release(ctx context.Context, returns []Return) (lost []Lease, err error)

	// Topics lists the namespace's topics that have live (pending or processing) rows.
	// It fails when the store cannot be reached.
	Topics(ctx context.Context) ([]string, error)

	// Depth counts the backlog of the topics; none means all. It is cheap at any backlog and any number of topics: a count is
	// exact up to DepthCap, where many are large up to an equal part of 20,000 rows for all, and an estimate marked as such
	// above it (CONTRACT C-96). It fails when the store cannot be reached.
	Depth(ctx context.Context, topics []string) (Depth, error)

	// Schema compares the schema's version with the one this store needs.
	// It fails when the store cannot be reached; a schema that is missing is not an error.
	Schema(ctx context.Context) (Schema, error)
}

// DepthCap is the count up to which [Store.Depth] is exact, unless too many are as large.
const DepthCap = 10_000

// ClaimRequest says what to claim.
type ClaimRequest struct {
	// Shares are the topics to claim from and the most rows to take of each.
	Shares []Share
	// Lease is how long the rows are held, from the database's now.
	Lease time.Duration
	// MaxAttempts is the total of attempts that a row has, unless it has a limit of its own.
	MaxAttempts int
	// MaxBytes bounds the size as text of payloads and headers in one claim. The first row is claimed whatever
	// its size, so that a large one is never stuck; with Keys, so may be the first of those that waited
	// for others. 0 means no bound.
	MaxBytes int64
	// Fit holds the first row to MaxBytes too: one that is larger, and what comes after it, is left.
	Fit bool
	// MaxRowBytes is the most bytes that payload and headers of a row may have as text. A larger one becomes dead as
	// poison_message, and its payload is not read (CONTRACT C-35). 0 means no limit.
	MaxRowBytes int64
	// Fair gives each tenant of a topic its turn, instead of the order in which rows became due (CONTRACT C-37). Not with
	// Keys. It needs an index that a store may not have: see Store.Schema.
	Fair bool
	// TenantRate is the most events that a tenant of a topic may have, with Fair, over all processes of the store's
	// dispatcher. The zero Rate has no limit.
	TenantRate Rate
	// Keys requests order per key (CONTRACT C-50). nil means none.
	Keys *KeyOrder
	// Skip are rows that are left alone. They stay live: with Keys their keys wait for them.
	Skip []uuid.UUID
}

// KeyOrder is order per key: a row is claimed only together with every earlier live row of its key
// that this claim sees, so that no worker ever holds a row of a key while another holds an earlier
// one. The rows of a key come in order of seq. Rows without a key are claimed as without order.
type KeyOrder struct {
	// PerKey is the most rows of one key that a claim takes, at least 1.
	PerKey int
	// BlockOnDead leaves the rows of a key alone that come after a dead one with an open dead letter.
	BlockOnDead bool
}

// Share is one topic's part in a claim.
type Share struct {
	Topic string
	Limit int
	// Except are tenants whose rows are left alone, with ClaimRequest.Fair. The zero UUID is the rows without a tenant.
	Except []uuid.UUID
}

// Claimed is the outcome of a claim.
type Claimed struct {
	// Events are leased to this worker, topic by topic in the order of the request.
	Events []*Event
	// Unreadable are leased to this worker too, and cannot be delivered: something of the row cannot be
	// decoded. They harm no other row of the claim (CONTRACT C-33).
	Unreadable []Unreadable
	// Dead are rows that had no attempt left and became dead.
	Dead []DeadEvent
	// Expired are rows whose time was over, and became expired. Of these a claim makes no more than of others: one without
	// Events may have left more (CONTRACT C-18).
	Expired []*Event
	// KeysWaiting are topics with due rows that wait for earlier ones of their keys, with ClaimRequest.Keys:
	// claim again when rows that this worker holds have been written back.
	KeysWaiting []string
	// Unfinished says that nothing was found when the search for due rows was given up, so that some may be there, with
	// ClaimRequest.Keys: the next claim continues it.
	Unfinished bool
	// OverRate are topics with a tenant that has due rows and has used its rate, with ClaimRequest.TenantRate.
	OverRate []string
	// At is the database's time of the claim: the events' ages are measured from it (CONTRACT C-3).
	// Not set without rows.
	At time.Time
}

// Leased is the number of rows that the claim took.
func (c *Claimed) Leased() int { return len(c.Events) + len(c.Unreadable) }

// Unreadable is a claimed row that the store cannot decode.
type Unreadable struct {
	// Event has what could be read: at least what Event.Lease and Event.Key need, and the topic.
	Event *Event
	// Err says which part cannot be read. It holds nothing of the payload or of header values.
	Err error
}

// DeadEvent is a row that became dead.
type DeadEvent struct {
	ID       uuid.UUID
	Topic    string
	Attempts int
	Reason   DeadReason
	// Cause is what failed last, and Fingerprint names the group of such dead events. See [Fingerprint].
	Cause       Cause
	Fingerprint string
}

// Failure is the outcome of a failed attempt.
type Failure struct {
	Lease Lease
	// Error is stored as last_error. It names no secret and no payload; longer than 2,000 bytes
	// it is cut.
	Error string
	// Delay is how long the row waits, from the database's now. Not used when Reason is set.
	Delay time.Duration
	// Reason makes the row dead. Empty means retry.
	Reason DeadReason
	// Cause is what failed. It is kept with the row's last five failures, and in the dead letter.
	Cause Cause
	// Response is the destination's response. It is kept in the dead letter alone; longer than 1 KiB it is
	// cut. Empty for none.
	Response string
}

// Return is a row that is given back with its attempt.
type Return struct {
	Lease Lease
	// Delay is how long the row waits, from the database's now. 0 leaves it due as before.
	Delay time.Duration
	// Error is stored as last_error, as in Failure, and the time of the first such return as Event.FaultSince. Empty
	// keeps both.
	Error string
}

// Depth is the backlog at one moment.
type Depth struct {
	// ObservedAt is the database's time of the count.
	ObservedAt time.Time
	// Topics has one entry for each topic that has rows, or that was requested.
	Topics []TopicDepth
	// BlockedKeys counts the keys that have live rows behind an open dead letter, and
	// Blocked lists the first of them, at most BlockedListed. Both are for OnDeadBlock.
	BlockedKeys Count
	Blocked     []BlockedKey
	// Groups of the open dead letters, the largest first, at most GroupsListed.
	Groups []DeadGroup
}

// GroupsListed is the most groups in [Depth.Groups].
const GroupsListed = 20

// DeadGroup is the open dead letters of one topic for one cause.
type DeadGroup struct {
	// Fingerprint is the group's name. See [Fingerprint].
	Fingerprint string
	Topic       string
	Reason      DeadReason
	Cause       Cause
	// Count is exact up to DepthCap; with several groups, up to an equal part of what a look still reads. An estimate has two digits that count.
	Count Count
	// Since is when the first of them became dead, and Last the last one.
	Since, Last time.Time
	// Sample is the event that became dead last, and Error its error, cut to 200 bytes.
	Sample uuid.UUID
	Error  string
}

// BlockedListed is the most keys in [Depth.Blocked].
const BlockedListed = 20

// BlockedKey is a key that waits for a person.
type BlockedKey struct {
	Topic string
	Key   string
	// EventID is the dead event's, and DeadAt when it became dead.
	EventID uuid.UUID
	DeadAt  time.Time
}

// TopicDepth is the backlog of one topic.
type TopicDepth struct {
	Topic string
	// Pending wait: they are due now, or wait for a retry. Scheduled were delayed by their producers, and were never due.
	// Processing are leased; Dead are those with an open dead letter.
	Pending, Scheduled, Processing, Dead Count
	// Retrying counts the rows of Pending that are not due now.
	Retrying Count
	// OldestPending is when the row that has waited for longest was due first, of those that are pending or leased: at its
	// creation, after its producer's delay, or at its replay. Zero for none.
	OldestPending time.Time
}

// Count is a number of rows, exact unless it says otherwise.
type Count struct {
	N         int64
	Estimated bool
}

// OldestTransaction is what keeps vacuum from removing rows that are gone. The longer it lasts, the
// more of them lie in the way of claims, and the larger the table grows.
type OldestTransaction struct {
	Kind HolderKind
	// Name is the pid and the application name of a session, the gid of a prepared transaction, or the
	// name of a slot or a standby.
	Name string
	// Since is when it began, on the database's clock. For a slot, a standby, and a session of another
	// role unless the login is a member of pg_read_all_stats, it is when this process first saw it hold
	// what it holds now: it began earlier. Age is the time from then until it was looked at.
	Since time.Time
	Age   time.Duration
}

// HolderKind says what an [OldestTransaction] is, and so how to end it.
type HolderKind string

// The kinds, with what ends them.
const (
	HeldBySession  HolderKind = "Session"             // commit, or pg_terminate_backend(pid)
	HeldByPrepared HolderKind = "PreparedTransaction" // commit prepared, or rollback prepared
	HeldBySlot     HolderKind = "ReplicationSlot"     // end its standby's queries, or pg_drop_replication_slot(name)
	HeldByStandby  HolderKind = "Standby"             // end its queries, or hot_standby_feedback = off there
)

// SchemaState compares a database's schema with the one a store needs.
type SchemaState string

// The states of a schema.
const (
	SchemaReady   SchemaState = "Ready"
	SchemaMissing SchemaState = "Missing"
	SchemaTooOld  SchemaState = "TooOld"
	SchemaTooNew  SchemaState = "TooNew"
	// SchemaDiffers: a migration of the same number has another content than the store's.
	SchemaDiffers SchemaState = "Differs"
	// SchemaSequencesBehind: the tables were copied without their sequences.
	SchemaSequencesBehind SchemaState = "SequencesBehind"
)

// Schema is the outcome of [Store.Schema].
type Schema struct {
	State SchemaState
	// Version is the database's, 0 when Missing; Required is the one the store needs.
	Version, Required int
	// Message says in one sentence what is wrong and what to do. Empty when Ready.
	Message string
}

// Windows are the most recent periods over which outcomes are counted: [Outcomes].
var Windows = [...]time.Duration{5 * time.Minute, time.Hour}

// Data is how the outbox's data are at one moment (CONTRACT C-95). Every process of a dispatcher reports the same
// Windows, and every dispatcher of a database the same Orphans, its own namespace first.
type Data struct {
	// ObservedAt is the database's time of the look.
	ObservedAt time.Time
	// Windows has one entry for each of [Windows].
	Windows []Outcomes
	Orphans Orphans
	// Adoptions are the rows of tables that are adopted and live, for the store's namespace or with one in each row, by adoption
	// and state.
	Adoptions []AdoptionRows
}

// AdoptionRows are rows of a service's own table, which is adopted, that have no event.
type AdoptionRows struct {
	// Adoption is its name. Namespace is empty where each row has its own. State is refused (by the outbox), missing (without a note) or waiting (open in their table).
	Adoption, Namespace, State string
	// N is as counted last, some minutes ago at most where a table is small. -1: the table cannot be counted.
	N int64
}

// Outcomes are how deliveries of a dispatcher ended over a time that has just passed.
type Outcomes struct {
	Window time.Duration
	// Delivered events were marked so by a process of the dispatcher that still runs, and Failed are its attempts that
	// failed. An event whose row is gone is not taken for a delivered one.
	Delivered, Failed int64
	// Dead counts the events of its topics that became dead, by whichever worker, resolved since or not. With Estimated
	// set there may be more.
	Dead Count
}

// Name is the window as people write it, in whole hours or minutes: 1h, 5m.
func (o Outcomes) Name() string {
	if o.Window%time.Hour == 0 {
		return fmt.Sprintf("%dh", o.Window/time.Hour)
	}
	return fmt.Sprintf("%dm", o.Window/time.Minute)
}

// SuccessRate is the part of the attempts that succeeded, from 0 to 1. known is false when there was none.
func (o Outcomes) SuccessRate() (rate float64, known bool) {
	if o.Delivered+o.Failed == 0 {
		return 0, false
	}
	return float64(o.Delivered) / float64(o.Delivered+o.Failed), true
}

// Orphans are due rows of the whole database, whatever their namespace, that no worker has served for a minute at
// least. A Count with Estimated set may be higher.
type Orphans struct {
	// Unserved are pending rows of topics that no process of a dispatcher serves.
	Unserved Count
	// Abandoned are rows that are leased to a worker that is gone, and that no other has taken over.
	Abandoned Count
	// Topics are those that have such rows: those of the dispatcher's namespace first, and by name, at most
	// OrphanTopicsListed, so that they stay the same while their numbers change.
	Topics []OrphanTopic
}

// OrphanTopicsListed is the most entries of [Orphans.Topics].
const OrphanTopicsListed = 20

// OrphanTopic is a topic with orphaned rows.
type OrphanTopic struct {
	Namespace, Topic    string
	Unserved, Abandoned Count
}
