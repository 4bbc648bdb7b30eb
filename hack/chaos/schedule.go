package main

import (
	"math/rand/v2"
	"slices"
	"time"
)

// kind of a fault.
type kind string

// The faults in the foreground come one at a time, unless crowded, so that the recovery from each can be measured.
const (
	kill    kind = "kill"    // kill -9 of a dispatcher, and another one in its place
	stop    kind = "stop"    // SIGTERM to a dispatcher, and another one in its place
	freeze  kind = "freeze"  // SIGSTOP of a dispatcher past its lease, then SIGCONT
	crash   kind = "crash"   // immediate stop of PostgreSQL, and its start
	cut     kind = "cut"     // pg_terminate_backend of dispatchers' connections
	bouncer kind = "bouncer" // restart of PgBouncer
	refuse  kind = "refuse"  // the consumer responds with an error, for all topics or one
	hang    kind = "hang"    // the consumer does not respond until later
	restart kind = "restart" // kill -9 of the consumer, and its start
	choke   kind = "choke"   // SIGSTOP of a dispatcher half-way through a claim that no socket buffer holds
	mute    kind = "mute"    // the consumer leaves some requests without a response until they time out
	gateway kind = "gateway" // every response is 502, 503, 504 or 500, for long
	loop    kind = "loop"    // one more dispatcher, with all defaults, is killed again and again
	limited kind = "limited" // statement_timeout is 600 ms, and a trigger takes 4 ms for each row
	reject  kind = "reject"  // a trigger refuses the acks of one event in three
	stuck   kind = "stuck"   // calls with 3 MiB have no response until they time out
	lag     kind = "lag"     // a standby lags, and then takes over: what was committed meanwhile is gone
	jump    kind = "jump"    // the database's clock is seconds ahead or behind, and then right again
	slow    kind = "slow"    // more topics than there are calls have events that take long
	partly  kind = "partly"  // one response in ten is 500, and one tenant gets 429 with Retry-After
)

// The faults in the background last while those in the foreground happen.
const (
	late       kind = "late"       // a producer commits long after its events were inserted
	snapshot   kind = "snapshot"   // a transaction keeps an old snapshot, so that vacuum removes nothing
	clock      kind = "clock"      // one more dispatcher, whose clock is an hour wrong
	scale      kind = "scale"      // one more dispatcher, which leaves again
	unreadable kind = "unreadable" // rows that no dispatcher can decode
	veto       kind = "veto"       // a trigger refuses to mark one event dead
	unclaimed  kind = "unclaimed"  // a trigger refuses the claims of some events
	revive     kind = "revive"     // dead events are replayed, by the command
)

var (
	foreground = []kind{kill, stop, freeze, crash, cut, bouncer, refuse, hang, restart, choke, mute, gateway, loop, limited, reject, stuck, lag, jump, slow, partly}
	background = []kind{late, snapshot, clock, scale, unreadable, veto, unclaimed, revive}
	// ofDestination are those by which the consumer does not take an event.
	ofDestination = []kind{refuse, hang, restart, mute, gateway, stuck, slow, partly, veto}
)

// fault is one entry of a schedule.
type fault struct {
	kind kind
	// at is when it begins, from the start of the run, and lasts how long it is kept up.
	at, lasts time.Duration
	// slot is the dispatcher that it hits, when it hits one.
	slot int
	// pick chooses among variants: which topic, which status, fast or slow.
	pick int
}

// times are what a schedule depends on. crowded ones leave no time to recover between faults.
type times struct {
	total, lease, poll, timeout time.Duration
	crowded                     bool
}

// settle is how long after a fault the next one waits, so that recovery is seen undisturbed.
func (t times) settle() time.Duration {
	if t.crowded {
		return time.Second
	}
	return t.bound() + time.Second
}

// bound is how long the rows of a killed dispatcher may wait: its lease, the poll of another, and a
// little for a machine that is busy.
func (t times) bound() time.Duration { return t.lease + t.poll + slack }

const slack = 2 * time.Second

// longRun is the length from which on a run has one producer that commits after a third of it.
const longRun = 5 * time.Minute

