package registry

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// Planted where it must never come out again (CONTRACT C-73).
const secret = "secret-4111"

const text = `{"type":"object"}`

// fake is a registry by the author of the client's library. It counts the requests.
type fake struct {
	*srfake.Registry
	requests atomic.Int32
	respond  atomic.Pointer[http.HandlerFunc] // replaces the registry's own handler
}

func newFake(t *testing.T, opts ...srfake.Option) *fake {
	f := &fake{Registry: srfake.New(opts...)}
	t.Cleanup(f.Close)
	f.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		f.requests.Add(1)
		if respond := f.respond.Load(); respond != nil {
			(*respond)(w, r)
			return true
		}
		return false
	})
	return f
}

// broken replaces its handler; nil restores it.
func (f *fake) broken(respond http.HandlerFunc) {
	if respond == nil {
		f.respond.Store(nil)
		return
	}
	f.respond.Store(&respond)
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>"+secret, code) }
}

func open(t *testing.T, cfg spec.SchemaRegistry) *Client {
	t.Helper()
	c, err := New(cfg)
	need.OK(t, err)
	return c
}

func register(t *testing.T, f *fake, subject string, s sr.Schema) int {
	t.Helper()
	id, _, err := f.RegisterSchema(subject, s)
	need.OK(t, err)
	return id
}

func TestSchemaByVersionAndByID(t *testing.T) {
	f := newFake(t)
	c := open(t, spec.SchemaRegistry{URL: f.URL() + "/"})
	first := register(t, f, "shop/orders value", sr.Schema{Schema: text, Type: sr.TypeJSON})
	second := register(t, f, "shop/orders value", sr.Schema{Schema: `{"type":"object","title":"b"}`, Type: sr.TypeJSON})
	for version, id := range map[int]int{0: second, 1: first, 2: second} {
		if got, err := c.Schema(t.Context(), "shop/orders value", version); err != nil || got.ID != id || got.Type != JSON {
			t.Errorf("version %d: %+v, %v; want id %d", version, got, err, id)
		}
	}
	want := Schema{ID: first, Type: JSON, Text: text}
	if got, err := c.SchemaByID(t.Context(), first); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("id %d: %+v, %v", first, got, err)
	}
}

// The references form a diamond.
func TestReferencesListedOnceInOrderOfDependency(t *testing.T) {
	f := newFake(t)
	ref := func(name string) sr.SchemaReference { return sr.SchemaReference{Name: name, Subject: name, Version: 1} }
	text := func(name string) string { return `{"type":"record","name":"` + name + `","fields":[]}` }
	register(t, f, "d", sr.Schema{Schema: text("d")})
	register(t, f, "b", sr.Schema{Schema: text("b"), References: []sr.SchemaReference{ref("d")}})
	register(t, f, "c", sr.Schema{Schema: text("c"), References: []sr.SchemaReference{ref("d")}})
	register(t, f, "a", sr.Schema{Schema: text("a"), References: []sr.SchemaReference{ref("b"), ref("c")}})
	c := open(t, spec.SchemaRegistry{URL: f.URL()})
	got, err := c.Schema(t.Context(), "a", 0)
	if want := []Reference{{"d", text("d")}, {"b", text("b")}, {"c", text("c")}}; err != nil || got.Type != Avro || !reflect.DeepEqual(got.References, want) {
		t.Errorf("got  %+v, %v\nwant %v", got, err, want)
	}
}

// CONTRACT: C-32
func TestMissingSchemaIsNotFound(t *testing.T) {
	f := newFake(t)
	c := open(t, spec.SchemaRegistry{URL: f.URL()})
	c.pause = 0
	check := func(what string, err error) {
		t.Helper()
		need.That(t, errors.Is(err, ErrNotFound) && !dispatcher.IsUnavailable(err) && strings.Contains(err.Error(), "; register it there, or correct the name"), "%s: %v", what, err)
	}
	_, err := c.Schema(t.Context(), "orders", 0)
	check("a subject", err)
	_, err = c.SchemaByID(t.Context(), 77)
	check("an id", err)
	register(t, f, "orders", sr.Schema{Schema: text, Type: sr.TypeJSON})
	if _, err := c.Schema(t.Context(), "orders", 0); err != nil {
		t.Errorf("it was registered since: %v", err)
	}
	_, err = c.Schema(t.Context(), "orders", 2)
	check("a version", err)
	// A deleted subject is not found either.
	c.entries[lookup{subject: "orders"}].due = time.Time{}
	f.Reset()
	_, err = c.Schema(t.Context(), "orders", 0)
	check("a deleted subject", err)
}

