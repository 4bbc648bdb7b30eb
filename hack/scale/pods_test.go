package scale

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/api/status"
)

// behaviour is how a stand-in of a dispatcher responds to a request for its status.
type behaviour int

const (
	wellBehaved behaviour = iota
	silent                // accepts the connection and never responds
	huge                  // responds with 16 MiB
	slow                  // responds with a byte a second
	topics                // responds with as many topics as fit
)

// addressOf is the loopback address of the pod with the number; its port is 8080.
func addressOf(number int) string { return fmt.Sprintf("127.9.%d.%d", number/250, number%250+1) }

// startPod responds for the OutboxDispatcher name (namespace/name) at the number's address.
func startPod(t *testing.T, number int, name string, how behaviour) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(addressOf(number), "8080"))
	if err != nil {
		t.Fatal(err)
	}
	if how == silent { // the kernel accepts connections, and the test reads none
		t.Cleanup(func() { _ = listener.Close() })
		return
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		respond(w, r, name, how)
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

func respond(w http.ResponseWriter, r *http.Request, name string, how behaviour) {
	switch how {
	case huge:
		_, _ = w.Write([]byte(`{"topics":[`))
		for range 16 {
			_, _ = w.Write(bytes.Repeat([]byte(`"",`), 1<<20/3))
		}
	case slow:
		for range 3600 {
			if _, err := w.Write([]byte(" ")); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			select {
			case <-time.After(time.Second):
			case <-r.Context().Done():
				return
			}
		}
	case topics:
		fmt.Fprintf(w, `{"name":%q,"pausedTopics":[{}%s]}`, name, strings.Repeat(",{}", 21_000))
	default:
		_ = json.NewEncoder(w).Encode(status.Status{
			Name: name, State: "Running", Source: status.Link{State: status.Reachable}, Sink: status.Link{State: status.Reachable},
			Schema: status.Schema{State: "Ready", Version: 1, Required: 1}, OldestTransaction: &status.OldestTransaction{},
			Backlog: &status.Backlog{ObservedAt: time.Now(), Counts: status.Counts{Pending: 7, Dead: 20}, DeadGroups: deadGroups},
		})
	}
}

// deadGroups are as many as a pod reports.
var deadGroups = func() (all []status.DeadGroup) {
	for i := range 20 {
		all = append(all, status.DeadGroup{
			Group: fmt.Sprintf("%08x", i), Topic: fmt.Sprintf("orders-%d", i), Reason: "permanent_failure", Class: "http", Code: "422",
			Place: "/items/*/price", Count: 1, Since: time.Unix(1, 0), Last: time.Unix(2, 0),
		})
	}
	return all
}()
