package httpsink

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// listen hands each connection to handle, with its number from 1.
func listen(t *testing.T, handle func(n int, conn net.Conn)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	need.OK(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 1; ; n++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			wg.Go(func() { handle(n, conn) })
		}
	})
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

// closedPort is an address where nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	need.OK(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

// Nothing was sent, so the event keeps its attempt.
//
// CONTRACT: C-32, C-73
func TestNoConnectionKeepsTheAttempt(t *testing.T) {
	silent := listen(t, func(int, net.Conn) {})
	for _, test := range []struct{ name, scheme, address, text string }{
		{"closed port", "http", closedPort(t), "connection refused; check that it runs"},
		{"closed port, https", "https", closedPort(t), "connection refused; check that it runs"},
		{"unknown host", "http", "nonexistent.invalid:80", "; check the hosts in url"},
		{"silent in the TLS handshake", "https", silent, "no response within 500ms; check that it runs"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cfg := plant(t, test.scheme, test.address)
			if test.address == silent {
				cfg.Timeout = spec.Duration(500 * time.Millisecond)
			}
			s := open(t, cfg)
			sinktest.Want(t, "Deliver", sinktest.Send(t, s), true, reason.ConnectionFailed, test.text)
			sinktest.Want(t, "Probe", s.Probe(t.Context()), true, reason.ConnectionFailed, test.text)
		})
	}
}

// The request may have been received, so its fencing token is spent. The responses that are not HTTP
// echo the request: nothing of them may be in the error.
//
// CONTRACT: C-27, C-73
func TestBrokenConnectionSpendsTheAttempt(t *testing.T) {
	readAll := func(conn net.Conn) []byte {
		r, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return nil // the probe
		}
		var request bytes.Buffer
		_ = r.Write(&request)
		return request.Bytes()
	}
	for _, test := range []struct {
		name, text string
		handle     func(net.Conn)
	}{
		{"closed at once", "", func(conn net.Conn) { _ = conn.Close() }},
		{"reset", "closed the connection", func(conn net.Conn) {
			readAll(conn)
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}},
		{"closed without a response", "closed the connection", func(conn net.Conn) {
			readAll(conn)
			_ = conn.Close()
		}},
		{"closed within the response", "broke off", func(conn net.Conn) {
			readAll(conn)
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-"))
			_ = conn.Close()
		}},
		{"silent", "no response within 500ms; raise timeout", func(conn net.Conn) { readAll(conn) }},
		{"an echo", "no valid HTTP response", func(conn net.Conn) { _, _ = conn.Write(readAll(conn)) }},
		{"an echo in the headers", "no valid HTTP response", func(conn net.Conn) {
			_, _ = conn.Write(append([]byte("HTTP/1.1 200 OK\r\n"), bytes.ReplaceAll(readAll(conn), []byte(":"), nil)...))
		}},
		{"an echo in the reason phrase", "responded 400 Bad Request; ", func(conn net.Conn) {
			line, _, _ := bytes.Cut(readAll(conn), []byte(" HTTP"))
			_, _ = conn.Write(append(append([]byte("HTTP/1.1 400 "), line...), "\r\nContent-Length: 0\r\n\r\n"...))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			address := listen(t, func(_ int, conn net.Conn) { test.handle(conn) })
			cfg := plant(t, "http", address)
			if test.name == "silent" {
				cfg.Timeout = spec.Duration(500 * time.Millisecond)
			}
			word := reason.ConnectionFailed
			if strings.Contains(test.text, "responded") {
				word = reason.Refusing
			}
			s := open(t, cfg)
			err := sinktest.Send(t, s)
			sinktest.Want(t, "Deliver", err, false, word, test.text)
			need.That(t, !dispatcher.IsUnanswered(err), "a new connection is taken for one that was kept: %v", err)
			need.Want(t, nil, "Probe of a host that takes connections: %v", s.Probe(t.Context()))
		})
	}
}

