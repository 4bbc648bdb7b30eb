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

	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/reason"
)

// authorizations tells of the Authorization that each request has.
func authorizations(t *testing.T) (address string, got chan string) {
	got = make(chan string, 10)
	address, _ = serve(t, "", nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization")
	}))
	return address, got
}

func TestCredentialsAreReadAgain(t *testing.T) {
	address, got := authorizations(t)
	token := file(t, "token", "one\n")
	cfg := plant(t, "http", address)
	cfg.Auth = &config.HTTPAuth{BearerTokenFile: token}
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
		t.Errorf("after the file is back: %v", err)
	}
}

func TestBasicCredentials(t *testing.T) {
	address, got := authorizations(t)
	user, password := file(t, "username", "bob\n"), file(t, "password", "p:w é\n")
	cfg := plant(t, "http", address)
	cfg.Auth = &config.HTTPAuth{Basic: &config.BasicAuth{UsernameFile: user, PasswordFile: password}}
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
	certFile, keyFile := file(t, "tls.crt", cert.CertPEM), file(t, "tls.key", second.KeyPEM)
	for _, test := range []struct {
		name, word string
		auth       *config.HTTPAuth
		tls        *config.TLS
		texts      []string
	}{
		{"no token", reason.AuthenticationFailed, &config.HTTPAuth{BearerTokenFile: missing}, nil, []string{"auth.bearerTokenFile", missing}},
		{"empty token", reason.AuthenticationFailed, &config.HTTPAuth{BearerTokenFile: empty}, nil, []string{"auth.bearerTokenFile", empty, "is empty"}},
		{"broken token", reason.AuthenticationFailed, &config.HTTPAuth{BearerTokenFile: broken}, nil, []string{"auth.bearerTokenFile", broken}},
		{"no user", reason.AuthenticationFailed, &config.HTTPAuth{Basic: &config.BasicAuth{UsernameFile: missing, PasswordFile: good}}, nil, []string{"auth.basic.usernameFile", missing}},
		{"colon in user", reason.AuthenticationFailed, &config.HTTPAuth{Basic: &config.BasicAuth{UsernameFile: file(t, "u", "a:"+tokenSecret), PasswordFile: good}}, nil, []string{"auth.basic.usernameFile", "colon"}},
		{"no password", reason.AuthenticationFailed, &config.HTTPAuth{Basic: &config.BasicAuth{UsernameFile: good, PasswordFile: missing}}, nil, []string{"auth.basic.passwordFile", missing}},
		{"no authority", reason.CertificateInvalid, nil, &config.TLS{CAFile: missing}, []string{"tls.caFile", missing}},
		{"empty authority", reason.CertificateInvalid, nil, &config.TLS{CAFile: empty}, []string{"tls.caFile", empty}},
		{"broken authority", reason.CertificateInvalid, nil, &config.TLS{CAFile: broken}, []string{"tls.caFile", broken, "PEM"}},
		{"no certificate", reason.CertificateInvalid, nil, &config.TLS{CertFile: missing, KeyFile: keyFile}, []string{"tls.certFile", missing}},
		{"no key", reason.CertificateInvalid, nil, &config.TLS{CertFile: certFile, KeyFile: missing}, []string{"tls.keyFile", missing}},
		{"broken key", reason.CertificateInvalid, nil, &config.TLS{CertFile: certFile, KeyFile: broken}, []string{"tls.keyFile", broken}},
		{"another certificate's key", reason.CertificateInvalid, nil, &config.TLS{CertFile: certFile, KeyFile: keyFile}, []string{certFile, keyFile, "does not match"}},
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
	certFile, keyFile := file(t, "tls.crt", ""), file(t, "tls.key", "")
	cfg := plant(t, "https", address)
	cfg.TLS = &config.TLS{CAFile: file(t, "ca.crt", ca.PEM), CertFile: certFile, KeyFile: keyFile}
	s := open(t, cfg)
	for _, name := range []string{"first", "a second one"} {
		cert := ca.Sign(t, name, sinktest.InAnHour())
		write(t, certFile, cert.CertPEM)
		write(t, keyFile, cert.KeyPEM)
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
		"no url":            {config.HTTPSink{}, "url is not"},
		"no scheme":         {config.HTTPSink{URL: "consumer.example/events"}, "url is not"},
		"other scheme":      {config.HTTPSink{URL: "ftp://consumer.example"}, "url is not"},
		"no host":           {config.HTTPSink{URL: "http:///events"}, "url is not"},
		"unreadable url":    {config.HTTPSink{URL: "http://u:" + tokenSecret + "@host:port/"}, "url is not"},
		"password":          {config.HTTPSink{URL: "http://u:" + tokenSecret + "@consumer.example"}, "user or password"},
		"mode":              {config.HTTPSink{URL: url, Mode: "binary"}, "Binary, Structured or Batch"},
		"batch size":        {config.HTTPSink{URL: url, Mode: config.Batch, BatchSize: -1}, "batchSize"},
		"timeout":           {config.HTTPSink{URL: url, Timeout: -1}, "timeout"},
		"attribute":         {config.HTTPSink{URL: url, Headers: map[string]string{"ce-id": "x"}}, `"ce-id"`},
		"credential":        {config.HTTPSink{URL: url, Headers: map[string]string{"authorization": tokenSecret}}, `"authorization"`},
		"header name":       {config.HTTPSink{URL: url, Headers: map[string]string{"a b": "x"}}, `"a b"`},
		"header value":      {config.HTTPSink{URL: url, Headers: map[string]string{"x-a": tokenSecret + "\n"}}, `"x-a"`},
		"two credentials":   {config.HTTPSink{URL: url, Auth: &config.HTTPAuth{BearerTokenFile: "a", Basic: &config.BasicAuth{}}}, "keep one"},
		"half of basic":     {config.HTTPSink{URL: url, Auth: &config.HTTPAuth{Basic: &config.BasicAuth{UsernameFile: "a"}}}, "passwordFile"},
		"tls without https": {config.HTTPSink{URL: "http://consumer.example", TLS: &config.TLS{CAFile: "a"}}, "https://"},
		"half of a pair":    {config.HTTPSink{URL: url, TLS: &config.TLS{CertFile: "a"}}, "tls.keyFile"},
	} {
		got, err := New(test.cfg, nil)
		if err == nil || got != nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		_ = verify(t, err)
		if !strings.HasPrefix(err.Error(), "http sink: ") || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: the error does not say %q: %v", name, test.text, err)
		}
	}
	s, err := New(config.HTTPSink{URL: url}, nil)
	if err != nil || s.BatchSize() != 1 || s.(*sink).timeout != 10*time.Second || s.(*sink).mode != config.Binary {
		t.Errorf("the defaults are %+v, %v", s, err)
	}
	s, err = New(config.HTTPSink{URL: url, Mode: config.Batch}, nil)
	if err != nil || s.BatchSize() != 100 {
		t.Errorf("the default of batchSize is %+v, %v; want 100", s, err)
	}
}
