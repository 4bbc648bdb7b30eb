package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

var (
	noon       = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	alice, bob = uuid.UUID{1}, uuid.UUID{2}
)

func at(ms int) time.Time { return noon.Add(time.Duration(ms) * time.Millisecond) }

// story is a history in few words: an event goes through verbs, one each 10 ms, from its commit at 0.
// "confirm" is the consumer's.
func story(ordered bool, faults []injected, stories ...string) *history {
	h := &history{events: map[uuid.UUID]*event{}, faults: faults, ordered: ordered, dispatchers: 2, lease: 10 * time.Millisecond, bound: time.Second, began: noon, ended: at(10_000), over: at(10_000_000)}
	number := int64(0) // of the last claim
	for i, story := range stories {
		e := h.event(uuid.UUID{15: byte(i + 1)})
		e.known, e.committed, e.committedAt, e.seq, e.key = true, true, noon, int64(i), "key"
		now, reason := state{}, ""
		for j, word := range strings.Fields(story) {
			var next state
			when := at(10 * j)
			switch word {
			case "wait":
				continue
			case "undone": // a crash takes the last transition back
				last := len(e.moves) - 1
				if e.moves[last].to.status == "dead" {
					e.deadLetters--
				}
				now, e.moves = e.moves[last].from, e.moves[:last]
				continue
			case "forgotten": // and the number of its lease with it
				number--
				continue
			case "unheard": // by any producer: a copy
				e.known, e.committed, e.committedAt = false, false, time.Time{}
				continue
			case "rollback":
				e.committed = false
				continue
			case "unreadable", "poison":
				e.eventType = map[string]string{"unreadable": unreadableType, "poison": scenario.PoisonType}[word]
				continue
			case "confirm", "late": // late: what was sent under the lease before
				token := now.lease
				if word == "late" {
					token--
				}
				e.deliveries = append(e.deliveries, delivery{ID: e.id, Token: token, At: when})
				h.arrivals = append(h.arrivals, when)
				continue
			case "placed":
				e.eventType = placedType
				continue
			case "once":
				e.maxAttempts = 1
				continue
			case "unsent": // the last claim ended before
				e.sent--
				continue
			case "taken", "tooLate":
				if e.late = word == "tooLate"; !e.late {
					e.taken = when
				}
				continue
			case "brief":
				e.expires = at(25)
				continue
			case "record":
				e.deadLetters++
				continue
			case "insert":
				next = state{status: "pending"}
			case "alice", "bob", "steal", "again":
				number++
				e.sent++
				next = state{status: "processing", attempts: now.attempts, until: when.Add(5 * time.Millisecond), lease: number}
				if now.status != "processing" {
					next.attempts++
				}
				switch next.worker = bob; word {
				case "alice":
					next.worker = alice
				case "steal":
					next.until = when.Add(time.Minute)
				case "again":
					number--
					next.lease = now.lease
				}
			case "ack":
				next = state{status: "delivered", attempts: now.attempts, lease: now.lease}
			case "nack":
				next = state{status: "pending", attempts: now.attempts, lease: now.lease}
			case "release":
				next = state{status: "pending", attempts: now.attempts - 1, lease: now.lease}
			case "postpone":
				next = state{status: "pending", attempts: now.attempts - 1, lease: now.lease, waits: true}
			case "dead", "refused", "timeout", "spent":
				next = state{status: "dead", attempts: now.attempts, lease: now.lease}
				reason = map[string]string{"dead": "poison_message", "refused": "permanent_failure", "timeout": "processing_timeout", "spent": "max_retries_exceeded"}[word]
				e.deadLetters++
			case "replay":
				next = state{status: "pending", lease: now.lease}
				e.replayed++
			case "expire":
				next = state{status: "expired", attempts: now.attempts, lease: now.lease}
			case "withdraw":
				next = state{status: "withdrawn", attempts: now.attempts, lease: now.lease}
			case "jump":
				next = state{status: "pending", attempts: now.attempts + 2, lease: now.lease}
			case "reset": // the number is gone
				next = state{status: "pending", attempts: now.attempts}
			default:
				panic(word)
			}
			e.moves = append(e.moves, move{tx: uint64(j), began: when, at: when, byClock: when, verb: verbOf(now, next), from: now, to: next, reason: reason})
			now, reason = next, ""
		}
	}
	return h
}

