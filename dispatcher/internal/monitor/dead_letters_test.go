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

// fakeSource returns everything, and counts requests for a payload.
type fakeSource struct {
	deadletters.Source
	requests, payloads int
}

func (s *fakeSource) Groups(context.Context, deadletters.Filter) (deadletters.Groups, error) {
	s.requests++
	return deadletters.Groups{Groups: []deadletters.Group{{Group: "7f3a9c21"}}}, nil
}

func (s *fakeSource) List(_ context.Context, r deadletters.ListRequest) (deadletters.Page, error) {
	s.requests++
	return deadletters.Page{DeadLetters: []deadletters.DeadLetter{{Topic: r.Topic}}}, nil
}

func (s *fakeSource) Show(_ context.Context, id string, payload bool) (deadletters.DeadLetter, error) {
	s.requests++
	if payload {
		s.payloads++
	}
	if id == "99" {
		return deadletters.DeadLetter{}, fmt.Errorf("no dead letter 99: %w", deadletters.ErrNotFound)
	}
	return deadletters.DeadLetter{Event: id}, nil
}

func (s *fakeSource) Event(_ context.Context, id string, payload bool) (deadletters.History, error) {
	s.requests++
	if payload {
		s.payloads++
	}
	return deadletters.History{Event: &deadletters.Event{ID: id}}, nil
}

// Dead letters are shown to callers in the pod, by GET, and to no other.
func TestDeadLettersAreShownInThePodAlone(t *testing.T) {
	source := &fakeSource{}
	from := sources(dispatcher.Snapshot{}, nil)
	from.DeadLetters = source
	handler := Handler(process, from, prometheus.NewRegistry())
	host := "localhost:8080"
	request := func(method, caller, path string) (int, string) {
		response, r := httptest.NewRecorder(), httptest.NewRequest(method, path, nil)
		r.RemoteAddr, r.Host = caller, host
		handler.ServeHTTP(response, r)
		return response.Code, strings.TrimSpace(response.Body.String())
	}
	const here = "127.0.0.1:4711"
	for path, want := range map[string]string{
		"/dead/groups": `"group":"7f3a9c21"`, "/dead?topic=orders&limit=3": `"topic":"orders"`, "/dead/42": `"event":"42"`,
		"/events/a%2Fb": `"id":"a/b"`, "/dead/42?payload=false": `"event":"42"`,
	} {
		for _, caller := range []string{here, "[::1]:4711"} {
			if code, body := request(http.MethodGet, caller, path); code != http.StatusOK || !strings.Contains(body, want) {
				t.Errorf("%s from %s: %d %s", path, caller, code, body)
			}
		}
		before := source.requests
		for _, caller := range []string{"10.0.0.7:4711", "127.0.0.6:4711", "[fd00::7]:4711", ""} {
			if code, body := request(http.MethodGet, caller, path); code != http.StatusForbidden || !strings.Contains(body, "use kubectl outbox") {
				t.Errorf("%s from %q: %d %s", path, caller, code, body)
			}
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			if code, body := request(method, here, path); code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d %s", method, path, code, body)
			}
		}
		if source.requests != before {
			t.Errorf("%s: the source was queried for a caller who may not", path)
		}
	}
	if source.payloads != 0 {
		t.Errorf("%d payloads were shown without a request", source.payloads)
	}
	for path, want := range map[string]int{
		"/dead/42?payload=true": http.StatusOK, "/events/42?payload=true": http.StatusOK, "/dead/42?payload=yes": http.StatusBadRequest,
		"/dead/99": http.StatusNotFound, "/dead?topik=orders": http.StatusBadRequest, "/dead?limit=501": http.StatusBadRequest,
		"/dead?since=yesterday": http.StatusBadRequest, "/dead/groups?group=2": http.StatusBadRequest,
	} {
		if code, body := request(http.MethodGet, here, path); code != want {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if source.payloads != 2 {
		t.Errorf("%d payloads were shown, want 2", source.payloads)
	}
	for name, want := range map[string]int{
		"localhost": http.StatusOK, "127.0.0.1:40001": http.StatusOK, "[::1]:8080": http.StatusOK, "::1": http.StatusOK,
		"evil.example:8080": http.StatusForbidden, "localhost.evil.example": http.StatusForbidden, "10.0.0.7:8080": http.StatusForbidden, "": http.StatusForbidden,
	} {
		host = name
		if code, _ := request(http.MethodGet, here, "/dead"); code != want {
			t.Errorf("requested as %q: %d, want %d", name, code, want)
		}
	}
	if code, _ := getFrom(t, here, "localhost", "/dead", dispatcher.Snapshot{}, nil); code != http.StatusNotFound {
		t.Errorf("without dead letters: %d", code)
	}
}
