package httpsink

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// secret returns a secret of n bytes.
func secret(fill byte, n int) string {
	return secretPrefix + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, n))
}

type webhook struct {
	header http.Header
	body   []byte
}

func webhooks(t *testing.T) (address string, got chan webhook) {
	got = make(chan webhook, 10)
	address, _ = serve(t, "", nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		need.Want(t, nil, "%v", err)
		got <- webhook{r.Header, body}
	}))
	return address, got
}

// Requests verify with the specification's own library, with the old secret and the new one, in every
// mode, and not with another.
func TestSignaturesVerifyWithEitherSecret(t *testing.T) {
	address, got := webhooks(t)
	older, newer := secret('a', 24), secret('b', 64)
	for _, mode := range []spec.ContentMode{spec.Binary, spec.Structured, spec.Batch} {
		cfg := plant(t, "http", address)
		cfg.ContentMode = mode
		cfg.SigningSecretFile = sinktest.File(t, "secret", newer+"\n"+older+"\n")
		s := open(t, cfg)
		one, two := sinktest.NewEvent(), sinktest.NewEvent()
		batches := [][]*dispatcher.Event{{one}, {one}}
		if mode == spec.Batch {
			batches = append(batches, []*dispatcher.Event{one, two}, []*dispatcher.Event{one, two}, []*dispatcher.Event{two, one})
		}
		var ids []string
		for _, batch := range batches {
			need.OK(t, s.Deliver(t.Context(), batch)[0])
			w := <-got
			ids = append(ids, w.header.Get("webhook-id"))
			for _, key := range []string{older, newer} {
				need.Want(t, nil, "mode %s: %v", verifier(t, key).Verify(w.body, w.header), mode)
				need.That(t, verifier(t, key).Verify(append(w.body, ' '), w.header) != nil, "mode %s: another body has the same signature", mode)
			}
			need.That(t, verifier(t, secret('c', 24)).Verify(w.body, w.header) != nil, "mode %s: the signature is good for another secret", mode)
		}
		need.That(t, ids[0] == one.ID.String() && ids[1] == ids[0], "mode %s: the webhook-id of one event is %q and %q, want the event's id", mode, ids[0], ids[1])
		need.That(t, mode != spec.Batch || (ids[2] == ids[3] && ids[2] != ids[0] && ids[2] != ids[4] && uuid.Validate(ids[2]) == nil),
			"the webhook-ids are %q; want those of equal batches to be equal, and only those", ids)
	}
}

func verifier(t *testing.T, key string) *standardwebhooks.Webhook {
	t.Helper()
	v, err := standardwebhooks.NewWebhook(key)
	need.OK(t, err)
	return v
}

// Each sending has its own time: a retry of a day later verifies too.
func TestSignatureHasTheTimeOfItsSending(t *testing.T) {
	keys := secrets{[]byte("a key of some length")}
	e := sinktest.NewEvent()
	seen := map[string]bool{}
	for _, at := range []time.Time{time.Unix(1_770_000_000, 999_000_000), time.Unix(1_770_086_400, 0)} {
		h := http.Header{}
		keys.sign(h, []*dispatcher.Event{e}, e.Payload, at)
		need.Want(t, strconv.FormatInt(at.Unix(), 10), "the timestamp of %s is %s", h.Get("webhook-timestamp"), at)
		seen[h.Get("webhook-signature")] = true
	}
	need.Want(t, 2, "%d signatures at two times, want 2", len(seen))
}

func TestUnsignedRequestHasNoSignature(t *testing.T) {
	address, got := webhooks(t)
	need.OK(t, sinktest.Send(t, open(t, plant(t, "http", address))))
	for name := range (<-got).header {
		need.That(t, !strings.HasPrefix(name, "Webhook-"), "the header %s was sent without signing", name)
	}
}

// A secret that cannot be used sends nothing unsigned, and heals when the file does.
//
// CONTRACT: C-32, C-73
func TestUnusableSecretSendsNothing(t *testing.T) {
	address, got := webhooks(t)
	path := sinktest.File(t, "secret", "")
	cfg := plant(t, "http", address)
	cfg.SigningSecretFile = path
	s := open(t, cfg)
	for content, text := range map[string]string{
		"":                                 "is empty; write the value into it",
		" \n \n":                           "is empty; write the secret into it",
		"whsec_" + sinktest.PasswordSecret: "secret 1 in " + path + " is none of Standard Webhooks; write whsec_ and 24 to 64 random bytes",
		secret('a', 23):                    "secret 1 in ",
		secret('a', 65):                    "secret 1 in ",
		secret('a', 24) + " whsk_" + sinktest.PasswordSecret: "secret 2 in ",
		strings.TrimPrefix(secret('a', 24), secretPrefix):    "secret 1 in ",
	} {
		sinktest.Write(t, path, content)
		sinktest.Want(t, "Deliver", sinktest.Send(t, s), true, reason.AuthenticationFailed, text)
		sinktest.Want(t, "Probe", s.Probe(t.Context()), true, reason.AuthenticationFailed, text)
	}
	need.Want(t, 0, "an event was sent without a signature", len(got))
	sinktest.Write(t, path, secret('d', 32))
	need.OK(t, sinktest.Send(t, s))
	w := <-got
	need.That(t, verifier(t, secret('d', 32)).Verify(w.body, w.header) == nil, "the new secret was not used")
}