// The ledger accepts what may happen, and finds each rule that is broken.
func TestLedgerFindsViolations(t *testing.T) {
	killed := []injected{{kind: kill, start: at(5), end: at(30), worker: alice}}
	frozen := []injected{{kind: freeze, start: at(5), end: at(30), worker: bob}}
	stopped := []injected{{kind: stop, start: at(15), end: at(16), worker: alice}}
	cutOff := append([]injected{{kind: cut, start: at(14), end: at(15)}}, stopped...)
	crashed := []injected{{kind: crash, start: at(25), end: at(26)}}
	lagged := []injected{{kind: lag, start: at(2000), end: at(3000)}}
	jumped := []injected{{kind: jump, start: at(15), end: at(60)}}
	refusing := []injected{{kind: refuse, status: 404, start: at(5), end: at(1000)}}
	failing := []injected{{kind: refuse, status: 503, start: at(5), end: at(1000)}, {kind: gateway, start: at(5), end: at(1000)}}
	vetoed := []injected{{kind: veto, event: uuid.UUID{15: 1}, start: at(5), end: at(1000)}, {kind: stop, start: at(15), end: at(16), worker: alice}}
	budget := strings.Repeat("alice nack ", maxAttempts-1)
	failedOver := []injected{{kind: lag, start: at(25), end: at(65)}}
	wasDead := "poison insert alice refused undone bob refused"
	waited := "placed insert " + strings.Repeat("wait ", 6_010) + "alice confirm ack"
	wasClaimed := "insert wait wait wait alice confirm undone wait bob confirm ack"
	for _, test := range []struct {
		name    string
		history *history
		want    []string
	}{
		{"delivered", story(true, nil, "insert alice confirm ack", "insert wait wait wait bob confirm ack"), nil},
		{"retried", story(false, nil, "insert alice nack bob release alice confirm ack"), nil},
		{"found the consumer unreachable", story(true, nil, "insert alice postpone bob postpone bob confirm ack"), nil},
		{"given back after it was sent", story(false, nil, "insert "+strings.Repeat("alice postpone ", 2*maxAttempts)+"alice confirm ack"), nil},
		{"dead", story(false, refusing, "insert "+budget+"bob spent"), nil},
		{"refused for good", story(false, nil, "poison insert alice refused"), nil},
		{"unreadable", story(false, nil, "unreadable insert alice dead"), nil},
		{"replayed", story(true, nil, "poison insert alice refused replay bob confirm ack", "insert wait wait alice confirm ack"), nil},
		{"replayed, and dead again", story(false, nil, "poison insert alice refused replay bob refused"), nil},
		{"rolled back", story(false, nil, "rollback"), nil},
		{"withdrawn", story(true, nil, "insert withdraw taken", "insert wait wait alice confirm ack"), nil},
		{"withdrawn too late", story(false, nil, "insert alice tooLate confirm ack"), nil},
		{"withdrawn, and a failover took that along", story(false, failedOver, "insert withdraw taken undone wait alice confirm ack"), nil},
		{"expired", story(true, nil, "brief insert wait expire", "insert wait wait wait alice confirm ack"), nil},
		{"expired early, since the clock jumped", story(false, jumped, "brief insert expire"), nil},
		{"killed", story(false, killed, "insert alice confirm bob confirm ack"), nil},
		{"crashed", story(false, crashed, "insert alice confirm bob confirm ack"), nil},
		{"claimed again under a number that a crash took back", story(false, crashed, "insert alice confirm undone forgotten "+strings.Repeat("wait ", 110)+"bob confirm ack"), []string{tokenTwice}},
		{"forgotten by a failover", story(true, []injected{{kind: lag, start: at(5), end: at(60)}}, "insert alice confirm undone undone forgotten"), nil},
		{"delivered after a failover that took its claim along", story(true, []injected{{kind: lag, start: at(5), end: at(25)}}, "unheard insert alice confirm undone undone forgotten"), nil},
		{"delivered long after a failover, and never committed", story(true, []injected{{kind: lag, start: at(5), end: at(15)}}, "unheard insert alice confirm undone undone forgotten"), []string{ghost}},
		{"dead before a failover, and again", story(true, failedOver, wasDead, wasClaimed), nil},
		{"dead before a failover, and another one was given back before", story(true, failedOver, wasDead, "insert alice release wait alice confirm undone wait bob confirm ack"), nil},
		{"dead before a failover, and delivered", story(true, failedOver, "once insert alice spent undone undone wait wait wait bob confirm ack", wasClaimed), nil},
		{"dead before a failover, and delivered, and one claim was not sent", story(true, failedOver, "once insert alice unsent release alice spent undone undone bob confirm ack", wasClaimed), nil},
		{"refused once before a failover, and overtaken", story(true, failedOver, "insert alice nack undone undone wait wait wait bob confirm ack", wasClaimed), []string{inverted}},
		{"out of order before a failover", story(true, failedOver, "insert wait wait wait wait wait wait wait bob confirm ack", wasClaimed), []string{inverted}},
		{"claimed again, since the clock jumped", story(false, jumped, "insert alice confirm bob confirm ack"), nil},
		{"left at a stop, since the clock jumped", story(false, append(stopped, jumped...), "insert alice bob confirm ack"), nil},
		{"arrived late, from one that froze", story(false, []injected{{kind: freeze, start: at(5), end: at(60), worker: alice}}, "insert alice bob confirm ack late"), nil},

		{"lost", story(false, nil, "insert alice nack"), []string{lost}},
		{"lost without a row", story(false, nil, "wait"), []string{lost}},
		{"lost long before a failover", story(false, lagged, "insert alice confirm undone undone"), []string{lost, unexplained}},
		{"lost after a replay", story(false, nil, "poison insert alice refused replay"), []string{lost}},
		{"stuck", story(false, nil, "insert alice"), []string{lost}},
		{"ghost", story(false, nil, "rollback confirm"), []string{ghost, unexplained}},
		{"visible", story(false, nil, "insert alice confirm ack rollback"), []string{ghost}},
		{"hollow", story(false, nil, "insert alice ack"), []string{lost, hollowAck}},
		{"acked twice", story(false, nil, "insert alice confirm ack ack"), []string{unlawful, doubleAck, lost}},
		{"redelivered", story(false, nil, "insert alice confirm ack bob confirm ack"), []string{unlawful}},
		{"withdrawn, and sent by a claim that a crash took back", story(false, crashed, "insert alice confirm undone withdraw taken"), []string{untrue}},
		{"withdrawn after a try", story(false, nil, "insert alice release withdraw taken"), []string{lost, unlawful, untrue}},
		{"said to be withdrawn", story(false, nil, "insert taken alice confirm ack"), []string{untrue}},
		{"said to be too late", story(false, nil, "insert tooLate withdraw"), []string{untrue}},
		{"expired early", story(false, nil, "brief insert expire"), []string{mistimed}},
		{"expired without a time", story(false, jumped, "insert wait expire"), []string{mistimed}},
		{"claimed after its time", story(false, jumped, "brief insert wait alice confirm ack"), []string{mistimed}},
		{"jump", story(false, nil, "insert alice confirm jump alice ack"), []string{unlawful, hollowAck, unexplained}},
		{"early", story(false, killed, "insert steal alice confirm ack"), []string{early}},
		{"released at a stop", story(false, stopped, "insert alice release bob confirm ack"), nil},
		{"left at a stop", story(false, stopped, "insert alice bob confirm ack"), []string{abandoned}},
		{"left at a stop, since marking it dead is refused", story(false, vetoed, "poison insert alice bob refused"), nil},
		{"claimed again before a stop", story(false, []injected{{kind: freeze, start: at(5), end: at(30), worker: alice}, {kind: stop, start: at(70), end: at(80), worker: alice}}, "insert alice confirm bob confirm ack"), nil},
		{"left without a database", story(false, cutOff, "insert alice bob confirm ack"), nil},
		{"overspent", story(false, nil, "insert "+budget+"alice nack alice nack alice confirm ack"), []string{overspent}},
		{"a replay's budget is a new one", story(false, refusing, "insert "+budget+"bob spent replay "+budget+"alice confirm ack"), nil},
		{"duplicate", story(false, frozen, "insert alice confirm bob confirm ack"), []string{unexplained}},
		{"duplicate after a stall", story(false, []injected{{kind: stall, start: at(5), end: at(30)}}, "insert alice confirm bob confirm ack"), nil},
		{"duplicate during a choke", story(false, []injected{{kind: choke, start: at(5), end: at(30), worker: bob}}, "insert alice confirm bob confirm ack"), nil},
		{"duplicate after no response", story(false, []injected{{kind: mute, start: at(5), end: at(30)}}, "insert alice confirm nack bob confirm ack"), nil},
		{"forgotten without a crash", story(false, nil, "insert alice confirm undone bob nack alice confirm ack"), []string{unexplained}},
		{"token", story(false, nil, "insert alice confirm confirm ack"), []string{tokenTwice}},
		{"token after a kill", story(false, killed, "insert alice confirm confirm bob confirm ack"), []string{tokenTwice}},
		{"token of a replay", story(false, nil, "poison insert alice refused replay again confirm ack"), []string{tokenFell, leaseTwice}},
		{"token after a retry", story(false, nil, "insert alice nack again confirm ack"), []string{tokenFell, leaseTwice}},
		{"token after a release", story(false, nil, "insert alice postpone again confirm ack"), []string{tokenFell, leaseTwice}},
		{"token that a release removed", story(false, nil, "insert alice reset bob confirm ack"), []string{unlawful}},
		{"token that arrived late", story(false, nil, "insert alice nack bob confirm ack late"), []string{tokenFell, unexplained}},
		{"token of two claims", story(false, nil, "insert alice confirm ack forgotten", "insert wait wait bob confirm ack"), []string{leaseTwice}},
		{"inverted", story(true, nil, "insert wait wait wait alice confirm ack", "insert alice confirm ack"), []string{inverted}},
		{"inverted by a dead one, with a crash", story(true, []injected{{kind: crash, start: at(55), end: at(56)}}, wasDead, wasClaimed), []string{inverted}},
		{"inverted by a dead one", story(true, refusing, "insert "+budget+"alice spent", "insert alice confirm ack"), []string{inverted}},
		{"killed by an outage", story(false, failing, "insert "+budget+"bob spent"), []string{starved}},
		{"killed with an unreadable one", story(false, nil, "insert "+budget+"bob timeout"), []string{starved}},
		{"dead as poison, and it was none", story(false, nil, "insert alice dead"), []string{misjudged}},
		{"unreadable, and tried to the end", story(false, refusing, "unreadable insert "+budget+"bob timeout"), []string{misjudged}},
		{"unreadable, and read", story(false, nil, "unreadable insert alice confirm ack"), []string{misjudged}},
		{"dead without a request", story(false, nil, "poison insert alice unsent timeout"), []string{neverSent}},
		{"a dead letter too many", story(false, nil, "poison insert alice refused record"), []string{unrecorded}},
		{"stood still", story(false, []injected{{kind: veto, start: at(0), end: at(1500)}}, "insert alice confirm ack"), []string{stoodStill}},
		{"waited for nothing", story(false, nil, waited), []string{heldUp}},
		{"waited for nothing, next to slow topics", story(false, []injected{{kind: slow, start: noon, end: at(70_000)}}, waited), []string{heldUp}},
		{"waited, as another topic did", story(false, []injected{{kind: refuse, topic: "mail", start: noon, end: at(70_000)}}, waited), []string{heldUp}},
		{"waited, as another tenant did", story(false, []injected{{kind: partly, start: noon, end: at(70_000)}}, waited), []string{heldUp}},
		{"waited, behind what two outages left", story(false, []injected{{kind: gateway, start: at(-400_000), end: at(-300_000)}, {kind: gateway, start: at(-300_000), end: at(-210_000)}}, waited), nil},
		{"waited, as all did", story(false, []injected{{kind: refuse, start: noon, end: at(70_000)}}, waited), nil},
		{"stood still, as all did", story(false, []injected{{kind: veto, start: at(0), end: at(1500)}, {kind: restart, start: at(100), end: at(200)}}, "insert alice confirm ack"), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, v := range balance(test.history).violations {
				if !slices.Contains(got, v.rule) {
					got = append(got, v.rule)
				}
			}
			slices.Sort(got)
			slices.Sort(test.want)
			need.WantAll(t, test.want, "found %q, want %q", got)
		})
	}
	h := story(false, nil)
	h.wrong = []string{"a dispatcher ended"}
	if got := balance(h).violations; len(got) != 1 || got[0].rule != broken {
		t.Errorf("found %v, want what was wrong with a process", got)
	}
}

