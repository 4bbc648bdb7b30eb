package httpsink

import (
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// listenTLS hands each connection to handle after its handshake, with HTTP/2 agreed upon.
func listenTLS(t *testing.T, cert sinktest.Leaf, handle func(net.Conn)) (address string) {
	t.Helper()
	return listen(t, func(_ int, conn net.Conn) {
		server := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{cert.TLS}, NextProtos: []string{"h2"}})
		if err := server.HandshakeContext(t.Context()); err != nil {
			t.Error(err)
			return
		}
		handle(server)
	})
}

var noContent = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })

// A certificate that is not accepted, by either side, is the destination's failure: nothing of the
// event was read.
//
// CONTRACT: C-32
func TestRejectedCertificateIsTheDestinationsFault(t *testing.T) {
	ca, other := sinktest.NewAuthority(t, "good"), sinktest.NewAuthority(t, "other")
	good := ca.Sign(t, "server", sinktest.InAnHour())
	client, stranger := ca.Sign(t, "client", sinktest.InAnHour()), other.Sign(t, "stranger", sinktest.InAnHour())
	mutual := func(version uint16) *tls.Config {
		return &tls.Config{
			Certificates: []tls.Certificate{good.TLS}, MaxVersion: version,
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
		}
	}
	serverWith := func(cert sinktest.Leaf) *tls.Config { return &tls.Config{Certificates: []tls.Certificate{cert.TLS}} }
	for _, test := range []struct {
		name       string
		server     *tls.Config
		client     *sinktest.Leaf
		serverName string
		ca         string
		word, text string // "" means delivered
	}{
		{name: "good", server: serverWith(good), ca: ca.PEM},
		{name: "two authorities", server: serverWith(good), ca: other.PEM + ca.PEM},
		{name: "other authority", server: serverWith(good), ca: other.PEM, word: reason.CertificateInvalid, text: "; set tls.caSecretRef or caConfigMapRef (in a dispatcher's file: tls.caFile)"},
		{name: "system's roots", server: serverWith(good), word: reason.CertificateInvalid, text: "; set tls.caSecretRef or caConfigMapRef (in a dispatcher's file: tls.caFile)"},
		{name: "expired", server: serverWith(ca.Sign(t, "server", time.Now().Add(-time.Minute))), ca: ca.PEM, word: reason.CertificateInvalid, text: "; renew the destination's certificate"},
		{name: "other host", server: serverWith(ca.Sign(t, "server", sinktest.InAnHour(), "a.example")), ca: ca.PEM, word: reason.CertificateInvalid, text: "; use hosts in url that the certificate names"},
		{name: "server name", server: serverWith(ca.Sign(t, "server", sinktest.InAnHour(), "a.example")), ca: ca.PEM, serverName: "a.example"},
		{name: "client, TLS 1.2", server: mutual(tls.VersionTLS12), ca: ca.PEM, client: &client},
		{name: "client, TLS 1.3", server: mutual(tls.VersionTLS13), ca: ca.PEM, client: &client},
		{name: "no client, TLS 1.2", server: mutual(tls.VersionTLS12), ca: ca.PEM, word: reason.ConnectionFailed, text: "it may want a client certificate"},
		{name: "no client, TLS 1.3", server: mutual(tls.VersionTLS13), ca: ca.PEM, word: reason.CertificateInvalid, text: "; the destination does not accept the client certificate"},
		{name: "stranger, TLS 1.2", server: mutual(tls.VersionTLS12), ca: ca.PEM, client: &stranger, word: reason.CertificateInvalid, text: "; the destination does not accept the client certificate"},
		{name: "stranger, TLS 1.3", server: mutual(tls.VersionTLS13), ca: ca.PEM, client: &stranger, word: reason.CertificateInvalid, text: "; the destination does not accept the client certificate"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			address, _ := serve(t, "", test.server, noContent)
			cfg := plant(t, "https", address)
			cfg.TLS = &config.TLS{ServerName: test.serverName}
			if test.ca != "" {
				cfg.TLS.CAFile = file(t, "ca.crt", test.ca)
			}
			if test.client != nil {
				cfg.TLS.ClientCertFile, cfg.TLS.ClientKeyFile = file(t, "tls.crt", test.client.CertPEM), file(t, "tls.key", test.client.KeyPEM)
			}
			if *cfg.TLS == (config.TLS{}) {
				cfg.TLS = nil
			}
			s := open(t, cfg)
			var delivered, probed error
			var wg sync.WaitGroup
			wg.Go(func() { delivered = post(t, s) })
			wg.Go(func() { probed = s.Probe(t.Context()) })
			wg.Wait()
			if test.text == "" {
				if delivered != nil || probed != nil {
					t.Errorf("Deliver: %v, Probe: %v; want no errors", delivered, probed)
				}
				return
			}
			want(t, "Probe", probed, true, test.word, test.text)
			if strings.HasSuffix(test.name, "TLS 1.3") && !dispatcher.IsUnavailable(delivered) {
				// The server's refusal may be lost, because the request is already on its way. Then
				// all that is known is a broken connection.
				want(t, "Deliver", delivered, false, reason.ConnectionFailed, "may have received the event")
				return
			}
			want(t, "Deliver", delivered, true, test.word, test.text)
		})
	}
}