// net/http sends a request again when a kept connection breaks under it and a header makes the
// request look repeatable. Not here: the second one would carry the same fencing token. Where not one byte of a response came, this
// says nothing of the event.
//
// CONTRACT: C-27, C-32
func TestNoRequestIsSentTwice(t *testing.T) {
	for _, test := range []struct {
		name, text string
		unanswered bool
		finish     func(net.Conn)
	}{
		{"closed", "closed the connection", true, func(net.Conn) {}},
		{"reset", "closed the connection", true, func(conn net.Conn) { _ = conn.(*net.TCPConn).SetLinger(0) }},
		{"closed after a byte", "broke off", false, func(conn net.Conn) { _, _ = conn.Write([]byte("H")) }},
		{"silent", "no response within 500ms", false, func(net.Conn) { <-time.After(time.Second) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			var requests atomic.Int64
			address := listen(t, func(_ int, conn net.Conn) {
				defer conn.Close()
				reader := bufio.NewReader(conn)
				for n := 1; ; n++ {
					r, err := http.ReadRequest(reader)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					requests.Add(1)
					if n == 2 { // the connection is kept, and breaks under the second request
						test.finish(conn)
						return
					}
					_, _ = conn.Write([]byte("HTTP/1.1 204 No Content\r\n\r\n"))
				}
			})
			cfg := plant(t, "http", address)
			cfg.Headers = append(cfg.Headers, spec.HTTPHeader{Name: "Idempotency-Key", Value: "k"})
			cfg.Timeout = spec.Duration(500 * time.Millisecond)
			s := open(t, cfg)
			need.OK(t, sinktest.Send(t, s))
			err := sinktest.Send(t, s)
			sinktest.Want(t, "Deliver", err, false, reason.ConnectionFailed, test.text)
			need.That(t, dispatcher.IsUnanswered(err) == test.unanswered, "that nothing was said of the event: %t, want %t: %v", !test.unanswered, test.unanswered, err)
			need.Want(t, 2, "the server got %d requests for 2 events", requests.Load())
		})
	}
}

// In HTTP/2 it is the server's error code that makes net/http send again.
//
// CONTRACT: C-27
func TestNoStreamIsSentTwice(t *testing.T) {
	for _, code := range []http2.ErrCode{http2.ErrCodeProtocol, http2.ErrCodeRefusedStream} {
		t.Run(code.String(), func(t *testing.T) {
			ca := sinktest.NewAuthority(t, "test")
			var requests atomic.Int64
			address := listenTLS(t, ca.Sign(t, "server", sinktest.InAnHour()), func(conn net.Conn) {
				resetFirst(t, conn, code, &requests)
			})
			cfg := plant(t, "https", address)
			cfg.TLS = &spec.TLS{CAFile: sinktest.File(t, "ca.crt", ca.PEM)}
			sinktest.Want(t, "Deliver", sinktest.Send(t, open(t, cfg)), false, reason.ConnectionFailed, "")
			need.Want(t, 1, "the server got %d requests for 1 event", requests.Load())
		})
	}
}

// resetFirst speaks HTTP/2: it reads whole requests, resets the first and responds to the others.
func resetFirst(t *testing.T, conn net.Conn, code http2.ErrCode, requests *atomic.Int64) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(conn, preface); err != nil {
		t.Error(err)
		return
	}
	framer := http2.NewFramer(conn, conn)
	_ = framer.WriteSettings()
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = framer.WriteSettingsAck()
			}
		case *http2.DataFrame:
			if !f.StreamEnded() {
				continue
			}
			if requests.Add(1) == 1 {
				_ = framer.WriteRSTStream(f.StreamID, code)
				continue
			}
			var block bytes.Buffer
			_ = hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: "204"})
			_ = framer.WriteHeaders(http2.HeadersFrameParam{
				StreamID: f.StreamID, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true,
			})
		}
	}
}

