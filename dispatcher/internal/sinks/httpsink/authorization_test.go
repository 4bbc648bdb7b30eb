package httpsink

import (
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

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
	token := file(t, "token", "one\n")
	cfg := plant(t, "http", address)
	cfg.Auth = &config.Auth{Type: config.AuthToken, SecretFile: token}
	s := open(t, cfg)
	s.authorization.Every = time.Hour
	want(t, "the old token", post(t, s), true, reason.AuthenticationFailed, "401")
	write(t, token, "another")
	for range 2 {
		if err := post(t, s); err != nil {
			t.Errorf("the new token: %v", err)
		}
		write(t, token, "the other one was not refused") // so this one is not read
	}
	for _, wanted := range []string{"Bearer one", "Bearer another", "Bearer another"} {
		if g := <-got; g != wanted {
			t.Errorf("the request had %q, want %q", g, wanted)
		}
	}
}

func TestCredentialsAreReadAgain(t *testing.T) {
	address, got := authorizations(t)
	token := file(t, "token", "one\n")
	cfg := plant(t, "http", address)
	cfg.Auth = &config.Auth{Type: config.AuthToken, SecretFile: token}
	s := open(t, cfg)
	for _, test := range []struct{ content, want string }{{"one\n", "Bearer one"}, {"two\n", "Bearer two"}, {"ab\r\n", "Bearer ab"}} {
		// As a mounted Secret changes: another file takes the name. Same size, same time.
		next := filepath.Join(t.TempDir(), "next")
		write(t, next, test.content)
		at := time.Unix(1_770_000_000, 0)
		if err := os.Chtimes(next, at, at); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, token); err != nil {
			t.Fatal(err)
		}
		if err := post(t, s); err != nil {
			t.Fatal(err)
		}
		if g := <-got; g != test.want {
			t.Errorf("the request had %q, want %q", g, test.want)
		}
	}
	if err := os.Remove(token); err != nil {
		t.Fatal(err)
	}
	want(t, "a removed file", post(t, s), true, reason.AuthenticationFailed, token)
	want(t, "a removed file, Probe", s.Probe(t.Context()), true, reason.AuthenticationFailed, token)
	write(t, token, "new")
	if err := post(t, s); err != nil {
		t.Errorf("after the file exists again: %v", err)
	}
}

func TestBasicCredentials(t *testing.T) {
	address, got := authorizations(t)
	user, password := file(t, "username", "bob\n"), file(t, "password", "p:w é\n")
	cfg := plant(t, "http", address)
	cfg.Auth = &config.Auth{Type: config.AuthBasic, UsernameFile: user, SecretFile: password}
	s := open(t, cfg)
	if err := post(t, s); err != nil {
		t.Fatal(err)
	}
	r := http.Request{Header: http.Header{"Authorization": {<-got}}}
	if u, p, ok := r.BasicAuth(); !ok || u != "bob" || p != "p:w é" {
		t.Errorf("the request had user %q and password %q", u, p)
	}
	write(t, password, tokenSecret+"-changed")
	if err := post(t, s); err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", <-got)
	if _, p, _ := r.BasicAuth(); p != tokenSecret+"-changed" {
		t.Errorf("the request had the password %q after a change", p)
	}
}

