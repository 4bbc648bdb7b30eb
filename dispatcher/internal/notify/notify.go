// Package notify sends a CloudEvent over HTTP for each dead letter of a dispatcher that has notify.
//
// # Guarantees
//
// At least once. The transaction that makes an event dead marks the dead letter (outbox_dead_letters.notify_at; pgstore
// enables the column's default), and the mark is removed when the address has responded 2xx. A process that is killed
// between the two leaves the mark: another one sends the same notification again, with the same id. A dispatcher without
// an address marks nothing, so there are no notifications of dead letters from before it had one.
//
// A notification that the address does not accept is tried again for [GiveUpAfter], counted from when the event became
// dead: after half the time that has passed since, at least 5 seconds and at most 5 minutes, and no sooner than the
// response's Retry-After. Then it is given up, counted and logged: the dead letter stays, with notify_attempts and
// without notified_at.
//
// Delivery never waits for notifications. Each process takes some dead letters at a time for itself (FOR UPDATE SKIP LOCKED, until
// notify_at), so any number of processes share the work, and nothing is kept in a session.
//
// # The message
//
// The event is that of sink http with contentMode Binary: see package cloudevent for the attributes.
//
//	attribute     value
//	------------  ---------------------------------------------------------------------------
//	id            a UUID made of the event's id and the dead letter's: the same at each attempt, and another
//	              for another dead letter of the same event
//	type          dev.outbox.deadletter.created
//	source        /outbox/<namespace>/<topic>
//	subject       the aggregate's id, if the event has one
//	time          when the event became dead
//	sequence      the dead letter's id
//	attempt       the number of the attempt to send it; fencingtoken is the same
//
// The body is what `dispatcher dead list --output json` says of the dead letter, with namespace and dispatcher: a
// [Notification]. It has the event's last error, and never its payload or its headers.
package notify

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sqlfile"
)

// Options say which dead letters are notified.
type Options struct {
	// Schema is where the outbox is. Defaults to "outbox".
	Schema string
	// Namespace and Topics of the dead letters. No topics means all of the namespace.
	Namespace string
	Topics    []string
	// Dispatcher is the dispatcher's name in notifications.
	Dispatcher string
	// Ready reports whether the outbox can be used. While it cannot, a Notifier does nothing. Defaults to always.
	Ready func() bool
	// Logger defaults to one that discards.
	Logger *slog.Logger
	// PollEvery is how often a Notifier queries for dead letters that are due. Defaults to 5s.
	PollEvery time.Duration
}

// GiveUpAfter is how long after an event became dead its notification is tried.
const GiveUpAfter = 24 * time.Hour

const (
	// batchSize is how many dead letters are taken at a time, and maxRequests how many requests run at once.
	batchSize, maxRequests = 100, 8
	// leaseTime is for how long they are taken. No request starts in its second half, and each ends after 10 seconds.
	leaseTime = 2 * time.Minute
	// maxPause bounds the pause of a Notifier whose address accepts nothing.
	maxPause = time.Minute
	// The bounds of the time until a notification is tried again.
	minRetry, maxRetry = 5 * time.Second, 5 * time.Minute
	// writeTimeout bounds a statement.
	writeTimeout = 5 * time.Second
)

// Notifier sends the notifications. It is safe for concurrent use.
type Notifier struct {
	pool *pgxpool.Pool
	sink dispatcher.Sink
	opts Options
	sql  func(name string) string // a statement

	sent, failed, givenUp atomic.Int64

	mu      sync.Mutex
	problem string
}