// A copy is made once, with its original's ack, for each destination; and those of a key arrive in the order of their originals.
// CONTRACT: C-19
func TestLedgerFindsWrongCopies(t *testing.T) {
	const copied = "wait wait insert alice confirm ack"
	for name, test := range map[string]struct {
		stories []string // two originals, and a copy of each
		want    string
	}{
		"each once":           {[]string{"insert alice ack", "insert alice ack", copied, copied}, ""},
		"one is missing":      {[]string{"insert alice ack", "insert alice ack", copied}, miscopied},
		"twice":               {[]string{"insert alice ack", "insert alice ack", copied, copied, copied}, miscopied},
		"of one that is gone": {[]string{"insert withdraw", "insert alice ack", copied, copied}, miscopied},
		"before the ack":      {[]string{"insert alice wait ack", "insert alice ack", copied, copied}, miscopied},
		"out of order":        {[]string{"insert alice ack", "insert alice ack", "wait wait insert wait wait alice confirm ack", copied}, inverted},
	} {
		h := story(true, nil, test.stories...)
		h.copies = []string{"warehouse"}
		for i := range test.stories {
			e := h.event(uuid.UUID{15: byte(i + 1)})
			if e.topic = shopTopics[0]; i > 1 && len(e.moves) > 0 {
				e.topic, e.originalID = h.copies[0], uuid.UUID{15: byte(i%2 + 1)}
			}
		}
		h.linkCopies()
		l := balance(h)
		need.That(t, test.want == "" && len(l.violations) == 0 || test.want != "" && len(l.violations) > 0 && l.violations[0].rule == test.want, "%s: found %+v, want %q", name, l.violations, test.want)
	}
}