// CONTRACT: C-73
func TestFilesThatCannotBeUsed(t *testing.T) {
	ca := sinktest.NewAuthority(t, "test")
	cert, second := ca.Sign(t, "client", sinktest.InAnHour()), ca.Sign(t, "client", sinktest.InAnHour())
	missing := filepath.Join(t.TempDir(), "missing")
	empty := file(t, "empty", "\n")
	broken := file(t, "broken", "this is "+tokenSecret+"\nand no token, and no PEM")
	good := file(t, "good", "good")
	clientCertFile, clientKeyFile := file(t, "tls.crt", cert.CertPEM), file(t, "tls.key", second.KeyPEM)
	for _, test := range []struct {
		name, word string
		auth       *config.Auth
		tls        *config.TLS
		texts      []string
	}{
		{"no token", reason.AuthenticationFailed, &config.Auth{Type: config.AuthToken, SecretFile: missing}, nil, []string{"auth.secretFile", missing}},
		{"empty token", reason.AuthenticationFailed, &config.Auth{Type: config.AuthToken, SecretFile: empty}, nil, []string{"auth.secretFile", empty, "is empty"}},
		{"broken token", reason.AuthenticationFailed, &config.Auth{Type: config.AuthToken, SecretFile: broken}, nil, []string{"auth.secretFile", broken}},
		{"no user", reason.AuthenticationFailed, &config.Auth{Type: config.AuthBasic, UsernameFile: missing, SecretFile: good}, nil, []string{"auth.usernameFile", missing}},
		{"colon in user", reason.AuthenticationFailed, &config.Auth{Type: config.AuthBasic, UsernameFile: file(t, "u", "a:"+tokenSecret), SecretFile: good}, nil, []string{"auth.usernameFile", "colon"}},
		{"colon in a user as it is", reason.AuthenticationFailed, &config.Auth{Type: config.AuthBasic, Username: "a:" + tokenSecret, SecretFile: good}, nil, []string{"auth.username has a colon"}},
		{"no password", reason.AuthenticationFailed, &config.Auth{Type: config.AuthBasic, UsernameFile: good, SecretFile: missing}, nil, []string{"auth.secretFile", missing}},
		{"no authority", reason.CertificateInvalid, nil, &config.TLS{CAFile: missing}, []string{"tls.caFile", missing}},
		{"empty authority", reason.CertificateInvalid, nil, &config.TLS{CAFile: empty}, []string{"tls.caFile", empty}},
		{"broken authority", reason.CertificateInvalid, nil, &config.TLS{CAFile: broken}, []string{"tls.caFile", broken, "PEM"}},
		{"no certificate", reason.CertificateInvalid, nil, &config.TLS{ClientCertFile: missing, ClientKeyFile: clientKeyFile}, []string{"tls.clientCertFile", missing}},
		{"no key", reason.CertificateInvalid, nil, &config.TLS{ClientCertFile: clientCertFile, ClientKeyFile: missing}, []string{"tls.clientKeyFile", missing}},
		{"broken key", reason.CertificateInvalid, nil, &config.TLS{ClientCertFile: clientCertFile, ClientKeyFile: broken}, []string{"tls.clientKeyFile", broken}},
		{"another certificate's key", reason.CertificateInvalid, nil, &config.TLS{ClientCertFile: clientCertFile, ClientKeyFile: clientKeyFile}, []string{clientCertFile, clientKeyFile, "does not match"}},
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
				want(t, "Deliver", post(t, s), true, test.word, text)
				want(t, "Probe", s.Probe(t.Context()), true, test.word, text)
			}
		})
	}
}

// A new authority is trusted, and an old one is not, without a restart; and no request uses a
// connection from before.
func TestAuthorityIsReadAgain(t *testing.T) {
	ca, other := sinktest.NewAuthority(t, "good"), sinktest.NewAuthority(t, "other")
	cert := ca.Sign(t, "server", sinktest.InAnHour())
	address, _ := serve(t, "", &tls.Config{Certificates: []tls.Certificate{cert.TLS}}, noContent)
	caFile := file(t, "ca.crt", other.PEM)
	cfg := plant(t, "https", address)
	cfg.TLS = &config.TLS{CAFile: caFile}
	s := open(t, cfg)
	for range 2 {
		write(t, caFile, other.PEM)
		want(t, "other authority", post(t, s), true, reason.CertificateInvalid, "authority")
		write(t, caFile, "half a file")
		want(t, "broken file", post(t, s), true, reason.CertificateInvalid, caFile)
		write(t, caFile, other.PEM+ca.PEM)
		if err := post(t, s); err != nil {
			t.Errorf("after the right authority was added: %v", err)
		}
	}
}

