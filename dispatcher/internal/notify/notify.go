package notify

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Options say whose deaths are told.
type Options struct {
	// Schema is where the outbox is. Defaults to "outbox".
	Schema string
	// Namespace and Topics are whose deaths are told. No topics means all of the namespace.
	Namespace string
	Topics    []string
	// Dispatcher is the name that the notifications have of the dispatcher.
	Dispatcher string
	// Ready reports whether the outbox can be worked with. While it cannot, nothing is done. Defaults to always.
	Ready func() bool
	// Logger defaults to one that discards.
	Logger *slog.Logger
	// LookEvery is how often a Notifier looks whether there is something to tell. Defaults to 5s.
	LookEvery time.Duration
}

// GiveUpAfter is how long after a death its notification is tried.
const GiveUpAfter = 24 * time.Hour

const (
	// most is how many dead letters are taken at a time, and atOnce how many requests are under way.
	most, atOnce = 100, 8
	// held is for how long they are taken. None is begun in its second half, and a request ends after 10 seconds.
	held = 2 * time.Minute
	// longestPause bounds the pause of a Notifier whose address takes nothing.
	longestPause = time.Minute
	// The bounds of the time until a notification is tried again.
	soonest, latest = 5 * time.Second, 5 * time.Minute
	// writeTimeout bounds a statement.
	writeTimeout = 5 * time.Second
)

// Notifier sends the notifications. It is safe for concurrent use.
type Notifier struct {
	pool *pgxpool.Pool
	sink dispatcher.Sink
	opts Options
	sql  queries

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
	if opts.LookEvery == 0 {
		opts.LookEvery = 5 * time.Second
	}
	return &Notifier{pool: pool, sink: sink, opts: opts, sql: load(opts.Schema)}
}

// Run sends what is to be told until ctx ends, which ends requests under way too: their notifications are sent again.
func (n *Notifier) Run(ctx context.Context) {
	for pause := time.Duration(0); ctx.Err() == nil; {
		wait := n.opts.LookEvery
		if n.opts.Ready() {
			p, err := n.pass(ctx, pause > 0)
			if err == nil {
				err = p.err
			}
			n.tell(ctx, p, err)
			switch {
			case p.sent > 0:
				pause = 0
				if p.full {
					wait = 0
				}
			case err != nil:
				pause = min(max(2*pause, wait), longestPause)
				wait = pause
			}
		}
		sleep(ctx, wait)
	}
}

// pass is what one look came to.
type pass struct {
	sent, failed, givenUp int
	full                  bool  // there may be more that is due
	err                   error // of one that failed
}

// pass takes some dead letters, and sends what is to be said of them. It takes few while the address takes nothing.
func (n *Notifier) pass(ctx context.Context, failing bool) (p pass, err error) {
	limit := most
	if failing {
		limit = atOnce
	}
	deaths, err := n.take(ctx, limit)
	if err != nil {
		return p, err
	}
	p.full = len(deaths) == limit
	deaths, p.givenUp = split(deaths)
	n.givenUp.Add(int64(p.givenUp))
	if len(deaths) == 0 {
		return p, nil
	}
	n.send(ctx, deaths)
	for _, d := range deaths {
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
	return p, n.write(ctx, deaths)
}

// split takes out those that are given up, and counts them.
func split(deaths []*death) (due []*death, givenUp int) {
	for _, d := range deaths {
		if d.givenUp {
			givenUp++
		} else {
			due = append(due, d)
		}
	}
	return due, givenUp
}

// send sends notifications, some at once. It begins no more when the first ones fail and none was taken.
func (n *Notifier) send(ctx context.Context, deaths []*death) {
	ctx, cancel := context.WithTimeout(ctx, held/2)
	defer cancel()
	var group sync.WaitGroup
	var taken, refused atomic.Bool
	slots := make(chan struct{}, atOnce)
	for _, d := range deaths {
		slots <- struct{}{}
		if ctx.Err() != nil || refused.Load() && !taken.Load() {
			break
		}
		d.begun = true
		group.Go(func() {
			defer func() { <-slots }()
			if d.err = n.deliver(ctx, d); d.err != nil {
				refused.Store(true)
				return
			}
			d.sent = true
			taken.Store(true)
		})
	}
	group.Wait()
}

func (n *Notifier) deliver(ctx context.Context, d *death) error {
	event, err := d.event(n.opts)
	if err != nil {
		return err
	}
	return n.sink.Deliver(ctx, []*dispatcher.Event{event})[0]
}

// tell logs what was given up, and a failure that is new, and its end.
func (n *Notifier) tell(ctx context.Context, p pass, err error) {
	if p.givenUp > 0 {
		n.opts.Logger.Warn("deaths were not told within a day, and are told no more; their dead letters have no notified_at", "deadLetters", p.givenUp)
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
		n.opts.Logger.Warn("the address is not told of deaths; trying again", "error", text)
	case text == "" && before != "":
		n.opts.Logger.Info("the address is told of deaths again")
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
	// Sent are those that the address took, Failed attempts that did not come to that, and GivenUp those that are tried
	// no more.
	Sent, Failed, GivenUp int64
}

// Counts returns what this process has done.
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
