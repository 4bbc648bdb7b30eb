package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Refused events are found with the dispatcher's own login, by the commands and through a pod's endpoint. Payloads are
// shown on request only. CONTRACT: C-41
func TestDeadLettersAreFound(t *testing.T) {
	t.Parallel()
	o := installed(t)
	consumer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
	}))
	defer consumer.Close()
	file := o.file(t, o.dispatcher, dispatching("{http: {url: '"+consumer.URL+"'}}")+"delivery: {maxAttempts: 1}\n")
	run(t, `{"namespace": "shop", "topic": "orders", "payload": {"price": -1}, "dedupe_key": "order-17", "event_type": "OrderPlaced"}`, "enqueue", "-f", o.file(t, o.producer, "")).ok(t)
	o.enqueue(t, 2)
	p := start(t, file)
	await(t, "three dead", func() bool { return o.count(t, "status = 'dead'") == 3 })

	var groups deadletters.Groups
	asJSON(t, run(t, "", "dead", "groups", "-f", file, "--output", "json"), &groups)
	if len(groups.Groups) != 1 || groups.Groups[0].Count != 3 || groups.Groups[0].Topic != "orders" || groups.Groups[0].Reason != dispatcher.ReasonMaxRetriesExceeded {
		t.Fatalf("groups %+v", groups)
	}
	var page deadletters.Page
	asJSON(t, run(t, "", "dead", "list", "-f", file, "--type", "OrderPlaced", "--group", groups.Groups[0].Group, "-o", "json"), &page)
	if len(page.DeadLetters) != 1 {
		t.Fatalf("dead letters %+v", page)
	}
	id := page.DeadLetters[0].Event
	run(t, "", "dead", "show", "-f", file, id).ok(t, "Topic:         orders\n", "Resolution:    open\n", "Event is now:  dead\n", "Last failed attempts:\n")
	if shown := run(t, "", "dead", "show", "-f", file, id); strings.Contains(shown.out, "price") {
		t.Errorf("a payload without --payload:\n%s", shown.out)
	}
	run(t, "", "dead", "show", "-f", file, id, "--payload").ok(t, `"price": -1`)
	run(t, "", "events", "show", "-f", file, "order-17").ok(t, "Event:       "+id, "enqueued", "dead  ")
	run(t, "", "events", "show", "-f", file, id, "--payload").ok(t, `"price": -1`)
	run(t, "", "dead", "list", "-f", file, "--limit", "2").ok(t, "there are more: add --after ")

	pod := deadletters.Client{URL: "http://" + p.address}
	deadLetter, err := pod.Show(t.Context(), id, false)
	check(t, err)
	if deadLetter.Event != id || deadLetter.Payload != nil {
		t.Errorf("the pod returned %+v, want event %s without payload", deadLetter, id)
	}
	if deadLetter, err = pod.Show(t.Context(), id, true); err != nil || string(deadLetter.Payload) != `{"price":-1}` {
		t.Errorf("the pod returned the payload %s, %v", deadLetter.Payload, err)
	}
	if n := o.count(t, "status = 'dead'"); n != 3 {
		t.Errorf("%d are dead after looking at them, want 3", n)
	}
}

func asJSON(t *testing.T, o output, into any) {
	t.Helper()
	o.ok(t)
	check(t, json.Unmarshal([]byte(o.out), into))
}

// An error is one line with its remedy.
func TestReadingIsRefused(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Empty(t))
	file := o.file(t, o.dispatcher, "namespace: shop\n")
	run(t, "", "dead", "list", "-f", o.file(t, o.dispatcher, "")).ended(t, 78, "namespace is missing; set it to the outbox namespace")
	run(t, "", "dead", "groups").ended(t, 1, "name its file with -f")
	run(t, "", "dead", "list", "-f", file).ended(t, 1, "run `dispatcher migrate up`")
	o.migrated(t)
	run(t, "", "dead", "show", "-f", file, "7").ended(t, 1, "no dead letter 7 in the namespace shop: not found; `dead list` has those that are there")
	run(t, "", "events", "show", "-f", file, "order-1").ended(t, 1, "no event has this id or dedupe key in the namespace shop: not found")
	run(t, "", "dead", "list", "-f", file, "--group", "2").ended(t, 1, `the filter is wrong: group: "2" is not a group; give its 8 hex digits`)
	run(t, "", "dead", "list", "-f", file).ok(t, "no dead letters match")
	o.exec(t, "revoke select on outbox.outbox_dead_letters from "+o.dispatcher)
	run(t, "", "dead", "list", "-f", file).ended(t, 1, "migrate grants")
	o.login(t, o.dispatcher, "wrong")
	run(t, "", "dead", "list", "-f", file).ended(t, 1, "password authentication failed")
}
