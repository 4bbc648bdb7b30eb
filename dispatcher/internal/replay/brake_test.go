package replay_test

import (
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A canary is replayed alone until its outcomes are known. The replay stops when too many are dead again, then or later.
func TestCanaryStopsReplay(t *testing.T) {
	for _, test := range []struct {
		what                  string
		canary, abortAt, fail int // of the first 5
		want                  string
	}{
		{"half are dead again", 5, 0, 3, "40 of 40 done, 2 delivered, 3 dead again, 35 skipped: stopped; stopped: 3 of the newest 5 outcomes are failures, which is 50 % or more"},
		{"fewer are dead again", 5, 0, 2, "5 of 40 done, 3 delivered, 2 dead again"},
		{"one is too many", 5, 1, 1, "40 of 40 done, 4 delivered, 1 dead again, 35 skipped: stopped; stopped: 1 of the newest 5 outcomes are failures, which is 1 % or more"},
		{"no canary, too few known", 0, 10, 5, "5 of 40 done, 5 dead again"},
	} {
		t.Run(test.what, func(t *testing.T) {
			r := newRig(t)
			r.dead(40, 0)
			o := request()
			o.Canary, o.AbortAt = test.canary, test.abortAt
			r.begin(o)
			if test.canary == 0 {
				r.step(o, 5, 5)
			} else {
				r.step(o, 3, 3)
				r.step(o, 100, 2)
				r.step(o, 100, 0)
			}
			// Not all outcomes are known: nothing happens yet.
			pgtest.Exec(r, `create view firsts as select id, row_number() over (order by seq) as n from outbox.outbox_events`)
			r.makeDead(`id in (select id from firsts where n = 1)`)
			if p := r.observe(o); p.Stopped != "" {
				t.Errorf("it stopped after one outcome: %v", p)
			}
			if test.canary > 0 {
				r.step(o, 100, 0)
			}
			for n := 2; n <= test.fail; n++ {
				r.makeDead(`id in (select id from firsts where n = ` + string(rune('0'+n)) + `)`)
			}
			r.deliver("true")
			p := r.observe(o)
			r.checkProgress(p, test.want)
			if p.Stopped != "" {
				r.step(o, 100, 0)
				return
			}
			// Later: 15 more, which all are dead again.
			r.step(o, 15, 15)
			r.makeDead("true")
			later := r.observe(o)
			if later.Stopped == "" {
				t.Errorf("after 15 more are dead again: %v", later)
			}
		})
	}
}

// fail makes pending rows fail an attempt, of twenty, as an engine would: with an attempt spent, or with a fault of the
// destination none.
func (r rig) fail(where string, attempts int) {
	r.Helper()
	pgtest.Exec(r, `update outbox.outbox_events set attempts = $1, last_error = '422 no such customer', next_attempt_at = now() + interval '1 hour',
		fault_since = case when $1 = 0 then now() end where status = 'pending' and `+where, attempts)
}

// An event of the canary whose first attempt failed is a failure of the canary, though nineteen attempts are left.
// CONTRACT: C-42
func TestFirstFailedAttemptsStopTheCanary(t *testing.T) {
	for what, attempts := range map[string]int{"an attempt is spent": 1, "a fault spends none": 0} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			r.dead(100, 0)
			o := request()
			o.Canary = 10
			r.begin(o)
			r.step(o, 100, 10)
			r.fail("seq <= 4", attempts)
			r.deliver("seq in (5, 6)")
			r.checkProgress(r.observe(o), "10 of 100 done, 2 delivered, 4 failing, 4 not delivered yet")
			r.step(o, 100, 0)
			r.deliver("seq in (4, 7, 8, 9)") // 4 at its second attempt
			p := r.observe(o)
			r.checkProgress(p, "10 of 100 done, 6 delivered, 3 failing, 1 not delivered yet")
			r.fail("seq = 10", attempts)
			p = r.observe(o)
			r.checkProgress(p, "100 of 100 done, 6 delivered, 4 failing, 90 skipped: stopped; stopped: 5 of the newest 10 outcomes are failures, which is 50 % or more")
			if why := p.Why(); len(why) != 1 || why[0] != "the newest failure: 422 no such customer" {
				t.Errorf("it says why: %q", why)
			}
			// What fails is tried again, and its outcome is counted.
			r.deliver("seq = 10")
			r.makeDead("true")
			p = r.observe(o)
			r.checkProgress(p, "100 of 100 done, 7 delivered, 3 dead again, 90 skipped: stopped; stopped: 5 of the newest 10 outcomes are failures, which is 50 % or more")
			if p.FinishedAt.IsZero() || p.LastError != "again" {
				t.Errorf("at the end %+v", p)
			}
		})
	}
}

// The newest hundred outcomes decide, and not all since the beginning: a destination that turns bad stops the replay. Until
// then at most five seconds of the rate are without an outcome.
// CONTRACT: C-42
func TestReplayStopsWhenTheDestinationTurnsBad(t *testing.T) {
	r := newRig(t)
	r.dead(6000, 0)
	o := request()
	o.Canary, o.Rate = 10, 60
	r.begin(o)
	r.step(o, 500, 10)
	r.deliver("true")
	r.observe(o)
	for range 9 {
		r.step(o, 100, 100) // the canary alone holds up the others
		r.step(o, 500, 200)
		r.step(o, 500, 0)
		r.deliver("true")
		r.observe(o)
	}
	r.step(o, 500, 300)
	r.fail("true", 1)
	p := r.observe(o)
	r.checkProgress(p, "6000 of 6000 done, 2710 delivered, 300 failing, 2990 skipped: stopped; stopped: 100 of the newest 100 outcomes are failures, which is 50 % or more")
	r.step(o, 500, 0)

	// Nothing comes: no more goes, and no share is known.
	silent := request()
	silent.Rate = 1
	r.dead(20, 0)
	silent.Filter.Topic = "orders"
	r.begin(silent)
	r.step(silent, 500, 5)
	r.step(silent, 500, 0)
	if p := r.observe(silent); p.Stopped != "" || p.Pending != 5 {
		t.Errorf("without outcomes: %v", p)
	}
	// Events that fail have an outcome: they do not hold up the others, below the share.
	r.fail("seq = (select min(seq) from outbox.outbox_events where live and attempts = 0)", 1)
	r.observe(silent)
	r.step(silent, 500, 1)
}