// Subjects that events name, and that the registry does not have, are not kept for ever.
func TestLookupsAreBounded(t *testing.T) {
	f := newFake(t)
	c := open(t, spec.SchemaRegistry{URL: f.URL()})
	register(t, f, "orders", sr.Schema{Schema: text, Type: sr.TypeJSON})
	for i := range maxEntries + 100 {
		subject := fmt.Sprint("of an event ", i)
		if i == 0 {
			subject = "orders"
		}
		_, _ = c.Schema(t.Context(), subject, 0) // not found
	}
	if n := len(c.entries); n > maxEntries || c.entries[lookup{subject: "orders"}] == nil {
		t.Errorf("%d lookups are kept, want at most %d, and the one that has a schema", n, maxEntries)
	}
}

// The registry gets as few requests as possible.
func TestFixedVersionsFetchedOnceAndLatestAfterRefresh(t *testing.T) {
	f := newFake(t)
	id := register(t, f, "orders", sr.Schema{Schema: text, Type: sr.TypeJSON})
	c := open(t, spec.SchemaRegistry{URL: f.URL()})
	need.That(t, c.refresh == 5*time.Minute && c.pause == 2*time.Second, "refresh %s, pause %s", c.refresh, c.pause)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for _, version := range []int{0, 1} {
				if _, err := c.Schema(t.Context(), "orders", version); err != nil {
					t.Error(err)
				}
			}
			if _, err := c.SchemaByID(t.Context(), id); err != nil {
				t.Error(err)
			}
			if _, err := c.Schema(t.Context(), "missing", 0); !errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	need.Want(t, 4, "%d requests for 4 lookups, want 4", f.requests.Load())
	// Only the latest is fetched again.
	newest := register(t, f, "orders", sr.Schema{Schema: `{"type":"array"}`, Type: sr.TypeJSON})
	if got, _ := c.Schema(t.Context(), "orders", 0); got.ID != id {
		t.Errorf("got id %d before the refresh", got.ID)
	}
	c.entries[lookup{subject: "orders"}].due = time.Time{}
	if got, _ := c.Schema(t.Context(), "orders", 0); got.ID != newest {
		t.Errorf("got id %d, want the newest %d", got.ID, newest)
	}
	for _, q := range []lookup{{subject: "orders", version: 1}, {id: id}} {
		if due := c.entries[q].due; time.Until(due) < 10*365*24*time.Hour {
			t.Errorf("%s is fetched again at %s, want never", q, due)
		}
	}
}

