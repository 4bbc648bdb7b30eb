package adopt

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

func (r *run) back() error {
	if r.state == None {
		r.result.Next = "Nothing is adopted."
		return nil
	}
	if r.dropped {
		return r.abandon()
	}
	// Once before producers wait, so that the second time is short.
	if err := r.passSlot(); err != nil {
		return err
	}
	from := waitingEvents
	if r.layout.log { // refused rows go back too
		from = ` from outbox_adopted where adoption = $1 and their_row is not null`
	}
	var waiting int64
	if err := r.tx.QueryRow(r.ctx, `select count(*)`+from, r.spec.Name).Scan(&waiting); err != nil {
		return err
	}
	if err := r.lock("access exclusive"); err != nil {
		return err
	}
	if err := r.passSlot(); err != nil {
		return err
	}
	if err := r.checkNumbers(); err != nil {
		return err
	}
	var left bool
	var stay int64
	if r.state != Shadow {
		var err error
		if left, stay, err = r.giveBack(time.Duration(waiting) * rowTimeout); err != nil {
			return err
		}
	}
	// Also from the shadow: a crash before what is last leaves no trigger, and from Returning no cut-over begins.
	if err := r.exec("update outbox_adoptions set state = 'Returning' where name = " + literal(r.spec.Name)); err != nil {
		return err
	}
	r.result.Changed = true
	if left {
		r.result.State, r.result.Next = Returning, nextReturning
		return nil
	}
	r.last = slices.Concat(r.forget(), r.leaveNumbers(), []string{"drop function if exists " + r.functionName() + "()"})
	for _, sql := range append([]string{r.dropTrigger()}, r.keepNumbers()...) {
		if err := r.exec(sql); err != nil {
			return err
		}
	}
	r.result.State, r.result.Next = None, nextBack
	if r.layout.log {
		r.result.Next = nextBackLog
	}
	if stay > 0 {
		r.result.Next += fmt.Sprintf(nextStay, stay)
	}
	return nil
}

// giveBack opens rows of events that are not delivered: left says that dispatchers deliver some at this moment, and stay is how
// many have a row that was deleted. A statement may take more than shadowTimeout, by more.
func (r *run) giveBack(more time.Duration) (left bool, stay int64, err error) {
	values := map[string]string{"{there}": r.there(), "{refused}": fmt.Sprint(r.layout.log), "{newest}": fmt.Sprint(!r.layout.log), "{order}": "event.seq desc",
		"{stays}": "update outbox_adopted set their_row = 'null', refused = left(sqlerrm, 500) where adoption = {name} and their_id = e.their_id and version = e.version;"}
	if r.layout.log {
		values["{order}"], values["{stays}"] = "a.seq", raise
	}
	values["{give}"] = r.fill(r.give(), map[string]string{"{columns}": strings.Join(r.their.writable, ", ")})
	statements := []string{"set constraints all immediate", r.dropTrigger(), r.render("return", values)}
	if err := r.limit(shadowTimeout + more); err != nil {
		return false, 0, err
	}
	for _, sql := range statements {
		if err := r.exec(sql); err != nil {
			return false, 0, err
		}
	}
	if !r.options.DryRun {
		look := `select coalesce(nullif(current_setting('outbox.adopt_moved', true), ''), '0')::bigint, coalesce(bool_or(there), false), count(*) filter (where not there)
			from (select ` + r.names(r.there()) + ` as there` + waitingEvents + `) as waiting`
		if err := r.tx.QueryRow(r.ctx, look, r.spec.Name).Scan(&r.result.Returned, &left, &stay); err != nil {
			return false, 0, err
		}
		if err := r.warnOfRefused("the event of row %s stays in the outbox: %s", true); err != nil {
			return false, 0, err
		}
	}
	return left, stay, r.limit(0) // the numbers of a table take what they take
}

// waitingEvents of an adoption that are not delivered, by an index.
const waitingEvents = ` from outbox_adopted as a join outbox_events as e on e.id = a.event_id where a.adoption = $1 and a.live and e.live`

// What to do after a step.
const (
	nextShadow    = "Compare for a while: dispatcher adopt status. Then dispatcher adopt cutover; or dispatcher adopt back, to remove the shadow."
	nextLive      = "Stop their worker, run a dispatcher for the namespace, and watch dispatcher adopt status; dispatcher adopt back gives to their worker what is not delivered."
	nextReturning = "Events are being delivered; run dispatcher adopt back again."
	nextBack      = "Their worker delivers what is open in their table."
	nextStay      = " %d events stay in the outbox, because their rows were deleted or cannot go back: let a dispatcher run until they are delivered."
)