// Recovery is measured from a kill to the last event that the victim held.
func TestRecoveryMeasuredToTheLastHeldEvent(t *testing.T) {
	killed := injected{kind: kill, start: at(15), end: at(500), worker: alice}
	h := story(false, []injected{killed}, "insert alice wait wait wait bob confirm ack", "insert bob wait wait wait wait wait wait confirm ack", "insert alice ack")
	times := times{lease: time.Second, poll: time.Second}
	all := recoveries(h, times)
	need.That(t, len(all) == 1 && all[0].held == 2 && all[0].rows == 55*time.Millisecond, "measured %+v, want 2 events back after 55 ms", all)
	if found := tardy(h, all, times); len(found) != 0 {
		t.Errorf("found %+v to be late, want none: 55 ms are less than a lease", found)
	}
	all[0].rows = times.bound() + 1
	if found := tardy(h, all, times); len(found) != 1 {
		t.Error("more than lease, poll and slack was not found to be late")
	}
	h.faults = append(h.faults, injected{kind: stall, start: at(600), end: at(700)})
	if found := tardy(h, all, times); len(found) != 0 || all[0].rows == unknown {
		t.Errorf("found %+v to be late after %v, want none: the machine stood still", found, all[0].rows)
	}
	waits := story(true, []injected{killed}, "insert alice nack wait wait wait wait wait bob confirm ack", "insert alice wait wait wait wait wait wait wait wait bob confirm ack")
	if all := recoveries(waits, times); all[0].held != 0 {
		t.Errorf("an event that waits for a refused one of its key says nothing of the kill: %+v", all)
	}
	astray := story(true, []injected{killed}, "insert alice postpone wait wait wait wait wait bob confirm ack")
	if all := recoveries(astray, times); all[0].held != 1 || all[0].rows != 85*time.Millisecond {
		t.Errorf("measured %+v, want 1 event back after 85 ms, though it found the consumer unreachable", all)
	} else if _, ok := all[0].last.first(postpone); !ok {
		t.Errorf("its history does not say so: %+v", all[0].last.moves)
	}
	h.faults = append(h.faults, injected{kind: hang, start: at(600), end: at(700)})
	if all := recoveries(h, times); all[0].rows != unknown {
		t.Errorf("with another fault near, it is not known how long it took: %+v", all[0])
	}
}

