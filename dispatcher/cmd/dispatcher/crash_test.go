package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A dispatcher that is killed twenty times while its destination hangs, with two attempts for each event, makes no event
// dead that the destination never had. Then all others are delivered, at their first attempt.
// CONTRACT: C-21, C-22, C-33
func TestKilledDispatcherMakesNothingDeadUnsent(t *testing.T) {
	const events, kills = 300, 20
	var mu sync.Mutex
	sent := map[string]int{}
	arrived := make(chan struct{}, 1000)
	var hangs atomic.Bool
	hangs.Store(true)
	consumer := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not see that the client is gone
		mu.Lock()
		sent[r.Header.Get("Ce-Id")]++
		mu.Unlock()
		if hangs.Load() {
			arrived <- struct{}{}
			<-r.Context().Done() // the process is killed
		}
	}))
	t.Cleanup(consumer.Close)
	o := installed(t)
	o.enqueue(t, events)
	file := o.file(t, o.dispatcher, dispatching("{http: {url: '"+consumer.URL+"'}}")+"delivery: {pollInterval: 100ms, maxAttempts: 2}\n")
	for range kills {
		p := start(t, file)
		<-arrived
		check(t, p.cmd.Process.Kill())
		<-p.done
		await(t, "its session has ended", func() bool {
			return o.text(t, "select count(*)::text from pg_stat_activity where usename = '"+o.dispatcher+"'") == "0"
		})
		for len(arrived) > 0 {
			<-arrived
		}
		o.exec(t, "update outbox.outbox_events set locked_until = now() - interval '1 microsecond' where status = 'processing'") // half a minute later
	}
	hangs.Store(false)
	p := start(t, file)
	await(t, "all are delivered or dead", func() bool { return o.count(t, "live") == 0 })
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if n := o.count(t, "attempts > 1"); n != 0 {
		t.Errorf("%d events have spent an attempt on a crash", n)
	}
	dead := strings.Fields(o.text(t, "select string_agg(id::text, ' ') from outbox.outbox_events where status = 'dead'"))
	mu.Lock()
	defer mu.Unlock()
	for _, id := range dead {
		if sent[id] == 0 {
			t.Errorf("event %s is dead, and was never sent", id)
		}
	}
	if most := (kills - 2) / 3; len(dead) > most {
		t.Errorf("%d are dead, want at most %d: each was begun alone three times", len(dead), most)
	}
	t.Logf("%d dead; %d events were sent", len(dead), len(sent))
}