// A process reads the proxy's address once, so each case is a process of its own.
//
// CONTRACT: C-73
func TestProxyIsReadFromTheEnvironment(t *testing.T) {
	requests := make(chan string, 10)
	address, stop := serve(t, "", nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { requests <- r.URL.Host }))
	child(t, "TestThroughProxy", "HTTPSINK_PROXY=up", "NO_PROXY=", "HTTP_PROXY=http://u:"+sinktest.PasswordSecret+"@"+address)
	need.That(t, len(requests) == 1 && <-requests == "consumer.invalid", "the proxy must get the event for consumer.invalid, and nothing of the probe")
	stop()
	child(t, "TestThroughProxy", "HTTPSINK_PROXY=down", "NO_PROXY=", "HTTP_PROXY=http://u:"+sinktest.PasswordSecret+"@"+address)
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
	delivered, probed := sinktest.Send(t, s), s.Probe(t.Context())
	switch state {
	case "up":
		need.That(t, delivered == nil && probed == nil, "Deliver: %v, Probe: %v; want no errors", delivered, probed)
	case "down":
		sinktest.Want(t, "Deliver", delivered, true, reason.ConnectionFailed, "connection refused")
		sinktest.Want(t, "Probe", probed, true, reason.ConnectionFailed, "connection refused")
	}
}

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
		{name: "other authority", server: serverWith(good), ca: other.PEM, word: reason.CertificateInvalid, text: "; set tls.caSecretRef or caConfigMapRef"},
		{name: "system's roots", server: serverWith(good), word: reason.CertificateInvalid, text: "; set tls.caSecretRef or caConfigMapRef"},
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
			cfg.TLS = &spec.TLS{ServerName: test.serverName}
			if test.ca != "" {
				cfg.TLS.CAFile = sinktest.File(t, "ca.crt", test.ca)
			}
			if test.client != nil {
				cfg.TLS.ClientCertFile, cfg.TLS.ClientKeyFile = sinktest.File(t, "tls.crt", test.client.CertPEM), sinktest.File(t, "tls.key", test.client.KeyPEM)
			}
			if *cfg.TLS == (spec.TLS{}) {
				cfg.TLS = nil
			}
			s := open(t, cfg)
			var delivered, probed error
			var wg sync.WaitGroup
			wg.Go(func() { delivered = sinktest.Send(t, s) })
			wg.Go(func() { probed = s.Probe(t.Context()) })
			wg.Wait()
			if test.text == "" {
				need.That(t, delivered == nil && probed == nil, "Deliver: %v, Probe: %v; want no errors", delivered, probed)
				return
			}
			sinktest.Want(t, "Probe", probed, true, test.word, test.text)
			if strings.HasSuffix(test.name, "TLS 1.3") && !dispatcher.IsUnavailable(delivered) {
				// The server's refusal may be lost, because the request is already on its way. Then
				// all that is known is a broken connection.
				sinktest.Want(t, "Deliver", delivered, false, reason.ConnectionFailed, "may have received the event")
				return
			}
			sinktest.Want(t, "Deliver", delivered, true, test.word, test.text)
		})
	}
}

// Without tls.caFile the system's authorities are trusted, and with it they are not.
func TestSystemRootsAreTrustedWithoutCAFile(t *testing.T) {
	if runtime.GOOS == "darwin" || runtime.GOOS == "windows" {
		t.Skip("SSL_CERT_FILE has no effect here")
	}
	ca := sinktest.NewAuthority(t, "system")
	address, _ := serve(t, "", &tls.Config{Certificates: []tls.Certificate{ca.Sign(t, "server", sinktest.InAnHour()).TLS}}, noContent)
	child(t, "TestWithSystemRoots", "HTTPSINK_ADDRESS="+address, "SSL_CERT_FILE="+sinktest.File(t, "roots.crt", ca.PEM), "SSL_CERT_DIR="+t.TempDir())
}

// TestWithSystemRoots is run by TestSystemRootsAreTrustedWithoutCAFile: a process reads the system's roots once.
func TestWithSystemRoots(t *testing.T) {
	address := os.Getenv("HTTPSINK_ADDRESS")
	if address == "" {
		t.Skip("TestSystemRootsAreTrustedWithoutCAFile runs this")
	}
	cfg := plant(t, "https", address)
	need.Want(t, nil, "an authority of the system: %v", sinktest.Send(t, open(t, cfg)))
	cfg.TLS = &spec.TLS{CAFile: sinktest.File(t, "ca.crt", sinktest.NewAuthority(t, "other").PEM)}
	sinktest.Want(t, "another authority", sinktest.Send(t, open(t, cfg)), true, reason.CertificateInvalid, "tls.caSecretRef or caConfigMapRef")
}

func TestServerWithoutTLSIsUnavailable(t *testing.T) {
	address, _ := serve(t, "", nil, noContent)
	s := open(t, plant(t, "https", address))
	sinktest.Want(t, "Deliver", sinktest.Send(t, s), true, reason.ConnectionFailed, "; no TLS is spoken there")
	sinktest.Want(t, "Probe", s.Probe(t.Context()), true, reason.ConnectionFailed, "; no TLS is spoken there")
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
	cfg.TLS = &spec.TLS{CAFile: sinktest.File(t, "ca.crt", ca.PEM)}
	need.Want(t, nil, "%v", open(t, cfg).Probe(t.Context()))
	need.Want(t, 0, "the probe sent %d bytes", <-got)
}