func TestClientCertificateIsReadAgain(t *testing.T) {
	ca := sinktest.NewAuthority(t, "test")
	names := make(chan string, 1)
	address, _ := serve(t, "", &tls.Config{
		Certificates: []tls.Certificate{ca.Sign(t, "server", sinktest.InAnHour()).TLS},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
	}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		names <- r.TLS.PeerCertificates[0].Subject.CommonName
	}))
	clientCertFile, clientKeyFile := file(t, "tls.crt", ""), file(t, "tls.key", "")
	cfg := plant(t, "https", address)
	cfg.TLS = &config.TLS{CAFile: file(t, "ca.crt", ca.PEM), ClientCertFile: clientCertFile, ClientKeyFile: clientKeyFile}
	s := open(t, cfg)
	for _, name := range []string{"first", "a second one"} {
		cert := ca.Sign(t, name, sinktest.InAnHour())
		write(t, clientCertFile, cert.CertPEM)
		write(t, clientKeyFile, cert.KeyPEM)
		if err := post(t, s); err != nil {
			t.Fatal(err)
		}
		if got := <-names; got != name {
			t.Errorf("the client certificate was %q, want %q", got, name)
		}
	}
}

// CONTRACT: C-73
func TestNewRefuses(t *testing.T) {
	const url = "https://consumer.example/events"
	for name, test := range map[string]struct {
		cfg  config.HTTPSink
		text string
	}{
		"no url":            {config.HTTPSink{}, "sink.http.url must be"},
		"no scheme":         {config.HTTPSink{URL: "consumer.example/events"}, "sink.http.url must be"},
		"other scheme":      {config.HTTPSink{URL: "ftp://consumer.example"}, "sink.http.url must be"},
		"no host":           {config.HTTPSink{URL: "http:///events"}, "sink.http.url must be"},
		"unreadable url":    {config.HTTPSink{URL: "http://u:" + tokenSecret + "@host:port/"}, "sink.http.url must be"},
		"password":          {config.HTTPSink{URL: "http://u:" + tokenSecret + "@consumer.example"}, "sink.http.url must not hold a user"},
		"mode":              {config.HTTPSink{URL: url, Access: config.Access{ContentMode: "binary"}}, "sink.contentMode "},
		"batch size":        {config.HTTPSink{URL: url, Access: config.Access{ContentMode: config.Batch}, BatchSize: -1}, "sink.http.batchSize "},
		"timeout":           {config.HTTPSink{URL: url, Access: config.Access{Timeout: -1}}, "sink.timeout "},
		"attribute":         {config.HTTPSink{URL: url, Headers: map[string]string{"ce-id": "x"}}, `sink.http.headers["ce-id"] `},
		"credential":        {config.HTTPSink{URL: url, Headers: map[string]string{"authorization": tokenSecret}}, `sink.http.headers["authorization"] `},
		"of the connection": {config.HTTPSink{URL: url, Headers: map[string]string{"Connection": "close"}}, `sink.http.headers["Connection"] `},
		"header value":      {config.HTTPSink{URL: url, Headers: map[string]string{"x-a": tokenSecret + "\n"}}, `sink.http.headers["x-a"] `},
		"another login":     {config.HTTPSink{URL: url, Access: config.Access{Auth: &config.Auth{Type: config.AuthPlain}}}, "sink.auth.type "},
		"tls without https": {config.HTTPSink{URL: "http://consumer.example", Access: config.Access{TLS: &config.TLS{CAFile: "a"}}}, "sink.tls needs an https:// url"},
		"half of a pair":    {config.HTTPSink{URL: url, Access: config.Access{TLS: &config.TLS{ClientCertFile: "a"}}}, "sink.tls has only one of"},
	} {
		got, err := New(test.cfg, nil)
		if err == nil || got != nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		if text := err.Error(); !strings.HasPrefix(text, test.text) || strings.Contains(text, tokenSecret) {
			t.Errorf("%s: the error does not begin with %q, or holds a secret: %v", name, test.text, err)
		}
	}
	s, err := New(config.HTTPSink{URL: url}, nil)
	if err != nil || s.BatchSize() != 1 || s.(*sink).timeout != 10*time.Second || s.(*sink).mode != config.Binary {
		t.Errorf("the defaults are %+v, %v", s, err)
	}
	s, err = New(config.HTTPSink{URL: url, Access: config.Access{ContentMode: config.Batch}}, nil)
	if err != nil || s.BatchSize() != 100 {
		t.Errorf("the default of batchSize is %+v, %v; want 100", s, err)
	}
}
