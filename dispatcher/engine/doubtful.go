package engine

import (
	"context"
	"errors"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// doubtful are the topics of claims that were refused or took too long, when there are several topics. Each is claimed
// alone until that succeeds, and after a failure less and less often, so that a topic whose rows cannot be claimed
// delays the others for one statement in a minute at most (CONTRACT C-33).
type doubtful map[string]*doubt

type doubt struct {
	again time.Time // when it is claimed alone next
	pause ramp
}

// shares returns what to claim now: a doubtful topic alone when its time has come, or all others.
func (d doubtful) shares(all []dispatcher.Share) (some []dispatcher.Share) {
	for _, s := range all {
		if one := d[s.Topic]; one == nil {
			some = append(some, s)
		} else if time.Now().After(one.again) {
			return []dispatcher.Share{s}
		}
	}
	return some
}

// claimed notes how the claim of shares ended, and returns an error that says something of the database: a refusal
// and the server's timeout are of the rows.
func (d doubtful) claimed(shares []dispatcher.Share, topics int, err error) error {
	if err != nil && (topics == 1 || !isOdd(err)) {
		return err
	}
	for _, s := range shares {
		one := d[s.Topic]
		switch {
		case err == nil:
			delete(d, s.Topic)
		case one == nil:
			d[s.Topic] = &doubt{pause: ramp{time.Second, time.Minute, 0}}
		case len(shares) == 1:
			one.again = time.Now().Add(one.pause.next(func() float64 { return 1 }))
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}
