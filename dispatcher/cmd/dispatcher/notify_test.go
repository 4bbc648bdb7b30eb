package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A notification that a killed process did not finish is sent again by the next process, with the same id. While the
// address responds with 503, events are delivered. CONTRACT: C-43, C-73
// REQUIREMENT: STORAGE-53
func TestNotificationIsSentAgainAfterAKill(t *testing.T) {
	t.Parallel()
	o := installed(t)
	var refuses, unavailable atomic.Bool
	refuses.Store(true)
	consumer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if refuses.Load() {
			w.WriteHeader(http.StatusUnprocessableEntity)
		}
	}))
	t.Cleanup(consumer.Close)

	var mu sync.Mutex
	var ids []string // of the requests
	requested := make(chan struct{}, 1)
	address := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body strings.Builder
		_ = r.Write(&body)
		noSecret(t, strings.ReplaceAll(body.String(), "Bearer token-"+secret, ""))
		if r.Header.Get("Authorization") != "Bearer token-"+secret {
			t.Error("the request lacks the token of the file")
		}
		mu.Lock()
		ids = append(ids, r.Header.Get("Ce-Id"))
		first := len(ids) == 1
		mu.Unlock()
		switch {
		case first:
			requested <- struct{}{}
			<-r.Context().Done() // the process is killed
		case unavailable.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(address.Close)
	token := filepath.Join(t.TempDir(), "token")
	check(t, os.WriteFile(token, []byte("token-"+secret), 0o600))
	yaml := dispatching("{http: {url: '"+consumer.URL+"'}}") + "delivery: {maxAttempts: 1}\nnotify: {url: '" + address.URL + "/dead-letters', auth: {type: Token, secretFile: " + token + "}}\n"
	file := o.file(t, o.dispatcher, yaml)
	run(t, "", "check", "-f", file).ok(t, "ok   notify: the address of notify can be reached", "ok   grants:")

	o.enqueue(t, 1)
	killed := start(t, file)
	<-requested
	check(t, killed.cmd.Process.Kill())
	<-killed.done
	deadLetters := func(where string) (n int) {
		check(t, o.admin.QueryRow(t.Context(), "select count(*) from outbox.outbox_dead_letters where "+where).Scan(&n))
		return n
	}
	if n := deadLetters("notify_at > now() and notify_attempts = 1 and notified_at is null"); n != 1 {
		t.Fatalf("%d dead letters wait for their notification, want 1", n)
	}

	refuses.Store(false)
	unavailable.Store(true)
	soon := "update outbox.outbox_dead_letters set notify_at = now() where notify_at is not null"
	o.exec(t, soon) // two minutes later
	p := start(t, file)
	await(t, "the address responds with 503", func() bool {
		n := p.status(t).Notifications
		return n != nil && n.Failed > 0 && n.Waiting == 1 && n.Oldest != nil && strings.Contains(n.Message, "notify: "+address.URL+"/dead-letters responded 503")
	})
	o.enqueue(t, 3)
	await(t, "events are delivered meanwhile", func() bool { return o.count(t, "status = 'delivered'") == 3 })
	if n := deadLetters("notified_at is not null"); n != 0 {
		t.Errorf("%d are notified while the address is unavailable, want 0", n)
	}
	unavailable.Store(false)
	await(t, "it is notified", func() bool {
		o.exec(t, soon)
		return deadLetters("notified_at is not null") == 1
	})
	await(t, "the metrics say so", func() bool {
		_, metrics := p.get(t, "/metrics")
		labels := `dispatcher="orders",outbox_namespace="shop"`
		return strings.Contains(metrics, fmt.Sprintf(`outbox_dlq_notifications_total{%s,outcome="sent",sink="http"} 1`, labels)) &&
			strings.Contains(metrics, fmt.Sprintf(`outbox_dlq_notifications_waiting{%s,sink="http"} 0`, labels))
	})
	await(t, "the status says so", func() bool {
		n := p.status(t).Notifications
		return n != nil && n.Sent == 1 && n.GivenUp == 0 && n.Message == ""
	})
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("the dead letter was sent with the ids %v, want one id", ids)
			break
		}
	}
}

// Without an address no dead letter is marked, and no notification is sent or reported.
func TestDeadLettersAreNotMarkedWithoutAnAddress(t *testing.T) {
	t.Parallel()
	o := installed(t)
	consumer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnprocessableEntity) }))
	t.Cleanup(consumer.Close)
	o.enqueue(t, 1)
	p := start(t, o.file(t, o.dispatcher, dispatching("{http: {url: '"+consumer.URL+"'}}")+"delivery: {maxAttempts: 1}\n"))
	await(t, "it is dead", func() bool { return o.count(t, "status = 'dead'") == 1 })
	marked := pgtest.Value[int](o.admin, "select count(*) from outbox.outbox_dead_letters where num_nonnulls(notify_at, notify_attempts, notified_at) > 0")
	_, metrics := p.get(t, "/metrics")
	if s := p.status(t); marked != 0 || s.Notifications != nil || strings.Contains(metrics, "outbox_dlq_notifications") {
		t.Errorf("%d dead letters are marked, the status says %+v, want none", marked, s.Notifications)
	}
}
