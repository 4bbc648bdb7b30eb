package engine

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/httpsink"
)

// A real HTTP server that works on 20 requests at once: the limit is found, and the destination is named as what limits.
//
// CONTRACT: C-38, C-97
func TestAutoWithAnHTTPServer(t *testing.T) {
	const knee = 20
	places := make(chan struct{}, knee)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		places <- struct{}{}
		<-time.After(150 * time.Millisecond) // its work
		<-places
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(server.Close)
	cfg := config.HTTPSink{URL: server.URL}
	whole := config.Config{Sink: config.Sink{HTTP: &cfg}}
	whole.ApplyDefaults()
	sink, err := httpsink.New(*whole.Sink.HTTP, nil)
	if err != nil {
		t.Fatal(err)
	}
	d, stop := begin(t, &endless{}, sink, auto)
	found := func() bool {
		s := d.Snapshot()
		return s.LimitedBy == dispatcher.LimitedByDestination && limitOf(d) >= knee*3/4 && limitOf(d) <= knee*3/2
	}
	took := passes(t, time.Minute, "the limit is found", found)
	t.Logf("%v after %v: %v", d.Snapshot().TopicLimits, took, d.Snapshot().Decisions)
	stop()
}