// The events of a stopped dispatcher stand behind those that waited before.
func TestRecoveryIsNotBoundedBehindABacklog(t *testing.T) {
	stopped := injected{kind: stop, start: at(25), end: at(30), worker: alice}
	held := "insert wait alice release wait wait bob confirm ack"
	for backlog, others := range map[bool]string{false: "insert alice nack wait wait wait bob confirm ack", true: "insert wait wait wait wait wait bob confirm ack"} {
		h := story(false, []injected{stopped}, held, others)
		all := recoveries(h, times{lease: time.Second, poll: time.Second})
		all[0].rows = time.Minute
		if found := tardy(h, all, times{lease: time.Second, poll: time.Second}); all[0].backlog != backlog || (len(found) == 0) != backlog {
			t.Errorf("backlog %t, %d late, want backlog %t and late without one alone", all[0].backlog, len(found), backlog)
		}
	}
}

func TestRecoveryExcludesTimeWithoutDispatchers(t *testing.T) {
	t.Parallel()
	times := times{lease: 3 * time.Second, poll: 500 * time.Millisecond}
	carol := uuid.UUID{3}
	both := []injected{
		{kind: stop, worker: alice, start: at(0), end: at(2000)},
		{kind: stop, worker: bob, start: at(1000), end: at(4000)},
	}
	for name, test := range map[string]struct {
		more []injected
		want time.Duration
	}{
		"both are unreachable":         {nil, time.Second},
		"one more was there":           {[]injected{{kind: scale, worker: carol, start: at(500), end: at(1800)}}, 200 * time.Millisecond},
		"the one more left":            {[]injected{{kind: clock, worker: carol, start: at(-9), end: at(500)}, {kind: stop, worker: carol, start: at(500), end: at(900)}}, time.Second},
		"the consumer was unreachable": {[]injected{{kind: restart, start: at(0), end: at(4000)}}, time.Second},
	} {
		h := story(true, slices.Concat(both, test.more))
		need.Want(t, test.want, "%s: no dispatcher ran for %v, want %v", h.unattended(at(0), at(3000)), name)
	}
	h := story(true, both)
	late := []recovery{{fault: both[0], rows: 3 * time.Second}}
	if found := tardy(h, late, times); len(found) != 0 {
		t.Errorf("a second of it no dispatcher ran: %+v", found)
	}
	if late[0].rows = 3*time.Second + 501*time.Millisecond; len(tardy(h, late, times)) != 1 {
		t.Error("more than a poll and slack of running time was not found to be late")
	}
}

