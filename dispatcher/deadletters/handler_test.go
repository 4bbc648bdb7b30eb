package deadletters

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// slow is a source that takes an hour.
type slow struct {
	Source
	running, most int
}

func (s *slow) Groups(ctx context.Context, _ Filter) (Groups, error) {
	s.running++
	s.most = max(s.most, s.running)
	defer func() { s.running-- }()
	select {
	case <-time.After(time.Hour):
	case <-ctx.Done():
	}
	return Groups{}, ctx.Err()
}

// Of many requests at once the source has one, and each caller gets a response in time.
func TestHandlerRunsOneRequestAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &slow{}
		handler := Handler(source)
		codes := make(chan int)
		began := time.Now()
		for range 8 {
			go func() {
				response := httptest.NewRecorder()
				handler.ServeHTTP(response, httptest.NewRequest(http.MethodGet, GroupsPath, nil))
				codes <- response.Code
			}()
		}
		count := map[int]int{}
		for range 8 {
			count[<-codes]++
		}
		need.That(t, source.most == 1 && count[http.StatusInternalServerError] == 1 && count[http.StatusServiceUnavailable] == 7,
			"%d requests at once with the codes %v, want 1 at once, a 500 and seven 503", source.most, count)
		took := time.Since(began)
		need.That(t, took <= 25*time.Second, "the last response came after %s, want 25s at most", took)
	})
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
