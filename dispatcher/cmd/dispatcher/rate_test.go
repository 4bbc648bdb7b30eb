package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

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

// A process keeps the part of the rate that it still uses in its row until its next heartbeat: the response to this one may be lost.
//
// CONTRACT: C-36
func TestAProcessGivesUpItsRateInTwoHeartbeats(t *testing.T) {
	t.Parallel()
	o := installed(t)
	file := o.file(t, o.dispatcher, dispatching("{log: {}}")+"delivery: {rateLimit: {events: 1000}}\n")
	start(t, file)
	await(t, "the first has all of it", func() bool { return o.text(t, `select max(part)::text from outbox.outbox_workers`) == "1" })
	for _, sql := range []string{
		`create table public.parts (n bigint generated always as identity, part float8)`,
		`create function public.note() returns trigger language plpgsql security definer as $$
			begin insert into public.parts (part) select new.part where old.part > 0 and (select count(*) from outbox.outbox_workers) = 2; return null; end $$`,
		`create trigger note after update on outbox.outbox_workers for each row execute function public.note()`,
	} {
		o.exec(t, sql)
	}
	start(t, file)
	await(t, "the first gives up a half", func() bool { return o.text(t, `select min(part)::text from public.parts`) == "0.5" })
	if got := o.text(t, `select part::text from public.parts order by n limit 1`); got != "1" {
		t.Errorf("with the first heartbeat that sees the second, the first keeps %s, want 1", got)
	}
}

// Of two processes the younger one follows the concurrency that the other finds, and finds its own once its heartbeats have
// failed for a while.
//
// CONTRACT: C-38
func TestAFollowerWithoutHeartbeatsFindsItsOwnConcurrency(t *testing.T) {
	t.Parallel()
	o := installed(t)
	o.enqueue(t, 20_000)
	sink := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-time.After(50 * time.Millisecond) }))
	t.Cleanup(sink.Close)
	file := o.file(t, o.dispatcher, dispatching("{http: {url: '"+sink.URL+"'}}")+"delivery: {concurrency: Auto, maxConcurrency: 16}\n")
	first := start(t, file)
	await(t, "the first has a limit", func() bool { return first.decisions(t, "probe") > 0 })
	second := start(t, file)
	await(t, "the second follows", func() bool { return second.decisions(t, "follow") > 0 })
	before := second.decisions(t, "probe")
	o.exec(t, fmt.Sprintf("revoke insert on outbox.outbox_workers from %s", o.dispatcher))
	await(t, "the second probes", func() bool { return second.decisions(t, "probe") > before })
}

// decisions is how often a process changed its concurrency for a reason.
func (p *process) decisions(t testing.TB, reason string) (n int) {
	t.Helper()
	_, text := p.get(t, "/metrics")
	found := regexp.MustCompile(`(?m)^outbox_concurrency_decisions_total\{.*reason="` + reason + `".*\} (\d+)$`).FindStringSubmatch(text)
	if found != nil {
		n, _ = strconv.Atoi(found[1])
	}
	return n
}