// Without tls.caFile the system's authorities are trusted, and with it they are not.
func TestSystemRoots(t *testing.T) {
	if runtime.GOOS == "darwin" || runtime.GOOS == "windows" {
		t.Skip("SSL_CERT_FILE has no effect here")
	}
	ca := sinktest.NewAuthority(t, "system")
	address, _ := serve(t, "", &tls.Config{Certificates: []tls.Certificate{ca.Sign(t, "server", sinktest.InAnHour()).TLS}}, noContent)
	child(t, "TestWithSystemRoots", "HTTPSINK_ADDRESS="+address, "SSL_CERT_FILE="+file(t, "roots.crt", ca.PEM), "SSL_CERT_DIR="+t.TempDir())
}

// TestWithSystemRoots is run by TestSystemRoots: a process reads the system's roots once.
func TestWithSystemRoots(t *testing.T) {
	address := os.Getenv("HTTPSINK_ADDRESS")
	if address == "" {
		t.Skip("TestSystemRoots runs this")
	}
	cfg := plant(t, "https", address)
	if err := post(t, open(t, cfg)); err != nil {
		t.Errorf("an authority of the system: %v", err)
	}
	cfg.TLS = &config.TLS{CAFile: file(t, "ca.crt", sinktest.NewAuthority(t, "other").PEM)}
	want(t, "another authority", post(t, open(t, cfg)), true, reason.CertificateInvalid, "tls.caFile")
}

func TestNoTLSThere(t *testing.T) {
	address, _ := serve(t, "", nil, noContent)
	s := open(t, plant(t, "https", address))
	want(t, "Deliver", post(t, s), true, reason.ConnectionFailed, "; no TLS is spoken there")
	want(t, "Probe", s.Probe(t.Context()), true, reason.ConnectionFailed, "; no TLS is spoken there")
}

// Probe makes the handshake, and sends nothing after it.
func TestProbeSendsNothing(t *testing.T) {
	ca := sinktest.NewAuthority(t, "test")
	got := make(chan int, 1)
	address := listenTLS(t, ca.Sign(t, "server", sinktest.InAnHour()), func(conn net.Conn) {
		n, _ := conn.Read(make([]byte, 100))
		got <- n
	})
	cfg := plant(t, "https", address)
	cfg.TLS = &config.TLS{CAFile: file(t, "ca.crt", ca.PEM)}
	if err := open(t, cfg).Probe(t.Context()); err != nil {
		t.Error(err)
	}
	if n := <-got; n != 0 {
		t.Errorf("the probe sent %d bytes", n)
	}
}
