package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/languages"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// receivers are the destinations of three workers, each with a server of its own.
type receivers struct {
	*outbox
	mu      sync.Mutex
	handled map[int]int  // how often each event was taken
	inside  map[int]bool // the events that are being handled
	overlap []string     // events that another worker leased, or that were sent twice at a time
	refused map[int]bool // each hundredth event is, once
}

// receiver is one worker's server.
type receiver struct {
	*httptest.Server
	events      atomic.Int64 // that it took
	connections atomic.Int64 // that are open
}

func newReceivers(t *testing.T, o *outbox, names ...string) (*receivers, map[string]*receiver) {
	all := &receivers{outbox: o, handled: map[int]int{}, inside: map[int]bool{}, refused: map[int]bool{}}
	each := map[string]*receiver{}
	for _, name := range names {
		r := &receiver{}
		r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			body, _ := io.ReadAll(req.Body)
			var event struct{ N int }
			if json.Unmarshal(body, &event) != nil || event.N == 0 {
				w.WriteHeader(http.StatusOK) // a probe
				return
			}
			if all.handle(req.Context(), name, event.N) {
				r.events.Add(1)
				return
			}
			w.WriteHeader(http.StatusNotFound) // the event's own failure
		}))
		r.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				r.connections.Add(1)
			case http.StateClosed, http.StateHijacked:
				r.connections.Add(-1)
			}
		}
		r.Start()
		t.Cleanup(r.Close)
		each[name] = r
	}
	return all, each
}

// handle reports whether the event was taken. Its lease is the sender's; "" is a worker whose first heartbeat is to come.
func (r *receivers) handle(ctx context.Context, sender string, n int) bool {
	r.mu.Lock()
	twice := r.inside[n]
	r.inside[n] = true
	r.mu.Unlock()
	var worker string
	err := r.admin.QueryRow(context.WithoutCancel(ctx), `select coalesce((select dispatcher from outbox.outbox_workers where worker = locked_by),
		(select split_part(processor_id, ':', 1) from m10_recovery.processors where worker = locked_by), '')
		from outbox.outbox_events where status = 'processing' and aggregate_id = $1`, strconv.Itoa(n)).Scan(&worker)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.inside, n)
	if twice || err != nil || worker != sender && worker != "" {
		r.overlap = append(r.overlap, fmt.Sprintf("event %d, sent by %s and leased by %q: %v", n, sender, worker, err))
	}
	if n%100 == 0 && !r.refused[n] {
		r.refused[n] = true
		return false
	}
	r.handled[n]++
	return true
}

