package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// nightEvents is how many events a night has. NIGHT_EVENTS=50000 is the whole one, which takes minutes.
func nightEvents(t testing.TB) int {
	t.Helper()
	n := 2000
	if text := os.Getenv("NIGHT_EVENTS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		check(t, err)
	}
	return n / 100 * 100
}

// night is an outbox, its dispatcher, and a consumer that refuses shipments until it is repaired, and never responds to one event.
type night struct {
	*testing.T
	*outbox
	*process
	file     string // with a replay login
	repaired atomic.Bool
}

func newNight(t *testing.T) *night {
	n := &night{T: t}
	n.outbox, n.file = operating(t)
	consumer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the end of the connection is not seen
		switch kind := r.Header.Get("ce-type"); {
		case kind == "OrderAudited":
			<-r.Context().Done()
		case kind == "OrderShipped" && !n.repaired.Load():
			http.Error(w, "no such warehouse", http.StatusUnprocessableEntity)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	t.Cleanup(consumer.Close)
	n.process = start(t, n.outbox.file(t, n.dispatcher, dispatching("{http: {url: '"+consumer.URL+"', timeout: 5s}}")+`topics: [orders]
maxAttempts: 2
backoff: {base: 10ms, max: 20ms}
validation: [{types: [OrderPlaced], schema: {inline: '{"properties": {"price": {"type": "number"}}}'}}]
`))
	return n
}

// place commits events from a number on: of each hundred 3 are shipments, and 1 breaks the schema.
func (n *night) place(ctx context.Context, from, count int) {
	n.Helper()
	_, err := n.admin.Exec(ctx, `insert into outbox.outbox_events (id, namespace, topic, event_type, aggregate_type, aggregate_id, payload)
		select gen_random_uuid(), 'shop', 'orders', case when n % 100 in (1, 2, 3) then 'OrderShipped' else 'OrderPlaced' end, 'order', n::text,
			case when n % 100 = 50 then '{"price": "ten"}'::jsonb else jsonb_build_object('price', n) end
		from generate_series($1::integer, $1::integer + $2::integer - 1) as n`, from, count)
	check(n, err)
}

var deadGauge = regexp.MustCompile(`(?m)^outbox_dlq_events_count\{[^}]*topic="orders"[^}]*\} (\S+)$`)

// agree waits until SQL, groups, metrics and the status of the pod have the same number of open dead letters, and returns the
// groups.
func (n *night) agree(step string, want int) deadletters.Groups {
	n.Helper()
	var groups deadletters.Groups
	n.until(step+": the counts are equal", func() string {
		open := pgtest.Value[int64](n.admin, `select count(*) from outbox.outbox_dead_letters where resolution is null`)
		asJSON(n.T, run(n, "", "dead", "groups", "-f", n.file, "-o", "json"), &groups)
		var grouped int64
		for _, g := range groups.Groups {
			grouped += g.Count
		}
		_, metrics := n.get(n, "/metrics")
		gauge := "none"
		if found := deadGauge.FindStringSubmatch(metrics); found != nil {
			gauge = found[1]
		}
		status := int64(-1)
		if backlog := n.status(n).Backlog; backlog != nil {
			status = backlog.Dead
		}
		if open == int64(want) && grouped == open && status == open && gauge == strconv.Itoa(want) {
			return ""
		}
		return fmt.Sprintf("want %d: SQL %d, groups %d, metric %s, status %d", want, open, grouped, gauge, status)
	})
	n.Logf("%s: %d open dead letters in SQL, groups, metric and status", step, want)
	return groups
}

// until waits until wrong returns "".
func (n *night) until(what string, wrong func() string) {
	n.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Minute); ; <-tick.C {
		text := wrong()
		if text == "" {
			return
		}
		if time.Now().After(deadline) {
			n.Fatalf("never: %s: %s", what, text)
		}
	}
}

func (n *night) drained() {
	n.Helper()
	n.until("nothing is pending", func() string {
		if live := n.count(n, "live"); live > 0 {
			return fmt.Sprint(live, " are")
		}
		return ""
	})
}

