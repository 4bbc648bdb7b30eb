package e2e

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

// kubectl runs in the world's namespace.
func (w *world) kubectl(args ...string) string {
	w.Helper()
	out, err := cluster.Run(w.ctx, append([]string{"-n", w.manifests.Namespace}, args...)...)
	w.must(err)
	return out
}

// noCrashes fails when a container was started more than once.
func (w *world) noCrashes() {
	w.Helper()
	restarts := w.kubectl("get", "pods", "-l", "outbox.dev/component=dispatcher", "-o", "jsonpath={.items[*].status.containerStatuses[*].restartCount}")
	if strings.Trim(restarts, "0 ") != "" {
		w.Errorf("containers were restarted: %s", restarts)
	}
}

// stay fails unless a condition keeps its status for d.
func (w *world) stay(d time.Duration, kind, status string) {
	w.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		c, err := w.dispatcher.Condition(w.ctx, kind)
		w.must(err)
		if c.Status != status {
			w.Fatalf("%s became %s %s while the cause lasted", kind, c.Status, c.Reason)
		}
		select {
		case <-time.After(2 * time.Second):
		case <-w.ctx.Done():
			w.Fatal(w.ctx.Err())
		}
	}
}

func (w *world) merge(into, from *scenario.Produced) {
	for id := range from.Committed {
		into.Committed[id] = true
	}
}

// tlsConsumer serves the handler with a certificate of its own CA, and makes a second CA.
func tlsConsumer(t testing.TB, handler http.Handler) (url, rightCA, wrongCA string) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(cluster.HostListen, "0"))
	if err != nil {
		t.Fatal(err)
	}
	right := sinktest.NewAuthority(t, "right")
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{right.Sign(t, "consumer", time.Now().Add(time.Hour), cluster.HostIP).TLS}}
	server.StartTLS()
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return "https://" + net.JoinHostPort(cluster.HostIP, port), right.PEM, sinktest.NewAuthority(t, "wrong").PEM
}
