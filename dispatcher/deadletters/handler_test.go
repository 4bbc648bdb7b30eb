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
)

// slow is a source that answers after an hour.
type slow struct {
	Source
	now, most int
}

func (s *slow) Groups(ctx context.Context, _ Filter) (Groups, error) {
	s.now++
	s.most = max(s.most, s.now)
	defer func() { s.now-- }()
	select {
	case <-time.After(time.Hour):
	case <-ctx.Done():
	}
	return Groups{}, ctx.Err()
}

// However many ask, the database has one question, and each caller has an answer in time.
func TestOneQuestionAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &slow{}
		handler := Handler(source)
		codes := make(chan int)
		began := time.Now()
		for range 8 {
			go func() {
				answer := httptest.NewRecorder()
				handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, GroupsPath, nil))
				codes <- answer.Code
			}()
		}
		count := map[int]int{}
		for range 8 {
			count[<-codes]++
		}
		if source.most != 1 || count[http.StatusInternalServerError] != 1 || count[http.StatusServiceUnavailable] != 7 {
			t.Errorf("%d questions at once, answers %v", source.most, count)
		}
		if took := time.Since(began); took > 25*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// What a client cannot use is an error that says what to do.
func TestClientErrors(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    string
		is      error
	}{
		"no such dead letter": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no dead letter 1", http.StatusNotFound) }, "no dead letter 1", ErrNotFound},
		"a wrong question":    {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "limit: x", http.StatusBadRequest) }, "limit: x", ErrQuestion},
		"an old dispatcher":   {http.NotFound, "its image is older than this command; upgrade it", nil},
		"something else":      {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }, "is it a dispatcher of this version?", nil},
		"a gateway":           {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "oh", http.StatusBadGateway) }, "answered 502 Bad Gateway: oh", nil},
		"too much": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(strings.Repeat(" ", maxAnswer+1)))
		}, "ask without the payload", nil},
	} {
		server := httptest.NewServer(c.handler)
		_, err := Client{URL: server.URL}.Show(t.Context(), "1", true)
		server.Close()
		if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) || c.is == nil && (errors.Is(err, ErrNotFound) || errors.Is(err, ErrQuestion)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// crashing is a source that panics at the first question.
type crashing struct {
	Source
	asked int
}

func (c *crashing) Groups(context.Context, Filter) (Groups, error) {
	if c.asked++; c.asked == 1 {
		panic("boom")
	}
	return Groups{}, nil
}

// A question that panics ends, as net/http does it, and the next one has its turn.
func TestTurnAfterPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := Handler(&crashing{})
		ask := func() (code int, panicked any) {
			answer := httptest.NewRecorder()
			defer func() { code, panicked = answer.Code, recover() }()
			handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, GroupsPath, nil))
			return
		}
		if _, panicked := ask(); panicked == nil {
			t.Error("the first question did not panic")
		}
		if code, panicked := ask(); code != http.StatusOK || panicked != nil {
			t.Errorf("after one that panicked a question is answered %d, panic %v", code, panicked)
		}
	})
}
