package monitor

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

// letters answers everything, and remembers whether it was asked for a payload.
type letters struct {
	deadletters.Source
	asked, payloads int
}

func (l *letters) Groups(context.Context, deadletters.Filter) (deadletters.Groups, error) {
	l.asked++
	return deadletters.Groups{Groups: []deadletters.Group{{Group: "7f3a9c21"}}}, nil
}

func (l *letters) List(_ context.Context, r deadletters.ListRequest) (deadletters.Page, error) {
	l.asked++
	return deadletters.Page{Letters: []deadletters.Letter{{Topic: r.Topic}}}, nil
}

func (l *letters) Show(_ context.Context, id string, payload bool) (deadletters.Letter, error) {
	l.asked++
	if payload {
		l.payloads++
	}
	if id == "99" {
		return deadletters.Letter{}, fmt.Errorf("no letter 99: %w", deadletters.ErrNotFound)
	}
	return deadletters.Letter{Event: id}, nil
}

func (l *letters) Event(_ context.Context, id string, payload bool) (deadletters.History, error) {
	l.asked++
	if payload {
		l.payloads++
	}
	return deadletters.History{Event: &deadletters.Event{ID: id}}, nil
}

// Dead letters are told to callers in the pod, by GET, and to nobody else.
func TestLettersArePrivate(t *testing.T) {
	source := &letters{}
	from := sources(dispatcher.Snapshot{}, nil)
	from.Letters = source
	handler := Handler(process, from, prometheus.NewRegistry())
	ask := func(method, caller, path string) (int, string) {
		answer, request := httptest.NewRecorder(), httptest.NewRequest(method, path, nil)
		request.RemoteAddr = caller
		handler.ServeHTTP(answer, request)
		return answer.Code, strings.TrimSpace(answer.Body.String())
	}
	const here = "127.0.0.1:4711"
	for path, want := range map[string]string{
		"/dead/groups": `"group":"7f3a9c21"`, "/dead?topic=orders&limit=3": `"topic":"orders"`, "/dead/42": `"event":"42"`,
		"/events/a%2Fb": `"id":"a/b"`, "/dead/42?payload=false": `"event":"42"`,
	} {
		for _, caller := range []string{here, "[::1]:4711"} {
			if code, body := ask(http.MethodGet, caller, path); code != http.StatusOK || !strings.Contains(body, want) {
				t.Errorf("%s from %s: %d %s", path, caller, code, body)
			}
		}
		before := source.asked
		for _, caller := range []string{"10.0.0.7:4711", "127.0.0.6:4711", "[fd00::7]:4711", ""} {
			if code, body := ask(http.MethodGet, caller, path); code != http.StatusForbidden || !strings.Contains(body, "ask through kubectl outbox") {
				t.Errorf("%s from %q: %d %s", path, caller, code, body)
			}
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			if code, body := ask(method, here, path); code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d %s", method, path, code, body)
			}
		}
		if source.asked != before {
			t.Errorf("%s: the source was asked for a caller who may not", path)
		}
	}
	if source.payloads != 0 {
		t.Errorf("%d payloads were told that nobody asked for", source.payloads)
	}
	for path, want := range map[string]int{
		"/dead/42?payload=true": http.StatusOK, "/events/42?payload=true": http.StatusOK, "/dead/42?payload=yes": http.StatusBadRequest,
		"/dead/99": http.StatusNotFound, "/dead?topik=orders": http.StatusBadRequest, "/dead?limit=501": http.StatusBadRequest,
		"/dead?since=yesterday": http.StatusBadRequest, "/dead/groups?group=2": http.StatusBadRequest,
	} {
		if code, body := ask(http.MethodGet, here, path); code != want {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if source.payloads != 2 {
		t.Errorf("%d payloads were told, want 2", source.payloads)
	}
	if code, _ := getFrom(t, here, "/dead", dispatcher.Snapshot{}, nil); code != http.StatusNotFound {
		t.Errorf("without letters: %d", code)
	}
}