// New returns a Notifier that sends by a sink, which it does not close. It does not connect.
func New(pool *pgxpool.Pool, sink dispatcher.Sink, opts Options) *Notifier {
	if opts.Schema == "" {
		opts.Schema = "outbox"
	}
	if opts.Ready == nil {
		opts.Ready = func() bool { return true }
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.PollEvery == 0 {
		opts.PollEvery = 5 * time.Second
	}
	return &Notifier{pool: pool, sink: sink, opts: opts, sql: sqlfile.Reader(files, opts.Schema)}
}

// Run sends notifications until ctx ends, which also ends running requests: their notifications are sent again.
func (n *Notifier) Run(ctx context.Context) {
	for pause := time.Duration(0); ctx.Err() == nil; {
		wait := n.opts.PollEvery
		if n.opts.Ready() {
			p, err := n.pass(ctx, pause > 0)
			if err == nil {
				err = p.err
			}
			n.report(ctx, p, err)
			switch {
			case p.sent > 0:
				pause = 0
				if p.more {
					wait = 0
				}
			case err == nil && p.givenUp > 0 && p.more:
				wait = 0 // to give up needs no address, and what is behind waits
			case err != nil:
				pause = min(max(2*pause, wait), maxPause)
				wait = pause
			}
		}
		sleep(ctx, wait)
	}
}

// pass is the result of one query for dead letters that are due.
type pass struct {
	sent, failed, givenUp int
	more                  bool  // more may be due
	err                   error // of a notification that failed
}

// pass takes some dead letters, and sends their notifications. It takes few while the address accepts nothing.
func (n *Notifier) pass(ctx context.Context, failing bool) (p pass, err error) {
	limit := batchSize
	if failing {
		limit = maxRequests
	}
	taken, err := n.take(ctx, limit)
	if err != nil {
		return p, err
	}
	p.more = len(taken) == limit
	taken, p.givenUp = dropGivenUp(taken)
	n.givenUp.Add(int64(p.givenUp))
	if len(taken) == 0 {
		return p, nil
	}
	n.send(ctx, taken)
	for _, d := range taken {
		switch {
		case d.sent:
			p.sent++
		case d.err != nil && ctx.Err() == nil:
			p.failed++
			p.err = d.err
		}
	}
	n.sent.Add(int64(p.sent))
	n.failed.Add(int64(p.failed))
	return p, n.write(ctx, taken)
}

// dropGivenUp returns the notifications that are due, and counts those that are given up.
func dropGivenUp(taken []*notification) (due []*notification, givenUp int) {
	for _, d := range taken {
		if d.givenUp {
			givenUp++
		} else {
			due = append(due, d)
		}
	}
	return due, givenUp
}

// send sends notifications, some at once. It starts no more when the first ones fail and the address accepted none.
func (n *Notifier) send(ctx context.Context, due []*notification) {
	ctx, cancel := context.WithTimeout(ctx, leaseTime/2)
	defer cancel()
	var group sync.WaitGroup
	var accepted, failed atomic.Bool
	slots := make(chan struct{}, maxRequests)
	for _, d := range due {
		slots <- struct{}{}
		if ctx.Err() != nil || failed.Load() && !accepted.Load() {
			break
		}
		d.started = true
		group.Go(func() {
			defer func() { <-slots }()
			if d.err = n.deliver(ctx, d); d.err != nil {
				failed.Store(true)
				return
			}
			d.sent = true
			accepted.Store(true)
		})
	}
	group.Wait()
}

func (n *Notifier) deliver(ctx context.Context, d *notification) error {
	event, err := d.event(n.opts)
	if err != nil {
		return err
	}
	return n.sink.Deliver(ctx, []*dispatcher.Event{event})[0]
}

// report logs what was given up, a new failure, and its end.
func (n *Notifier) report(ctx context.Context, p pass, err error) {
	if p.givenUp > 0 {
		n.opts.Logger.Warn("gave up notifications after a day; their dead letters have no notified_at", "deadLetters", p.givenUp)
	}
	if ctx.Err() != nil || err == nil && p.sent == 0 {
		return // nothing is known of the address
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	n.mu.Lock()
	before := n.problem
	n.problem = text
	n.mu.Unlock()
	switch {
	case text != "" && before == "":
		n.opts.Logger.Warn("the address is not notified of dead letters; trying again", "error", text)
	case text == "" && before != "":
		n.opts.Logger.Info("the address is notified of dead letters again")
	}
}

// Problem says why the last notifications of this process failed; empty when they did not.
func (n *Notifier) Problem() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.problem
}

// Counts are numbers of notifications of this process.
type Counts struct {
	// Sent are those that the address accepted, Failed the failed attempts, and GivenUp those that are not tried any more.
	Sent, Failed, GivenUp int64
}

// Counts returns those since this process started.
func (n *Notifier) Counts() Counts {
	return Counts{Sent: n.sent.Load(), Failed: n.failed.Load(), GivenUp: n.givenUp.Load()}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// EventType is the type of the CloudEvent.
const EventType = "dev.outbox.deadletter.created"

// Notification is the body. It has the dead letter as a list has it, and what to do.
type Notification struct {
	// Dispatcher is the name of the dispatcher, and Namespace the outbox namespace of the event.
	Dispatcher string `json:"dispatcher"`
	Namespace  string `json:"namespace"`
	deadletters.DeadLetter
}

// notification is a dead letter that this process has taken, and what became of sending it.
type notification struct {
	deadletters.DeadLetter
	eventID  pgtype.UUID
	tenant   pgtype.UUID
	takenAt  time.Time // on the database's clock
	attempts int       // to send it, including this one
	givenUp  bool

	started, sent bool
	err           error // why it was not sent
}

// event returns the message: sink http writes it as it writes any event.
func (n *notification) event(o Options) (*dispatcher.Event, error) {
	body, err := json.Marshal(Notification{o.Dispatcher, o.Namespace, n.DeadLetter})
	if err != nil {
		return nil, fmt.Errorf("write the notification of dead letter %d: %w", n.ID, err)
	}
	return &dispatcher.Event{
		ID:  uuid.NewSHA1(n.eventID.Bytes, strconv.AppendInt([]byte("dead letter "), n.ID, 10)),
		Seq: n.ID, Namespace: o.Namespace, Topic: n.Topic, TenantID: uuid.NullUUID{UUID: n.tenant.Bytes, Valid: n.tenant.Valid},
		EventType: EventType, AggregateType: n.AggregateType, AggregateID: n.AggregateID,
		Headers: map[string]string{}, Payload: body, CreatedAt: n.DeadAt, Attempt: n.attempts, LeaseNumber: int64(n.attempts),
	}, nil
}

// delay returns the time until the next attempt: none when this attempt was not started, or was interrupted.
func (n *notification) delay(stopped bool) time.Duration {
	if n.err == nil || stopped {
		return 0
	}
	return max(min(max(n.takenAt.Sub(n.DeadAt)/2, minRetry), maxRetry), dispatcher.RetryAfterDelay(n.err))
}
