package deadletters

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// slow is a source that takes its time.
type slow struct {
	Source
	takes         time.Duration
	running, most int
}

func (s *slow) Groups(ctx context.Context, _ Filter) (Groups, error) {
	s.running++
	s.most = max(s.most, s.running)
	defer func() { s.running-- }()
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
	}
	return Groups{}, ctx.Err()
}

// Of many requests at once the source has one, the tabs of a few people wait, and each caller gets a response in time.
func TestHandlerRunsOneRequestAtATime(t *testing.T) {
	for name, c := range map[string]struct {
		takes    time.Duration
		requests int
		want     map[int]int
	}{
		"three tabs":   {6 * time.Second, 3, map[int]int{2: 3}},
		"a full queue": {2 * time.Second, 1 + waiting, map[int]int{2: 1 + waiting}},
		"too many":     {time.Second, 20, map[int]int{2: 1 + waiting, 5: 19 - waiting}},
		"too slow":     {time.Hour, 12, map[int]int{5: 12}},
	} {
		synctest.Test(t, func(t *testing.T) {
			source := &slow{takes: c.takes}
			handler := Handler(source)
			codes := make(chan int)
			began := time.Now()
			for range c.requests {
				go func() {
					response := httptest.NewRecorder()
					handler.ServeHTTP(response, httptest.NewRequest(http.MethodGet, GroupsPath, nil))
					codes <- response.Code
				}()
			}
			count := map[int]int{}
			for range c.requests {
				count[<-codes/100]++
			}
			need.That(t, source.most == 1 && maps.Equal(count, c.want), "%s: %d requests at once with the codes %v00, want 1 at once and %v", name, source.most, count, c.want)
			took := time.Since(began)
			need.That(t, took <= requestTimeout, "%s: the last response came after %s, want %s at most", name, took, requestTimeout)
		})
	}
}

// A response that the client cannot use is an error that says what to do.
func TestClientErrorsHaveARemedy(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    string
		is      error
	}{
		"no such dead letter": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no dead letter 1", http.StatusNotFound) }, "no dead letter 1", ErrNotFound},
		"an invalid request":  {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "limit: x", http.StatusBadRequest) }, "limit: x", ErrInvalidRequest},
		"an old dispatcher":   {http.NotFound, "its image is older than this command; upgrade it", nil},
		"something else":      {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }, "is it a dispatcher of this version?", nil},
		"a gateway":           {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "oh", http.StatusBadGateway) }, "responded 502 Bad Gateway: oh", nil},
		"too much": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(strings.Repeat(" ", maxResponse+1)))
		}, "leave out the payload", nil},
	} {
		server := httptest.NewServer(c.handler)
		_, err := Client{URL: server.URL}.Show(t.Context(), "1", true)
		server.Close()
		need.That(t, err != nil && strings.Contains(err.Error(), c.want) && (c.is == nil || errors.Is(err, c.is)) && (c.is != nil || (!errors.Is(err, ErrNotFound) && !errors.Is(err, ErrInvalidRequest))),
			"%s: %v, want %q, and to be %v", name, err, c.want, c.is)
	}
}

// panicking is a source that panics at the first request.
type panicking struct {
	Source
	requests int
}

func (p *panicking) Groups(context.Context, Filter) (Groups, error) {
	if p.requests++; p.requests == 1 {
		panic("boom")
	}
	return Groups{}, nil
}

// A request that panics ends, as net/http does it, and the next one runs.
func TestHandlerRunsOnAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := Handler(&panicking{})
		request := func() (code int, panicked any) {
			response := httptest.NewRecorder()
			defer func() { code, panicked = response.Code, recover() }()
			handler.ServeHTTP(response, httptest.NewRequest(http.MethodGet, GroupsPath, nil))
			return
		}
		if _, panicked := request(); panicked == nil {
			t.Error("the first request did not panic")
		}
		if code, panicked := request(); code != http.StatusOK || panicked != nil {
			t.Errorf("after one that panicked a request gets %d, panic %v, want 200 and none", code, panicked)
		}
	})
}