// said runs a command as the person on call, and logs it with its output.
func (n *night) said(code int, args ...string) string {
	n.Helper()
	o := run(n, "", append(args, "-f", n.file)...)
	n.Logf("$ dispatcher %s -f orders.yaml\n%s", strings.Join(args, " "), strings.ReplaceAll(o.out+o.err, n.file, "orders.yaml"))
	o.ended(n, code)
	return o.out + o.err
}

// A night on call, from the first dead letters to none open: each command agrees with SQL, groups, metrics and status.
// CONTRACT: C-40, C-41, C-42, C-43
func TestNightOnCall(t *testing.T) {
	t.Parallel()
	n := newNight(t)
	events := nightEvents(t)
	refused, invalid := events*3/100, events/100
	n.place(t.Context(), 1, events)
	n.exec(t, `insert into outbox.outbox_events (id, namespace, topic, event_type, payload) values (gen_random_uuid(), 'shop', 'orders', 'OrderAudited', '{}')`)
	n.drained()

	groups := n.agree("the dead letters", refused+invalid+1)
	n.said(0, "dead", "groups")
	if len(groups.Groups) != 3 {
		t.Fatalf("groups %+v, want 3", groups)
	}
	group := groups.Groups[0]
	if group.Count != int64(refused) || group.Code != "422" || groups.Groups[1].Count != int64(invalid) || groups.Groups[1].Class != "schema" || groups.Groups[2].Count != 1 {
		t.Fatalf("groups %+v", groups)
	}
	if text := n.said(0, "dead", "show", group.Event); !strings.Contains(text, "no such warehouse") && !strings.Contains(text, "422") {
		t.Error("dead show lacks the reason")
	}
	replay := func(code int, more ...string) string {
		t.Helper()
		return n.said(code, append([]string{"dead", "replay", "--group", group.Group, "--reason", "CHG-812"}, more...)...)
	}
	if text := replay(0, "--dry-run"); text != fmt.Sprintf("would replay %d of %[1]d\n", refused) {
		t.Errorf("the dry run says %q", text)
	}
	n.agree("after the dry run", refused+invalid+1)

	// The consumer is not repaired yet: the canary is dead again, and the rest stays as it is.
	if text := replay(1, "--canary", "10", "--rate", "500", "--wait"); !strings.Contains(text, fmt.Sprintf("%d of %[1]d done, 10 dead again, %d skipped: stopped", refused, refused-10)) {
		t.Error("the canary did not stop the replay")
	}
	n.agree("after the canary", refused+invalid+1)

	// The consumer is repaired: the rest is replayed while the shop continues.
	n.repaired.Store(true)
	ctx, closed := context.WithCancel(t.Context())
	flowed := make(chan int, 1)
	go func() {
		more, tick := 0, time.NewTicker(50*time.Millisecond)
		defer tick.Stop()
		for ; ctx.Err() == nil; more += 100 {
			n.place(context.WithoutCancel(ctx), events+1+more, 100)
			<-tick.C
		}
		flowed <- more
	}()
	text := replay(0, "--canary", "10", "--rate", "500", "--wait")
	closed()
	more := <-flowed
	if !strings.Contains(text, fmt.Sprintf("%d of %[1]d done, %[1]d delivered\n", refused)) {
		t.Error("not all of the group was delivered")
	}
	n.drained()
	invalid += more / 100
	n.agree("after the replay", invalid+1)
	if delivered := n.count(t, "status = 'delivered'"); delivered != events+more-invalid {
		t.Errorf("%d are delivered, want %d", delivered, events+more-invalid)
	}

	if text := n.said(0, "dead", "discard", "--all", "--reason", "known to the shop", "--rate", "1000"); !strings.Contains(text, fmt.Sprintf("%d of %[1]d done, %[1]d discarded\n", invalid+1)) {
		t.Error("not all of the rest was discarded")
	}
	n.agree("in the morning", 0)
	became := pgtest.Value[string](n.admin, `select string_agg(resolution || ' ' || n, ', ' order by resolution) from (
		select resolution, count(*) as n from outbox.outbox_dead_letters group by resolution) as became`)
	if want := fmt.Sprintf("discarded %d, replayed %d", invalid+1, refused+10); became != want {
		t.Errorf("the dead letters are %s, want %s", became, want)
	}
	if dead := n.count(t, "status = 'dead'"); dead != invalid+1 {
		t.Errorf("%d are dead, want %d", dead, invalid+1)
	}
}