// M10's worker in Python and two dispatchers drain one table, and each is killed on the way. No event is handled by two
// at a time, and all are delivered.
//
// The leases of a killed worker, five minutes of M10's, are not waited for: the test ends them.
// CONTRACT: C-20, C-90
// REQUIREMENT: M10-11, M10-12, M10-19
func TestM10WorkerAndDispatchersShareATable(t *testing.T) {
	if testing.Short() {
		t.Skip("it drains a table with three processes")
	}
	t.Parallel()
	o := installed(t)
	run(t, "", "migrate", "up", "-f", o.file(t, o.owner, ""), "--m10", "shop/m10").ok(t, "m10 installed: schema outbox, namespace shop, topic m10, publish Insert\n")
	run(t, "", "migrate", "grants", "--role", o.producer, "--for", "m10", "--apply", "-f", o.file(t, o.owner, "")).ok(t, "granted an M10 worker's rights")
	all, to := newReceivers(t, o, "a", "b", "python")
	events := 0
	feed := func() { // so that each has events until it is killed
		if o.count(t, "status = 'pending'") < 100 {
			o.exec(t, fmt.Sprintf(`select m10_recovery.publish_outbox('order', n::text, 'http:call', jsonb_build_object('n', n)) from generate_series(%d, %d) as n`, events+1, events+300))
			events += 300
		}
	}

	t.Cleanup(func() {
		t.Logf("events handled: %d by a, %d by b, %d in Python", to["a"].events.Load(), to["b"].events.Load(), to["python"].events.Load())
	})
	begin := map[string]func() (kill func()){"python": func() func() { return o.startM10(t, strings.TrimPrefix(to["python"].URL, "http://")) }}
	for _, name := range []string{"a", "b"} {
		file := o.file(t, o.dispatcher, "name: "+name+"\nnamespace: shop\ntopics: [m10]\ndelivery: {concurrency: 2, batchSize: 20}\nsink: {http: {url: '"+to[name].URL+"'}}\n")
		begin[name] = func() func() {
			p := start(t, file)
			return func() { check(t, p.cmd.Process.Kill()); <-p.done }
		}
	}
	kills := map[string]func(){}
	for name, start := range begin {
		kills[name] = start()
	}
	delivered := func() int { return o.count(t, "status = 'delivered'") }
	for i, name := range []string{"python", "a", "b", "python"} {
		before := to[name].events.Load()
		await(t, fmt.Sprint(name, " handles some before kill ", i), func() bool { feed(); return to[name].events.Load() > before+10 })
		kills[name]()
		await(t, "what it had sent is handled", func() bool { return to[name].connections.Load() == 0 })
		o.exec(t, `update outbox.outbox_events set locked_until = now() - interval '1 microsecond' where status = 'processing'
			and locked_by in (select worker from outbox.outbox_workers where dispatcher = '`+name+`' union all select worker from m10_recovery.processors where processor_id like '`+name+`%')`)
		o.exec(t, `update m10_recovery.distributed_locks set expires_at = now() - interval '1 second' where holder_id like '`+name+`%'`)
		kills[name] = begin[name]()
	}
	await(t, "all are delivered", func() bool { return delivered() == events })

	all.mu.Lock()
	defer all.mu.Unlock()
	again := 0
	for n := 1; n <= events; n++ {
		need.That(t, all.handled[n] != 0, "event %d is delivered, and was never handled", n)
		again += max(all.handled[n]-1, 0)
	}
	need.That(t, len(all.overlap) == 0, "handled by two at a time:\n%s", strings.Join(all.overlap, "\n"))
	need.Want(t, events/100, "%d events were refused once, want %d", len(all.refused))
	// A killed worker had at most a batch of 20, or in Python one event, that it had sent and not recorded.
	need.That(t, again <= 2*20+2, "of %d events %d were handled again, after four kills", events, again)
	t.Logf("of %d events %d were handled again, after four kills", events, again)
}

// startM10 starts the worker, and returns a function that kills it.
func (o *outbox) startM10(t *testing.T, destination string) (kill func()) {
	t.Helper()
	dsn := o.dsnOf(t, o.producer)
	name := fmt.Sprintf("python:%d", time.Now().UnixNano()) // another for each process, as deployed workers have
	cmd, err := languages.Python(t.Context(), []string{"psycopg[binary]==3.2.10"}, "testdata/m10_worker.py", dsn, name, destination)
	need.Server(t, err, languages.ErrMissing)
	out := &log{}
	cmd.Stdout, cmd.Stderr = out, out
	check(t, cmd.Start())
	var end sync.Once
	kill = func() { end.Do(func() { endProcess(cmd) }) }
	t.Cleanup(func() {
		kill()
		if t.Failed() {
			t.Logf("the worker printed:\n%s", out)
		}
	})
	return kill
}

func endProcess(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // unless it has ended
	_ = cmd.Wait()         // it was killed
}

// The M10 settings of the file are installed once; invalid ones are refused.
func TestMigrateInstallsM10(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Empty(t))
	file := func(m10 string) string {
		return o.file(t, o.owner, "migration: {policy: Job, secretRef: {name: "+secretOf(o.owner)+"}, m10: "+m10+"}")
	}
	run(t, "", "migrate", "up", "-f", file("{namespace: shop}")).ok(t, "m10 installed: schema outbox, namespace shop, topic m10, publish Insert\n")
	run(t, "", "migrate", "up", "-f", file("{namespace: shop}")).ok(t, "m10 is as wanted: schema outbox, namespace shop, topic m10, publish Insert\n")
	run(t, "", "migrate", "up", "-f", file("{namespace: shop}"), "--m10", "shop/recovery/2", "--m10-publish", "Upsert").ok(t, "m10 installed: schema outbox, namespace shop, topic recovery/2, publish Upsert\n")
	run(t, "", "migrate", "up", "-f", file("{topic: m10}")).ended(t, 78, "spec.migration.m10.namespace: Required value")
	run(t, "", "migrate", "up", "-f", o.file(t, o.owner, ""), "--m10", "shop", "--m10-publish", "Replace").ended(t, 1, `--m10-publish is "Replace"; choose Insert or Upsert`)
	run(t, "", "migrate", "grants", "--role", "worker", "--for", "m10").ok(t, `grant execute on function m10_recovery.claim_outbox_events to "worker";`, `grant select, update (process_after), delete on table m10_recovery.outbox to "worker";`)
}