// What instruments consumers reads the plain header.
//
// CONTRACT: C-70
func TestTraceHeadersHaveTheirPlainNames(t *testing.T) {
	got := make(chan http.Header, 1)
	address, _ := serve(t, "", nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header }))
	e := sinktest.NewEvent()
	e.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=b"}
	for _, mode := range []spec.ContentMode{spec.Binary, spec.Structured, spec.Batch} {
		cfg := plant(t, "http", address)
		cfg.ContentMode = mode
		need.OK(t, open(t, cfg).Deliver(t.Context(), []*dispatcher.Event{e})[0])
		if h := <-got; h.Get("traceparent") != e.Headers["traceparent"] || h.Get("tracestate") != "a=b" {
			t.Errorf("%s: the request has traceparent %q and tracestate %q", mode, h.Get("traceparent"), h.Get("tracestate"))
		}
	}
}

// authorizations returns the Authorization that each request has.
func authorizations(t *testing.T) (address string, got chan string) {
	got = make(chan string, 10)
	address, _ = serve(t, "", nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization")
	}))
	return address, got
}

// Files are looked at each second, and at once when what they held was refused.
//
// CONTRACT: C-102
func TestRefusedCredentialsAreReadAtOnce(t *testing.T) {
	got := make(chan string, 10)
	address, _ := serve(t, "", nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization")
		if r.Header.Get("Authorization") == "Bearer one" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	token := sinktest.File(t, "token", "one\n")
	cfg := plant(t, "http", address)
	cfg.Auth = &spec.Auth{Type: spec.AuthToken, SecretFile: token}
	s := open(t, cfg)
	s.authorization.Every = time.Hour
	sinktest.Want(t, "the old token", sinktest.Send(t, s), true, reason.AuthenticationFailed, "401")
	sinktest.Write(t, token, "another")
	for range 2 {
		need.Want(t, nil, "the new token: %v", sinktest.Send(t, s))
		sinktest.Write(t, token, "the other one was not refused") // so this one is not read
	}
	for _, wanted := range []string{"Bearer one", "Bearer another", "Bearer another"} {
		need.Want(t, wanted, "the request had %q, want %q", <-got)
	}
}

func TestCredentialsAreReadAgain(t *testing.T) {
	address, got := authorizations(t)
	token := sinktest.File(t, "token", "one\n")
	cfg := plant(t, "http", address)
	cfg.Auth = &spec.Auth{Type: spec.AuthToken, SecretFile: token}
	s := open(t, cfg)
	for _, test := range []struct{ content, want string }{{"one\n", "Bearer one"}, {"two\n", "Bearer two"}, {"ab\r\n", "Bearer ab"}} {
		// As a mounted Secret changes: another file takes the name. Same size, same time.
		next := filepath.Join(t.TempDir(), "next")
		sinktest.Write(t, next, test.content)
		at := time.Unix(1_770_000_000, 0)
		need.OK(t, os.Chtimes(next, at, at))
		need.OK(t, os.Rename(next, token))
		need.OK(t, sinktest.Send(t, s))
		need.Want(t, test.want, "the request had %q, want %q", <-got)
	}
	need.OK(t, os.Remove(token))
	sinktest.Want(t, "a removed file", sinktest.Send(t, s), true, reason.AuthenticationFailed, token)
	sinktest.Want(t, "a removed file, Probe", s.Probe(t.Context()), true, reason.AuthenticationFailed, token)
	sinktest.Write(t, token, "new")
	need.Want(t, nil, "after the file exists again: %v", sinktest.Send(t, s))
}

func TestBasicCredentialsAreReadForEachRequest(t *testing.T) {
	address, got := authorizations(t)
	user, password := sinktest.File(t, "username", "bob\n"), sinktest.File(t, "password", "p:w é\n")
	cfg := plant(t, "http", address)
	cfg.Auth = &spec.Auth{Type: spec.AuthBasic, UsernameFile: user, SecretFile: password}
	s := open(t, cfg)
	need.OK(t, sinktest.Send(t, s))
	r := http.Request{Header: http.Header{"Authorization": {<-got}}}
	u, p, ok := r.BasicAuth()
	need.That(t, ok && u == "bob" && p == "p:w é", "the request had user %q and password %q", u, p)
	sinktest.Write(t, password, sinktest.PasswordSecret+"-changed")
	need.OK(t, sinktest.Send(t, s))
	r.Header.Set("Authorization", <-got)
	_, p, _ = r.BasicAuth()
	need.Want(t, sinktest.PasswordSecret+"-changed", "the request had the password %q after a change", p)
}

// CONTRACT: C-73
func TestUnusableFilesAreNamed(t *testing.T) {
	ca := sinktest.NewAuthority(t, "test")
	cert, second := ca.Sign(t, "client", sinktest.InAnHour()), ca.Sign(t, "client", sinktest.InAnHour())
	missing := filepath.Join(t.TempDir(), "missing")
	empty := sinktest.File(t, "empty", "\n")
	broken := sinktest.File(t, "broken", "this is "+sinktest.PasswordSecret+"\nand no token, and no PEM")
	good := sinktest.File(t, "good", "good")
	clientCertFile, clientKeyFile := sinktest.File(t, "tls.crt", cert.CertPEM), sinktest.File(t, "tls.key", second.KeyPEM)
	for _, test := range []struct {
		name, word string
		auth       *spec.Auth
		tls        *spec.TLS
		texts      []string
	}{
		{"no token", reason.AuthenticationFailed, &spec.Auth{Type: spec.AuthToken, SecretFile: missing}, nil, []string{"auth.secretRef", missing}},
		{"empty token", reason.AuthenticationFailed, &spec.Auth{Type: spec.AuthToken, SecretFile: empty}, nil, []string{"auth.secretRef", empty, "is empty"}},
		{"broken token", reason.AuthenticationFailed, &spec.Auth{Type: spec.AuthToken, SecretFile: broken}, nil, []string{"auth.secretRef", broken}},
		{"no user", reason.AuthenticationFailed, &spec.Auth{Type: spec.AuthBasic, UsernameFile: missing, SecretFile: good}, nil, []string{"auth.usernameKey", missing}},
		{"colon in user", reason.AuthenticationFailed, &spec.Auth{Type: spec.AuthBasic, UsernameFile: sinktest.File(t, "u", "a:"+sinktest.PasswordSecret), SecretFile: good}, nil, []string{"auth.usernameKey", "colon"}},
		{"colon in a user as it is", reason.AuthenticationFailed, &spec.Auth{Type: spec.AuthBasic, Username: "a:" + sinktest.PasswordSecret, SecretFile: good}, nil, []string{"auth.username has a colon"}},
		{"no password", reason.AuthenticationFailed, &spec.Auth{Type: spec.AuthBasic, UsernameFile: good, SecretFile: missing}, nil, []string{"auth.secretRef", missing}},
		{"no authority", reason.CertificateInvalid, nil, &spec.TLS{CAFile: missing}, []string{"tls.caSecretRef or caConfigMapRef", missing}},
		{"empty authority", reason.CertificateInvalid, nil, &spec.TLS{CAFile: empty}, []string{"tls.caSecretRef or caConfigMapRef", empty}},
		{"broken authority", reason.CertificateInvalid, nil, &spec.TLS{CAFile: broken}, []string{"tls.caSecretRef or caConfigMapRef", broken, "PEM"}},
		{"no certificate", reason.CertificateInvalid, nil, &spec.TLS{ClientCertFile: missing, ClientKeyFile: clientKeyFile}, []string{"tls.clientCertSecretRef", missing}},
		{"no key", reason.CertificateInvalid, nil, &spec.TLS{ClientCertFile: clientCertFile, ClientKeyFile: missing}, []string{"tls.clientKeySecretRef", missing}},
		{"broken key", reason.CertificateInvalid, nil, &spec.TLS{ClientCertFile: clientCertFile, ClientKeyFile: broken}, []string{"tls.clientKeySecretRef", broken}},
		{"another certificate's key", reason.CertificateInvalid, nil, &spec.TLS{ClientCertFile: clientCertFile, ClientKeyFile: clientKeyFile}, []string{clientCertFile, clientKeyFile, "does not match"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			address := closedPort(t)
			cfg := plant(t, "https", address)
			cfg.TLS = test.tls
			if test.auth != nil {
				cfg.Auth = test.auth
			}
			s := open(t, cfg)
			for _, text := range test.texts {
				sinktest.Want(t, "Deliver", sinktest.Send(t, s), true, test.word, text)
				sinktest.Want(t, "Probe", s.Probe(t.Context()), true, test.word, text)
			}
		})
	}
}

// A new authority is trusted, and a new certificate is shown, without a restart; and no request uses a connection from
// before.
func TestCertificatesAreReadAgain(t *testing.T) {
	certs := sinktest.NewCertificates(t, "client", "")
	address, _ := serve(t, "", &tls.Config{
		Certificates: []tls.Certificate{certs.Server.TLS}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: certs.CA.Pool(),
	}, noContent)
	sinktest.Rotated(t, certs, nil, func(t *testing.T, cfg *spec.TLS) dispatcher.Sink {
		settings := plant(t, "https", address)
		settings.TLS = cfg
		return open(t, settings)
	})
}

func TestNewFillsInDefaults(t *testing.T) {
	const url = "https://consumer.example/events"
	s, err := New(spec.HTTPSink{URL: url}, nil)
	need.That(t, err == nil && s.BatchSize() == 1 && s.(*sink).timeout == 10*time.Second && s.(*sink).mode == spec.Binary, "the defaults are %+v, %v", s, err)
	s, err = New(spec.HTTPSink{URL: url, Access: spec.Access{ContentMode: spec.Batch}}, nil)
	need.That(t, err == nil && s.BatchSize() == 100, "the default of batchSize is %+v, %v; want 100", s, err)
}
