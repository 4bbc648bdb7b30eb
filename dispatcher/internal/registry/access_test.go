package registry

import (
	"crypto/tls"
	"encoding/base64"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
)

// CONTRACT: C-73
func TestCredentialsReadForEachRequest(t *testing.T) {
	dir := t.TempDir()
	user, password, token := filepath.Join(dir, "user"), filepath.Join(dir, "password"), filepath.Join(dir, "token")
	for name, test := range map[string]struct {
		auth   *config.Auth
		header string
		rotate string
	}{
		"basic":  {&config.Auth{Type: config.AuthBasic, UsernameFile: user, SecretFile: password}, "Basic " + base64.StdEncoding.EncodeToString([]byte("alice:right")), password},
		"bearer": {&config.Auth{Type: config.AuthToken, SecretFile: token}, "Bearer right", token},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, srfake.WithAuth(test.header))
			register(t, f, "orders", sr.Schema{Schema: text, Type: sr.TypeJSON})
			c := open(t, config.SchemaRegistry{URL: f.URL(), Auth: test.auth})
			c.pause = 0
			write(t, user, "alice\n")
			for _, wrong := range []struct{ content, text string }{
				{secret, "status 403 Forbidden; check the credentials in message.schemaRegistry.auth"},
				{"", "is empty; write the value into it"},
				{secret + "\n" + secret, map[string]string{"basic": "status 403", "bearer": "; write the token alone into it"}[name]},
			} {
				write(t, test.rotate, wrong.content)
				_, err := c.Schema(t.Context(), "orders", 0)
				checkUnavailable(t, "content "+wrong.content, err, reason.AuthenticationFailed, wrong.text)
			}
			write(t, test.rotate, "right\n")
			if _, err := c.Schema(t.Context(), "orders", 0); err != nil {
				t.Errorf("the right credentials: %v", err)
			}
		})
	}
}

// CONTRACT: C-73
func TestTLSAndConnectionFailures(t *testing.T) {
	ca, other := sinktest.NewAuthority(t, "good"), sinktest.NewAuthority(t, "other")
	f := newFake(t)
	register(t, f, "orders", sr.Schema{Schema: text, Type: sr.TypeJSON})
	serve := func(leaf sinktest.Leaf, mutual bool) string {
		server := httptest.NewUnstartedServer(f.Handler())
		server.TLS = &tls.Config{Certificates: []tls.Certificate{leaf.TLS}}
		if mutual {
			server.TLS.ClientAuth, server.TLS.ClientCAs = tls.RequireAndVerifyClientCert, ca.Pool()
		}
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.StartTLS()
		t.Cleanup(server.Close)
		return server.URL
	}
	good := serve(ca.Sign(t, "registry", sinktest.InAnHour()), false)
	expired := serve(ca.Sign(t, "registry", time.Now().Add(-time.Minute)), false)
	mutual := serve(ca.Sign(t, "registry", sinktest.InAnHour()), true)
	own := ca.Sign(t, "client", sinktest.InAnHour())
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>" + secret)) }))
	t.Cleanup(page.Close)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	dir := t.TempDir()
	trust := func(a *sinktest.Authority) *config.TLS {
		return &config.TLS{CAFile: write(t, filepath.Join(dir, a.Cert.Subject.CommonName), a.PEM)}
	}
	show := trust(ca)
	show.ClientCertFile, show.ClientKeyFile = write(t, filepath.Join(dir, "crt"), own.CertPEM), write(t, filepath.Join(dir, "key"), own.KeyPEM)
	for name, test := range map[string]struct {
		url        string
		tls        *config.TLS
		word, text string // "" means no error
	}{
		"TLS":                  {good, trust(ca), "", ""},
		"other authority":      {good, trust(other), reason.CertificateInvalid, "; set message.schemaRegistry.tls.caSecretRef or caConfigMapRef (in a dispatcher's file: message.schemaRegistry.tls.caFile)"},
		"the system's roots":   {good, nil, reason.CertificateInvalid, "; set message.schemaRegistry.tls.ca"},
		"expired":              {expired, trust(ca), reason.CertificateInvalid, "expired"},
		"mutual":               {mutual, show, "", ""},
		"mutual, none":         {mutual, trust(ca), reason.CertificateInvalid, "; the registry does not accept the client certificate: set message.schemaRegistry.tls.clientCertSecretRef"},
		"missing file":         {good, &config.TLS{CAFile: dir + "/missing"}, reason.CertificateInvalid, "; make the file, or correct its path"},
		"gone":                 {"http://" + gone.Addr().String(), nil, reason.ConnectionFailed, "; check that it runs"},
		"no such host":         {"http://registry.invalid", nil, reason.ConnectionFailed, "; check the hosts in message.schemaRegistry.url, and the dispatcher's DNS"},
		"something else there": {page.URL, nil, reason.Refusing, "the response is not a registry's"},
	} {
		t.Run(name, func(t *testing.T) {
			c := open(t, config.SchemaRegistry{URL: test.url, TLS: test.tls})
			_, err := c.Schema(t.Context(), "orders", 0)
			if test.word == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			checkUnavailable(t, name, err, test.word, test.text)
		})
	}
}

func TestNewRefusesInvalidConfiguration(t *testing.T) {
	if c, err := New(config.SchemaRegistry{}); c != nil || err == nil || !strings.HasPrefix(err.Error(), "message.schemaRegistry.url must be") {
		t.Errorf("no url: %v, %v", c, err)
	}
}