// All events that do not fit, of all deliveries that have begun, share a request.
//
// CONTRACT: C-32
func TestNewerFetchesOnceForAllThatWait(t *testing.T) {
	f := newFake(t)
	register(t, f, "orders", sr.Schema{Schema: text, Type: sr.TypeJSON})
	c := open(t, spec.SchemaRegistry{URL: f.URL()})
	c.StaleWait = time.Minute
	need.OK(t, need.Err(c.Schema(t.Context(), "orders", 0)))
	newest := register(t, f, "orders", sr.Schema{Schema: `{"type":"array"}`, Type: sr.TypeJSON})
	since := time.Now()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 10 {
				if got, unsure, err := c.Newer(t.Context(), "orders", since); got.ID != newest || unsure != nil || err != nil {
					t.Errorf("got id %d, %v, %v; want the newest %d, for sure", got.ID, unsure, err, newest)
				}
			}
		})
	}
	wg.Wait()
	need.Want(t, 2, "%d requests, want 2", f.requests.Load())
	began := time.Now()
	for range 4 { // of deliveries one after another
		if _, unsure, err := c.Newer(t.Context(), "orders", time.Now()); unsure != nil || err != nil {
			t.Error(unsure, err)
		}
	}
	n, most := f.requests.Load(), int32(time.Since(began)/spacing)+3
	need.That(t, n <= most, "%d requests, want %d at most: one every %v", n, most, spacing)
	f.broken(status(http.StatusServiceUnavailable))
	for range 10 {
		got, unsure, err := c.Newer(t.Context(), "orders", time.Now())
		need.That(t, got.ID == newest && err == nil, "got id %d, %v while the registry is unreachable; want the known %d", got.ID, err, newest)
		checkUnavailable(t, "not for sure", unsure, reason.Refusing, "status 503 Service Unavailable; check message.schemaRegistry.url")
	}
	if after := f.requests.Load(); after != n+1 {
		t.Errorf("%d requests more, want 1: a pause follows one that failed", after-n)
	}
}

// A registry that takes long each time is waited for by an event that does not fit, or none would ever be final.
//
// CONTRACT: C-32
func TestNewerWaitsForASlowRegistry(t *testing.T) {
	f := newFake(t)
	register(t, f, "orders", sr.Schema{Schema: text, Type: sr.TypeJSON})
	c := open(t, spec.SchemaRegistry{URL: f.URL()})
	c.StaleWait = 0
	need.OK(t, need.Err(c.Schema(t.Context(), "orders", 0)))
	newest := register(t, f, "orders", sr.Schema{Schema: `{"type":"array"}`, Type: sr.TypeJSON})
	c.entries[lookup{subject: "orders"}].took *= 10_000 // seconds
	if got, unsure, err := c.Newer(t.Context(), "orders", time.Now()); got.ID != newest || unsure != nil || err != nil {
		t.Errorf("got id %d, %v, %v; want the newest %d, for sure", got.ID, unsure, err, newest)
	}
}

// CONTRACT: C-32
func TestKnownSchemaUsedWhileRegistryUnreachable(t *testing.T) {
	f := newFake(t)
	id := register(t, f, "orders", sr.Schema{Schema: text, Type: sr.TypeJSON})
	c := open(t, spec.SchemaRegistry{URL: f.URL()})
	c.pause, c.refresh = 0, 0
	need.OK(t, need.Err(c.Schema(t.Context(), "orders", 0)))
	f.broken(status(http.StatusServiceUnavailable))
	if got, err := c.Schema(t.Context(), "orders", 0); err != nil || got.ID != id {
		t.Errorf("got %+v, %v while the registry is unreachable, want the known schema %d", got, err, id)
	}
	_, err := c.Schema(t.Context(), "other", 0)
	checkUnavailable(t, "never known", err, reason.Refusing, "status 503 Service Unavailable; check message.schemaRegistry.url")
	f.broken(nil)
	if _, err := c.Schema(t.Context(), "other", 0); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v after the registry recovered, want ErrNotFound", err)
	}
	f.broken(status(http.StatusNotFound)) // a proxy's
	if got, err := c.Schema(t.Context(), "orders", 0); err != nil || got.ID != id {
		t.Errorf("a 404 that is not the registry's: %+v, %v", got, err)
	}
}

// checkUnavailable checks an error that is not the event's.
func checkUnavailable(t *testing.T, what string, err error, word, text string) {
	t.Helper()
	switch {
	case !dispatcher.IsUnavailable(err) || errors.Is(err, ErrNotFound) || errors.Is(err, context.Canceled):
		t.Errorf("%s: want Unavailable, got %v", what, err)
	case reason.Of(err) != word:
		t.Errorf("%s: the reason is %s, want %s: %v", what, reason.Of(err), word, err)
	case !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), secret):
		t.Errorf("%s: the error does not say %q, or holds a secret: %v", what, text, err)
	}
}