// schedule draws the faults of a run. The same arguments give the same schedule.
func schedule(rnd *rand.Rand, t times, slots int, kinds []kind) []fault {
	only := func(all []kind) []kind {
		return slices.DeleteFunc(slices.Clone(all), func(k kind) bool {
			return !slices.Contains(kinds, k) || k == loop && t.total < 4*defaultLease // it takes too long
		})
	}
	quiet := [2]time.Duration{} // no crash then: it would end the long transaction
	var plan []fault
	if t.total >= longRun && slices.Contains(kinds, late) {
		quiet = [2]time.Duration{t.total / 30, t.total/30 + t.total/3 + time.Second}
		plan = append(plan, fault{kind: late, at: quiet[0], lasts: t.total / 3})
	}
	bag := bag{rnd: rnd, kinds: only(background)}
	for at := time.Second; !bag.empty(); at += between(rnd, time.Second, 4*time.Second) {
		f := fault{kind: bag.next(), at: at, pick: rnd.IntN(1 << 16)}
		f.lasts = f.kind.lasts(rnd, t)
		if at += f.lasts; at > t.total {
			break
		}
		plan = append(plan, f)
	}
	bag.kinds, bag.left = only(foreground), nil
	for at := 2 * time.Second; !bag.empty(); {
		f := fault{kind: bag.next(), at: at, slot: rnd.IntN(slots), pick: rnd.IntN(1 << 16)}
		f.lasts = f.kind.lasts(rnd, t)
		if at+f.lasts+min(t.bound(), t.settle()) > t.total {
			break
		}
		if (f.kind == crash || f.kind == lag) && at+f.lasts > quiet[0] && at < quiet[1] {
			continue
		}
		plan = append(plan, f)
		at += f.lasts + t.settle()
		if rnd.IntN(4) == 0 { // two at a time
			at -= f.lasts/2 + t.settle()
		}
	}
	slices.SortStableFunc(plan, func(a, b fault) int { return int(a.at - b.at) })
	return plan
}

// lasts draws how long a fault is kept up.
func (k kind) lasts(rnd *rand.Rand, t times) time.Duration {
	switch k {
	case freeze:
		return between(rnd, t.lease+500*time.Millisecond, t.lease+3*time.Second)
	case hang:
		return between(rnd, t.timeout/2, 3*t.timeout)
	case cut, bouncer:
		return 0
	case choke: // well after the lease, at whose end the rows are to be free
		return between(rnd, 2*t.lease+t.poll+slack, 2*t.lease+t.poll+2*slack)
	case mute:
		return between(rnd, 2*t.timeout, 4*t.timeout)
	case gateway:
		return min(between(rnd, t.total/6, t.total/4), 3*time.Minute)
	case loop:
		return defaultLease + 20*time.Second
	case limited, reject: // past the end of a lease
		return between(rnd, 2*t.lease, 3*t.lease)
	case stuck, slow, partly:
		return between(rnd, 3*t.timeout, 6*t.timeout)
	case lag:
		return between(rnd, time.Second, 3*time.Second)
	case jump:
		return between(rnd, t.lease, 2*t.lease)
	case veto, unclaimed: // past the end of a lease and the next
		return between(rnd, 2*t.lease+slack, 3*t.lease+slack)
	case late, snapshot, clock, scale, unreadable, revive:
		return between(rnd, 3*time.Second, 8*time.Second)
	default: // how long the process stays stopped
		return between(rnd, 0, 3*time.Second)
	}
}

func between(rnd *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(rnd.Int64N(int64(to-from))).Round(time.Millisecond)
}

// bag hands out kinds so that each comes once before one comes again.
type bag struct {
	rnd         *rand.Rand
	kinds, left []kind
}

func (b *bag) empty() bool { return len(b.kinds) == 0 }

func (b *bag) next() kind {
	if len(b.left) == 0 {
		b.left = slices.Clone(b.kinds)
		b.rnd.Shuffle(len(b.left), func(i, j int) { b.left[i], b.left[j] = b.left[j], b.left[i] })
	}
	k := b.left[0]
	b.left = b.left[1:]
	return k
}
