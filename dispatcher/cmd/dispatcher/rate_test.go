package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// A dispatcher with a rate limit delivers nothing while it has no row in outbox_workers, says so, and continues when it has.
//
// CONTRACT: C-36, C-97
func TestARateLimitNeedsTheHeartbeat(t *testing.T) {
	t.Parallel()
	o := installed(t)
	o.exec(t, fmt.Sprintf("revoke insert on outbox.outbox_workers from %s", o.dispatcher))
	o.enqueue(t, 20)
	p := start(t, o.file(t, o.dispatcher, dispatching("{log: {}}")+"log: {level: Debug}\ndelivery: {rateLimit: {events: 1000}}\n"))
	await(t, "the limit is named", func() bool { return p.status(t).LimitedBy == string(dispatcher.LimitedByDatabase) })
	await(t, "the cause is logged", func() bool { return strings.Contains(p.log.String(), "delivers nothing") })
	await(t, "it was tried again", func() bool { return strings.Count(p.log.String(), "was not renewed") >= 3 })
	if n := o.count(t, "status <> 'pending'"); n != 0 {
		t.Errorf("%d events were claimed without a part of the rate", n)
	}
	o.exec(t, fmt.Sprintf("grant insert on outbox.outbox_workers to %s", o.dispatcher))
	await(t, "all are delivered", func() bool { return o.count(t, "status = 'delivered'") == 20 })
	if n := strings.Count(p.log.String(), "delivers nothing"); n != 1 {
		t.Errorf("it was logged %d times, want once", n)
	}
}
