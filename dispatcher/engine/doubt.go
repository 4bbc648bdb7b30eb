package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// refusedRun is how many rows of a topic that are refused one after the other are evidence against the topic: then a row of
	// such topics is tried each refusedEvery. It does not become less, so that hundreds of odd rows in a line, such as
	// all from before a change, hold up those behind them for a minute and not for hours.
	refusedRun, refusedEvery = 8, 125 * time.Millisecond
	// skipFor is how long a row that the database refuses to lease is left alone, and skipRows how many such rows there are.
	skipFor, skipRows = 5 * time.Minute, 1000
)

// doubt is of a topic whose claims the database refuses, or takes too long over. It is claimed alone, in turn with the others
// (CONTRACT C-33). Claims that are refused halve, down to one row, which is then left alone; those that succeed double, until
// they are as large as they would be. A topic whose claims take too long is claimed less and less often while there
// are others, so that it delays them for one statement in a minute at most.
type doubt struct {
	size  size
	stops bool      // nothing of it was claimed since the database refused the topic, or took too long
	more  bool      // a row of it was refused, and what is behind that was not claimed yet
	next  time.Time // when it is claimed again; in the past, when it was claimed last
	wait  ramp      // after a claim that took too long
}

// refusals are the rows that the database refuses to lease. They belong to a flight, whose lock guards them.
type refusals struct {
	rows []refusal // the oldest first
	next time.Time // when a topic that is refused may be tried again
}

// refusal is of one row. It has no id where the database does not say which it is.
type refusal struct {
	id    uuid.UUID
	topic string
	at    time.Time
}

// claimFailed notes that a claim failed. failed says something of the database: a refusal, and the server's own timeout while
// there are others, are of the rows. refused is not nil when a claim of one row is refused.
func (ts *topics) claimFailed(shares []dispatcher.Share, err error, now time.Time) (refused, failed error) {
	for _, share := range shares {
		ts.get(share.Topic).turn.halfOpen = false
	}
	if !isOdd(err) {
		return nil, err
	}
	slow := dispatcher.IsTooSlow(err)
	for _, share := range shares {
		t := ts.get(share.Topic)
		first := t.doubt == nil
		if first {
			t.doubt = &doubt{size: size{share.Limit, storeTimeout}, wait: ramp{time.Second, time.Minute, 0}}
		}
		switch d := t.doubt; {
		case slow:
			if d.stops = true; !first && len(shares) == 1 && !ts.alone() {
				d.next = now.Add(d.wait.next(func() float64 { return 1 }))
			}
		case len(shares) == 1:
			d.size.learn(share.Limit, 0, err)
			if share.Limit == 1 {
				refused, d.more = ts.refused.add(t, err, now), true
			}
		}
	}
	if refused != nil && now.Sub(ts.get(shares[0].Topic).saidAt) >= sayEvery {
		ts.get(shares[0].Topic).saidAt = now
		ts.dest.log.Error("the database refuses to lease an event; it is left alone for five minutes, and those that are not refused are delivered", "topic", shares[0].Topic, "error", refused)
	}
	if slow && (ts.alone() || errors.Is(err, context.DeadlineExceeded)) {
		return nil, err
	}
	return refused, nil
}

// add notes that the database refuses to lease one row of a topic, and returns what it says of the row or of the topic.
func (rs *refusals) add(t *topic, err error, now time.Time) error {
	row := &dispatcher.RefusedRow{}
	_ = errors.As(err, &row)
	rs.rows = append(rs.rows[max(0, len(rs.rows)+1-skipRows):], refusal{row.ID, t.name, now})
	if rs.delay(t, now) {
		return fmt.Errorf("%d events of topic %q in a row cannot be claimed, such as %w", refusedRun, t.name, err)
	}
	return err
}

// delay has a topic that is refused claimed later, in turn with other such topics, and reports whether it is one.
func (rs *refusals) delay(t *topic, now time.Time) bool {
	if !rs.stop(t) {
		return false
	}
	if rs.next = rs.next.Add(refusedEvery); rs.next.Before(now) {
		rs.next = now.Add(refusedEvery)
	}
	t.doubt.stops, t.doubt.next = true, rs.next
	return true
}

// stop reports whether the database refuses all topics: so many rows of each since one of it was claimed.
func (rs *refusals) stop(all ...*topic) bool {
	return len(all) > 0 && !slices.ContainsFunc(all, func(t *topic) bool {
		n := 0
		for _, r := range rs.rows {
			if r.topic == t.name && r.at.After(t.tookAt) {
				n++
			}
		}
		return n < refusedRun
	})
}

// ids returns the ids of the rows that claims leave alone now.
func (rs *refusals) ids(now time.Time) (ids []uuid.UUID) {
	for _, r := range rs.rows {
		if now.Sub(r.at) < skipFor {
			ids = append(ids, r.id)
		}
	}
	rs.rows = rs.rows[len(rs.rows)-len(ids):]
	return ids
}

// hurry has topics claimed at once that are refused, while what is behind a refused row of them may be claimed, and reports whether there
// are any: RunOnce waits for nothing. It names no more rows than are remembered.
func (ts *topics) hurry(l load) (some bool) {
	for _, t := range ts.round.topics {
		if t.doubt != nil && t.doubt.more && len(ts.refused.rows) < skipRows && t.allot(l).by == byClaims {
			t.doubt.next, some = time.Time{}, true
		}
	}
	return some
}

// over notes that a claim of a topic in doubt brought so many rows, and reports whether the doubt is over: there were no more,
// or as many as there may be.
func (rs *refusals) over(t *topic, rows, limit int, now time.Time) bool {
	d, was := t.doubt, t.doubt.size.rows
	if d.more = false; rows == 0 && rs.delay(t, now) { // nothing but what is left alone
		return false
	}
	d.stops = false
	d.size.learn(rows, 0, nil)
	return rows < limit || limit < was || d.size.rows == was
}

// apart returns the topics of a claim: one that is in doubt is claimed alone, in turn with those that are not. Of several it is
// the one that was claimed the longest ago.
func (o *round) apart(parts []part, now time.Time) []part {
	others := slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return p.topic.doubt != nil })
	doubts := len(others) < len(parts)
	o.passedOver = doubts && len(parts) > 1
	if o.doubted = doubts && (!o.doubted || len(others) == 0); !o.doubted {
		return others
	}
	parts = slices.DeleteFunc(parts, func(p part) bool { return p.topic.doubt == nil })
	p := slices.MinFunc(parts, func(a, b part) int { return a.topic.doubt.next.Compare(b.topic.doubt.next) })
	p.topic.doubt.next, p.max = now, min(p.max, p.topic.doubt.size.rows)
	return []part{p}
}