// While the server's clock is set back, a claim that began before goes by the clock that was ahead.
func TestClaimAcrossAClockSetBackIsNotEarly(t *testing.T) {
	jumped := []injected{{kind: jump, start: at(15), end: at(1000)}}
	for _, test := range []struct {
		faults []injected
		first  string
		early  int
	}{{jumped, "alice", 0}, {jumped, "steal", 1}, {nil, "alice", 1}} {
		h := story(false, test.faults, "insert "+test.first+" wait wait bob confirm ack")
		m := &h.event(uuid.UUID{15: 1}).moves[2]
		m.byClock = m.byClock.Add(-time.Minute)
		if l := balance(h); len(l.violations) != test.early {
			t.Errorf("%s with %d faults: %d violations, want %d: %+v", test.first, len(test.faults), len(l.violations), test.early, l.violations)
		}
	}
}

// An event that was tried in the last minute of a run is not lost: it waits for its turn.
func TestTriedEventIsNotLost(t *testing.T) {
	h := story(false, nil, "insert alice nack bob nack")
	for over, lost := range map[time.Time]int{at(20): 0, at(20).Add(2 * settleWithin): 1} {
		h.over = over
		if l := balance(h); len(l.violations) != lost || l.tried != 1-lost {
			t.Errorf("over at %s: %d violations, and %d are still tried", over, len(l.violations), l.tried)
		}
	}
}

func TestMoreThanTheRateIsFound(t *testing.T) {
	h := &history{limit: 10}
	for i := range 300 { // 10 a second for 30 seconds
		h.requests = append(h.requests, at(100*i))
	}
	if l := balance(h); len(l.violations) != 0 {
		t.Errorf("the rate itself: %+v", l.violations)
	}
	for range 11 { // a tenth more than the rate, and one
		h.requests = slices.Insert(h.requests, 150, at(15_000))
	}
	if l := balance(h); len(l.violations) != 1 || l.violations[0].rule != tooFast {
		t.Errorf("111 requests in 10 seconds: %+v", l.violations)
	}
	if h.faults = []injected{{kind: hang, start: at(14_000), end: at(14_999)}}; len(balance(h).violations) != 0 {
		t.Error("what was sent while the consumer stood still arrives at once, and is not too fast")
	}
	if h.limit = 0; len(balance(h).violations) != 0 {
		t.Error("without a limit nothing is too fast")
	}
}