// A silent registry blocks no caller for whom the schema is known, and no caller whose context ends.
func TestSilentRegistryDoesNotBlockCallers(t *testing.T) {
	f := newFake(t)
	id := register(t, f, "orders", sr.Schema{Schema: text, Type: sr.TypeJSON})
	c := open(t, spec.SchemaRegistry{URL: f.URL()})
	c.refresh = 0
	need.OK(t, need.Err(c.Schema(t.Context(), "orders", 0)))
	waiting, release := make(chan struct{}, 9), make(chan struct{})
	defer close(release)
	f.broken(func(http.ResponseWriter, *http.Request) { waiting <- struct{}{}; <-release })
	for range 3 {
		if got, err := c.Schema(t.Context(), "orders", 0); err != nil || got.ID != id {
			t.Errorf("a known schema: %+v, %v", got, err)
		}
		c.mu.Lock()
		if c.entries[lookup{subject: "orders"}].fetching == nil {
			t.Error("the caller waited for the registry")
		}
		c.mu.Unlock()
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	<-waiting
	go func() { _, err := c.Schema(ctx, "other", 0); result <- err }()
	<-waiting
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) || dispatcher.IsUnavailable(err) {
		t.Errorf("got %v for a caller that was cancelled, want context.Canceled", err)
	}
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	need.OK(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// CONTRACT: C-73
func TestCredentialsReadForEachRequest(t *testing.T) {
	dir := t.TempDir()
	user, password, token := filepath.Join(dir, "user"), filepath.Join(dir, "password"), filepath.Join(dir, "token")
	for name, test := range map[string]struct {
		auth   *spec.Auth
		header string
		rotate string
	}{
		"basic":  {&spec.Auth{Type: spec.AuthBasic, UsernameFile: user, SecretFile: password}, "Basic " + base64.StdEncoding.EncodeToString([]byte("alice:right")), password},
		"bearer": {&spec.Auth{Type: spec.AuthToken, SecretFile: token}, "Bearer right", token},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, srfake.WithAuth(test.header))
			register(t, f, "orders", sr.Schema{Schema: text, Type: sr.TypeJSON})
			c := open(t, spec.SchemaRegistry{URL: f.URL(), Auth: test.auth})
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
	need.OK(t, err)
	gone.Close()
	dir := t.TempDir()
	trust := func(a *sinktest.Authority) *spec.TLS {
		return &spec.TLS{CAFile: write(t, filepath.Join(dir, a.Cert.Subject.CommonName), a.PEM)}
	}
	show := trust(ca)
	show.ClientCertFile, show.ClientKeyFile = write(t, filepath.Join(dir, "crt"), own.CertPEM), write(t, filepath.Join(dir, "key"), own.KeyPEM)
	for name, test := range map[string]struct {
		url        string
		tls        *spec.TLS
		word, text string // "" means no error
	}{
		"TLS":                  {good, trust(ca), "", ""},
		"other authority":      {good, trust(other), reason.CertificateInvalid, "; set message.schemaRegistry.tls.caSecretRef or caConfigMapRef"},
		"the system's roots":   {good, nil, reason.CertificateInvalid, "; set message.schemaRegistry.tls.ca"},
		"expired":              {expired, trust(ca), reason.CertificateInvalid, "expired"},
		"mutual":               {mutual, show, "", ""},
		"mutual, none":         {mutual, trust(ca), reason.CertificateInvalid, "; the registry does not accept the client certificate: set message.schemaRegistry.tls.clientCertSecretRef"},
		"missing file":         {good, &spec.TLS{CAFile: dir + "/missing"}, reason.CertificateInvalid, "; make the file, or correct its path"},
		"gone":                 {"http://" + gone.Addr().String(), nil, reason.ConnectionFailed, "; check that it runs"},
		"no such host":         {"http://registry.invalid", nil, reason.ConnectionFailed, "; check the hosts in message.schemaRegistry.url, and the dispatcher's DNS"},
		"something else there": {page.URL, nil, reason.Refusing, "the response is not a registry's"},
	} {
		t.Run(name, func(t *testing.T) {
			c := open(t, spec.SchemaRegistry{URL: test.url, TLS: test.tls})
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
