package httpsink

import (
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// A process reads the proxy's address once, so each case is a process of its own.
//
// CONTRACT: C-73
func TestProxyIsReadFromTheEnvironment(t *testing.T) {
	requests := make(chan string, 10)
	address, stop := serve(t, "", nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { requests <- r.URL.Host }))
	child(t, "TestThroughProxy", "HTTPSINK_PROXY=up", "NO_PROXY=", "HTTP_PROXY=http://u:"+tokenSecret+"@"+address)
	if len(requests) != 1 || <-requests != "consumer.invalid" {
		t.Error("the proxy must get the event for consumer.invalid, and nothing of the probe")
	}
	stop()
	child(t, "TestThroughProxy", "HTTPSINK_PROXY=down", "NO_PROXY=", "HTTP_PROXY=http://u:"+tokenSecret+"@"+address)
}

// child runs one test in a process with more environment.
func child(t *testing.T, test string, env ...string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+test) {
		t.Errorf("%s %v: %v\n%s", test, env[0], err, out)
	}
}

// TestThroughProxy is run by TestProxyIsReadFromTheEnvironment.
func TestThroughProxy(t *testing.T) {
	state := os.Getenv("HTTPSINK_PROXY")
	if state == "" {
		t.Skip("TestProxyIsReadFromTheEnvironment runs this")
	}
	s := open(t, plant(t, "http", "consumer.invalid"))
	delivered, probed := post(t, s), s.Probe(t.Context())
	switch state {
	case "up":
		if delivered != nil || probed != nil {
			t.Errorf("Deliver: %v, Probe: %v; want no errors", delivered, probed)
		}
	case "down":
		want(t, "Deliver", delivered, true, reason.ConnectionFailed, "connection refused")
		want(t, "Probe", probed, true, reason.ConnectionFailed, "connection refused")
	}
}
